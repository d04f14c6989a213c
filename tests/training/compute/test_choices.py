"""What is chosen for a machine fits it, is told with its reason, and gives way to the volunteer."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from calculator.choose.advice import KEPT_ACTIVATION_BYTES
from calculator.choose.devices import device_named
from calculator.choose.largest import HOST_SHARE, peer_step
from calculator.units import show_bytes
from training.cli import build_app
from training.compute import choices as module
from training.compute.choices import Wishes, choose
from training.compute.machine import group_bytes, this_machine
from training.compute.plan import peer_of
from training.errors import BadInput
from training.model.transformer import build_model
from training.recipe import load_recipe, run_of
from training.tasks.known import task_of

GIB = 2**30


@pytest.fixture
def machine_with(monkeypatch):
    """Lets this machine have so many bytes free."""

    def give(usable_bytes):
        machine = replace(this_machine("cpu"), usable_bytes=usable_bytes)
        monkeypatch.setattr(module, "this_machine", lambda name: machine)
        return machine

    return give


def reasons_of(choices):
    return {setting.name: setting for setting in choices.settings}


@pytest.fixture
def rates(monkeypatch):
    """Lets products of matrices take as long as a test says."""

    def give(**flops_per_second):
        monkeypatch.setattr(module, "matmul_flops_per_second", lambda device, precision: flops_per_second[precision])

    return give


def need(run, machine, samples, **options):
    """Bytes of a step that keeps no activations which it could recompute."""
    return peer_step(peer_of(task := task_of(run), task.on_paper), machine, samples, 0, **options).need_bytes(machine)


@pytest.mark.parametrize("gib", [4, 8, 20, 200])
def test_what_is_chosen_fits_and_more_would_not(machine_with, rates, gib):
    run, machine = load_recipe("dalle-2021"), machine_with(gib * GIB)
    rates(float32=1e15, bfloat16=1e15)
    chosen = choose(task_of(run), Wishes())
    assert chosen.need_bytes <= 0.9 * machine.usable_bytes
    assert chosen.micro_batch_size in (1, 2, 4, 8, 16, 32)
    if chosen.micro_batch_size < 32:
        assert need(run, machine, 2 * chosen.micro_batch_size) > 0.9 * machine.usable_bytes
        assert "would not" in reasons_of(chosen)["micro-batch"].reason
    assert all(setting.reason for setting in chosen.settings)


@pytest.mark.parametrize("gib", [4, 8, 20])
def test_a_limit_of_memory_is_kept_like_the_memory_of_a_smaller_machine(machine_with, rates, gib):
    run = load_recipe("dalle-2021")
    rates(float32=1e15, bfloat16=1e15)
    machine_with(gib * GIB)
    smaller = choose(task_of(run), Wishes())
    machine_with(200 * GIB)
    limited = choose(task_of(run), Wishes(max_memory_bytes=gib * GIB))
    assert limited.micro_batch_size == smaller.micro_batch_size
    assert limited.need_bytes == smaller.need_bytes <= gib * GIB
    free, may_take = show_bytes(200 * GIB), show_bytes(gib * GIB)
    assert f"{free} free, of which this program may take {may_take}" in reasons_of(limited)["device"].reason


def test_a_limit_into_which_training_does_not_fit_is_refused(machine_with, rates):
    machine_with(200 * GIB)
    rates(float32=1e15, bfloat16=1e15)
    with pytest.raises(BadInput, match=r"--max-memory lets training take 1[.]00 GiB; with 1 at a time it takes"):
        choose(task_of(load_recipe("dalle-2021")), Wishes(max_memory_bytes=GIB))


@pytest.mark.parametrize("rate, expected", [(1e10, 1), (5e12, 4), (1e14, 32)])
def test_a_micro_batch_ends_while_peers_look_for_each_other(machine_with, rates, rate, expected):
    machine_with(200 * GIB)
    rates(float32=rate, bfloat16=rate)
    chosen = choose(task_of(load_recipe("dalle-2021")), Wishes())
    assert chosen.micro_batch_size == expected
    if expected < 32:
        assert "longer than the 15 s" in reasons_of(chosen)["micro-batch"].reason


@pytest.mark.parametrize("bfloat16, expected", [(1.1e12, "float32"), (1.3e12, "bfloat16")])
def test_a_faster_precision_is_taken_where_it_is_faster(machine_with, rates, bfloat16, expected):
    machine_with(20 * GIB)
    rates(float32=1e12, bfloat16=bfloat16)
    chosen = choose(task_of(load_recipe("dalle-2021")), Wishes())
    assert (
        chosen.precision == expected
        and f"{bfloat16 / 1e12:.3g} TFLOP/s in bfloat16" in reasons_of(chosen)["precision"].reason
    )


def test_steps_of_the_real_model_are_timed():
    run = load_recipe("demo")
    model = build_model(run.model, seed=0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    chosen = choose(task_of(run), Wishes(device="cpu", precision="float32"), build=lambda: model)
    reason = reasons_of(chosen)["micro-batch"].reason
    speeds = {int(size): float(speed) for size, speed in re.findall(r"(\d+): ([\d.e+]+)", reason)}
    assert reasons_of(chosen)["attention"].value == "separate matrix multiplications"
    assert "of those timed" in reason and 1 in speeds and chosen.micro_batch_size in speeds
    assert speeds[chosen.micro_batch_size] >= 0.94 * max(speeds.values())
    assert all(map(torch.equal, before, model.parameters())) and all(p.grad is None for p in model.parameters())


def test_a_step_that_was_timed_for_the_precision_counts_for_the_micro_batch(machine_with, rates, monkeypatch):
    """On a machine so busy that these two steps take all the time for measuring."""
    seconds, clock = {"float32": 2.0, "bfloat16": 1.6}, [1.0]

    def step(model, batch, precision, **_):
        clock[0] += seconds[precision]
        return seconds[precision]

    monkeypatch.setattr(module, "step_seconds", step)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rates(float32=1e12, bfloat16=2e12)
    machine_with(8 * GIB)
    run = load_recipe("demo")
    chosen = choose(task_of(run), Wishes(device="cpu"), build=lambda: build_model(run.model, seed=0))
    reasons = reasons_of(chosen)
    assert "a step of 1 sample takes 1.6 s in bfloat16" in reasons["precision"].reason
    assert chosen.micro_batch_size == 1 and "(1: 0.625)" in reasons["micro-batch"].reason


@pytest.mark.parametrize("asked, timed", [(1000, 32), (10**6, None)])
def test_steps_that_would_take_long_or_all_memory_are_not_timed(machine_with, rates, monkeypatch, asked, timed):
    sizes = []
    monkeypatch.setattr(module, "step_seconds", lambda model, batch, precision, **_: sizes.append(len(batch)) or 1.0)
    rates(float32=1e12, bfloat16=2e12)
    machine_with(8 * GIB if timed else 2**24)
    run = load_recipe("demo")
    choose(task_of(run), Wishes(device="cpu", micro_batch_size=asked), build=lambda: build_model(run.model, seed=0))
    assert set(sizes) == ({timed} if timed else set())


def test_activations_are_kept_where_there_is_room(machine_with):
    run, budgets = load_recipe("dalle-2021"), []
    for gib in (400, 8, 1):
        machine_with(gib * GIB)
        budgets.append(choose(task_of(run), Wishes(micro_batch_size=1)).activation_budget_bytes)
    assert budgets[0] is None and budgets[1] and budgets[2] == 0


def test_as_many_layers_keep_their_activations_as_there_is_room_for(machine_with):
    """One more would take more than a processor's memory is used up to."""
    run, kept = load_recipe("dalle-2021"), []
    for gib in (12, 16):
        machine = machine_with(gib * GIB)
        chosen = choose(task_of(run), Wishes(micro_batch_size=1, precision="float32"))
        model = task_of(run).on_paper()
        layers = model.stored_layers(1, chosen.activation_budget_bytes, torch.float32)
        one_more = sum(model.activation_bytes(1, torch.float32)[-layers - 1 :])
        room = HOST_SHARE * machine.usable_bytes - need(run, machine, 1, precision="fp32")
        assert chosen.activation_budget_bytes <= room < one_more
        assert chosen.need_bytes <= HOST_SHARE * machine.usable_bytes
        assert f"kept for {layers} layers" in reasons_of(chosen)["activations"].value
        kept.append(layers)
    assert 0 < kept[0] < kept[1] < run.model.num_layers


