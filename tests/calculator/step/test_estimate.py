"""What holds for every estimate: parts add up, nothing is negative, more work never takes less, refusals are words."""

import dataclasses

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from calculator import PRESETS, Architecture, BadSetup, Setup, estimate
from calculator.parts.optimizers import OPTIMIZERS
from calculator.step.setups import OPTIMIZERS_OF_MATRICES, PRECISIONS, setup_from
from calculator.step.timeline import Options, play

SMALL = ["bert-base", "t5-small", "gpt2", "gpt-j-6b", "dalle-2021"]


@st.composite
def setups(draw):
    """Any setup that can exist, of small models."""
    model = draw(st.sampled_from(SMALL))
    architecture = PRESETS[model]
    fixed = architecture.family == "text-to-image"
    # GaLore, APOLLO and Muon are counted for other families (test_low_rank.py, test_muon.py).
    optimizer = draw(st.sampled_from([name for name in OPTIMIZERS if name not in OPTIMIZERS_OF_MATRICES]))
    reversible = draw(st.booleans()) if fixed else None
    return Setup(
        model=model,
        micro_batch_size=draw(st.integers(1, 4)),
        sequence_length=None if fixed else draw(st.integers(1, 300)),
        target_length=draw(st.integers(1, 300)) if architecture.num_decoder_layers else None,
        precision=draw(st.sampled_from(PRECISIONS)),
        attention=draw(st.sampled_from(["eager", "sdpa"])),
        dropout=draw(st.sampled_from([None, 0.0, 0.2])),
        checkpointing=False if reversible else draw(st.sampled_from([False, True])),
        shared_groups=draw(st.sampled_from([None, 1, 3])),
        reversible=reversible,
        optimizer=optimizer,
        offload_optimizer=not optimizer.startswith("paged") and draw(st.booleans()),
        accumulation_steps=draw(st.integers(1, 2)),
    )


def _change(setup: Setup, **fields) -> Setup:
    return dataclasses.replace(setup, **fields)


@given(setups())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_parts_add_up_and_nothing_is_negative(setup):
    result = estimate(setup).as_dict()
    for group in ("gpu", "host", "overhead"):
        parts = dict(result[group])
        assert parts.pop("total") == sum(parts.values())
        assert all(part >= 0 for part in parts.values()), parts
    assert result["gpu"]["total"] == max(instant["bytes"] for instant in result["timeline"])
    assert sum(result["parameters_by_part"].values()) == result["parameters"]
    assert result["gpu"]["gradients"] <= result["gradient_bytes"]


@given(setups(), st.integers(1, 3), st.integers(1, 100))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_more_never_takes_less(setup, batch, tokens):
    before = estimate(setup)
    grown = [_change(setup, micro_batch_size=setup.micro_batch_size + batch)]
    if setup.sequence_length is not None:
        grown.append(_change(setup, sequence_length=setup.sequence_length + tokens))
    for larger in grown:
        after = estimate(larger)
        assert after.gpu.total >= before.gpu.total
        assert after.saved_activations >= before.saved_activations


@given(setups())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_techniques_never_take_more_on_the_gpu(setup):
    total = estimate(setup).gpu.total
    if not setup.offload_optimizer and not setup.optimizer.startswith("paged"):
        assert estimate(_change(setup, offload_optimizer=True)).gpu.total <= total
    if setup.shared_groups is None and PRESETS[setup.model].shared_groups == 0:
        assert estimate(_change(setup, shared_groups=2)).gpu.total <= total
    eight_bit = {"adamw": "adamw8bit", "lamb": "lamb8bit", "lion": "lion8bit"}.get(setup.optimizer)
    if eight_bit and setup.precision not in ("bf16", "fp16"):
        assert estimate(_change(setup, optimizer=eight_bit)).gpu.total <= total


