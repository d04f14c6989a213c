"""Packs of samples: what their mask takes, and what a reader may type.

The steps of benchmarks/memory/steps/decoders.json were traced and are in test_reference_steps.py.
"""

from dataclasses import replace

import pytest

from calculator import Setup, estimate
from calculator.models.architectures import PRESETS
from tests.calculator.recorded_steps import assert_equal_when_traced_again, steps_of

QWEN = PRESETS["qwen3-0.6b"]
PACKS = Setup(model="qwen3-0.6b", sequence_length=4096, micro_batch_size=2, precision="bf16", packed=True)


def test_every_layer_keeps_the_mask_of_each_pack_as_numbers():
    plain = estimate(replace(PACKS, packed=False))
    packed = estimate(PACKS)
    mask = 2 * 4096**2
    more = packed.saved_activations - plain.saved_activations
    # Besides, keys and values are repeated for the query heads.
    assert more > 2 * QWEN.num_layers * mask
    assert any("flash-attn needs none" in note for note in packed.notes)
    assert not any("flash-attn" in note for note in plain.notes)


def test_checkpointing_keeps_one_mask_of_a_byte_for_each_pair_of_tokens():
    plain, packed = (estimate(replace(PACKS, packed=packed, checkpointing=True)) for packed in (False, True))
    more = packed.saved_activations - plain.saved_activations
    assert 2 * 4096**2 <= more < 2 * 4096**2 + 16 * 2 * 4096 * QWEN.head_dim


def test_separate_operations_have_a_mask_anyway():
    plain, packed = (estimate(replace(PACKS, packed=packed, attention="eager")) for packed in (False, True))
    assert plain.gpu.total < packed.gpu.total < 1.01 * plain.gpu.total
    assert not any("flash-attn" in note for note in packed.notes)


@pytest.mark.exhaustive
@pytest.mark.compiler
def test_recorded_steps_are_traced_again(tmp_path):
    """Packs, and steps without a mask whose query heads share keys: by flash attention, and in separate operations."""
    pytest.importorskip("torch")
    packs, others = steps_of("decoders", "packed"), steps_of("decoders", "decoders")
    flash, separate = others[29], others[3]
    for step, precision in ((flash, "bf16"), (separate, "fp32")):
        setup, config = step["setup"], step["setup"]["config"]
        assert (setup["attention"], setup["precision"]) == ("sdpa", precision)
        assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert_equal_when_traced_again([packs[2], flash, separate], tmp_path)
