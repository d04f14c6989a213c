"""Averaging with the group in view: who sent, how much of the average is one's own, how many bytes it took.

hivemind reports a round as done with a group of n also when nobody else's tensors arrived: parts that fail are
replaced by one's own with a warning in the log. These averagers count, and return the count with the round.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import multiprocessing
import queue
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.allreduce import AllReduceRunner, AveragingMode
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.averaging.partition import DEFAULT_PART_SIZE_BYTES
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    RoleAdaptiveCompression,
    deserialize_torch_tensor,
)
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils.asyncio import as_aiter, azip
from hivemind.utils.timed_storage import get_dht_time

from training.swarm.codecs import exchange_codec

_LOOK_SECONDS = 0.1
"""Pause between two looks for a group; hivemind's own loop asks the DHT without pause and keeps a core busy."""

WEIGHT_OF_A_NEWCOMER = 1e-6
"""Weight of parameters that are behind the others', where theirs is 1; not 0, for all of a group may be newcomers."""

PATIENCE_WINDOWS = 4
"""Windows of matchmaking for which a group waits for peers that are known to train."""


def state_codec(bits: int = 16, threshold: int = 0) -> CompressionBase:
    """How newcomers get the state: weights as told; the optimizer's 8-bit moments are not touched.

    Args:
        bits: 16, or 8 for block-wise 8 bit.
        threshold: With 8 bit, tensors of fewer values are sent in 16.
    """
    untouched = NoCompression()
    weights = exchange_codec(threshold, "blockwise8") if bits == 8 else Float16Compression()
    return RoleAdaptiveCompression(default=untouched, parameter=weights, optimizer=untouched, gradient=untouched)


