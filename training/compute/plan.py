"""What training a recipe's model will take of a machine, by the calculator.

The same estimate as the site's calculator gives. It counts reversible layers with all activations computed again; what
the model keeps within its budget (`training.model.transformer`) is added. Attention is counted by single products;
fused kernels, which a GPU may use (`training.model.kernel_choice`), keep no probabilities.
`training.compute.choices` decides upon it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from calculator import BadSetup, Estimate, Setup, estimate
from calculator.devices import Device
from calculator.fit import ADVISED_SHARE, Suggestion, suggestions, taken_bytes
from training.config import ModelConfig, RunConfig
from training.errors import BadInput

MOST_SAMPLES = 32
"""No larger micro-batch is advised: on the processors measured a sample takes no less time in one."""

Precision = Literal["float32", "bfloat16", "float16"]
"""In which layers compute, by autocast; weights, norms and gradients are float32 in all."""
_PRECISIONS: dict[Precision, str] = {"float32": "fp32", "bfloat16": "amp-bf16", "float16": "amp-fp16"}
"""The calculator's names."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to expect of a recipe on a machine."""

    parameters: int
    """Different weights: what is stored, averaged and updated."""
    computing_parameters: int
    """Weights that the model would have if no layer shared any: what it computes like."""
    setup: Setup
    """As it is trained."""
    estimate: Estimate
    """One micro-batch, every reversible layer's activations computed again."""
    stored_layers: int
    """Of these layers, counted from the last, activations are kept instead."""
    stored_bytes: int
    """What that takes."""
    local_bytes: int
    """Of the device: what local updates keep there beside the rest; 0 in the synchronous mode."""
    host_bytes: int
    """Of the host."""
    device: Device
    need_bytes: int
    """Of the device, all in all."""
    advised_micro_batch: int
    """The largest that fits with a margin, `MOST_SAMPLES` at most; 0 if not even one sample does."""
    suggestions: tuple[Suggestion, ...]
    """What else would make it fit, where it does not."""

    @property
    def fits(self) -> bool:
        """Whether the device has as much."""
        return self.need_bytes <= self.device.usable_bytes


def make_plan(
    run: RunConfig,
    device: Device,
    *,
    micro_batch_size: int | None = None,
    precision: Precision | None = None,
    activation_budget_bytes: int | Literal["as built"] | None = "as built",
) -> Plan:
    """A plan for one machine.

    Args:
        run: The recipe.
        device: Where it is trained; see `training.compute.machine`.
        micro_batch_size: Samples computed at once; None: as many as are advised.
        precision: See `setup_of`.
        activation_budget_bytes: What the model may keep of its activations, see
            `training.model.transformer.TextToImageTransformer`; `training.compute.choices` chooses it.

    Raises:
        BadInput: If the calculator does not know such a model.
    """
    model = built_on_paper(run.model)
    if activation_budget_bytes != "as built":
        model.activation_budget_bytes = activation_budget_bytes

    def need(samples: int) -> int:
        return needed_bytes(run, device, model, samples, precision=precision)

    sizes = [1 << power for power in range(MOST_SAMPLES.bit_length())]
    fitting = [samples for samples in sizes if need(samples) <= ADVISED_SHARE * device.usable_bytes]
    advised = max(fitting, default=0)
    samples = micro_batch_size or advised or 1
    needed = need(samples)
    checkpointing = model.activation_budget_bytes == 0
    setup = setup_of(run, device, samples, precision=precision, checkpointing=checkpointing)
    dtype, result = dtype_of(setup), estimate(setup)
    local, more = bytes_of_the_mode(run, result, _count(model))
    return Plan(
        parameters=_count(model),
        computing_parameters=_count(built_on_paper(run.model.model_copy(update={"shared_groups": None}))),
        setup=setup,
        estimate=result,
        stored_layers=model.stored_layers(samples, dtype) if run.model.reversible else 0,
        stored_bytes=stored_bytes(model, samples, dtype),
        local_bytes=local,
        host_bytes=result.host.total + more,
        device=device,
        need_bytes=needed,
        advised_micro_batch=advised,
        suggestions=tuple(suggestions(setup, device)) if needed > device.usable_bytes else (),
    )


