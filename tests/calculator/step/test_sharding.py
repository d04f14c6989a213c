"""Several GPUs: what each holds under DDP, ZeRO and FSDP2, as traced steps of torch.distributed show it.

They are in benchmarks/memory/steps/several_gpus.json, drawn at random after the rules were written;
redrawn_several_gpus.json holds steps of all these kinds, drawn anew with one seed.
"""

import dataclasses
import random
import re

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.devices import device_named
from calculator.choose.fit import advice, need_bytes
from calculator.step.setups import setup_from
from tests.calculator.recorded_steps import steps_of

STEPS = steps_of("several_gpus", "several-gpus")
DIVIDED_LIGER = steps_of("several_gpus", "several-gpus-liger")
ADAPTERS = steps_of("several_gpus", "several-gpus-lora", "several-gpus-encoders-lora")
DEEPSEEK = steps_of("several_gpus", "several-gpus-deepseek")
T5 = steps_of("several_gpus", "several-gpus-t5")
TOGETHER = steps_of("several_gpus", "tensor-parallel")
REDRAWN = steps_of("redrawn_several_gpus")
LLAMA = Setup(model="llama-3.2-1b", sequence_length=1024, gpus=4)


def _name(step):
    values = dict(step["setup"])
    return " ".join([values.pop("config")["model_type"], *map(str, values.values())])


