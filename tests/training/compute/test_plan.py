"""The plan's estimate is what the recipe's model measurably keeps and takes."""

import json

import pytest
import torch
from typer.testing import CliRunner

from calculator import estimate
from calculator.choose.devices import device_named
from calculator.choose.largest import peer_step
from tests.support.profiled import highest_bytes
from training.cli import build_app
from training.commands import plan as plan_command
from training.compute.machine import this_machine
from training.compute.plan import layers_of, make_plan, peer_of, training_of
from training.errors import BadInput
from training.model.transformer import build_model, usual_activation_budget
from training.optim.build import build_optimizer
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.recipe import load_recipe, read_recipe
from training.tasks.known import task_of

SAMPLES = 4


@pytest.fixture(scope="module", params=["demo", "not reversible"])
def run(request):
    recipe = load_recipe("demo")
    change = {"reversible": request.param == "demo"}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=change)})


@pytest.fixture(scope="module")
def machine():
    return this_machine()


def tokens(config):
    return torch.ones(SAMPLES, config.text_seq_len, dtype=torch.long), torch.zeros(
        SAMPLES, config.image_seq_len, dtype=torch.long
    )


def kept_by_autograd(model, stored_layers):
    """Bytes of the storages that autograd keeps at the end of forward, in the allocator's blocks of 512."""
    inputs = tokens(model.config)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *inputs]}
    kept, held = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes() + 511) // 512 * 512
            held.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs, stored_layers=stored_layers).loss.backward()
    return sum(kept.values())


def test_saved_activations_are_as_estimated(run, machine):
    model, plan = build_model(run.model, seed=0), make_plan(task_of(run), machine, micro_batch_size=SAMPLES)
    least = 0 if run.model.reversible else run.model.num_layers
    assert plan.estimate.saved_activations == kept_by_autograd(model, least)
    if run.model.reversible:  # and what is kept within the budget comes to it, but for the two streams that it replaces
        assert plan.stored_layers == run.model.num_layers
        more = kept_by_autograd(model, plan.stored_layers) - plan.estimate.saved_activations
        assert more == pytest.approx(plan.stored_bytes, rel=0.02)


def test_the_peak_of_a_step_is_as_estimated(run, machine):
    """Bytes taken and given back by the operations of a step on the processor, at their highest."""
    model, plan = build_model(run.model, seed=0), make_plan(task_of(run), machine, micro_batch_size=SAMPLES)
    least = 0 if run.model.reversible else run.model.num_layers
    inputs = tokens(run.model)
    model(*inputs, stored_layers=least).loss.backward()
    model.zero_grad()
    highest = highest_bytes(lambda: model(*inputs, stored_layers=least).loss.backward())
    assert plan.estimate.gpu.total - plan.estimate.gpu.weights == pytest.approx(highest, rel=0.05)


def test_parameters_are_said_twice():
    plan = make_plan(task_of(load_recipe("dalle-2021")), device_named("t4"))
    assert round(plan.parameters / 1e6, 1) == 125.9 and 1.1e9 < plan.computing_parameters < 1.12e9
    assert plan.estimate.parameters == plan.parameters
    assert plan.fits and plan.advised_micro_batch >= 1
    assert plan.setup.precision == "amp-fp16", "a T4 has no bfloat16"
    assert make_plan(task_of(load_recipe("demo")), device_named("a10")).setup.precision == "amp-bf16"
    assert make_plan(task_of(load_recipe("demo")), device_named("cuda-20gb")).setup.precision == "amp-bf16"
    assert plan.estimate.host.total > 10 * plan.parameters


def test_advice_is_the_largest_that_fits_with_a_margin():
    run, small = load_recipe("dalle-2021"), device_named("t4")
    advised = make_plan(task_of(run), small).advised_micro_batch
    assert make_plan(task_of(run), small, micro_batch_size=advised).need_bytes <= 0.9 * small.usable_bytes
    if advised < 32:
        assert make_plan(task_of(run), small, micro_batch_size=2 * advised).need_bytes > 0.9 * small.usable_bytes


def test_stored_layers_shrink_as_samples_grow():
    run = load_recipe("demo")
    model, budget = build_model(run.model, seed=0), usual_activation_budget(run.model)
    layers = layers_of(task_of(run), lambda: model)
    kept = {samples: layers.stored_bytes(samples, budget, "fp32") for samples in (1, 16, 32, 64, 500)}
    assert max(kept.values()) <= budget and kept[500] == 0 < kept[32]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["lamb8bit", "lamb", "adamw8bit", "adamw", "muon"])