@given(setups())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_checkpointing_never_takes_more_on_the_gpu(setup):
    if setup.checkpointing:
        return
    reversible = False if PRESETS[setup.model].family == "text-to-image" else None
    kept, again = (
        estimate(_change(setup, reversible=reversible, checkpointing=checkpointing)) for checkpointing in (False, True)
    )
    made = 0
    if setup.model == "t5-small":
        # transformers makes the zeros that cross-attention adds need a gradient: both stay (T5Attention.forward)
        itemsize = 4 if setup.precision in ("fp32", "amp-bf16", "amp-fp16") else 2
        made = 2 * (8 * setup.target_length * setup.sequence_length * itemsize + 512)
    assert again.gpu.total <= kept.gpu.total + made
    assert again.saved_activations <= kept.saved_activations + made


SIZES = {
    "gpt2": {"width": "n_embd", "depth": "n_layer", "inner": "n_inner", "vocabulary": "vocab_size", "heads": "n_head"},
    "bert": {
        "width": "hidden_size", "depth": "num_hidden_layers", "inner": "intermediate_size",
        "vocabulary": "vocab_size", "heads": "num_attention_heads",
    },
    "t5": {
        "width": "d_model", "depth": "num_layers", "inner": "d_ff", "vocabulary": "vocab_size", "heads": "num_heads",
    },
}  # fmt: skip


@given(
    st.sampled_from(list(SIZES)),
    st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(8, 600), st.integers(10, 3000), st.integers(1, 4)),
    st.sampled_from(["width", "depth", "inner", "vocabulary"]),
    st.integers(1, 5),
    st.sampled_from(PRECISIONS),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_larger_models_never_take_less(family, sizes, grown, by, precision, checkpointing):
    width, depth, inner, vocabulary, heads = sizes
    values = {"width": 8 * heads * width, "depth": depth, "inner": inner, "vocabulary": vocabulary, "heads": heads}
    more = {**values, grown: values[grown] + by * (8 * heads if grown == "width" else 1)}
    smaller, larger = (
        estimate(
            Setup(
                config={"model_type": family, **{SIZES[family][name]: value for name, value in chosen.items()}},
                sequence_length=64, target_length=48 if family == "t5" else None, precision=precision,
                checkpointing=checkpointing,
            )
        )
        for chosen in (values, more)
    )  # fmt: skip
    assert larger.gpu.total >= smaller.gpu.total
    assert larger.parameters > smaller.parameters
    assert larger.saved_activations >= smaller.saved_activations


