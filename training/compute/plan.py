"""How much memory of a machine training a recipe's model will take, by the calculator.

The estimate is that of the site's calculator. It counts reversible layers with all activations recomputed; we add what
the model keeps within its budget (`TrainedModel.stored_layers`). Attention is counted as separate matrix
multiplications; fused kernels, which a GPU may use (`training.model.kernels.kernel_choice`), keep no probabilities. A
step of a
model that the calculator does not know is traced instead (`training.compute.traced`). `training.compute.choices` bases
its decisions on this.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from calculator import BadSetup, Estimate, Setup, estimate
from calculator.choose.advice import PeerTraining, advised_micro_batch, sizes_to_advise
from calculator.choose.devices import Device
from calculator.choose.fit import Suggestion, suggestions
from calculator.parts.optimizers import OF_RECIPES
from calculator.parts.parameters import ParameterTensor
from calculator.reports.units import show_bytes
from calculator.step.estimate import GpuMemory, Peak, estimate_around
from training.config import RunConfig
from training.model.trained import count_trained
from training.task import Task, TrainedModel, shape_of, task_of

if TYPE_CHECKING:  # who only asks the calculator needs no PyTorch
    from training.compute.traced import TracedSteps

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
    """For one micro-batch. By the calculator, all activations are recomputed if only some layers keep them; a traced
    step keeps those of `stored_layers`."""
    refusal: str | None
    """Why the calculator does not know this model, so that a step was traced; None: it knows it."""
    stored_layers: int
    """For this many layers, counted from the last, activations are kept."""
    stored_bytes: int
    """Memory that these activations take, as far as `estimate` does not count it."""
    local_bytes: int
    """Device memory that local updates take in addition; 0 in the synchronous mode."""
    host_bytes: int
    """Host memory."""
    device: Device
    need_bytes: int
    """Device memory in total."""
    advised_micro_batch: int
    """The largest that fits with a margin (`calculator.choose.advice`); 0 if not even one sample does."""
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
        BadInput: If the calculator does not know such a model and its step cannot be traced.
    """
    task, budget = task_of(run), activation_budget_bytes
    model = task.on_paper()
    if budget == "usual":
        budget = task.usual_activation_budget

    # The smallest amount with which a peer could train: no activations are kept unless the budget asks for all.
    def least(samples: int) -> int:
        return needed_bytes(run, device, model, samples, None if budget is None else 0, precision=precision)

    advised = advised_micro_batch(sizes_to_advise(run.swarm.target_batch_size), least, device)
    samples = micro_batch_size or advised or 1
    step = _step_of(run, device, model, samples, budget, precision)
    needed, known = step.need_bytes(device), step.refusal is None
    local, more = step.training.bytes_of_the_mode(step.estimate)
    return Plan(
        parameters=_count(model),
        trained_parameters=count_trained(model),
        computing_parameters=task.computing_parameters,
        setup=step.setup,
        estimate=step.estimate,
        refusal=step.refusal,
        stored_layers=step.stored_layers,
        stored_bytes=step.stored_bytes,
        local_bytes=local,
        host_bytes=step.estimate.host.total + more,
        device=device,
        need_bytes=needed,
        advised_micro_batch=advised,
        suggestions=tuple(suggestions(step.setup, device)) if known and needed > device.usable_bytes else (),
    )


def training_of(run: RunConfig) -> PeerTraining:
    """The settings of a recipe on which a peer's memory depends."""
    return _known_of(run).training


class _Known:
    """What is the same in all questions about one recipe, and takes a while to find out."""

    def __init__(self, run: RunConfig):
        shape, self._run = shape_of(run), run
        self.training = PeerTraining(
            config=shape.config,
            sequence_length=shape.seq_len,
            reversible=shape.reversible,
            optimizer=OF_RECIPES[run.optimizer.name],
            local_updates=run.swarm.mode == "diloco",
            powersgd=run.swarm.powersgd_rank > 0,
            **shape.adapters,
        )

    @cached_property
    def steps(self) -> TracedSteps:
        from training.compute.traced import TracedSteps

        return TracedSteps(task_of(self._run))


_LAST: dict[str, _Known] = {}
"""The last recipe, as JSON: its settings may be unhashable."""


def _known_of(run: RunConfig) -> _Known:
    recipe = run.model_dump_json()
    if recipe not in _LAST:
        known = _Known(run)
        _LAST.clear()
        _LAST[recipe] = known
    return _LAST[recipe]


