"""How much memory of a machine training a recipe's model will take, by the calculator.

The estimate is that of the site's calculator. It counts reversible layers with all activations recomputed; we add what
the model keeps within its budget (`TrainedModel.stored_layers`). Attention is counted as separate matrix
multiplications; fused kernels, which a GPU may use (`training.model.kernel_choice`), keep no probabilities.
`training.compute.choices` bases its decisions on this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calculator import BadSetup, Estimate, Setup, estimate
from calculator.advice import PeerTraining, advised_micro_batch, sizes_to_advise
from calculator.devices import Device
from calculator.fit import Suggestion, suggestions
from calculator.optimizers import OF_RECIPES
from training.config import RunConfig
from training.errors import BadInput
from training.model.trained import count_trained
from training.task import Task, TrainedModel, shape_of, task_of

Precision = Literal["float32", "bfloat16", "float16"]
"""Type in which layers compute, by autocast; weights, norms and gradients are always float32."""
_PRECISIONS: dict[Precision, str] = {"float32": "fp32", "bfloat16": "amp-bf16", "float16": "amp-fp16"}
"""The calculator's names."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to expect of a recipe on a machine."""

    parameters: int
    """Different weights: what is stored."""
    trained_parameters: int
    """Of these, what is averaged and updated."""
    computing_parameters: int
    """Weights that the model would have without sharing: a measure of how much it computes."""
    setup: Setup
    """The calculator's setup."""
    estimate: Estimate
    """The calculator's estimate for one micro-batch, with the activations of all reversible layers recomputed."""
    stored_layers: int
    """For this many layers, counted from the last, activations are kept instead."""
    stored_bytes: int
    """Memory that these activations take."""
    local_bytes: int
    """Device memory that local updates take in addition; 0 in the synchronous mode."""
    host_bytes: int
    """Host memory."""
    device: Device
    need_bytes: int
    """Device memory in total."""
    advised_micro_batch: int
    """The largest that fits with a margin (`calculator.advice`); 0 if not even one sample does."""
    suggestions: tuple[Suggestion, ...]
    """Changes that would make it fit; empty if it does."""

    @property
    def fits(self) -> bool:
        """Whether the device has enough memory."""
        return self.need_bytes <= self.device.usable_bytes


def make_plan(
    run: RunConfig,
    device: Device,
    *,
    micro_batch_size: int | None = None,
    precision: Precision | None = None,
    activation_budget_bytes: int | Literal["usual"] | None = "usual",
) -> Plan:
    """A plan for one machine.

    Args:
        run: The recipe.
        device: Where it is trained; see `training.compute.machine`.
        micro_batch_size: Samples per forward pass; None: as many as are advised.
        precision: See `setup_of`.
        activation_budget_bytes: Bytes of activations that the model may keep, see
            `training.task.TrainedModel.stored_layers`; `training.compute.choices` chooses it.

    Raises:
        BadInput: If the calculator does not know such a model.
    """
    task, budget = task_of(run), activation_budget_bytes
    model = task.on_paper()
    if budget == "usual":
        budget = task.usual_activation_budget

    def need(samples: int) -> int:
        return needed_bytes(run, device, model, samples, budget, precision=precision)

    # The smallest amount with which a peer could train: no activations are kept unless the budget asks for all.
    def least(samples: int) -> int:
        return needed_bytes(run, device, model, samples, None if budget is None else 0, precision=precision)

    advised = advised_micro_batch(sizes_to_advise(run.swarm.target_batch_size), least, device)
    samples = micro_batch_size or advised or 1
    needed = need(samples)
    setup = setup_of(run, device, samples, precision=precision, checkpointing=budget == 0)
    dtype, result = dtype_of(setup), estimate(setup)
    local, more = training_of(run).bytes_of_the_mode(result)
    return Plan(
        parameters=_count(model),
        trained_parameters=count_trained(model),
        computing_parameters=task.computing_parameters,
        setup=setup,
        estimate=result,
        stored_layers=model.stored_layers(samples, budget, dtype) if task.keeps_some else 0,
        stored_bytes=stored_bytes(task, model, samples, budget, dtype),
        local_bytes=local,
        host_bytes=result.host.total + more,
        device=device,
        need_bytes=needed,
        advised_micro_batch=advised,
        suggestions=tuple(suggestions(setup, device)) if needed > device.usable_bytes else (),
    )


def training_of(run: RunConfig) -> PeerTraining:
    """The settings of a recipe on which a peer's memory depends."""
    shape = shape_of(run)
    return PeerTraining(
        config=shape.config,
        sequence_length=shape.seq_len,
        reversible=shape.keeps_some,
        optimizer=OF_RECIPES[run.optimizer.name],
        local_updates=run.swarm.mode == "diloco",
        powersgd=run.swarm.powersgd_rank > 0,
        **shape.adapters,
    )


def setup_of(
    run: RunConfig,
    device: Device,
    micro_batch_size: int,
    *,
    precision: Precision | None = None,
    checkpointing: bool = False,
) -> Setup:
    """The calculator's setup for training a recipe's model; see `calculator.advice.PeerTraining.setup`."""
    theirs = None if precision is None else _PRECISIONS[precision]
    return training_of(run).setup(device, micro_batch_size, precision=theirs, checkpointing=checkpointing)


def needed_bytes(
    run: RunConfig,
    device: Device,
    model: TrainedModel,
    micro_batch_size: int,
    activation_budget_bytes: int | None,
    *,
    precision: Precision | None = None,
) -> int:
    """Device memory that training takes in total.

    Args:
        run: The recipe.
        device: Where it is trained.
        model: From `Task.on_paper`.
        micro_batch_size: Samples per forward pass.
        activation_budget_bytes: Bytes of activations to keep; see `TrainedModel.stored_layers`.
        precision: See `setup_of`.

    Raises:
        BadInput: If the calculator does not know such a model.
    """
    checkpointing = activation_budget_bytes == 0
    setup = setup_of(run, device, micro_batch_size, precision=precision, checkpointing=checkpointing)
    try:
        needed = training_of(run).need_bytes(
            device, micro_batch_size, precision=setup.precision, checkpointing=checkpointing
        )
    except BadSetup as error:
        raise BadInput(
            f"The memory of this recipe's model cannot be estimated: {error}",
            cure="Nothing to do: you can still join the run; only its memory cannot be planned.",
        ) from None
    return needed + stored_bytes(task_of(run), model, micro_batch_size, activation_budget_bytes, dtype_of(setup))


def stored_bytes(
    task: Task, model: TrainedModel, micro_batch_size: int, activation_budget_bytes: int | None, dtype=None
) -> int:
    """Bytes of activations that a model keeps of some layers within a budget; the calculator does not count these.

    Args:
        task: Of the model.
        model: From `Task.on_paper`.
        micro_batch_size: Samples per forward pass.
        activation_budget_bytes: See `TrainedModel.stored_layers`.
        dtype: Type in which layers compute; None: the current autocast type.
    """
    if not task.keeps_some:
        return 0
    layers = model.activation_bytes(micro_batch_size, dtype)
    # Not `layers[-stored:]`, which would be all layers if none is stored.
    return sum(layers[len(layers) - model.stored_layers(micro_batch_size, activation_budget_bytes, dtype) :])


def dtype_of(setup: Setup):
    """The type in which layers compute."""
    import torch

    return getattr(torch, {name: precision for precision, name in _PRECISIONS.items()}[setup.precision])


def _count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