def part_bytes(parameters: int) -> int:
    """Bytes of one part of an all-reduce: small enough that a small model's parts go to all peers of a group.

    >>> part_bytes(1_300_000), part_bytes(125_000_000)
    (40625, 524288)
    """
    return min(max(parameters // 32, 1 << 14), DEFAULT_PART_SIZE_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundReport:
    """What one averaging round did, as seen by one peer."""

    group_size: int
    """Peers in the group, those without weight included."""
    senders: int
    """Peers whose tensors entered the average with weight, this one included; 1 is no average at all."""
    own_share: float | None
    """Share of this peer's own tensors in its result: its weight over all weights, 1 where a part did not come back.
    None if this peer reduces nothing and so does not see the others' weights."""
    torn: bool
    """Whether a peer was lost on the way: parts are the average of fewer peers, or this peer's own."""
    bytes_sent: int
    bytes_received: int
    seconds: float
    """From the group's forming to the last part."""


class AveragedGroup(dict):
    """What an averager returns, peer id -> what that peer gave to gather, with the round's report."""

    def __init__(self, gathered: dict, report: RoundReport):
        super().__init__(gathered)
        self.report = report

    def __reduce__(self) -> tuple:
        return AveragedGroup, (dict(self), self.report)


class ReportingRunner(AllReduceRunner):
    """An all-reduce that counts bytes and notes the others' weights as they arrive.

    Args:
        round_own_parts: Reduce this peer's own parts as the others would have received them. Peers whose tensors are
            equal then keep them; else the reducer's exact and the others' rounded tensors have a mean that is none's.
        kwargs: See hivemind.
    """

    def __init__(self, *, round_own_parts: bool = False, **kwargs):
        super().__init__(**kwargs)
        self._round_own_parts = round_own_parts
        self._began = time.monotonic()
        self._bytes_sent = self._bytes_received = 0
        self._weights: dict[PeerID, float] = {}

    def report(self) -> RoundReport:
        """What has happened so far."""
        weights = {peer: weight for peer, weight in self._weights.items() if peer not in self.banned_senders}
        weights[self.peer_id] = self.weight
        container = self.tensor_part_container
        failed = container.failed_size / max(container.total_size, 1)
        if self.tensor_part_reducer.num_parts == 0:  # it reduces nothing, so nobody has sent it any weight
            senders, own_share = len(self.sender_peer_ids), 1.0 if failed == 1 else None
        else:
            senders, total = sum(weight > 0 for weight in weights.values()), math.fsum(weights.values())
            own_share = failed + (1 - failed) * (self.weight / total if total > 0 else 1.0)
        return RoundReport(
            group_size=self.group_size,
            senders=senders if failed < 1 else 1,
            own_share=own_share,
            torn=failed > 0 or bool(self.banned_senders),
            bytes_sent=self._bytes_sent,
            bytes_received=self._bytes_received,
            seconds=time.monotonic() - self._began,
        )

    async def _communicate_with_peer(self, peer_id: PeerID) -> None:
        if not (self._round_own_parts and peer_id == self.peer_id):
            try:
                await super()._communicate_with_peer(peer_id)
            except Exception:
                if peer_id in self.sender_peer_ids and peer_id not in self.active_senders:
                    await self._ban_sender(peer_id)  # it is gone before it began to send: nobody waits for it
                raise
            return
        container, loop = self.tensor_part_container, asyncio.get_running_loop()
        own, sender = self.ordered_peer_ids.index(peer_id), self.sender_peer_ids.index(peer_id)
        for index, (part, info) in enumerate(tuple(container._input_parts_by_peer[own])):
            rounded = await loop.run_in_executor(None, _rounded, container.compression, part, info)
            averaged = await self.tensor_part_reducer.accumulate_part(sender, index, rounded, weight=self.weight)
            container.register_processed_part(own, index, averaged - rounded)

    def _get_peer_stub(self, peer: PeerID) -> _CountingStub:
        return _CountingStub(super()._get_peer_stub(peer), self)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        async for message in super().rpc_aggregate_part(self._incoming(stream, context.remote_id), context):
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message

    async def _incoming(self, stream: AsyncIterator, sender: PeerID | None = None) -> AsyncIterator:
        async for message in stream:
            self._bytes_received += len(message.tensor_part.buffer)
            if sender is not None:
                self._weights[sender] = message.weight
            yield message

    async def _outgoing(self, stream: AsyncIterator) -> AsyncIterator:
        async for message in stream:
            self._bytes_sent += len(message.tensor_part.buffer)
            yield message


def _rounded(codec: CompressionBase, part: torch.Tensor, info: CompressionInfo) -> torch.Tensor:
    return deserialize_torch_tensor(codec.compress(part.detach(), info, allow_inplace=False))


class _CountingStub:
    """A groupmate's reducer, with the bytes to and from it counted."""

    def __init__(self, stub: object, runner: ReportingRunner):
        self._stub, self._runner = stub, runner

    async def rpc_aggregate_part(self, parts: AsyncIterator) -> AsyncIterator:
        return self._runner._incoming(await self._stub.rpc_aggregate_part(self._runner._outgoing(parts)))


class _TornRound(Exception):
    """An average failed when some tensors had been changed already; averaging these again would not be an average."""


class ReportingAverager(DecentralizedAverager):
    """An averager whose results are `AveragedGroup`s, and whose groups wait for the peers that are expected.

    `expected_group_size` says how many these are, 0 that nobody knows; see `PatientMatchmaking`.
    """

    _rpc_handlers = None
    _stub_type = None
    round_own_parts = False
    """See `ReportingRunner`."""

    def __init__(self, averaged_tensors: Sequence[torch.Tensor], *args, **kwargs):
        self.reports: queue.SimpleQueue[RoundReport] = queue.SimpleQueue()
        self._expected_group_size = multiprocessing.Value(ctypes.c_int, 0)
        self._last_report: RoundReport | None = None
        kwargs.setdefault("part_size_bytes", part_bytes(sum(tensor.numel() for tensor in averaged_tensors)))
        super().__init__(averaged_tensors, *args, **kwargs)

    @property
    def expected_group_size(self) -> int:
        """How many peers the next group is expected to have; 0 if unknown."""
        return self._expected_group_size.value

    @expected_group_size.setter
    def expected_group_size(self, value: int) -> None:
        self._expected_group_size.value = value

    def step(self, *args, **kwargs):
        """See hivemind; besides, each round that has ended well puts its report into `reports`."""
        outcome = super().step(*args, **kwargs)
        if isinstance(outcome, StepControl):
            self._weigh(outcome)
            outcome.add_done_callback(self._keep_report)
        elif isinstance(outcome, AveragedGroup):
            self.reports.put(outcome.report)
        return outcome

    def _weigh(self, control: StepControl) -> None:
        """Sets this peer's weight in a round that begins, if it is not hivemind's."""

    def _keep_report(self, control: StepControl) -> None:
        if not control.cancelled() and control.exception() is None and isinstance(control.result(), AveragedGroup):
            self.reports.put(control.result().report)

    async def _step(self, *, step: StepControl, future_for_init: object) -> None:
        """In the averager's process: one round, from looking for a group on."""
        if not isinstance(self._matchmaking, PatientMatchmaking):
            self._matchmaking = PatientMatchmaking(
                self._p2p, self.schema_hash, self.dht, client_mode=self.client_mode, **self.matchmaking_kwargs
            )
        self._matchmaking.expect(self._expected_group_size.value)
        with suppress(InvalidStateError):  # the trainer gave this round up while it ended
            await super()._step(step=step, future_for_init=future_for_init)

    async def _aggregate_with_group(self, group_info: GroupInfo, *args, **kwargs) -> AveragedGroup:
        gathered = await super()._aggregate_with_group(group_info, *args, **kwargs)
        return AveragedGroup(gathered, self._last_report)

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs
    ) -> None:
        """As in hivemind, with a runner that reports."""
        group_id = group_info.group_id if group_id is None else group_id
        runner = ReportingRunner(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group_id,
            ordered_peer_ids=group_info.peer_ids,
            round_own_parts=self.round_own_parts,
            **kwargs,
        )
        self._running_groups[group_id].set_result(runner)
        if runner.modes[group_info.peer_ids.index(self.peer_id)] == AveragingMode.AUX:
            async for _ in runner:
                raise ValueError("aux peers should not receive averaged tensors")
        else:
            changed = 0
            try:
                async for tensor, update in azip(as_aiter(*tensors), runner):
                    tensor.add_(update, alpha=self._averaging_alpha)
                    changed += 1
                    self.last_updated = get_dht_time()
                    self._state_updated.set()
            except Exception as error:  # hivemind would look for another group with these tensors
                if changed:
                    raise _TornRound(
                        f"the average failed after {changed} of {len(tensors)} tensors: {error}"
                    ) from error
                raise
        self._last_report = runner.report()


class SwarmGradientAverager(GradientAverager, ReportingAverager):
    """Averages gradients, weighted by samples, and reports each round; peers tell each other where they stand."""

    _rpc_handlers = None
    _stub_type = None
    local_epoch = 0
    """Told to the peers of the next group."""
    wants_weights = False
    """Told to them as well: whether this peer's parameters are not those of the others yet."""

    def accumulate_grads_(self, batch_size: int) -> None:
        """See hivemind, whose mean is too small or too large where micro-batches differ in size: it divides by their
        number, having weighted each by its size over the first one's."""
        super().accumulate_grads_(batch_size)
        self.local_times_accumulated = self.local_samples_accumulated / self._anchor_batch_size

    def schedule_step(self, scheduled_time: float | None = None, **kwargs) -> StepControl:
        """See hivemind."""
        return super().schedule_step(scheduled_time, gather=[self.local_epoch, self.wants_weights], **kwargs)


def standings(group: AveragedGroup) -> list[tuple[int, bool]]:
    """Epoch of each peer of a gradients' group, and whether it wants the others' weights; nonsense is left out."""
    return [
        (told[0], told[1])
        for told in group.values()
        if isinstance(told, (list, tuple)) and len(told) == 2 and type(told[0]) is int and type(told[1]) is bool
    ]


class SwarmStateAverager(TrainingStateAverager, ReportingAverager):
    """Averages parameters and serves the state to newcomers, and reports each round."""

    _rpc_handlers = None
    _stub_type = None
    round_own_parts = True
    wants_weights = False
    """Whether this peer takes the others' parameters and adds next to nothing of its own."""

    def _weigh(self, control: StepControl) -> None:
        if self.wants_weights:
            control.weight = WEIGHT_OF_A_NEWCOMER

    def get_current_state(self) -> tuple:
        """A copy of the state between two updates; hivemind sends live memory, which changes on the way."""
        with self.lock_optimizer:
            metadata, tensors, infos = super().get_current_state()
            with self.lock_averaged_tensors:
                return metadata, [tensor.clone() for tensor in tensors], infos


class PatientMatchmaking(Matchmaking):
    """Matchmaking that knows how many peers to expect.

    hivemind's groups always wait for the end of a window, and start then with whoever has come: a peer that computes
    for longer than the window is left out. Here a group starts as soon as all expected peers have come, and a smaller
    one only after some windows. The number is a hint: too low a one splits a group for a round, too high a one, as
    after a peer's death, costs `PATIENCE_WINDOWS` windows.
    """

    def __init__(self, *args, min_group_size: int, target_group_size: int | None, **kwargs):
        self._least, self._most = min_group_size, target_group_size
        self._expected, self._patient_until = 0, -math.inf
        super().__init__(*args, min_group_size=min_group_size, target_group_size=target_group_size, **kwargs)
        manager = self.group_key_manager
        self.group_key_manager = _PatientKeyManager(
            manager.dht, manager.prefix, manager.group_bits, manager.target_group_size
        )

    def expect(self, peers: int) -> None:
        """A search for a group of so many peers begins; 0: nobody knows."""
        self._expected = min(peers, self._most or peers)
        self._patient_until = time.monotonic() + PATIENCE_WINDOWS * self.min_matchmaking_time

    @property
    def target_group_size(self) -> int | None:
        """A group of this size starts at once."""
        return self._expected if self._expected >= self._least else self._most

    @target_group_size.setter
    def target_group_size(self, value: int | None) -> None:
        self._most = value

    @property
    def min_group_size(self) -> int:
        """A group of this size starts at the end of a window."""
        return max(self._expected, self._least) if time.monotonic() < self._patient_until else self._least

    @min_group_size.setter
    def min_group_size(self, value: int) -> None:
        self._least = value


class _PatientKeyManager(GroupKeyManager):
    async def get_averagers(self, group_key: str, only_active: bool) -> list:
        averagers = await super().get_averagers(group_key, only_active)
        await asyncio.sleep(_LOOK_SECONDS)
        return averagers
