"""Products in FP8: what a cast takes, on which GPUs it runs, and what a reader may type.

The steps of `benchmarks/memory/steps/decoders.json` were traced and are in test_reference_steps.py.
"""

from dataclasses import replace

import pytest

from calculator import Setup, estimate
from calculator.choose.devices import DEVICES
from calculator.choose.fit import answer, verdict
from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS
from calculator.parts.parameters import odd_matrix

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
    presets = [model for model in PRESETS.values() if family_of(model).fp8]
    assert len(presets) > 15
    assert [model.name for model in presets if odd_matrix(model)] == []


@pytest.mark.parametrize(
    ("device", "has"), [("h100-80gb", True), ("rtx-4090", True), ("a10", False), ("apple-64gb", False)]
)
def test_a_gpu_without_units_for_fp8_is_named(device, has):
    notes = verdict(LLAMA, DEVICES[device]).notes
    assert any("has no units for FP8" in note for note in notes) != has


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
