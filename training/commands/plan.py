"""`plan`: how much of this machine training will take, before it starts."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from training.compute.choices import Choices
    from training.compute.plan import Plan
    from training.recipe import RunConfig

MicroBatchSize = Annotated[
    int | None, typer.Option(min=1, help="Samples per forward pass. Default: as `join` would choose.")
]
Precision = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    typer.Option(help="Type in which layers compute. Default: as `join` would choose."),
]
Checkpointing = Annotated[
    bool | None,
    typer.Option(
        "--checkpointing/--no-checkpointing",
        help="Recompute activations, or keep them all. Default: as `join` would choose.",
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1 and so on. Default: the first GPU, if there is one.")
]
Gpu = Annotated[str | None, typer.Option(help="Plan for this GPU, such as t4 or rtx-3090, instead of this machine.")]


def run(
    recipe: Annotated[str, typer.Option(help="Recipe of the run: a name, a TOML file or a URL.")] = "demo",
    micro_batch_size: MicroBatchSize = None,
    precision: Precision = None,
    checkpointing: Checkpointing = None,
    device: Device = None,
    gpu: Gpu = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the report.")] = False,
) -> None:
    """Print how `join` would train here, how much memory that takes, and whether this machine has enough."""
    from calculator import BadSetup
    from calculator.choose.devices import device_named
    from calculator.choose.names import gpu_of
    from training.compute.choices import Wishes, choose
    from training.compute.machine import torch_device
    from training.compute.plan import make_plan
    from training.errors import BadInput
    from training.recipe import load_recipe
    from training.tasks.known import task_of

    config = load_recipe(recipe)
    if gpu is not None and device is not None:
        raise BadInput("--gpu plans for another machine and --device for this one; give only one of them.")
    try:
        other = device_named(gpu_of(gpu)) if gpu is not None else None
    except BadSetup as error:
        raise BadInput(str(error)) from None
    wishes = Wishes(device=device, micro_batch_size=micro_batch_size, precision=precision, checkpointing=checkpointing)
    # Built at most once, and only if something is measured: the full model takes seconds and gigabytes.
    task = task_of(config)
    untimed = other is not None or task.fetches_weights
    build = None if untimed else cache(lambda: task.build_model().to(torch_device(device)))
    choices = choose(task, wishes, machine=other, build=build)
    plan = make_plan(
        task,
        choices.machine,
        micro_batch_size=choices.micro_batch_size,
        precision=choices.precision,
        activation_budget_bytes=choices.activation_budget_bytes,
    )
    if as_json:
        print(json.dumps(_facts(config, choices, plan)))
    else:
        _print_report(config, choices, plan, here=other is None)


def _facts(config: RunConfig, choices: Choices, plan: Plan) -> dict[str, object]:
    machine = choices.machine
    return {
        "run_id": config.run_id,
        "parameters": plan.parameters,
        "trained_parameters": plan.trained_parameters,
        "computing_parameters": plan.computing_parameters,
        "device": {"name": machine.name, "title": machine.title, "usable_bytes": machine.usable_bytes},
        "micro_batch_size": plan.setup.micro_batch_size,
        "precision": choices.precision,
        "activation_budget_bytes": choices.activation_budget_bytes,
        "choices": [asdict(setting) for setting in choices.settings],
        "need_bytes": plan.need_bytes,
        "fits": plan.fits,
        "stored_layers": plan.stored_layers,
        "stored_bytes": plan.stored_bytes,
        "local_bytes": plan.local_bytes,
        "host_bytes": plan.host_bytes,
        "estimate": plan.estimate.as_dict(),
    }


def _print_report(config: RunConfig, choices: Choices, plan: Plan, *, here: bool) -> None:
    from calculator.units import show_bytes

    print(f"{config.title} ({config.run_id})")
    shared = plan.computing_parameters != plan.parameters
    like = f"; its layers share them, so it computes like a model of {plan.computing_parameters:,}" if shared else ""
    print(f"The model has {plan.parameters:,} different weights{like}.")
    if plan.trained_parameters < plan.parameters:
        print(f"Of these, {plan.trained_parameters:,} are trained and exchanged; the others are frozen.")
    print(f"\nOn {'this machine' if here else 'such a GPU'} `join` would choose now:")
    for setting in choices.settings:
        print(f"  {setting.name:<12} {setting.value}: {setting.reason}.")
    samples = plan.setup.micro_batch_size
    print(f"\nMemory at the peak of a step with {samples} sample{'s' * (samples > 1)}, {plan.setup.precision}:")
    for name, size in _parts(config, plan).items():
        if size:
            print(f"  {name:<52}{show_bytes(size):>12}")
    print(f"  {plan.estimate.peak.instant}")
    verdict = "fits" if plan.fits else "does not fit"
    print(
        f"\nIt {verdict}: {show_bytes(plan.need_bytes)} of {show_bytes(choices.machine.usable_bytes)} "
        f"usable ({choices.machine.title})."
    )
    for suggestion in plan.suggestions:
        print(f"  {suggestion.sentence}")
    if plan.advised_micro_batch == 0:
        print("Not even a micro-batch of one sample fits; use a machine with more memory, or a smaller model.")
    elif not plan.fits and not plan.suggestions:
        print(f"  A micro-batch of {plan.advised_micro_batch} fits if activations are recomputed.")


def _parts(config: RunConfig, plan: Plan) -> dict[str, int]:
    """Bytes that training takes, by their use. Those on the device add up to `Plan.need_bytes`."""
    from calculator.units import show_bytes

    gpu_memory, local = plan.estimate.gpu, config.swarm.local_updates
    gradients = "gradients" if plan.trained_parameters == plan.parameters else "gradients of the adapters"
    if gpu_memory.gradients < plan.estimate.gradient_bytes:
        gradients += f" so far; in all {show_bytes(plan.estimate.gradient_bytes)}"
    counted = gpu_memory.total + plan.stored_bytes + plan.local_bytes + (plan.host_bytes if plan.device.unified else 0)
    return {
        "weights": gpu_memory.weights,
        gradients: gpu_memory.gradients,
        "activations": gpu_memory.activations,
        f"activations kept of {plan.stored_layers} layers": plan.stored_bytes,
        "temporary": gpu_memory.temporary,
        f"{config.optimizer.name} and an inner batch's gradients": plan.local_bytes,
        "CUDA itself": plan.need_bytes - counted,
        f"host: averaged copies and {'SGD' if local else config.optimizer.name}": plan.host_bytes,
    }
