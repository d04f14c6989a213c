"""What holds for every estimate: parts add up, nothing is negative, more work never takes less, refusals are words."""

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calculator import PRESETS, Architecture, BadSetup, Setup, estimate
from calculator.estimate import PRECISIONS, setup_from
from calculator.optimizers import OPTIMIZERS
from calculator.timeline import Options, play

SMALL = ["bert-base", "t5-small", "gpt2", "gpt-j-6b", "dalle-2021"]


@st.composite
def setups(draw):
    """Any setup that can exist, of small models."""
    model = draw(st.sampled_from(SMALL))
    architecture = PRESETS[model]
    fixed = architecture.family == "text-to-image"
    optimizer = draw(st.sampled_from(list(OPTIMIZERS)))
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


@pytest.mark.parametrize("name", ["gpt2-large", "bert-large", "t5-base", "gpt-j-6b"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_checkpointing_saves_memory(name, precision):
    kept, again = (
        estimate(Setup(model=name, precision=precision, checkpointing=checkpointing, micro_batch_size=4))
        for checkpointing in (False, True)
    )
    assert again.gpu.total <= kept.gpu.total
    assert again.saved_activations < kept.saved_activations / 3


def test_wider_and_deeper_takes_more():
    config = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 1000}
    total = estimate(Setup(config=config)).gpu.total
    for key, value in {"n_embd": 320, "n_layer": 5, "n_positions": 129, "vocab_size": 1100}.items():
        assert estimate(Setup(config={**config, key: value})).gpu.total > total, key


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


@given(plays())
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
        assert dataclasses.replace(getattr(short, end), instant="") == dataclasses.replace(
            getattr(whole, end), instant=""
        )


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


REFUSED = {
    "model is one of": {"model": "gpt5"},
    "Give either model or config": {"model": "gpt2", "config": {"model_type": "gpt2"}},
    "Unknown key 'batch'": {"model": "gpt2", "batch": 3},
    "micro_batch_size is a whole number": {"model": "gpt2", "micro_batch_size": 0},
    "sequence_length is a whole number from 1 to 1024": {"model": "gpt2", "sequence_length": 1025},
    "sequence_length of dalle-2021 is fixed": {"model": "dalle-2021", "sequence_length": 100},
    "target_length is for models with a decoder": {"model": "gpt2", "target_length": 5},
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
    "delta_rule is a copy beside": {"model": "gpt2", "delta_rule": True},
    "A paged optimizer": {"model": "gpt2", "optimizer": "paged-adamw8bit", "offload_optimizer": True},
    "model_type 'llama' is not supported": {"config": {"model_type": "llama"}},
    "is not divisible by its 7 heads": {"config": {"model_type": "gpt2", "n_head": 7}},
    "n_layer in config is a whole number": {"config": {"model_type": "gpt2", "n_layer": "many"}},
    "A setup is an object": [],
}


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
