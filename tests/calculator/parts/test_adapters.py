"""LoRA and QLoRA: adapters and quantized weights as the libraries make them, refusals, and what a public report says.

The steps of benchmarks/memory/steps/adapters.json were traced with peft and are in test_reference_steps.py. Here stand
the parts that real tensors on a CPU show.
"""

import dataclasses
import random

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS
from calculator.parts.adapters import Lora, modules_of, quantized_parts
from calculator.step.resolve import resolve
from calculator.step.timeline import Options, play

LLAMA = "llama-3.2-1b"
QLORA = Setup(model=LLAMA, lora_rank=16, base_bits=4, sequence_length=2048)


@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (300, 70), (257, 65), (1024, 513)])
def test_bytes_of_a_4_bit_weight_are_those_that_bitsandbytes_makes(shape):
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(torch.randn(shape), compress_statistics=True, quant_type="nf4")
    made = [packed, state.absmax, state.state2.absmax, state.offset, state.code, state.state2.code]
    assert len({tensor.data_ptr() for tensor in made}) == 6
    sizes = [(tensor.numel(), tensor.element_size()) for tensor in made]
    assert list(quantized_parts(shape[0] * shape[1])) == sizes


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen2.5-0.5b", "phi-3-mini", "gemma-2-2b", "gemma-3-1b"])
def test_modules_are_the_linear_ones_of_the_model_of_transformers(name):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    a = PRESETS[name]
    kinds = {"llama": "llama", "qwen2.5": "qwen2", "phi": "phi3", "gemma": "gemma3_text" if a.head_norms else "gemma2"}
    config = transformers.AutoConfig.for_model(
        kinds[name.split("-")[0]], num_hidden_layers=1, vocab_size=64, hidden_size=a.hidden_size, head_dim=a.head_dim,
        num_attention_heads=a.num_heads, num_key_value_heads=a.key_heads, intermediate_size=a.intermediate_size,
        pad_token_id=0,
    )  # fmt: skip
    with torch.device("meta"):
        layer = transformers.AutoModelForCausalLM.from_config(config).model.layers[0]
    linear = {path.split(".")[-1]: m for path, m in layer.named_modules() if isinstance(m, torch.nn.Linear)}
    assert list(modules_of(a)) == list(linear)
    trained = sum(7 * (m.in_features + m.out_features) for m in linear.values())
    assert estimate(Setup(model=name, lora_rank=7)).trained_parameters == trained * a.num_layers


DIFFUSERS = {
    "FluxTransformer2DModel": {
        "in_channels": 8, "num_layers": 2, "num_single_layers": 3, "attention_head_dim": 16, "num_attention_heads": 3,
        "joint_attention_dim": 24, "pooled_projection_dim": 20, "guidance_embeds": True, "axes_dims_rope": [4, 6, 6],
    },
    "SD3Transformer2DModel": {
        "sample_size": 8, "in_channels": 4, "out_channels": 4, "num_layers": 3, "attention_head_dim": 16,
        "num_attention_heads": 3, "joint_attention_dim": 24, "caption_projection_dim": 48, "pooled_projection_dim": 20,
        "pos_embed_max_size": 6, "dual_attention_layers": [0, 2], "qk_norm": "rms_norm",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSERS)
@pytest.mark.parametrize("targets", ["all-linear", "to_k,to_q,to_v,to_out.0", "attn.to_q", "proj_out", "ff.net.0.proj"])
def test_peft_adapts_the_same_modules_of_a_diffusion_transformer(name, targets):
    diffusers, peft = pytest.importorskip("diffusers"), pytest.importorskip("peft")
    model = getattr(diffusers, name)(**DIFFUSERS[name])
    named = targets if targets == "all-linear" else targets.split(",")
    model.requires_grad_(False)
    model.add_adapter(peft.LoraConfig(r=7, target_modules=named))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    config = {"_class_name": name, **DIFFUSERS[name]}
    assert estimate(Setup(config=config, lora_rank=7, lora_targets=targets)).trained_parameters == trained


ENCODERS = {
    "bert": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96
    },
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
    "gated t5": {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "feed_forward_proj": "gated-gelu"
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "name, targets",
    [
        *((name, "all-linear") for name in ENCODERS),
        ("bert", "query,value"),
        ("bert", "output.dense"),
        ("bert", "dense"),
        ("t5", "q,v"),
        ("t5", "EncDecAttention.o,wi"),
        ("gated t5", "SelfAttention.k,wi_1,wo"),
    ],
)
def test_peft_adapts_the_same_modules_of_bert_and_t5(name, targets):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    kind = name.split()[-1]
    maker = {"bert": "AutoModelForMaskedLM", "t5": "AutoModelForSeq2SeqLM"}[kind]
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(kind, **ENCODERS[name])
        model = getattr(transformers, maker).from_config(config)
        named = targets if targets == "all-linear" else targets.split(",")
        model.add_adapter(peft.LoraConfig(r=7, target_modules=named))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    setup = Setup(config={"model_type": kind, **ENCODERS[name]}, lora_rank=7, lora_targets=targets)
    assert estimate(setup).trained_parameters == trained


VIT = {
    "model_type": "vit", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "num_labels": 5,
}  # fmt: skip


@pytest.mark.parametrize("targets", ["all-linear", "q_proj,v_proj", "attention.q_proj,classifier", "fc1", "mlp.fc2"])
def test_peft_adapts_the_same_modules_of_vit(targets):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    values = {name: value for name, value in VIT.items() if name != "model_type"}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**values))
    named = targets if targets == "all-linear" else targets.split(",")
    model = peft.get_peft_model(model, peft.LoraConfig(r=7, target_modules=named))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    result = estimate(Setup(config=VIT, lora_rank=7, lora_targets=targets))
    assert result.trained_parameters == trained
    classifier = "is trained through its own adapter" if targets[:3] in ("all", "att") else "stays as it is"
    assert any(f"The classifier {classifier};" in note for note in result.notes)


DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "moe_intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 24, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip


@pytest.mark.parametrize("query_rank", [None, 24])
@pytest.mark.parametrize("some", [False, True])
def test_peft_adapts_the_same_modules_of_deepseeks_attention(query_rank, some):
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = DEEPSEEK | {"q_lora_rank": query_rank}
    names = list(modules_of(resolve(Setup(config=config))))[some:]
    with torch.device("meta"):
        model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**config))
        attention = model.model.layers[-1].self_attn.named_children()
        assert names == [name for name, module in attention if isinstance(module, torch.nn.Linear)][some:]
        model = peft.get_peft_model(model, peft.LoraConfig(r=7, target_modules=names))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    setup = Setup(config=config, lora_rank=7, lora_targets=",".join(names) if some else "all-linear")
    assert estimate(setup).trained_parameters == trained


def test_only_adapters_have_gradients_and_optimizer_state():
    full = estimate(Setup(model=LLAMA))
    lora = estimate(Setup(model=LLAMA, lora_rank=16))
    assert lora.parameters == full.parameters + lora.trained_parameters
    assert lora.parameters_by_part["adapters"] == lora.trained_parameters
    assert lora.gradient_bytes == 4 * lora.trained_parameters < full.gradient_bytes / 100
    assert lora.optimizer_state_bytes == 2 * lora.gradient_bytes


def test_a_frozen_a_takes_memory_and_has_neither_gradient_nor_state():
    both, b = (estimate(Setup(model=LLAMA, lora_rank=16, lora_freeze_a=freeze)) for freeze in (False, True))
    a = PRESETS[LLAMA]
    inner = 6 * a.hidden_size + a.intermediate_size  # of q, k, v, o, gate and up; of down
    assert a.num_heads * a.head_dim == a.hidden_size
    assert both.trained_parameters - b.trained_parameters == 16 * inner * a.num_layers
    assert b.parameters == both.parameters and b.parameters_by_part == both.parameters_by_part
    assert b.gradient_bytes == 4 * b.trained_parameters and b.optimizer_state_bytes == 2 * b.gradient_bytes
    assert b.gpu.weights == both.gpu.weights
    assert b.saved_activations < both.saved_activations


def test_a_frozen_layer_keeps_no_input():
    """With adapters on v_proj only, the inputs of the feed-forward's products are kept by no one."""
    length = {"sequence_length": 2048, "precision": "bf16"}
    one, all_layers = (
        estimate(Setup(model=LLAMA, lora_rank=16, lora_targets=targets, **length)).saved_activations
        for targets in ("v_proj", "all-linear")
    )
    full = estimate(Setup(model=LLAMA, **length)).saved_activations
    a = PRESETS[LLAMA]
    gated = 2 * 2048 * a.intermediate_size * a.num_layers  # the input of down_proj, in 16 bits
    assert one + gated <= all_layers
    assert full - one >= gated


@pytest.mark.parametrize("seed", range(48))
def test_a_short_model_gives_what_every_layer_gives(seed):
    """Layers that cost the same are played once; which do depends on the adapters too."""
    draw = random.Random(seed)
    model = draw.choice(
        ("qwen3-0.6b", "gemma-2-2b", "gemma-3-1b", "phi-3-mini", "bert-base", "t5-3b", "vit-base", "deepseek-v3")
    )
    a = dataclasses.replace(PRESETS[model], num_layers=draw.randint(1, 9))
    a = dataclasses.replace(a, num_decoder_layers=a.num_decoder_layers and draw.randint(1, 9))
    autocast = draw.random() < 0.5
    modules = [own for names in modules_of(a).values() for own in names]
    lora = Lora(
        rank=8, targets=frozenset(draw.sample(modules, draw.randint(1, len(modules)))), dropout=0.1,
        adapter_itemsize=2, base_bits=draw.choice((4, 16)) if family_of(a).in_4_bits else 16, rest_itemsize=2,
        freeze_a=draw.random() < 0.5,
    )  # fmt: skip
    options = Options(
        batch=2, length=96, target_length=64 if a.num_decoder_layers else 0, autocast=autocast, itemsize=2, half="bf16",
        dropout=0.1,
        fused_attention=draw.random() < 0.5, attention_dropout=0.1, checkpoint_every=draw.choice((0, 0, 1, 2, 3)),
        shared_groups=0, reversible=False, accumulating=draw.random() < 0.3, lora=lora,
    )  # fmt: skip
    short, whole = play(a, options), play(a, dataclasses.replace(options, folded=False))
    assert max(i.levels.live for i in short.instants) == max(i.levels.live for i in whole.instants)
    for end in ("after_forward", "after_backward"):
        assert getattr(short, end)._replace(instant="") == getattr(whole, end)._replace(instant="")


