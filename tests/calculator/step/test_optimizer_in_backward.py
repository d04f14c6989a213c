"""An optimizer that updates each parameter in backward: traced steps, what is counted of it, and what is refused.

benchmarks/memory/steps/in_backward.json has steps drawn at random, whose parameters update themselves by
`register_post_accumulate_grad_hook`; test_reference_steps.py compares them.
"""

import dataclasses

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.training_code import training_code

LLAMA = Setup(model="llama-2-7b", precision="bf16", checkpointing=True, sequence_length=2048)
LARGEST = 2 * 32_000 * 4096
"""Bytes of the largest gradient: that of the embeddings or the output head."""


@pytest.mark.parametrize("optimizer", ["adamw8bit", "paged-adamw8bit", "paged-adamw", "adafactor", "galore8bit"])
def test_gradients_are_the_largest_tensors(optimizer):
    after = dataclasses.replace(LLAMA, optimizer=optimizer)
    one, all_at_once = estimate(dataclasses.replace(after, optimizer_in_backward=True)), estimate(after)
    assert one.gradient_bytes == LARGEST
    assert max(instant.gradients for instant in one.timeline) <= LARGEST
    assert {instant.phase for instant in one.timeline} == {"forward", "backward"}
    assert all_at_once.gpu.total - one.gpu.total > 0.8 * all_at_once.gradient_bytes


def test_llama_in_bfloat16_with_a_paged_optimizer_takes_little_more_than_its_weights():
    result = estimate(dataclasses.replace(LLAMA, optimizer="paged-adamw8bit", optimizer_in_backward=True))
    assert result.gpu.weights < result.gpu.total < 1.15 * result.gpu.weights
    assert any("register_post_accumulate_grad_hook" in note for note in result.notes)


def test_each_parameter_has_its_own_maps_of_8_bits():
    after, during = (
        estimate(dataclasses.replace(LLAMA, optimizer="adamw8bit", optimizer_in_backward=chosen))
        for chosen in (False, True)
    )
    tensors = 32 * 9 + 3
    assert during.optimizer_state_bytes - after.optimizer_state_bytes == 2048 * (tensors - 1)


@pytest.mark.parametrize(
    ("sentence", "changes"),
    [
        ("choose accumulation_steps 1", {"accumulation_steps": 2}),
        ("each is searched for infinities", {"precision": "amp-fp16"}),
        ("on one GPU", {"gpus": 2}),
        ("on one GPU", {"offload_optimizer": True}),
        ("not counted with Muon", {"optimizer": "muon"}),
        ("optimizer_in_backward is true or false", {"optimizer_in_backward": 1}),
    ],
)
def test_what_needs_all_gradients_is_refused(sentence, changes):
    with pytest.raises(BadSetup, match=sentence):
        estimate(dataclasses.replace(LLAMA, **{"optimizer_in_backward": True, **changes}))


def test_trainer_updates_layer_by_layer():
    setup = dataclasses.replace(LLAMA, optimizer="galore8bit", optimizer_in_backward=True)
    assert 'optim="galore_adamw_8bit_layerwise"' in training_code(setup, "folder")