def setup_of(
    run: RunConfig,
    device: Device,
    micro_batch_size: int,
    *,
    precision: Precision | None = None,
    checkpointing: bool = False,
) -> Setup:
    """The calculator's setup for training a recipe's model; see `calculator.choose.advice.PeerTraining.setup`."""
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
        BadInput: If the calculator does not know such a model and its step cannot be traced.
    """
    return _step_of(run, device, model, micro_batch_size, activation_budget_bytes, precision).need_bytes(device)


def refusal_of(run: RunConfig, device: Device) -> str | None:
    """Why the calculator does not know a recipe's model; None if it does."""
    try:
        estimate(setup_of(run, device, 1))
    except BadSetup as error:
        return str(error)
    return None


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step with so many samples; fields as in `Plan`."""

    training: PeerTraining
    setup: Setup
    estimate: Estimate
    refusal: str | None
    stored_layers: int
    stored_bytes: int

    def need_bytes(self, device: Device) -> int:
        return self.training.need_of(self.estimate, device) + self.stored_bytes


def _step_of(
    run: RunConfig,
    device: Device,
    model: TrainedModel,
    samples: int,
    budget: int | None,
    precision: Precision | None,
) -> _Step:
    """By the calculator, or traced where it does not know the model; arguments as for `needed_bytes`."""
    task, training = task_of(run), training_of(run)
    recomputed = budget is not None if task.keeps_some else budget == 0
    theirs = None if precision is None else _PRECISIONS[precision]
    setup = training.setup(device, samples, precision=theirs, checkpointing=recomputed)
    dtype = dtype_of(setup)
    stored = model.stored_layers(samples, budget, dtype)
    try:
        result = estimate(setup)
    except BadSetup as error:
        tensors, frozen = _tensors(run, model)
        result = _traced(run, setup, samples, stored, tensors, frozen)
        training = replace(training, tensors=tensors)
        return _Step(
            training=training, setup=setup, estimate=result, refusal=str(error), stored_layers=stored, stored_bytes=0
        )
    kept = stored_bytes(task, model, samples, budget, dtype) if task.keeps_some else 0
    if kept and not task.reversible:
        # See `training.compute.choices`: the line from none to all lies above the peak.
        whole = estimate(replace(setup, checkpointing=False)).gpu.total
        kept = min(kept, (whole - result.gpu.total) * stored // task.num_layers)
    return _Step(
        training=training,
        setup=setup,
        estimate=result,
        refusal=None,
        stored_layers=stored if task.keeps_some else 0,
        stored_bytes=kept,
    )


def _traced(
    run: RunConfig,
    setup: Setup,
    samples: int,
    stored: int,
    tensors: tuple[ParameterTensor, ...],
    frozen: tuple[int, ...],
) -> Estimate:
    step = _known_of(run).steps.peak(samples, stored, dtype_of(setup))
    parts = {"weights": step.weights, "gradients": step.gradients, "activations": step.activations}
    largest = sorted((parts | {"temporary": step.temporary}).items(), key=lambda part: -part[1])[:2]
    words = " and ".join(f"{name} ({show_bytes(size)})" for name, size in largest)
    return estimate_around(
        GpuMemory(**parts, optimizer_state=0, temporary=step.temporary),
        setup,
        tensors,
        frozen,
        saved_activations=step.saved,
        peak=Peak(phase=step.phase, instant=f"In {step.phase}, in {step.operation}; the largest parts are {words}."),
        note="The calculator does not know this model: a step of the model itself was traced.",
    )


def _tensors(run: RunConfig, model) -> tuple[tuple[ParameterTensor, ...], tuple[int, ...]]:
    """What is trained, and the bytes of each tensor that is not."""
    from training.optim.groups import hidden_matrices

    hidden = hidden_matrices(model) if run.optimizer.name == "muon" else set()
    trained = []
    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            # The calculator's optimizers only tell embeddings, which Muon does not move, from the rest.
            part, kind = ("feed-forward", "feed_forward") if id(tensor) in hidden else ("embeddings", "embedding")
            trained.append(ParameterTensor(f"{kind}.{name}", part, tuple(tensor.shape), 1))
    return tuple(trained), tuple(tensor.nbytes for tensor in model.parameters() if not tensor.requires_grad)


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
    # Of layers that are not reversible, the calculator counts the case that all keep their activations.
    if not task.keeps_some or (activation_budget_bytes is None and not task.reversible):
        return 0
    stored = model.stored_layers(micro_batch_size, activation_budget_bytes, dtype)
    layers = model.activation_bytes(micro_batch_size, dtype)
    # Not `layers[-stored:]`, which would be all layers if none is stored.
    return sum(layers[len(layers) - stored :])


def dtype_of(setup: Setup):
    """The type in which layers compute."""
    import torch

    return getattr(torch, {name: precision for precision, name in _PRECISIONS.items()}[setup.precision])


def _count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