def test_fewer_bits_take_less():
    totals = [
        estimate(dataclasses.replace(QLORA, base_bits=bits, checkpointing=True)).gpu.total for bits in (32, 16, 4)
    ]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 3
    wide = estimate(dataclasses.replace(QLORA, rest_32bit=True)).gpu.weights - estimate(QLORA).gpu.weights
    assert wide == pytest.approx(2 * 128_256 * 2048, rel=0.01)  # the embedding, which is the head too


REFUSED = {
    "lora_rank is a whole number from 1": {"lora_rank": 0},
    "lora_targets is all-linear, or some of q_proj, k_proj, v_proj, o_proj, gate_proj": {
        "lora_rank": 8, "lora_targets": "q_proj,query"
    },
    "lora_targets is a text": {"lora_rank": 8, "lora_targets": ["q_proj"]},
    "lora_dropout is null or a number": {"lora_rank": 8, "lora_dropout": 1.5},
    "base_bits 8 is not counted: bitsandbytes keeps the columns of outliers": {"lora_rank": 8, "base_bits": 8},
    "base_bits is one of 4, 16, 32": {"lora_rank": 8, "base_bits": 2},
    "base_bits is a whole number": {"lora_rank": 8, "base_bits": 16.0},
    "adapter_bits is one of 16, 32": {"lora_rank": 8, "adapter_bits": 4},
    "base_bits is for LoRA; give lora_rank as well": {"base_bits": 4},
    "lora_targets is for LoRA": {"lora_targets": "q_proj"},
    "rest_32bit is for a model in 4 bits": {"lora_rank": 8, "rest_32bit": True},
    "lora_freeze_a is true or false": {"lora_rank": 8, "lora_freeze_a": 1},
    "lora_freeze_a is for LoRA": {"lora_freeze_a": True},
    "rest_32bit is true or false": {"lora_rank": 8, "base_bits": 4, "rest_32bit": 1},
    "precision fp32 needs base_bits 32": {"lora_rank": 8, "precision": "fp32", "base_bits": 4},
    "precision fp32 needs adapter_bits 32": {"lora_rank": 8, "precision": "fp32", "adapter_bits": 16},
    "precision bf16 makes everything 16-bit; choose base_bits": {"lora_rank": 8, "precision": "bf16", "base_bits": 32},
    "precision bf16 makes everything 16-bit; omit rest_32bit": {
        "lora_rank": 8, "precision": "bf16", "base_bits": 4, "rest_32bit": True
    },
    "LoRA trains a model as it is published": {"lora_rank": 8, "shared_groups": 2},
    "Qwen2-MoE, Flux, Stable Diffusion 3 and ViT; dalle-2021 is of another family, so omit lora_rank": {
        "lora_rank": 8, "model": "dalle-2021"
    },
    "QLoRA is not counted for flux-dev": {"lora_rank": 8, "model": "flux-dev", "base_bits": 4},
    "lora_targets is a text such as time_text_embed": {"lora_rank": 8, "model": "flux-dev", "lora_targets": 1},
    "context_embedder, x_embedder, norm1.linear": {"lora_rank": 8, "model": "flux-dev", "lora_targets": "q_proj"},
    "QLoRA is not counted for vit-base; choose LoRA with": {"lora_rank": 8, "model": "vit-base", "base_bits": 4},
    "attention.o_proj, mlp.fc1, mlp.fc2, classifier": {"lora_rank": 8, "model": "vit-base", "lora_targets": "query"},
    "q_a_proj, q_b_proj, kv_a_proj_with_mqa, kv_b_proj, o_proj": {
        "lora_rank": 8, "model": "deepseek-v3", "lora_targets": "q_proj"
    },
    "QLoRA is not counted for t5-3b; choose LoRA with": {"lora_rank": 8, "model": "t5-3b", "base_bits": 4},
    "SelfAttention.o, wi, wo, EncDecAttention.q, EncDecAttention.k": {
        "lora_rank": 8, "model": "t5-3b", "lora_targets": "wi_0"
    },
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "values"), REFUSED.items())
def test_what_is_not_counted_is_refused_in_a_sentence(sentence, values):
    with pytest.raises(BadSetup) as refused:
        estimate(Setup(**{"model": LLAMA, **values}))
    assert sentence in str(refused.value)
    assert str(refused.value).endswith(".")