def setup_of(
    run: RunConfig,
    device: Device,
    micro_batch_size: int,
    *,
    precision: Precision | None = None,
    checkpointing: bool | None = None,
) -> Setup:
    """The calculator's setup for training as a peer does, with the optimizer on the host.

    Args:
        run: The recipe.
        device: Where it is trained.
        micro_batch_size: Samples computed at once.
        precision: None: 16-bit autocast on a GPU, in bfloat16 where it has that; float32 on a processor.
        checkpointing: Whether activations are computed again; of reversible layers, which do so anyway, it says
            nothing here.
    """
    if precision is None:
        precision = "float32" if device.name == "cpu" else "bfloat16" if device.bfloat16 else "float16"
    return Setup(
        config={"model_type": "text-to-image", **run.model.model_dump()},
        micro_batch_size=micro_batch_size,
        precision=_PRECISIONS[precision],
        optimizer="lamb8bit-demo" if run.optimizer.name == "lamb8bit" else "lamb",
        offload_optimizer=True,
        checkpointing=bool(checkpointing) and not run.model.reversible,
    )


def needed_bytes(
    run: RunConfig, device: Device, model, micro_batch_size: int, *, precision: Precision | None = None
) -> int:
    """What training takes of the device, all in all.

    Args:
        run: The recipe.
        device: Where it is trained.
        model: From `built_on_paper`, whose activations' budget counts.
        micro_batch_size: Samples computed at once.
        precision: See `setup_of`.

    Raises:
        BadInput: If the calculator does not know such a model.
    """
    checkpointing = model.activation_budget_bytes == 0
    setup = setup_of(run, device, micro_batch_size, precision=precision, checkpointing=checkpointing)
    try:
        result = estimate(setup)
    except BadSetup as error:
        raise BadInput(
            f"The memory of this recipe's model cannot be estimated: {error}",
            cure="Nothing: the run can be joined all the same; only the plan is not known.",
        ) from None
    local, more = bytes_of_the_mode(run, result, _count(model))
    beside = local + (more if device.unified else 0) + stored_bytes(model, micro_batch_size, dtype_of(setup))
    return taken_bytes(result, device) + beside


def bytes_of_the_mode(run: RunConfig, result: Estimate, parameters: int) -> tuple[int, int]:
    """What the recipe's way of averaging takes of the device and of the host, beside the calculator's estimate.

    With local updates LAMB's moments and the sum of an inner batch's gradients are where the model is, and the host
    keeps a momentum in their place (training/swarm/strategies/local_updates.py). PowerSGD keeps what its products leave
    out (training/swarm/powersgd.py); matrices are nearly all of a model.
    """
    copy = 4 * parameters
    if run.swarm.mode == "diloco":
        return result.host.optimizer_state + copy, copy - result.host.optimizer_state
    return 0, copy if run.swarm.powersgd_rank else 0


def stored_bytes(model, micro_batch_size: int, dtype=None) -> int:
    """What a reversible model keeps of its layers' activations within its budget; the calculator leaves it out.

    Args:
        model: See `built_on_paper`.
        micro_batch_size: Samples computed at once.
        dtype: In which layers compute; None: as autocast has it now.
    """
    if not model.config.reversible:
        return 0
    layers = model.activation_bytes(micro_batch_size, dtype)
    return sum(layers[len(layers) - model.stored_layers(micro_batch_size, dtype) :])


def dtype_of(setup: Setup):
    """In which type layers compute."""
    import torch

    return getattr(torch, {name: precision for precision, name in _PRECISIONS.items()}[setup.precision])


def built_on_paper(config: ModelConfig, *, checkpointing: bool | None = None):
    """The model without memory for its weights.

    Args:
        config: The recipe's.
        checkpointing: True: all activations are computed again; False: all are kept; None: as the model has it, whose
            reversible layers keep some.

    Raises:
        BadInput: If its sizes are beyond all measure.
    """
    import torch

    from training.model.transformer import build_model

    try:
        with torch.device("meta"):
            model = build_model(config, seed=0)
    except (RuntimeError, TypeError) as error:  # more values than 64 bits can count
        raise BadInput(
            f"The recipe's model cannot be: {str(error).splitlines()[0].rstrip('.')}.",
            cure="Change it in the recipe's `[model]`.",
        ) from None
    if checkpointing is not None:
        model.activation_budget_bytes = 0 if checkpointing else None
    return model


def _count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
