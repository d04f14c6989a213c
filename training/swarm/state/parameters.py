"""Rounds of parameters: peers whose weights have drifted apart get common ones; newcomers download the state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    RoleAdaptiveCompression,
)
from hivemind.compression.base import TensorRole
from hivemind.utils.serializer import MSGPackSerializer

from training.swarm.engine.process import DHT
from training.swarm.peers.groups import FULL_WEIGHT
from training.swarm.round.averager import Averager
from training.swarm.round.pipe import AveragerSettings
from training.swarm.run.lineage import Lineage
from training.swarm.state.alignment import AlignmentState
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.serving import Head, StateService

WEIGHT_WHEN_DRIFTED = 1e-6
"""Weight of parameters that have drifted or soon will. It is not 0, since then the mean of a group would be undefined
if all its peers have drifted."""


def state_codec() -> CompressionBase:
    """Codec of a state for newcomers: weights in 16 bits; the optimizer's moments unchanged, most of them in 8 bits
    already."""
    untouched = NoCompression()
    return RoleAdaptiveCompression(
        default=untouched, parameter=Float16Compression(), optimizer=untouched, gradient=untouched
    )


def state_prefix(prefix: str) -> str:
    """Prefix of the averager of parameters, which sends the state to newcomers; see `lineage.run_prefix`."""
    return f"{prefix}_state_averager"


class ParameterAverager(Averager):
    """Averages the master weights, and sends the peer's state to newcomers.

    Takes 4 bytes a parameter: training goes on with the master weights while copies of them are averaged.

    Args:
        master: The weights that are averaged.
        alignment: Alignment of these weights with the others'.
        dht: A running node.
        settings: Settings of the averager; see `Averager`.
        codec: Codec of a state for newcomers.
        lineage: Lineage of the weights, which newcomers compare with theirs.
        start: Start the averager's process.
    """

    def __init__(
        self,
        master: MasterWeights,
        alignment: AlignmentState,
        *,
        dht: DHT,
        settings: AveragerSettings,
        codec: CompressionBase,
        lineage: Lineage | None = None,
        start: bool = True,
    ):
        self._master, self._alignment, self._codec, self._lineage = master, alignment, codec, lineage
        weights = [parameter.detach().clone() for parameter in master.parameters]
        super().__init__(
            weights,
            dht=dht,
            settings=settings,
            tensor_infos=[
                CompressionInfo.from_tensor(w, key=n, role=TensorRole.PARAMETER) for n, w in enumerate(weights)
            ],
            donor=StateService,
            give=self._packed,
            start=start,
        )

    def _packed(self, seed: bytes | None) -> tuple[bytes, torch.Tensor, Sequence[Head]] | bytes:
        """Packs what `StateService` asks for: the state, or a sample of the weights at the places that a seed draws."""
        if seed is None:
            drifted = self._alignment.lacks_updates
            metadata, *packed = self._master.packed_state(self._codec, drifted=drifted, lineage=self._lineage)
            return MSGPackSerializer.dumps(metadata), *packed
        # A peer that is behind is no evidence that the others are no further than itself.
        return self._master.packed_sample(seed, drifted=not self._alignment.is_witness)

    @torch.no_grad()
    def load(self) -> None:
        """Copies the current master weights to the tensors that are averaged next."""
        with self.get_tensors() as averaged, self._master.lock:
            for tensor, parameter in zip(averaged, self._master.parameters, strict=True):
                tensor.copy_(parameter)

    @property
    def weight(self) -> float:
        """Weight of this peer's parameters in the next round."""
        return WEIGHT_WHEN_DRIFTED if self._alignment.lacks_updates else FULL_WEIGHT

    def give_back(self) -> None:
        """Replaces the master weights by the averaged ones; the number of updates stays."""
        with self.get_tensors() as averaged:
            self._master.load(averaged, self._master.epoch)
