"""The advised micro-batch, which `plan`, `join`, the join page and the run designer take from here.

A size is advised if it fits the device with a margin when all activations are recomputed; if a single peer takes
several steps per epoch; and, if the speed is known, if a step takes no longer than peers look for a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calculator.choose.devices import Device
from calculator.choose.fit import ADVISED_SHARE, taken_bytes
from calculator.parts.adapters import ALL_LINEAR, adapter_tensors
from calculator.parts.optimizers import OPTIMIZERS
from calculator.parts.parameters import parameter_tensors
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import Setup

MOST_SAMPLES = 32
"""The largest micro-batch that is advised: on the measured processors, larger ones compute a sample no faster."""
LEAST_STEPS = 8
"""Least steps of a single peer per epoch; with fewer, the last step of an epoch exceeds the target batch by too
much."""
KEPT_ACTIVATION_BYTES = 160 << 20
"""The bytes of activations that reversible layers keep if no budget is given (`training.model.transformer`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerTraining:
    """The settings of a run on which the memory of a peer depends."""

    config: Mapping[str, object]
    """The model's fields, among them `model_type`; without that field, the model is text to image."""
    sequence_length: int | None = None
    """T, tokens of a sample; None: as the model's configuration says."""
    reversible: bool | None = None
    """True if the layers are reversible; None: as the model's configuration says."""
    optimizer: str = "lamb8bit-demo"
    """Name of the optimizer that updates the weights on the host."""
    local_updates: bool = False
    """True if peers make local updates between exchanges."""
    delay_outer_step: bool = False
    """True if they go on with that during an exchange."""
    powersgd: bool = False
    """True if gradients travel as products of thin matrices."""
    lora_rank: int | None = None
    """Rank of the adapters that are trained in place of the model; None: the model is trained."""
    lora_targets: str = ALL_LINEAR
    """See `calculator.step.setups.Setup`."""
    lora_freeze_a: bool = False
    """See `calculator.step.setups.Setup`."""
    base_bits: int | None = None
    """See `calculator.step.setups.Setup`."""

    def setup(
        self, device: Device, micro_batch_size: int, *, precision: str | None = None, checkpointing: bool = False
    ) -> Setup:
        """Builds the calculator's setup of a peer's training.

        Args:
            device: Device that trains the model.
            micro_batch_size: Samples computed at once.
            precision: None: 16-bit autocast on a GPU, in bfloat16 where it has that; float32 on a processor, unless
                frozen weights are stored in fewer bits.
            checkpointing: Whether activations are computed again. Reversible layers do so anyway; for them it has no
                effect.
        """
        if precision is None:
            plain = device.name == "cpu" and self.base_bits in (None, 32)
            precision = "fp32" if plain else "amp-bf16" if device.bfloat16 else "amp-fp16"
        reversible = self.config.get("reversible", True) if self.reversible is None else self.reversible
        return Setup(
            **self._model(),
            sequence_length=self.sequence_length,
            micro_batch_size=micro_batch_size,
            precision=precision,
            optimizer=self.optimizer,
            offload_optimizer=True,
            checkpointing=checkpointing and not reversible,
            loss="whole" if self._draws else "trainer",
        )

    def need_bytes(
        self, device: Device, micro_batch_size: int, *, precision: str | None = None, checkpointing: bool = True
    ) -> int:
        """Device memory that training needs, without activations that reversible layers keep; arguments as for `setup`.

        Raises:
            BadSetup: If the calculator does not know such a model.
        """
        setup = self.setup(device, micro_batch_size, precision=precision, checkpointing=checkpointing)
        return self.need_of(estimate(setup), device)

    def need_of(self, result: Estimate, device: Device) -> int:
        """The device memory that training needs, by the estimate of a step."""
        on_device, on_host = self.bytes_of_the_mode(result)
        return taken_bytes(result, device) + on_device + (on_host if device.unified else 0)

    def bytes_of_the_mode(self, result: Estimate) -> tuple[int, int]:
        """The memory of device and host that update and way of averaging need, besides the estimate.

        The estimate counts the host's state; Muon's update takes more for a while. With local updates, the moments and
        the sum of an inner batch's gradients are on the model's device, and the host keeps a momentum instead, or what
        sparse updates have not sent; with `delay_outer_step` also the weights from which progress counts
        (training/swarm/epoch/strategies/local_updates.py). PowerSGD keeps the error of its products on the host
        (training/swarm/epoch/powersgd.py); nearly all parameters are in matrices.
        """
        copy, update = 4 * result.trained_parameters, self.update_bytes()
        if self.local_updates:
            kept = copy * (1 + self.delay_outer_step)
            return result.host.optimizer_state + copy + update, kept - result.host.optimizer_state
        return 0, update + (copy if self.powersgd else 0)

    def update_bytes(self) -> int:
        """Most bytes that the update of one tensor takes temporarily."""
        setup = Setup(**self._model())
        architecture = resolve(setup)
        lora = lora_of(setup, architecture)
        tensors = parameter_tensors(architecture) if lora is None else adapter_tensors(architecture, lora)
        return max(OPTIMIZERS[self.optimizer].step_bytes(tensor, 4) for tensor in tensors)

    @property
    def _draws(self) -> bool:
        """Returns True for a text-to-image model, False for one that continues text."""
        return self.config.get("model_type", "text-to-image") == "text-to-image"

    def _model(self) -> dict[str, object]:
        """The fields of a setup that describe the model and its adapters."""
        return {
            "config": {"model_type": "text-to-image", **self.config},
            "lora_rank": self.lora_rank,
            "lora_targets": self.lora_targets,
            "lora_freeze_a": self.lora_freeze_a,
            "base_bits": self.base_bits,
        }


def sizes_to_advise(
    target_batch_size: int, *, matchmaking_seconds: float = 0.0, sample_seconds: float | None = None
) -> list[int]:
    """The sizes that may be advised if they fit: powers of two, always including 1.

    Args:
        target_batch_size: Samples of all peers together for one epoch.
        matchmaking_seconds: Time for which a peer looks for a group.
        sample_seconds: Time of one sample; None if it is not known.

    >>> sizes_to_advise(64), sizes_to_advise(4096, matchmaking_seconds=15.0, sample_seconds=3.0)
    ([1, 2, 4, 8], [1, 2, 4])
    """
    most = min(MOST_SAMPLES, target_batch_size // LEAST_STEPS)
    if sample_seconds:
        most = min(most, int(matchmaking_seconds / sample_seconds))
    return [1 << power for power in range(max(most, 1).bit_length())]


def advised_micro_batch(sizes: list[int], need: Callable[[int], int], device: Device) -> int:
    """The largest of these sizes that fits with a margin; 0 if none does.

    Args:
        sizes: See `sizes_to_advise`.
        need: Bytes of device memory for a number of samples at once; it must not fall as the number grows.
        device: Device that trains the model.
    """
    room = ADVISED_SHARE * device.usable_bytes
    # From the largest down, since each trial is a whole estimate and one of the first usually fits.
    return next((size for size in reversed(sizes) if need(size) <= room), 0)
