"""What training a recipe's model will take of a machine, by the calculator, and how to train it there.

The same estimate as the site's calculator gives. It counts reversible layers with all activations computed again; what
the model keeps within its budget (`training.model.transformer`) is added.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculator import BadSetup, Estimate, Setup, estimate
from calculator.devices import Device
from calculator.fit import Suggestion, need_bytes, suggestions
from training.config import ModelConfig, RunConfig
from training.errors import BadInput

MOST_SAMPLES = 32
"""No larger micro-batch is advised: on the processors measured a sample takes no less time in one."""
MARGIN = 0.9
"""Advice fills at most this share of the memory."""


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


def make_plan(run: RunConfig, device: Device, *, micro_batch_size: int | None = None) -> Plan:
    """A plan for one machine.

    Args:
        run: The recipe.
        device: Where it is trained; see `this_machine`.
        micro_batch_size: Samples computed at once; None: as many as are advised.

    Raises:
        BadInput: If the calculator does not know such a model.
    """
    model = _built(run.model)

    def need(samples: int) -> int:
        try:
            return need_bytes(setup_of(run, device, samples), device) + stored_bytes(model, samples)
        except BadSetup as error:
            raise BadInput(f"The memory of this recipe's model cannot be estimated: {error}") from None

    sizes = [1 << power for power in range(MOST_SAMPLES.bit_length())]
    fitting = [samples for samples in sizes if need(samples) <= MARGIN * device.usable_bytes]
    advised = max(fitting, default=0)
    samples = micro_batch_size or advised or 1
    setup = setup_of(run, device, samples)
    needed = need(samples)
    return Plan(
        parameters=_count(model),
        computing_parameters=_count(_built(run.model.model_copy(update={"shared_groups": None}))),
        setup=setup,
        estimate=estimate(setup),
        stored_layers=model.stored_layers(samples) if run.model.reversible else 0,
        stored_bytes=stored_bytes(model, samples),
        device=device,
        need_bytes=needed,
        advised_micro_batch=advised,
        suggestions=tuple(suggestions(setup, device)) if needed > device.usable_bytes else (),
    )


def setup_of(run: RunConfig, device: Device, micro_batch_size: int) -> Setup:
    """The calculator's setup for training as a peer does: optimizer on the host, bfloat16 autocast on a GPU."""
    return Setup(
        config={"model_type": "text-to-image", **run.model.model_dump()},
        micro_batch_size=micro_batch_size,
        precision="fp32" if device.name == "cpu" else "amp-bf16",
        optimizer="lamb8bit-demo" if run.optimizer.name == "lamb8bit" else "lamb",
        offload_optimizer=True,
    )


def stored_bytes(model, micro_batch_size: int) -> int:
    """What a reversible model keeps of its layers' activations within its budget; the calculator leaves it out."""
    if not model.config.reversible:
        return 0
    layers = model.activation_bytes(micro_batch_size)
    return sum(layers[len(layers) - model.stored_layers(micro_batch_size) :])


def this_machine() -> Device:
    """The first GPU, or the processor with the memory that is free now."""
    import psutil
    import torch

    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        return Device(
            name="gpu",
            title=properties.name,
            memory_bytes=properties.total_memory,
            usable_bytes=torch.cuda.mem_get_info(0)[0],
            capability=(properties.major, properties.minor),
            source="torch.cuda.mem_get_info",
        )
    memory = psutil.virtual_memory()
    return Device(
        name="cpu",
        title="processor and memory of this machine",
        memory_bytes=memory.total,
        usable_bytes=memory.available,
        capability=None,
        source="psutil.virtual_memory",
        unified=True,
    )


def _built(config: ModelConfig):
    """The model without memory for its weights."""
    import torch

    from training.model.transformer import build_model

    with torch.device("meta"):
        return build_model(config, seed=0)


def _count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
