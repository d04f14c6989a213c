"""hivemind's averager over ours."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager

import torch
from hivemind.averaging.allreduce import AllreduceException, AveragingMode
from hivemind.averaging.control import AveragingStage
from hivemind.compression import CompressionBase, CompressionInfo, NoCompression
from hivemind.dht import DHT
from hivemind.p2p import PeerID

from adapters.faults import method_with
from training.errors import TrainingError
from training.swarm.round.averager import Averager, AveragingFailedError, Round
from training.swarm.round.pipe import AveragerSettings, Stage
from training.swarm.round.serving import Head, pack
from training.swarm.state.download import download_state
from training.swarm.state.parameters import state_prefix

PATIENCE_SECONDS = 120.0
"""Of a step without a timeout, for which hivemind waits without end."""
DOWNLOAD_SECONDS = 10.0
SETTINGS = {
    "allreduce_timeout": "allreduce_timeout_seconds",
    "compression": "compression",
    "initial_group_bits": "group_bits",
    "min_group_size": "min_group_size",
    "min_matchmaking_time": "matchmaking_seconds",
    "next_chunk_timeout": "next_chunk_timeout_seconds",
    "part_size_bytes": "part_bytes",
    "request_timeout": "request_timeout_seconds",
    "target_group_size": "max_group_size",
}
"""hivemind's names of our averagers' settings."""
STAGES = {
    Stage.SEARCHING: AveragingStage.LOOKING_FOR_GROUP,
    Stage.WAITING: AveragingStage.AWAITING_TRIGGER,
    Stage.AWAITED: AveragingStage.AWAITING_TRIGGER,
    Stage.AVERAGING: AveragingStage.RUNNING_ALLREDUCE,
    Stage.ENDED: AveragingStage.FINISHED,
}


class StepControl:
    """hivemind's handle of a step, over a round of ours."""

    def __init__(self, round_: Round, weight: float):
        self._round, self.weight = round_, weight

    @property
    def stage(self) -> AveragingStage:
        return STAGES[self._round.stage]

    @property
    def triggered(self) -> bool:
        return self._round.started

    def allow_allreduce(self) -> None:
        self._round.start(self.weight)

    def cancel(self) -> None:
        self._round.cancel()

    def cancelled(self) -> bool:
        try:
            self._round.result(0)
        except CancelledError:
            return True
        except Exception:
            return False
        return False

    def done(self) -> bool:
        return self._round.done()

    def result(self, timeout: float | None = None) -> dict[PeerID, object]:
        """What the group's peers told; fails as hivemind's does."""
        try:
            return self._round.result(timeout).told
        except AveragingFailedError as error:
            raise AllreduceException(str(error)) from error


class DecentralizedAverager:
    """Takes hivemind's arguments; an auxiliary peer is one whose tensors have no weight.

    A step begins at the end of our matchmaking's window, which is the time for which hivemind's tests schedule it.
    """

    def __init__(
        self,
        averaged_tensors: Sequence[torch.Tensor],
        dht: DHT,
        *,
        start: bool,
        prefix: str,
        client_mode: bool | None = None,
        auxiliary: bool = False,
        allow_state_sharing: bool | None = None,
        state_compression: CompressionBase | None = None,
        **options: object,
    ):
        client_mode = dht.client_mode if client_mode is None else client_mode
        self.dht, self.prefix, self.peer_id = dht, prefix, dht.peer_id
        self.mode = AveragingMode.CLIENT if client_mode else AveragingMode.AUX if auxiliary else AveragingMode.NODE
        self._state_compression = state_compression or NoCompression()
        # Newcomers find the donors under the prefix that our download expects.
        settings = {SETTINGS[name]: value for name, value in options.items()}
        settings = AveragerSettings(prefix=state_prefix(prefix), client_mode=client_mode, **settings)
        self.averager = self._make_averager(averaged_tensors, settings, start=start)
        self._allow_state_sharing = (
            self.mode == AveragingMode.NODE if allow_state_sharing is None else allow_state_sharing
        )
        self.allow_state_sharing = self._allow_state_sharing

    def _make_averager(
        self, averaged_tensors: Sequence[torch.Tensor], settings: AveragerSettings, *, start: bool
    ) -> Averager:
        return Averager(
            averaged_tensors,
            dht=self.dht,
            settings=settings,
            method=method_with(self),
            read_state=self._packed_state,
            start=start,
        )

    # -- steps -----------------------------------------------------------------------------------------------------

    def step(
        self,
        gather: object = None,
        *,
        weight: float | None = None,
        timeout: float | None = None,
        require_trigger: bool = False,
        wait: bool = True,
        scheduled_time: float | None = None,
        allow_retries: bool = True,
    ) -> StepControl | dict[PeerID, object]:
        """The last two are not heeded: see the class; ours looks for another group until the timeout."""
        weight = float(self.mode != AveragingMode.AUX) if weight is None else weight
        control = StepControl(self.averager.begin_round(gather, seconds=timeout or PATIENCE_SECONDS), weight)
        if not require_trigger:
            control.allow_allreduce()
        return control.result() if wait else control

    def get_tensors(self) -> AbstractContextManager[tuple[torch.Tensor, ...]]:
        return self.averager.get_tensors()

    def is_alive(self) -> bool:
        return self.averager.is_alive()

    def shutdown(self) -> None:
        self.averager.shutdown()

    # -- the state -------------------------------------------------------------------------------------------------

    @property
    def allow_state_sharing(self) -> bool:
        return self._allow_state_sharing

    @allow_state_sharing.setter
    def allow_state_sharing(self, value: bool) -> None:
        self._allow_state_sharing = value
        if self.mode != AveragingMode.CLIENT:
            self.averager.offer_state(0.0 if value else None)

    def get_current_state(self) -> tuple:
        """hivemind's tests override it."""
        with self.get_tensors() as tensors:
            return {}, tensors

    def _packed_state(self) -> tuple[dict, torch.Tensor, list[Head]]:
        """A state of ours without parameters: its optimizer has all tensors, and hivemind's metadata as a value."""
        metadata, tensors = self.get_current_state()
        entries = [{"type": "value", "value": metadata}]
        entries += [{"type": "tensor", "index": number} for number in range(len(tensors))]
        infos = [CompressionInfo.from_tensor(tensor, key=number) for number, tensor in enumerate(tensors)]
        return {"epoch": 0, "optimizer_metadata": entries}, *pack(tensors, infos, self._state_compression)

    def load_state_from_peers(self) -> tuple[object, tuple[torch.Tensor, ...]] | None:
        try:
            state = download_state(
                self.dht,
                self.prefix,
                shapes=(),
                chunk_seconds=DOWNLOAD_SECONDS,
                total_seconds=DOWNLOAD_SECONDS,
                max_bytes=10**6,
                epochs=range(1),
            )
        except TrainingError:
            return None
        return state.optimizer_metadata[0]["value"], state.tensors
