"""What people ask first, each with the answer that the page gives them; the estimates behind them are traced steps."""

import dataclasses
import json

import pytest

from calculator import Setup, browser
from calculator.choose.devices import device_named
from calculator.choose.fit import need_bytes, suggestions, verdict
from calculator.choose.techniques import choices
from calculator.models.architectures import PRESETS
from calculator.units import show_bytes

BF16, FP16 = "weights and gradients in 16 bits (bf16)", "weights and gradients in 16 bits (fp16)"
HOST, EIGHT, AGAIN = "optimizer on the host", "8-bit optimizer state", "checkpointing"
PIECES, MOVED = "a loss in pieces", "activations on the host"
LORA, QLORA = "LoRA of rank 16", "QLoRA of rank 16 (a 4-bit model)"
QUESTIONS = {
    "T5-3B on a T4, its optimizer on the host": (
        Setup(model="t5-3b", precision="amp-fp16", offload_optimizer=True), "t4", [(FP16,)],
    ),
    "GPT-J on 24 GB, offloaded and checkpointed": (
        Setup(model="gpt-j-6b", offload_optimizer=True, checkpointing=True), "rtx-3090",
        [(LORA,), (BF16, "sequences of 1792 tokens")],
    ),
    "GPT-J on 24 GB": (
        Setup(model="gpt-j-6b"), "rtx-3090",
        [(AGAIN, LORA), ("checkpointing every 4th block", LORA, "sequences of 1024 tokens"),
         (LORA, "sequences of 512 tokens"),
         (BF16, "checkpointing every 2nd block", LORA, "sequences of 1536 tokens"),
         (BF16, HOST, "checkpointing every 2nd block", "sequences of 1792 tokens")],
    ),
    "Llama 3.1 8B on 16 GB": (Setup(model="llama-3.1-8b"), "cuda-16gb", [(AGAIN, QLORA)]),
    "Llama 3.1 8B on 32 GB": (
        Setup(model="llama-3.1-8b"), "rtx-5090",
        [(PIECES, QLORA), ("checkpointing every 4th block", QLORA), (AGAIN, LORA)],
    ),
    "Llama 3.1 70B on an H100": (Setup(model="llama-3.1-70b"), "h100-80gb", [(AGAIN, QLORA)]),
    "DeepSeek-V3 on an H200": (Setup(model="deepseek-v3"), "h200", []),
    "Llama 3.2 1B on 12 GB": (Setup(model="llama-3.2-1b"), "rtx-3060", [(PIECES, HOST, AGAIN), (BF16, PIECES, HOST)]),
    "Mistral 7B on 40 GB": (
        Setup(model="mistral-7b", optimizer="adamw8bit", checkpointing=True), "a100-40gb",
        [(BF16, HOST), (BF16, "Adafactor"), (BF16, "APOLLO-Mini"), (LORA,)],
    ),
    "Mistral 7B at 32 768 tokens on an H100": (
        Setup(model="mistral-7b", sequence_length=32_768), "h100-80gb", [(HOST, AGAIN), (EIGHT, MOVED)],
    ),
    "BERT-large, batch 32, on a T4": (
        Setup(model="bert-large", micro_batch_size=32), "t4", [("micro-batches of 8, accumulated over 4",)],
    ),
    "GPT-2 XL on 24 GB": (Setup(model="gpt2-xl"), "rtx-3090", [(EIGHT,), (HOST,), (BF16,)]),
    "the run's model, not reversible, on a T4": (
        Setup(model="dalle-2021", reversible=False, micro_batch_size=8), "t4",
        [("micro-batches of 2, accumulated over 4",)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_has_its_answer(question):
    setup, gpu, expected = QUESTIONS[question]
    device = device_named(gpu)
    assert not verdict(setup, device).fits
    found = suggestions(setup, device)
    assert [suggestion.techniques for suggestion in found][: len(expected)] == expected
    assert bool(found) == bool(expected)
    for suggestion in found:
        assert need_bytes(dataclasses.replace(setup, **suggestion.changes), device) <= device.usable_bytes


@pytest.mark.parametrize("model", [name for name, model in PRESETS.items() if model.released])
def test_nobody_is_advised_to_change_a_model_with_published_weights(model):
    for gpu in ("t4", "a100-80gb"):
        changes = [t.changes for choice in choices(Setup(model=model), device_named(gpu)) for t in choice if t]
        assert not any({"shared_groups", "reversible"} & set(changed) for changed in changes)


def test_sharing_is_advised_where_nothing_else_suffices_and_no_weights_are_published():
    found = suggestions(Setup(model="gpt3-2.7b"), device_named("rtx-2060"))
    assert found and all("shared_groups" in suggestion.changes for suggestion in found)
    assert all("another model" in suggestion.sentence for suggestion in found)


def test_what_changes_the_training_comes_after_what_does_not():
    found = suggestions(Setup(model="gpt2-xl"), device_named("rtx-3090"))
    kinds = [bool({"precision", "lora_rank"} & set(s.changes)) for s in found]
    assert kinds == sorted(kinds) and True in kinds and False in kinds


def test_activations_move_to_the_host_where_computing_them_again_is_not_enough():
    setup, device = Setup(model="llama-3.1-8b", sequence_length=65_536, precision="bf16"), device_named("h200")
    found = suggestions(setup, device)
    titles = [AGAIN in one.techniques for one in found if MOVED in one.techniques or AGAIN in one.techniques]
    assert titles[0] and not all(titles)
    moved = next(one for one in found if MOVED in one.techniques)
    # All activations go to the host and back, by PCI Express 3.0, which moves 16 GB a second.
    assert moved.seconds_per_update > 10 and "over the bus for each update" in moved.sentence
    assert moved.changes["offload_activations"] and not moved.extra_computation


@pytest.mark.parametrize("changes", [{"lora_rank": 8}, {"loss": "liger"}, {"model": "gpt2-xl"}, {"gpus": 2}], ids=str)
def test_activations_move_to_the_host_only_where_that_is_counted(changes):
    setup = Setup(**{"model": "llama-3.1-8b", "sharding": "zero-3" if "gpus" in changes else "none", **changes})
    titles = [one.title for choice in choices(setup, device_named("h200")) for one in choice if one]
    assert MOVED not in titles
    assert MOVED in [
        one.title for choice in choices(Setup(model="llama-3.1-8b"), device_named("h200")) for one in choice if one
    ]


@pytest.mark.parametrize("model", ["vit-large", "dalle-2021", "deepseek-v3"])
def test_adapters_are_advised_only_where_they_are_counted(model):
    changes = [t.changes for choice in choices(Setup(model=model), device_named("t4")) for t in choice if t]
    assert any("lora_rank" in changed for changed in changes) == (model != "dalle-2021")


def test_a_model_with_adapters_is_advised_fewer_bits():
    setup = Setup(model="llama-3.1-8b", lora_rank=8, sequence_length=2048)
    found = suggestions(setup, device_named("rtx-4090"))
    assert ("checkpointing", "frozen weights in 16 bits") in [s.techniques for s in found]
    assert {4} == {s.changes["base_bits"] for s in suggestions(setup, device_named("cuda-12gb"))}


def test_the_page_offers_the_changes_as_its_controls_hold_them():
    asked = {"setup": {"model": "gpt-j-6b", "offload_optimizer": True, "checkpointing": True}, "gpu": "rtx-3090"}
    first, last = json.loads(browser.advise(json.dumps(asked)))["choices"][:2]
    assert first["changes"] == {"lora_rank": "16", "base_bits": "16"}
    assert last["changes"] == {"precision": "bf16", "sequence_length": "1792"}
    setup = Setup(model="gpt-j-6b", offload_optimizer=True, checkpointing=True, precision="bf16", sequence_length=1792)
    assert last["memory"] == show_bytes(need_bytes(setup, device_named("rtx-3090")))


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_several_gpus_may_compute_each_sample_together(precision):
    setup = Setup(model="llama-3.1-8b", gpus=8, sequence_length=32_768, precision=precision)
    device = device_named("rtx-4090")
    first = suggestions(setup, device)[0]
    assert first.techniques == (AGAIN, "tensor and sequence parallelism") and "such as NVLink" in first.sentence
    changed = dataclasses.replace(setup, **first.changes)
    assert (changed.sharding, changed.precision) == ("tensor-sequence", "bf16")
    assert verdict(changed, device).fits
    assert ("round small updates away" in first.sentence) == (precision == "amp-bf16")
