"""Weights in 8 and 4 bits take the bytes that transformers and bitsandbytes allocate for them."""

import random

import pytest

from calculator import BadSetup
from calculator.choose.stored import stored_bytes
from calculator.models.architectures import PRESETS, from_config
from tests.calculator.generating import CASES, HYBRIDS, drawn_hybrid

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WIDTHS = {
    "intermediate_size",
    "moe_intermediate_size",
    "kv_lora_rank",
    "q_lora_rank",
    "shared_expert_intermediate_size",
}
"""Fields of a config that may have any value."""


def widened(values: dict, seed: int) -> dict:
    """The config with random sizes of more than one square of scales, which end within one."""
    draw = random.Random(seed)
    heads = values.get("num_attention_heads") or values["n_head"]
    wide = {name: draw.randint(130, 700) for name in values if name in WIDTHS}
    wide |= {name: heads * 2 * draw.randint(20, 80) for name in values if name in ("hidden_size", "n_embd")}
    return values | wide | ({"head_dim": 2 * draw.randint(8, 64)} if "head_dim" in values else {})


def blocks(tensors) -> int:
    """Bytes that the CUDA allocator takes for them."""
    return sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)


def in_fp8(config) -> int:
    """Bytes of the model as FineGrainedFP8Config stores it, biases in the type of the model as loading makes them."""
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = replace_with_fp8_linear(model, ["lm_head"], transformers.FineGrainedFP8Config())
    for name, tensor in model.named_parameters():
        if name.endswith(".bias"):
            tensor.data = tensor.data.to(torch.bfloat16)
    assert any(tensor.dtype == torch.float8_e4m3fn for tensor in model.parameters())
    return blocks([*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind != "gpt2"])
@pytest.mark.parametrize("seed", range(3))
def test_weights_in_8_bits_equal_those_of_transformers(kind, seed):
    config = transformers.AutoConfig.for_model(kind, **widened(CASES[kind], seed))
    assert stored_bytes(from_config(config.to_dict()), "fp8") == in_fp8(config)


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("seed", range(3))
def test_weights_in_8_bits_of_a_hybrid_model_equal_those_of_transformers(kind, seed):
    values = drawn_hybrid(kind, random.Random(seed))
    assert stored_bytes(from_config(values), "fp8") == in_fp8(transformers.AutoConfig.for_model(**values))


@pytest.mark.parametrize("kind", CASES)
def test_weights_in_4_bits_equal_those_of_bitsandbytes(kind, tmp_path):
    """Compares a model that transformers loads: all parameters and buffers, and what bitsandbytes keeps beside them."""
    pytest.importorskip("bitsandbytes")
    config = transformers.AutoConfig.for_model(kind, **widened(CASES[kind], seed=0))
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path,
        dtype=torch.bfloat16,
        quantization_config=transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
    )
    held = [*model.parameters(), *model.buffers()]
    states = [x.quant_state for x in model.parameters() if hasattr(x, "quant_state")]
    for state in states:
        held += [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]
    assert states
    assert stored_bytes(from_config(config.to_dict()), "nf4") == blocks(held)


def test_what_is_not_quantized_is_refused_in_a_sentence():
    with pytest.raises(BadSetup, match=r"gpt2 has no linear layers that fp8 quantizes; choose bf16 or nf4\."):
        stored_bytes(PRESETS["gpt2"], "fp8")
    with pytest.raises(BadSetup, match="weights is one of fp32, bf16, fp16, fp8, nf4, mxfp4, not 'int3'"):
        stored_bytes(PRESETS["gpt2"], "int3")
