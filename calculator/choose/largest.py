"""The largest micro-batch of a peer that fits its machine, and the activations that it may keep there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from calculator.choose.advice import PeerTraining, advised_micro_batch
from calculator.choose.devices import Device
from calculator.choose.fit import ADVISED_SHARE
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.setups import Setup

HOST_SHARE = 0.5
"""Share of the host's free memory up to which a processor keeps activations that it could recompute; the volunteer's
other programs use the same memory."""


@dataclass(frozen=True, kw_only=True)
class Layers:
    """A model's layers, and the activations that they can keep for backward instead of recomputing them."""

    count: int
    keep_some: bool
    """True if the model can keep the activations of some layers and recompute those of the others."""
    reversible: bool
    stored: Callable[[int, int | None, str], int]
    """Maps (samples, budget in bytes, precision) to the number of layers that keep activations; None: no limit."""
    activation_bytes: Callable[[int, str], list[int]]
    """Maps (samples, precision) to the bytes that each layer keeps."""

    def stored_bytes(self, samples: int, budget: int | None, precision: str) -> int:
        """Bytes of activations that some layers keep within a budget; estimates do not count them."""
        # Of layers that are not reversible, an estimate counts the case that all keep their activations.
        if not self.keep_some or (budget is None and not self.reversible):
            return 0
        stored = self.stored(samples, budget, precision)
        layers = self.activation_bytes(samples, precision)
        # Not `layers[-stored:]`, which would be all layers if none is stored.
        return sum(layers[len(layers) - stored :])


@dataclass(frozen=True, kw_only=True)
class PeerSetup:
    """Training of a peer: the settings of its run, and the layers of its model."""

    training: PeerTraining
    layers: Layers


@dataclass(frozen=True, kw_only=True)
class PeerStep:
    """The memory of one step of a peer."""

    training: PeerTraining
    setup: Setup
    estimate: Estimate
    """Estimate of the step, in which all activations are recomputed if only some layers keep theirs."""
    stored_layers: int
    """Layers, counted from the last, that keep their activations."""
    stored_bytes: int
    """Memory that these activations take, as far as `estimate` does not count it."""

    def need_bytes(self, machine: Device) -> int:
        """The device memory that the step takes in total."""
        return self.training.need_of(self.estimate, machine) + self.stored_bytes


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A micro-batch, and the activations that are kept with it."""

    micro_batch_size: int
    fits: bool
    """True if this size is advised; False if no size is, and this is the smallest that was asked for."""
    activation_budget_bytes: int | None
    """Bytes of activations that may be kept; None: all."""
    kept_layers: int
    need_bytes: int
    """Device memory that a step takes in total."""
    trained_parameters: int
    """Values that are averaged and updated."""


def largest_that_fits(
    setup: PeerSetup,
    machine: Device,
    sizes: Sequence[int],
    *,
    precision: str | None = None,
    checkpointing: bool | None = None,
) -> Choice:
    """Chooses the largest micro-batch that is advised, and the largest activation budget that fits beside it.

    A size is advised if a step that keeps as few activations as it may takes at most `ADVISED_SHARE` of the machine's
    memory.

    Args:
        setup: Training of the peer.
        machine: Machine that trains.
        sizes: Micro-batches to choose from, ascending.
        precision: See `PeerTraining.setup`.
        checkpointing: True: all activations are recomputed; False: all are kept; None: as many are kept as fit.

    Raises:
        BadSetup: If the calculator does not know the model.
    """

    precision = setup.training.setup(machine, 1, precision=precision).precision

    def need(samples: int, budget: int | None) -> int:
        return peer_step(setup, machine, samples, budget, precision=precision).need_bytes(machine)

    least = None if checkpointing is False else 0
    largest = advised_micro_batch(sizes, lambda samples: need(samples, least), machine)
    samples = largest or sizes[0]
    if checkpointing is None:
        budget = _largest_budget(setup.layers, machine, samples, precision, lambda budget: need(samples, budget))
    else:
        budget = 0 if checkpointing else None
    kept = setup.layers.stored(samples, budget, precision)
    # A budget too small for any layer is the same as 0, and messages should say so.
    budget = budget if kept else 0
    step = peer_step(setup, machine, samples, budget, precision=precision)
    return Choice(
        micro_batch_size=samples,
        fits=largest > 0,
        activation_budget_bytes=budget,
        kept_layers=kept,
        need_bytes=step.need_bytes(machine),
        trained_parameters=step.estimate.trained_parameters,
    )


def _largest_budget(
    layers: Layers, machine: Device, samples: int, precision: str, need: Callable[[int | None], int]
) -> int | None:
    """The largest activation budget that fits; `need` gives the bytes of a step with a budget."""
    most = int((HOST_SHARE if machine.unified else ADVISED_SHARE) * machine.usable_bytes)
    none, every = need(0), need(None)
    # Keeping all may take no more than keeping none, as when the optimizer's step takes the most.
    if every <= max(most, none):
        return None
    if not layers.keep_some:
        return 0
    room = max(0, most - none)
    if layers.reversible:
        return room
    # If layers are recomputed, the peak of a step is at another operation, so that only a part of what is kept adds to
    # it. That part grows with each layer, so a line from none to all lies above the peak.
    count = layers.count * room // (every - none)
    return sum(layers.activation_bytes(samples, precision)[:count])


def peer_step(
    setup: PeerSetup, machine: Device, samples: int, budget: int | None, *, precision: str | None = None
) -> PeerStep:
    """The memory of a peer's step.

    Args:
        setup: Training of the peer.
        machine: Machine that trains.
        samples: Samples that are computed at once.
        budget: Bytes of activations that may be kept; None: all.
        precision: See `PeerTraining.setup`.

    Raises:
        BadSetup: If the calculator does not know the model.
    """
    layers, training = setup.layers, setup.training
    recomputed = budget is not None if layers.keep_some else budget == 0
    made = training.setup(machine, samples, precision=precision, checkpointing=recomputed)
    stored = layers.stored(samples, budget, made.precision)
    result = estimate(made)
    kept = layers.stored_bytes(samples, budget, made.precision)
    if kept and not layers.reversible:
        # The line from none to all lies above the peak; see `_largest_budget`.
        whole = estimate(replace(made, checkpointing=False)).gpu.total
        kept = min(kept, (whole - result.gpu.total) * stored // layers.count)
    return PeerStep(
        training=training,
        setup=made,
        estimate=result,
        stored_layers=stored if layers.keep_some else 0,
        stored_bytes=kept,
    )
