"""Plan of the memory of a machine that the training of a recipe's model takes, by the calculator.

The estimate is that of the site's calculator. It counts reversible layers with all activations recomputed; this module
adds the activations that the model keeps within its budget (`TrainedModel.stored_layers`). Attention is counted as
separate matrix multiplications; fused kernels, which a GPU may use (`training.model.kernels.kernel_choice`), keep no
probabilities. `training.compute.choices` bases its decisions on this plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from calculator import BadSetup, Estimate, Setup
from calculator.choose.advice import PeerTraining, sizes_to_advise
from calculator.choose.devices import Device
from calculator.choose.fit import Suggestion, suggestions
from calculator.choose.largest import Layers, PeerSetup, largest_that_fits, peer_step
from calculator.parts.optimizers import OF_RECIPES
from training.errors import BadInput
from training.model.trained import count_trained
from training.recipe import RunConfig
from training.tasks.shape import shape_of
from training.tasks.task import ModelShape, Task, TrainedModel

Precision = Literal["float32", "bfloat16", "float16"]
"""Type in which layers compute, by autocast; weights, norms and gradients are always float32."""
PRECISIONS: dict[Precision, str] = {"float32": "fp32", "bfloat16": "amp-bf16", "float16": "amp-fp16"}
"""Names of these types in the calculator."""


@contextmanager
def known_models() -> Iterator[None]:
    """Context, or decorator of a function, that raises BadInput for a model unknown to the calculator."""
    try:
        yield
    except BadSetup as error:
        raise BadInput(f"The model cannot be planned: {error}", cure="Change the recipe's `[model]`.") from None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Memory and settings to expect of a recipe on a machine."""

    parameters: int
    """Number of different weights, each stored once."""
    trained_parameters: int
    """Number of weights that are averaged and updated."""
    computing_parameters: int
    """Number of weights that the model would have without sharing: a measure of how much it computes."""
    setup: Setup
    """Setup for the calculator."""
    estimate: Estimate
    """Estimate for one micro-batch. It recomputes all activations if only some layers keep them."""
    stored_layers: int
    """Number of layers, counted from the last, that keep their activations."""
    stored_bytes: int
    """Memory of these activations, as far as `estimate` does not count it."""
    local_bytes: int
    """Device memory that local updates take in addition; 0 in the synchronous mode."""
    host_bytes: int
    """Host memory in bytes."""
    device: Device
    need_bytes: int
    """Device memory in total, in bytes."""
    advised_micro_batch: int
    """Largest micro-batch that fits with a margin (`calculator.choose.advice`); 0 if not even one sample fits."""
    suggestions: tuple[Suggestion, ...]
    """Changes with which the training would fit; empty if it fits."""

    @property
    def fits(self) -> bool:
        """Returns True if the device has enough memory."""
        return self.need_bytes <= self.device.usable_bytes


@known_models()
def make_plan(
    task: Task,
    device: Device,
    *,
    micro_batch_size: int | None = None,
    precision: Precision | None = None,
    activation_budget_bytes: int | Literal["usual"] | None = "usual",
) -> Plan:
    """Plans the training of a task on one machine.

    Args:
        task: Task to train.
        device: Device that trains it; see `training.compute.machine`.
        micro_batch_size: Samples per forward pass; None: the advised number.
        precision: Type in which layers compute; None: 16 bits on a GPU, float32 on a processor.
        activation_budget_bytes: Bytes of activations that the model may keep, see
            `training.tasks.task.TrainedModel.stored_layers`; `training.compute.choices` chooses it.

    Raises:
        BadInput: If the calculator does not know the model.
    """
    budget, model = activation_budget_bytes, task.on_paper()
    peer = peer_of(task, lambda: model)
    if budget == "usual":
        budget = task.usual_activation_budget
    theirs = None if precision is None else PRECISIONS[precision]
    # The smallest memory with which a peer could train: no activations are kept unless the budget asks for all.
    sizes, recomputed = sizes_to_advise(task.run.swarm.target_batch_size), budget is not None
    largest = largest_that_fits(peer, device, sizes, precision=theirs, checkpointing=recomputed)
    samples = micro_batch_size or largest.micro_batch_size
    step = peer_step(peer, device, samples, budget, precision=theirs)
    needed = step.need_bytes(device)
    local, more = step.training.bytes_of_the_mode(step.estimate)
    return Plan(
        parameters=_count(model),
        trained_parameters=count_trained(model),
        computing_parameters=task.computing_parameters,
        setup=step.setup,
        estimate=step.estimate,
        stored_layers=step.stored_layers,
        stored_bytes=step.stored_bytes,
        local_bytes=local,
        host_bytes=step.estimate.host.total + more,
        device=device,
        need_bytes=needed,
        advised_micro_batch=largest.micro_batch_size if largest.fits else 0,
        suggestions=tuple(suggestions(step.setup, device)) if needed > device.usable_bytes else (),
    )


def training_of(run: RunConfig) -> PeerTraining:
    """Settings of a recipe on which a peer's memory depends; needs no PyTorch."""
    return _training(run, shape_of(run))


def _training(run: RunConfig, shape: ModelShape) -> PeerTraining:
    return PeerTraining(
        config=shape.config,
        sequence_length=shape.seq_len,
        reversible=shape.reversible,
        optimizer=OF_RECIPES[run.optimizer.name],
        local_updates=run.swarm.local_updates,
        delay_outer_step=run.swarm.delay_outer_step,
        powersgd=run.swarm.powersgd_rank > 0,
        **shape.adapters,
    )


def peer_of(task: Task, on_paper: Callable[[], TrainedModel]) -> PeerSetup:
    """Describes a task's training for the calculator: the settings and the model's layers.

    Args:
        task: Task to train.
        on_paper: Returns the result of `Task.on_paper`, one model for all calls.
    """
    return PeerSetup(training=_training(task.run, task.shape), layers=layers_of(task, on_paper))


def layers_of(task: Task, on_paper: Callable[[], TrainedModel]) -> Layers:
    """Describes the layers of a task's model for the calculator."""
    return Layers(
        count=task.num_layers,
        keep_some=task.keeps_some,
        reversible=task.reversible,
        stored=lambda samples, budget, precision: on_paper().stored_layers(samples, budget, dtype_of(precision)),
        activation_bytes=lambda samples, precision: on_paper().activation_bytes(samples, dtype_of(precision)),
    )


def dtype_of(precision: str):
    """Type in which layers compute, by the calculator's name."""
    import torch

    return getattr(torch, {name: ours for ours, name in PRECISIONS.items()}[precision])


def _count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