@pytest.mark.parametrize("step", STEPS + DIVIDED_LIGER, ids=_name)
def test_step(step):
    result = estimate(setup_from(step["setup"]))
    assert result.parameters == result.trained_parameters == step["parameters"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.gradient_bytes == pytest.approx(step["gradient_bytes"], abs=1024)
    assert result.gpu.total == pytest.approx(step["peak"], rel=0.001)


@pytest.mark.parametrize("step", DEEPSEEK, ids=_name)
def test_step_of_deepseek(step):
    result = estimate(setup_from(step["setup"]))
    assert result.parameters == step["parameters"]
    assert (result.trained_parameters < result.parameters) == ("lora_rank" in step["setup"])
    assert result.gradient_bytes == step["gradient_bytes"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.gpu.total == pytest.approx(step["peak"], rel=0.001)


@pytest.mark.parametrize("step", T5, ids=_name)
def test_step_with_two_stacks(step):
    result = estimate(setup_from(step["setup"]))
    assert result.parameters == step["parameters"]
    assert result.gradient_bytes == step["gradient_bytes"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.gpu.total == pytest.approx(step["peak"], rel=0.005)


@pytest.mark.parametrize("step", ADAPTERS, ids=_name)
def test_step_with_adapters(step):
    result = estimate(setup_from(step["setup"]))
    assert result.trained_parameters < result.parameters == step["parameters"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.gradient_bytes == step["gradient_bytes"]
    off = 0.03 if step["setup"]["config"]["model_type"] == "t5" else 0.001
    assert result.gpu.total == pytest.approx(step["peak"], rel=off)


@pytest.mark.parametrize(
    "off, step",
    [*((0.03, step) for step in TOGETHER), *((0.005, step) for step in REDRAWN)],
    ids=lambda value: _name(value) if isinstance(value, dict) else "",
)
def test_step_of_tensor_parallelism_or_drawn_anew(off, step):
    result = estimate(setup_from(step["setup"]))
    assert result.parameters == step["parameters"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.gpu.total == pytest.approx(step["peak"], rel=off)


@pytest.mark.parametrize(
    "steps",
    [STEPS, DIVIDED_LIGER, ADAPTERS, T5, REDRAWN],
    ids=["whole loss", "loss in pieces", "with adapters", "two stacks", "drawn anew"],
)
def test_half_of_all_peaks_are_right_to_the_byte(steps):
    differences = sorted(abs(estimate(setup_from(step["setup"])).gpu.total - step["peak"]) for step in steps)
    assert differences[(len(differences) - 1) // 2] == 0


@pytest.mark.parametrize("sharding", ["none", "zero-1", "zero-2", "zero-3"])
def test_a_step_that_is_traced_now_is_predicted(sharding):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.memory.tracing import draws, several_gpus

    setup = dataclasses.replace(
        draws.several_gpus(random.Random(7)), sharding=sharding, precision="fp32", gpus=3,
        config={"model_type": "llama", "vocab_size": 301, "hidden_size": 32, "intermediate_size": 65,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8},
    )  # fmt: skip
    step = several_gpus.trace(setup)
    assert estimate(setup).gpu.total == pytest.approx(step["peak"], abs=1024)
    assert estimate(setup).optimizer_state_bytes == step["optimizer_state_bytes"]


def test_each_sharding_divides_what_it_says():
    none, one, two, three = (
        estimate(dataclasses.replace(LLAMA, sharding=sharding)) for sharding in ("none", "zero-1", "zero-2", "zero-3")
    )
    assert one.optimizer_state_bytes < none.optimizer_state_bytes / 3 and one.gradient_bytes == none.gradient_bytes
    assert two.gradient_bytes == pytest.approx(none.gradient_bytes / 4, rel=0.01)
    assert none.gpu.total > one.gpu.total > two.gpu.total > three.gpu.total
    assert none.parameters == two.parameters == two.trained_parameters


def test_without_sharding_buckets_are_all_that_several_gpus_add():
    alone = estimate(dataclasses.replace(LLAMA, gpus=1))
    assert estimate(LLAMA).gpu.total - alone.gpu.total == pytest.approx(4 * alone.parameters, abs=512)


def test_more_gpus_never_take_more_each():
    totals = [
        estimate(dataclasses.replace(LLAMA, gpus=gpus, sharding="zero-3", checkpointing=True)).gpu.total
        for gpus in (2, 4, 8, 64, 1024)
    ]
    assert totals == sorted(totals, reverse=True)


def test_parts_add_up_at_every_instant():
    for sharding in ("none", "zero-1", "zero-2", "zero-3"):
        for steps in (1, 2):
            result = estimate(dataclasses.replace(LLAMA, sharding=sharding, accumulation_steps=steps))
            for instant in result.timeline:
                parts = instant[4:]
                assert sum(parts) == instant.bytes and min(parts) >= 0, instant
            assert result.gpu.total == max(instant.bytes for instant in result.timeline)


REFUSED = {
    "divides memory among several GPUs; give gpus 2 or more": {"sharding": "zero-3", "gpus": 1},
    "gpus is a whole number from 1": {"gpus": 0},
    "sharding is one of none, zero-1, zero-2, zero-3, tensor, tensor-sequence": {"sharding": "fsdp"},
    "works on its GPU; omit offload_optimizer": {"sharding": "zero-1", "offload_optimizer": True},
    "FSDP2 loses what bitsandbytes needs to read 4-bit weights": {
        "sharding": "zero-2", "lora_rank": 8, "base_bits": 4},
    "FSDP2 casts adapters of 32 bits itself": {"sharding": "zero-3", "lora_rank": 8, "adapter_bits": 16},
    "divides Llama, which has no adapters; omit lora_rank": {"sharding": "tensor", "lora_rank": 8},
    "Sharding is counted with the optimizers adamw and sgd, not adamw8bit; choose one of these, or sharding none": {
        "sharding": "zero-3", "optimizer": "adamw8bit"
    },
    "FSDP2 refuses layers that share weights": {"sharding": "zero-3", "shared_groups": 2},
    "FSDP2 refuses layers that share": {"sharding": "zero-2", "model": "dalle-2021", "sequence_length": None},
    "8 GPUs cannot divide 12 heads evenly": {"sharding": "tensor", "gpus": 8, "model": None, "config": {
        "model_type": "llama", "hidden_size": 768, "num_attention_heads": 12}},
    "64 GPUs cannot divide 32 heads evenly": {"sharding": "tensor", "gpus": 64},
    "16 GPUs cannot divide 8 heads of keys evenly": {"sharding": "tensor", "gpus": 16},
    "4 GPUs cannot divide 1023 tokens of a sequence evenly": {"sharding": "tensor-sequence", "sequence_length": 1023},
    "Tensor parallelism is counted for Llama": {"sharding": "tensor", "model": "gpt2"},
    "Tensor parallelism is not counted for layers that share": {"sharding": "tensor", "shared_groups": 2},
    "Tensor parallelism is counted without autocast": {"sharding": "tensor"},
    "Tensor parallelism is counted without accumulation": {
        "sharding": "tensor", "precision": "bf16", "accumulation_steps": 2},
    "Tensor parallelism is counted with the optimizer adamw, not sgd": {
        "sharding": "tensor", "precision": "bf16", "optimizer": "sgd"},
    "not counted where head and embedding share a matrix, as in llama-3.2-1b": {
        "sharding": "tensor", "precision": "bf16"},
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "values"), REFUSED.items())
def test_what_is_not_counted_is_refused_in_a_sentence(sentence, values):
    with pytest.raises(BadSetup) as refused:
        estimate(dataclasses.replace(LLAMA, **values))
    assert sentence in str(refused.value)
    assert str(refused.value).endswith(".")


def test_sharding_is_advised_only_among_several_gpus():
    device = device_named("rtx-4090")
    setup = dataclasses.replace(LLAMA, model="llama-3.2-3b")
    several = [s["changes"].get("sharding") for s in advice(setup, device)["suggestions"]]
    alone = advice(dataclasses.replace(setup, gpus=1), device)["suggestions"]
    assert any(several)
    assert alone and not any("sharding" in s["changes"] for s in alone)


def test_a_model_that_fits_no_gpu_is_said_to_fit_several():
    device = device_named("t4")
    setup = Setup(model="t5-11b", optimizer="adamw8bit")
    found = advice(setup, device)
    assert not found["suggestions"]
    several = re.search(
        r"Divided among (\d+) of the Tesla T4 \(Colab\), it fits \(FSDP2, ZeRO-3, with checkpointing and fused AdamW\)",
        found["sentence"],
    )
    divided = Setup(
        model="t5-11b", optimizer_impl="fused", checkpointing=True, sharding="zero-3", gpus=int(several.group(1))
    )
    assert need_bytes(divided, device) <= device.usable_bytes
    assert need_bytes(dataclasses.replace(divided, gpus=divided.gpus // 2), device) > device.usable_bytes


def test_more_than_64_gpus_are_advised():
    device = device_named("b200")
    found = advice(Setup(model="deepseek-v3", gpus=8, sharding="zero-3"), device)
    assert not found["suggestions"] and "Divided among 256 of the B200, it fits" in found["sentence"]
    fitting, fewer = (
        Setup(model="deepseek-v3", gpus=gpus, sharding="zero-3", checkpointing=True, optimizer_impl="fused")
        for gpus in (256, 128)
    )
    assert need_bytes(fitting, device) <= device.usable_bytes < need_bytes(fewer, device)


def test_experts_are_divided_by_expert():
    """FSDP2 divides by the first dimension, which for transformers' experts is their number: fewer shares than GPUs."""
    few, many = (
        estimate(Setup(model="mixtral-8x7b", sequence_length=128, gpus=gpus, sharding="zero-3")) for gpus in (8, 64)
    )
    assert many.gpu.total > few.gpu.total / 2
    assert any("as much as 64 experts" in note for note in many.notes)
    assert not any("experts take" in note or "as much as" in note for note in few.notes)