def test_what_each_optimizer_keeps_and_takes_is_estimated(name, tied, machine):
    run = load_recipe("demo")
    wide = run.model.model_copy(update={"tied_embeddings": tied, "hidden_size": 512})
    run = run.model_copy(update={"model": wide, "optimizer": OptimizerConfig(name=name)})
    model = build_model(run.model, seed=0)
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=0.1)
    kept = sum(t.nbytes for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor))
    result = estimate(training_of(run).setup(machine, SAMPLES))
    assert result.host.optimizer_state == pytest.approx(kept, rel=0.02)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    _, more = training_of(run).bytes_of_the_mode(result)
    assert highest_bytes(optimizer.step) == pytest.approx(more, rel=0.01, abs=1_200_000)  # a few buffers of one chunk
    assert (more > 2 * 1_200_000) == (name == "muon")


def test_what_local_updates_and_powersgd_keep_is_counted(machine):
    """Inner moments and summed gradients with the model; a momentum, or what is not sent, on the host."""
    run = load_recipe("demo")
    model = build_model(run.model, seed=0)
    weights = sum(4 * parameter.numel() for parameter in model.parameters())
    inner = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=0.1)
    moments = sum(t.nbytes for state in inner.state.values() for t in state.values() if isinstance(t, torch.Tensor))

    def taken(device, **swarm):
        there = run.model_copy(update={"swarm": run.swarm.model_copy(update=swarm)})
        result = estimate(training_of(there).setup(device, SAMPLES))
        _, more = training_of(there).bytes_of_the_mode(result)
        return peer_step(peer_of(task := task_of(there), task.on_paper), device, SAMPLES, 0).need_bytes(
            device
        ), result.host.total + more

    blocks = 0.01 * weights  # what is estimated is whole blocks of the allocator
    for device, local, product in (
        (device_named("t4"), moments + weights, 0),
        (machine, 2 * weights, weights),  # where host and device are one
    ):
        need, host = taken(device)
        assert taken(device, mode="diloco") == pytest.approx((need + local, host + weights - moments), abs=blocks)
        assert taken(device, mode="sparse") == taken(device, mode="diloco"), "what is unsent takes a momentum's place"
        need, host = taken(device, mode="sparse")
        overlapped = taken(device, mode="sparse", delay_outer_step=True)
        assert overlapped == (need + (weights if device.unified else 0), host + weights)
        need, host = taken(device)
        assert taken(device, powersgd_rank=4) == (need + product, host + weights)


def test_the_command_names_what_local_updates_keep(tmp_path):
    (tmp_path / "local.toml").write_text(read_recipe("demo").replace('"synchronous"', '"diloco"'))
    shown = CliRunner().invoke(build_app(), ["plan", "--recipe", str(tmp_path / "local.toml"), "--gpu", "t4"]).output
    assert "lamb8bit and an inner batch's gradients" in shown and "host: averaged copies and SGD" in shown


@pytest.mark.parametrize("gpu", ["t4", "cpu"])
@pytest.mark.parametrize("recipe", ["demo", "llama-150m", "lora-7b"])
def test_the_parts_that_the_command_shows_add_up_to_what_it_says(recipe, gpu):
    run, device = load_recipe(recipe), device_named(gpu)
    plan = make_plan(task_of(run), device, micro_batch_size=2)
    parts = plan_command._parts(run, plan)
    if not device.unified:
        assert parts["CUDA itself"] > 400 << 20
        parts.pop(next(name for name in parts if name.startswith("host: ")))
    assert sum(parts.values()) == plan.need_bytes and min(parts.values()) >= 0
    assert ("gradients of the adapters" in " ".join(parts)) == (recipe == "lora-7b")


@pytest.mark.parametrize("size", [10**18, 10**30])
def test_sizes_beyond_all_measure_are_refused(size):
    run = load_recipe("demo")
    large = run.model_copy(update={"model": run.model.model_copy(update={"text_vocab_size": size})})
    with pytest.raises(BadInput, match="model cannot be"):
        task_of(large).on_paper()


def test_the_command_prints_both_counts_and_json(machine):
    shown = CliRunner().invoke(build_app(), ["plan", "--recipe", "dalle-2021", "--gpu", "t4"])
    assert shown.exit_code == 0, shown.output
    assert "125,894,244 different weights" in shown.output and "It fits" in shown.output
    facts = json.loads(CliRunner().invoke(build_app(), ["plan", "--gpu", "t4", "--json"]).stdout)
    assert facts["run_id"] == "demo" and facts["fits"] and facts["need_bytes"] > facts["estimate"]["gpu"]["total"]
    assert facts["precision"] == "float16" and facts["stored_layers"] == load_recipe("demo").model.num_layers
    refused = CliRunner().invoke(build_app(), ["plan", "--gpu", "voodoo2"])
    assert isinstance(refused.exception, BadInput) and "voodoo2" in str(refused.exception)
    refused = CliRunner().invoke(build_app(), ["plan", "--gpu", "t4", "--device", "cpu"])
    assert isinstance(refused.exception, BadInput) and "one of them" in str(refused.exception)
