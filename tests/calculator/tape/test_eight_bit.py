"""Products in FP8: what a cast takes, on which GPUs it runs, and what a reader may type.

The steps of `benchmarks/eight_bit_steps.json` were traced and are in test_reference_steps.py.
"""

from dataclasses import replace

import pytest

from calculator import Setup, estimate
from calculator.__main__ import main
from calculator.choose.devices import DEVICES
from calculator.choose.fit import advice, answer, verdict
from calculator.models.architectures import PRESETS
from calculator.page.search import said, understood
from calculator.parts.parameters import odd_matrix
from calculator.step.setups import FAMILIES_IN_FP8

LLAMA = Setup(model="llama-3.2-1b", sequence_length=2048, precision="bf16", fp8=True)


def test_a_layer_keeps_what_it_keeps_without_fp8():
    """Its operands in 8 bits are made anew in backward. Where a product is the peak, their casts are added to it."""
    large = replace(LLAMA, micro_batch_size=64, loss="liger", optimizer="sgd", checkpointing=True)
    plain, eighths = estimate(replace(large, fp8=False)), estimate(large)
    assert eighths.saved_activations == plain.saved_activations
    assert eighths.gpu.weights == plain.gpu.weights
    widest = 64 * 2048 * PRESETS["llama-3.2-1b"].intermediate_size
    assert 3 * widest < eighths.gpu.total - plain.gpu.total < 9 * widest
    assert any("without torch.compile" in note for note in eighths.notes)


def test_every_preset_of_the_families_can_be_in_fp8():
    presets = [model for model in PRESETS.values() if model.family in FAMILIES_IN_FP8]
    assert len(presets) > 15
    assert [model.name for model in presets if odd_matrix(model)] == []


@pytest.mark.parametrize(
    ("device", "has"), [("h100-80gb", True), ("rtx-4090", True), ("a10", False), ("apple-64gb", False)]
)
def test_a_gpu_without_units_for_fp8_is_named(device, has):
    notes = verdict(LLAMA, DEVICES[device]).notes
    assert any("has no units for FP8" in note for note in notes) != has


def test_the_advice_is_to_go_without_where_that_makes_it_fit():
    setup = replace(LLAMA, checkpointing=True, loss="liger", optimizer="sgd", micro_batch_size=32)
    assert verdict(setup, DEVICES["rtx-4090"]).standing == "tight"
    first = advice(setup, DEVICES["rtx-4090"])["suggestions"][0]
    assert first["changes"] == {"fp8": False} and first["verdict"]["standing"] == "fits"


def test_the_largest_setups_have_a_multiple_of_16_tokens():
    """`LLAMA` fits with other numbers too, which the kernels do not multiply."""
    judged = answer(LLAMA, DEVICES["rtx-4090"])
    assert judged["longest_sequence"] % 16 == 0 and judged["largest_micro_batch"] > 1
    plain = answer(replace(LLAMA, fp8=False), DEVICES["rtx-4090"])
    assert plain["longest_sequence"] % 16
    odd = replace(LLAMA, sequence_length=1026, micro_batch_size=8)
    judged = answer(odd, DEVICES["h100-80gb"])
    assert judged["largest_micro_batch"] % 8 == 0 and judged["largest_micro_batch"] > 8
    assert judged["longest_sequence"] % 2 == 0


@pytest.mark.parametrize("words", ["fp8", "FP-8 training", "float8", "torchao float8"])
def test_a_reader_may_ask_for_fp8(words):
    found = understood(f"llama 8b {words} h100")
    assert found["setup"]["fp8"] is True and not found["ignored"]
    assert "FP8" in said(found)


def test_the_command_line_says_which_flag_to_leave_out(capsys):
    flags = "llama-3.2-1b --fp8 --precision bf16 --checkpointing --loss liger --optimizer sgd --micro-batch-size 32"
    assert main([*flags.split(), "--sequence-length", "2048", "--gpu", "rtx-4090"]) == 0
    said = capsys.readouterr().out
    assert "1. With matrix products in 16 bits it needs" in said and "   without --fp8\n" in said