def test_a_model_whose_optimizer_takes_more_than_its_activations(machine_with):
    """With blocks of two tokens, keeping all activations takes no more than keeping none, whether that fits or not."""
    recipe = load_recipe("stories").model_dump(mode="json", by_alias=True)
    recipe["model"]["block_length"] = 2
    recipe["model"]["architecture"] |= {"num_hidden_layers": 1, "hidden_size": 512, "max_position_embeddings": 2}
    run, machine = run_of(recipe), device_named("t4")
    least = need(run, machine, 1)
    for room in (least // 2, 2 * least):
        chosen = choose(task_of(run), Wishes(micro_batch_size=1), machine=replace(machine, usable_bytes=room))
        assert (chosen.activation_budget_bytes, chosen.need_bytes) == (None, least)


def test_the_plan_is_what_join_chooses(machine_with, rates):
    """Both by `choose`; the memory is too little for all activations and more than a model keeps as it is built."""
    machine = machine_with(14 * GIB)
    rates(float32=1e12, bfloat16=1.1e12)
    run = load_recipe("dalle-2021")
    chosen = choose(task_of(run), Wishes(), build=lambda: task_of(run).on_paper())
    facts = json.loads(CliRunner().invoke(build_app(), ["plan", "--recipe", "dalle-2021", "--json"]).stdout)
    assert facts["choices"] == [asdict(setting) for setting in chosen.settings]
    for name in ("micro_batch_size", "precision", "activation_budget_bytes", "need_bytes"):
        assert facts[name] == getattr(chosen, name)
    assert facts["device"]["usable_bytes"] == machine.usable_bytes
    assert facts["stored_bytes"] > KEPT_ACTIVATION_BYTES, "more than as it is built"


def test_the_plan_says_what_the_volunteer_says(machine_with, rates):
    machine_with(14 * GIB)
    rates(float32=1e5, bfloat16=1e5)  # too slow for a step to be timed
    chosen = choose(task_of(load_recipe("demo")), Wishes(micro_batch_size=2, checkpointing=True))
    shown = CliRunner().invoke(build_app(), ["plan", "--micro-batch-size", "2", "--checkpointing"]).output
    for setting in chosen.settings:
        assert f"{setting.name:<12} {setting.value}: {setting.reason}." in shown


@pytest.mark.parametrize(
    "precision, checkpointing, size", itertools.product(("float32", "bfloat16"), (True, False), (3, 64))
)
def test_what_the_volunteer_says_is_done(machine_with, precision, checkpointing, size):
    machine_with(GIB // 4)
    wishes = Wishes(device="cpu", micro_batch_size=size, precision=precision, checkpointing=checkpointing)
    chosen = choose(task_of(load_recipe("demo")), wishes)
    assert (chosen.micro_batch_size, chosen.precision) == (size, precision)
    assert chosen.activation_budget_bytes == (0 if checkpointing else None)
    assert all(setting.reason.startswith("as you said") for setting in chosen.settings)


def test_where_not_even_one_sample_fits_it_is_tried_and_said(machine_with):
    machine_with(GIB // 100)
    chosen = choose(task_of(load_recipe("demo")), Wishes())
    assert chosen.micro_batch_size == 1 and "it is tried all the same" in reasons_of(chosen)["micro-batch"].reason


def test_checkpointing_takes_less_memory_and_computes_the_same():
    run = load_recipe("demo")
    text = torch.ones(2, run.model.text_seq_len, dtype=torch.long)
    codes = torch.zeros(2, run.model.image_seq_len, dtype=torch.long)
    gradients, kept = [], []
    for budget in (None, 0):
        model = build_model(run.model, seed=0)
        sizes = []

        def note(tensor, sizes=sizes):
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(text, codes, stored_layers=model.stored_layers(len(text), budget)).loss.backward()
        kept.append(sum(sizes))
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert kept[1] < kept[0]
    assert float((gradients[0] - gradients[1]).norm()) <= 1e-5 * float(gradients[0].norm())


@pytest.mark.parametrize("name", ["cuda:99", "tpu", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(BadInput, match="finds no device"):
        this_machine(name)


def group(folder, limit, used, *, version=2):
    """Linux's files of a group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {2: ("max", "current"), 1: ("limit_in_bytes", "usage_in_bytes")}[version]
    for name, text in zip((*names, "stat"), (limit, used, "inactive_file 0\ntotal_inactive_file 0"), strict=True):
        (folder / f"memory.{name}").write_text(f"{text}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_service_counts(tmp_path, version):
    """As with systemd's `MemoryMax=`, or in a job of a cluster: the limit is not at the root, which has none itself."""
    root, own = tmp_path / "mounted", tmp_path / "own"
    top = root if version == 2 else root / "memory"
    own.write_text("0::/a.slice/b.service\n" if version == 2 else "5:cpu,memory:/a.slice/b.service\n0::/\n")
    group(top / "a.slice", 9000, 2000, version=version)
    group(top / "a.slice/b.service", 8000, 5000, version=version)
    assert group_bytes(root, own) == 3000
    group(top / "a.slice", 9000, 8000, version=version)  # what others around it take
    assert group_bytes(root, own) == 1000
    # In a container, the path may be that on its host.
    own.write_text(own.read_text().replace("/a.slice", "/docker/0c642a"))
    group(top, 7000, 500, version=version)
    assert group_bytes(root, own) == 6500
    own.write_text("0::/../../other\n" if version == 2 else "5:memory:/../other\n")
    assert group_bytes(root, own) == 6500


def test_a_containers_limit_counts(tmp_path):
    assert group_bytes(tmp_path) is None
    for name, text in {"max": "8000\n", "current": "5000\n", "stat": "anon 1\ninactive_file 700\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert group_bytes(tmp_path) == 3700
    (tmp_path / "memory.max").write_text("max\n")
    assert group_bytes(tmp_path) is None