@pytest.mark.parametrize(
    ("name", "number", "scales"),
    [
        ("adamw8bit", 2, 256),
        ("lamb8bit", 2, 256),
        ("lion8bit", 1, 256),
        ("lamb8bit-demo", 2, 4096),
        ("adamw8bit-host", 2, 4096),
    ],
)
def test_8bit_state_has_scales_a_smallest_tensor_and_32bit_embeddings_if_asked(name, number, scales):
    """Sizes that are multiples of all blocks, so that the rules can be written out without rounding."""
    config = {"model_type": "gpt2", "n_embd": 256, "n_layer": 1, "n_head": 4, "n_positions": 256, "vocab_size": 4096}
    smallest = 65_536 if scales == 4096 else 4096
    matrices = [4096 * 256, 256 * 256, 256 * 768, 256 * 256, 256 * 1024, 1024 * 256]
    vectors = [256, 256, 256, 256, 768, 256, 256, 256, 1024, 256]
    assert min(matrices) >= smallest > max(vectors)
    beside = {"lamb8bit": 512 * (len(matrices) + len(vectors))}.get(name, 0)
    in_8_bit = sum(number * (count + max(512, count // scales * 4)) for count in matrices)
    in_32_bit = sum(number * max(512, 4 * count) for count in vectors)
    maps = number * 1024
    setup = Setup(config=config, optimizer=name)
    assert estimate(setup).optimizer_state_bytes == in_8_bit + in_32_bit + beside + maps
    tables = matrices[:2]
    more = sum(number * (4 * count - count - max(512, count // scales * 4)) for count in tables)
    if name == "lamb8bit-demo":
        more += 2 * 512  # LAMB in 32 bit keeps the update's norm
    assert (
        estimate(_change(setup, embeddings_32bit=True)).optimizer_state_bytes
        == in_8_bit + in_32_bit + beside + maps + more
    )


@pytest.mark.parametrize(("delta_rule", "copies"), [(False, 2), (True, 3)])
def test_host_memory_of_the_hivemind_stack(delta_rule, copies):
    """32-bit parameters and gradients and the state, one more copy by the delta rule; gradients down, parameters up."""
    for name, per_parameter in (("lamb8bit-demo", 2.002), ("adamw", 8)):
        result = estimate(Setup(model="gpt2-xl", optimizer=name, offload_optimizer=True, delta_rule=delta_rule))
        expected = (4 * copies + per_parameter) * result.parameters
        assert result.host.total == pytest.approx(expected, rel=3e-3)
        assert result.optimizer_state_bytes == 0
        assert result.transfer.bytes_per_step == 2 * result.gradient_bytes
        assert result.transfer.seconds == pytest.approx(result.transfer.bytes_per_step / 15.75e9, rel=1e-3)


def test_accumulating_keeps_all_gradients_through_the_step():
    once, twice = (estimate(Setup(model="gpt2", accumulation_steps=steps)) for steps in (1, 2))
    assert all(instant.gradients == twice.gradient_bytes for instant in twice.timeline)
    assert once.gpu.total < twice.gpu.total <= once.gpu.total + once.gradient_bytes
    named = [sum(bool(instant.instant) for instant in result.timeline) for result in (once, twice)]
    assert named[0] == named[1] > 0, "the operations are named as without accumulation"
    assert ", at the " in twice.peak.instant


@st.composite
def plays(draw):
    """Small models and any course of their step."""
    name = draw(st.sampled_from(SMALL))
    layers = draw(st.integers(1, 7))
    architecture: Architecture = dataclasses.replace(
        PRESETS[name], num_layers=layers, num_decoder_layers=draw(st.integers(1, 7)) if name == "t5-small" else 0
    )
    autocast = draw(st.booleans())
    own = name == "dalle-2021"
    reversible = own and draw(st.booleans())
    options = Options(
        batch=draw(st.integers(1, 3)),
        length=architecture.sequence_length if own else 96,
        target_length=64,
        autocast=autocast,
        itemsize=4 if autocast else draw(st.sampled_from([2, 4])),
        half=draw(st.sampled_from(["bf16", "fp16"])),
        fused_attention=draw(st.booleans()),
        dropout=0.1,
        attention_dropout=0.1,
        checkpoint_every=0 if reversible else draw(st.integers(0, 3)),
        shared_groups=draw(st.sampled_from([0, 1, 2, 4])),
        reversible=reversible,
        accumulating=draw(st.booleans()),
    )
    return architecture, options


def _deep(name: str, layers: int, **changes) -> tuple[Architecture, Options]:
    architecture = dataclasses.replace(PRESETS[name], num_layers=layers)
    options = Options(
        batch=1, length=architecture.sequence_length, target_length=0, autocast=True, itemsize=4, half="bf16",
        fused_attention=True, dropout=0.1, attention_dropout=0.1, checkpoint_every=2, reversible=False,
        accumulating=False, **changes,
    )  # fmt: skip
    return architecture, options


@given(plays())
@example(_deep("gpt2", 13, shared_groups=3))  # a shared weight is used with and without checkpointing
@example(_deep("dalle-2021", 14, shared_groups=0))  # masks and checkpoints come round at different times
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_short_model_gives_what_every_layer_gives(case):
    architecture, options = case
    short, whole = play(architecture, options), play(architecture, dataclasses.replace(options, folded=False))
    for phase in ("forward", "backward"):
        highest = [
            max((instant.levels for instant in timeline.instants if instant.phase == phase), key=lambda top: top.live)
            for timeline in (short, whole)
        ]
        assert highest[0].live == highest[1].live
        assert highest[0].gradients == highest[1].gradients
    for end in ("after_forward", "after_backward"):
        assert getattr(short, end)._replace(instant="") == getattr(whole, end)._replace(instant="")


def test_a_whole_step_ends_with_all_gradients_and_nothing_else():
    for name in SMALL:
        architecture = PRESETS[name]
        result = estimate(Setup(model=name, precision="fp32", checkpointing=False))
        options = Options(
            batch=1, length=architecture.sequence_length, target_length=architecture.target_length, autocast=False,
            itemsize=4, half="", fused_attention=True, dropout=0.1, attention_dropout=0.1, checkpoint_every=0,
            shared_groups=architecture.shared_groups, reversible=architecture.reversible, accumulating=False,
        )  # fmt: skip
        after = play(architecture, options).after_backward
        assert after.gradients == result.gradient_bytes
        assert after.live - after.gradients <= 4096  # the loss
        assert after.activations == after.weight_copies == 0


RECIPE = {
    "model_type": "text-to-image", "hidden_size": 64, "num_layers": 2, "num_heads": 2, "head_dim": 32,
    "text_vocab_size": 64, "text_seq_len": 8, "image_grid": 4, "image_vocab_size": 32,
}  # fmt: skip

REFUSED = {
    "The nearest to the model": {"model": "gpt5"},
    "Give either model or config": {"model": "gpt2", "config": {"model_type": "gpt2"}},
    "Unknown key 'batch'": {"model": "gpt2", "batch": 3},
    "torch.compile is not counted": {"model": "gpt2", "compile": True},
    "FP8 is the field fp8": {"model": "gpt2", "float8": True},
    "fp8 is counted for Gemma, Llama, Mistral, Qwen, SmolLM and Phi; gpt2 is": {"model": "gpt2", "fp8": True},
    "fp8 stands beside the precision bf16 or amp-bf16, not fp32": {
        "model": "qwen3-0.6b",
        "precision": "fp32",
        "fp8": True,
    },
    "fp8 is not counted with LoRA, several GPUs and offload_activations": {
        "model": "qwen3-0.6b",
        "lora_rank": 8,
        "fp8": True,
    },
    "fp8 is not counted for layers that share weights": {"model": "qwen3-0.6b", "shared_groups": 4, "fp8": True},
    "This project's trainer, whose loss you chose, has no FP8": {
        "model": "qwen3-0.6b",
        "loss": "trainer",
        "fp8": True,
    },
    "FP8 multiplies matrices whose sides are multiples of 16, not feed_forward.gate.weight of 100 x 64": {
        "config": {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 100,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "vocab_size": 50,
        },
        "fp8": True,
    },
    "FP8 multiplies 16 tokens at a time, and micro_batch_size times sequence_length is 1001": {
        "model": "qwen3-0.6b",
        "sequence_length": 1001,
        "fp8": True,
    },
    "fp8 is true or false": {"model": "qwen3-0.6b", "fp8": 8},
    "offload_activations is counted for Llama": {"model": "gpt2", "offload_activations": True},
    "offload_activations is counted without checkpointing": {
        "model": "qwen3-0.6b",
        "offload_activations": True,
        "checkpointing": True,
    },
    "offload_activations is not counted with LoRA": {
        "model": "qwen3-0.6b",
        "offload_activations": True,
        "lora_rank": 8,
    },
    "Of Liger's kernels, the fused linear cross-entropy is counted": {"model": "gpt2", "use_liger_kernel": True},
    "Cut Cross-Entropy is not counted": {"model": "gpt2", "cut_cross_entropy": True},
    "Packing is the field packed": {"model": "gpt2", "packing": True},
    "packed is counted for Gemma, Llama, Mistral, Qwen, SmolLM, Phi and Mixtral; gpt2 is": {
        "model": "gpt2",
        "packed": True,
    },
    "No fused kernel reads heads of 12 values in 16 bits here": {
        "config": {
            "model_type": "mistral",
            "hidden_size": 48,
            "intermediate_size": 100,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "vocab_size": 100,
            "max_position_embeddings": 256,
            "sliding_window": 32,
        },
        "sequence_length": 64,
    },
    "packed is not counted with offload_activations": {
        "model": "qwen3-0.6b",
        "packed": True,
        "offload_activations": True,
    },
    "packed is true or false": {"model": "qwen3-0.6b", "packed": 1},
    "precision cannot be 'fp8'. FP8 is the field fp8: true for torchao's linear layers": {
        "model": "gpt2",
        "precision": "fp8",
    },
    "micro_batch_size is a whole number": {"model": "gpt2", "micro_batch_size": 0},
    "sequence_length is a whole number from 1 to 1024": {"model": "gpt2", "sequence_length": 1025},
    "sequence_length of dalle-2021 is fixed": {"model": "dalle-2021", "sequence_length": 100},
    "target_length is for models with an encoder and a decoder": {"model": "gpt2", "target_length": 5},
    "precision is one of": {"model": "gpt2", "precision": "int8"},
    "attention is one of": {"model": "gpt2", "attention": "flash"},
    "dropout is null or a number": {"model": "gpt2", "dropout": 1},
    "checkpointing is false, true, or k": {"model": "gpt2", "checkpointing": 13},
    "shared_groups is a whole number from 1 to 12": {"model": "gpt2", "shared_groups": 13},
    "Reversible layers exist for": {"model": "gpt2", "reversible": True},
    "Reversible layers keep no activations": {"model": "dalle-2021", "checkpointing": True},
    "optimizer is one of": {"model": "gpt2", "optimizer": "adam"},
    "optimizer_impl is for": {"model": "gpt2", "optimizer": "lion", "optimizer_impl": "fused"},
    "offload_optimizer is true or false": {"model": "gpt2", "offload_optimizer": 1},
    "delta_rule adds a copy": {"model": "gpt2", "delta_rule": True},
    "A paged optimizer": {"model": "gpt2", "optimizer": "paged-adamw8bit", "offload_optimizer": True},
    "model_type 'olmo' is not supported": {"config": {"model_type": "olmo"}},
    "is not divisible by its 7 heads": {"config": {"model_type": "gpt2", "n_head": 7}},
    "n_layer in config is a whole number": {"config": {"model_type": "gpt2", "n_layer": "many"}},
    "A setup is an object": [],
    "model_type ['gpt2'] is not supported": {"config": {"model_type": ["gpt2"]}},
    "feed_forward_proj in config is one of": {"config": {"model_type": "t5", "feed_forward_proj": {}}},
    "tie_word_embeddings in config is true or false": {"config": {"model_type": "gpt2", "tie_word_embeddings": "no"}},
    "tie_word_embeddings in config of a bert is only": {"config": {"model_type": "bert", "tie_word_embeddings": False}},
    "A sequence of one token has no next one": {"model": "gpt2", "sequence_length": 1, "lora_rank": 8},
    "attention_cycle is a list of": {"config": {**RECIPE, "attention_cycle": [["row"]]}},
    "last_attention is one of": {"config": {**RECIPE, "last_attention": ["conv"]}},
    "config has no hidden_size": {"config": {**RECIPE, "hidden_size": None}},
    "image_grid in config is a whole number from 1 to 512": {"config": {**RECIPE, "image_grid": 1_000_000}},
    "reversible in config is true or false": {"config": {**RECIPE, "reversible": 1}},
    "reversible is null, true or false": {"model": "dalle-2021", "reversible": 1},
}


@pytest.mark.parametrize("steps", [1, 3])
def test_activations_on_the_host_cross_the_bus_both_ways_in_each_micro_batch(steps):
    kept, moved = (
        estimate(Setup(model="qwen3-0.6b", sequence_length=4096, accumulation_steps=steps, offload_activations=offload))
        for offload in (False, True)
    )
    assert moved.transfer.bytes_per_step == 2 * steps * moved.host.activations == 2 * steps * moved.host.total > 0
    assert kept.transfer.bytes_per_step == kept.host.activations == moved.saved_activations == 0
    assert moved.gpu.total < kept.gpu.total and moved.host.activations > kept.saved_activations


@pytest.mark.parametrize(("begins", "values"), REFUSED.items())
def test_refusals_say_what_is_accepted(begins, values):
    with pytest.raises(BadSetup) as refusal:
        estimate(setup_from(values))
    message = str(refusal.value)
    assert begins in message
    assert message.endswith(".") and "\n" not in message


@given(
    st.dictionaries(
        st.sampled_from(list(Setup.__dataclass_fields__)),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    )
)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_garbage_gives_one_sentence_or_an_estimate(values):
    try:
        estimate(setup_from({"model": "gpt2", **values}))
    except BadSetup as refusal:
        assert str(refusal).endswith(".")
