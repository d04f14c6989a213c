"""The figures of a step's memory: its course, the reader's own setup, and what several GPUs divide."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from calculator import browser
from calculator.figures import sharding, step
from calculator.figures.catalogue import FIGURES
from calculator.figures.kit.controls import read_values
from calculator.step.estimate import estimate
from calculator.step.resolve import plain
from calculator.step.setups import Setup
from calculator.units import show_bytes

SETUPS = [
    Setup(model="dalle-2021", optimizer="lamb8bit", precision="amp-fp16"),
    Setup(model="gpt2-large", micro_batch_size=8, checkpointing=2, optimizer="lion", precision="fp32"),
    Setup(model="llama-3.1-8b", lora_rank=16, base_bits=4, checkpointing=True, precision="bf16"),
    Setup(model="bert-large", offload_optimizer=True, delta_rule=True, shared_groups=3),
    Setup(model="t5-3b", attention="eager", optimizer="adafactor", accumulation_steps=4),
    Setup(model="gpt2-xl", gpus=8, sharding="zero-3", precision="bf16"),
    Setup(model="qwen3-0.6b", optimizer_in_backward=True, precision="fp16", sequence_length=256),
    Setup(config={"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4}, checkpointing=True),
]


def asked(texts: dict[str, str]) -> dict:
    return json.loads(browser.figure(json.dumps({"name": "step", "values": texts})))


def course_of(**texts: str) -> step.Course:
    return step.course_of(read_values(FIGURES["step"].controls, texts)[0])


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.model or "pasted")
def test_the_calculators_link_shows_the_readers_own_step(setup):
    """The curve's highest point is the estimate's peak, part by part, whatever the setup."""
    texts = {name.removeprefix("step."): value for name, value in step.address_of(setup).items()}
    answer, course = asked(texts), course_of(**texts)
    assert answer["note"] == "" and course.refused == ()
    assert course.chosen.gpu == estimate(setup).gpu and course.chosen.host == estimate(setup).host
    assert course.without.gpu == estimate(plain(setup)).gpu
    highest = max(course.chosen.timeline, key=lambda one: one.bytes)
    assert sum(getattr(highest, part) for part in step.PARTS) == highest.bytes == estimate(setup).gpu.total
    assert dict((row[0], row[2]) for row in answer["rows"])["Peak"] == show_bytes(estimate(setup).gpu.total)


def test_the_calculator_answers_with_the_link():
    setup = {"model": "gpt2-large", "checkpointing": True, "micro_batch_size": 3}
    answer = json.loads(browser.answer(json.dumps({"setup": setup, "gpu": ""})))
    assert json.loads(answer["curve"]["step.own"]) == setup
    assert answer["curve"]["step.checkpointing"] == "on" and answer["curve"]["step.precision"] == "mixed"


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.model or "pasted")
def test_with_all_switches_off_the_step_is_without_techniques(setup):
    """AdamW's place is taken by the reader's own optimizer, in 32 bits."""
    choices = dict.fromkeys(step.LABELS, "off") | {"precision": "fp32"}
    bare = step.switched(replace(setup, optimizer="adamw"), choices)
    if setup.gpus > 1 or setup.lora_rank or setup.optimizer_in_backward:
        assert bare.chosen.gpu.total <= bare.without.gpu.total  # techniques that have no switch stay on
    else:
        assert bare.chosen.gpu == bare.without.gpu


def test_a_technique_that_does_not_fit_the_others_is_left_out_with_the_calculators_reason():
    with_both, reversible = (course_of(reversible="on", checkpointing=one) for one in ("on", "off"))
    assert with_both.chosen.gpu == reversible.chosen.gpu
    (sentence,) = with_both.refused
    assert sentence.startswith(step.LABELS["checkpointing"])
    assert sentence in asked({"reversible": "on"})["caption"]


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"model": "none-such"}', '{"modell": "gpt2"}', '{"model": 7}', '{"micro_batch_size": 1}'),
        *(" " * 30_000, '{"config": {"model_type": "gpt2", "n_layer": 2000}}', '{"model": "gpt2", "config": {}}'),
    ],
)
def test_an_address_that_holds_no_setup_shows_a_listed_model_and_says_why(text):
    answer = asked({"own": text})
    assert answer["values"]["own"] == "" and answer["note"].startswith("Your setup: ")
    assert answer["drawing"] == asked({})["drawing"]


@pytest.mark.parametrize("model", [*step.MODELS, "sd3-medium", "mixtral-8x7b"])
def test_the_curve_runs_from_left_to_right_and_every_layer_counts(model):
    for checkpointing in (False, True):
        setup = Setup(model=model, checkpointing=checkpointing, reversible=False if model == "dalle-2021" else None)
        course = step.switched(setup, dict.fromkeys(step.LABELS, "off") | {"precision": "fp32"})
        instants = course.chosen.timeline
        at = step.places(instants, course.layers)
        assert at[0] == 0 and all(one <= other for one, other in pairwise(at)) and at[-1] <= 1
        spots = {(one.phase, one.place): spot for one, spot in zip(instants, at, strict=True)}
        pairs = [
            (spots["forward", f"layer {n}"], spots.get(("backward", f"layer {n}")))
            for n in range(1, course.layers["layer"] + 1)
            if ("forward", f"layer {n}") in spots
        ]
        # What runs late in forward runs early in backward.
        backward = [later for _, later in pairs if later is not None]
        assert backward == sorted(backward, reverse=True)


def test_a_layer_takes_equally_long_whether_the_estimate_names_each_or_one_of_a_run():
    """GPT-2's 36 equal layers have one instant in forward, the last one's, and one in backward."""
    course = course_of(model="gpt2-large", checkpointing="off", eight="off")
    at = step.places(course.chosen.timeline, course.layers)
    forward = [
        (one.place, spot) for one, spot in zip(course.chosen.timeline, at, strict=True) if one.phase == "forward"
    ]
    (place, spot), (_, end) = next(one for one in forward if one[0] == "layer 36"), forward[-1]
    after = len(forward) - forward.index((place, spot)) - 1
    assert spot == pytest.approx(end * 36 / (36 + after))


@pytest.mark.parametrize("gpus", [2, 8, 64])
@pytest.mark.parametrize("way", sharding.WAYS)
def test_sharded_memory_is_the_calculators(way, gpus):
    values = read_values(FIGURES["sharding"].controls, {"model": "gpt2-xl", "gpus": str(gpus)})[0]
    found = sharding.ways_of(values)[way]
    setup = Setup(model="gpt2-xl", gpus=gpus, sharding=way, precision="bf16", checkpointing=True)
    assert found.memory == estimate(setup).gpu
    # All-reduce: 2 (n - 1) / n of 2 bytes for each of GPT-2 XL's 1 557 611 200 released parameters.
    assert found.sent_bytes == pytest.approx(sharding.PASSES[way] * 2 * 1_557_611_200 * (gpus - 1) / gpus)


def test_dividing_more_takes_less_memory_and_never_fewer_messages():
    for model in sharding.MODELS:
        values = read_values(FIGURES["sharding"].controls, {"model": model})[0]
        sizes = [way.memory.total for way in sharding.ways_of(values).values()]
        assert sizes == sorted(sizes, reverse=True)
        assert (
            min(way.sent_bytes for way in sharding.ways_of(values).values())
            == sharding.ways_of(values)["none"].sent_bytes
        )
