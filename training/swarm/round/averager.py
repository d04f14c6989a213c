"""An averager as the trainer sees it: a process that finds groups and averages the trainer's tensors with theirs.

Averaging runs in a process of its own (`service`), so that it neither waits for the trainer's computing nor delays it.
Both share the memory of the tensors; a pipe carries all other messages (`pipe` lists them).
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import torch
from hivemind.compression import CompressionInfo

from training.errors import ProcessEnded, TrainingError
from training.swarm.engine.process import DHT
from training.swarm.node.admission import admission_of
from training.swarm.peers.groups import AveragedGroup, Contribution
from training.swarm.peers.table import Peers, id_bytes
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.gathering import GroupMessage
from training.swarm.round.pipe import (
    AveragerSettings,
    Begin,
    Cancel,
    Caught,
    Ended,
    Fewer,
    Given,
    MakeDonor,
    Offer,
    Reached,
    Ready,
    Stage,
    Start,
    Wanted,
)
from training.swarm.round.rounds import AveragingMethod, Mean
from training.swarm.round.service import Service, serve

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Longest wait for an averager's process to start."""
SHUTDOWN_SECONDS = 2.0
"""Longest wait for a process to end; then it is killed."""


class AveragingFailedError(TrainingError):
    """A round has failed."""


class Round:
    """One round of an averager, from the search for a group to the average."""

    def __init__(self, number: int, send: Callable[[object], None]):
        self.number, self._send = number, send
        self._outcome: Future[AveragedGroup] = Future()
        self.stage = Stage.SEARCHING
        self.started = False
        """True once the trainer lets the round average; it starts once."""
        self.began = time.monotonic()

    def start(self, weight: float, **facts: object) -> None:
        """Lets the round average the current values of the tensors as soon as it has a group.

        Args:
            weight: Weight of the tensors.
            facts: Further fields of `Contribution`.
        """
        if not self.started:
            self.started = True
            self._send(Start(self.number, Contribution(weight=float(weight), **facts)))

    def expect_fewer(self, gone: int) -> None:
        """Lowers the number of expected peers by those that are gone; a negative number raises it again."""
        self._send(Fewer(self.number, gone))

    def cancel(self) -> None:
        """Gives the round up; does nothing if it has ended."""
        if self._outcome.cancel():
            self._send(Cancel(self.number))

    def done(self) -> bool:
        """Returns True if the round has a result, has failed or was cancelled."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> AveragedGroup:
        """Waits for the average.

        Raises:
            TimeoutError: If there is no average in time.
            AveragingFailedError: If the round has failed.
            CancelledError: If it was cancelled.
        """
        return self._outcome.result(timeout)

    def end(self, group: AveragedGroup | None, fault: str) -> None:
        """Takes the process's message on the end of the round; does nothing if the trainer has cancelled the round
        meanwhile."""
        self.stage = Stage.ENDED
        # The trainer may cancel at this moment. It is an error to set the result of a cancelled future: that would end
        # the listener's thread, and no later round would get a result.
        if self._outcome.set_running_or_notify_cancel():
            if group is not None:
                self._outcome.set_result(group)
            else:
                self._outcome.set_exception(AveragingFailedError(fault))


class Averager:
    """Averages some tensors with the groups that its process finds.

    Args:
        tensors: Tensors in float32 on the host; they move to shared memory, and change in place when a round ends well.
        dht: A running node.
        settings: Settings of matchmaking, limits, codec and reduction.
        tensor_infos: Hints for the codec, one a tensor; None: made from their shapes.
        method: Averages the tensors within a group; None: the weighted mean.
        donor: Makes an object of the process that answers other peers with data of the trainer; None: no such object.
        give: Returns the data that the donor asks for; runs in a thread of the trainer.
        start: True to start the process, which needs some tenths of a second.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        *,
        dht: DHT,
        settings: AveragerSettings,
        tensor_infos: Sequence[CompressionInfo] | None = None,
        method: AveragingMethod | None = None,
        donor: MakeDonor | None = None,
        give: Callable[[object], object | None] = lambda what: None,
        start: bool = True,
    ):
        self.dht, self.settings = dht, settings
        self.bandwidth: float | None = None
        """Bandwidth of this peer's link in Mbit/s, None if unknown; groups let peers with slow links average less."""
        self.peers = Peers()
        """Table of the other peers: notes which peers spoil averages, and has the peers that groups leave out. The
        averagers of a trainer share one table."""
        self._tensors = tuple(tensor.detach().share_memory_() for tensor in tensors)
        self.method = method or Mean()
        self._tensor_infos = tensor_infos
        self._make_donor, self._give = donor, give
        self._lock = multiprocessing.Lock()
        self._numbers = itertools.count()
        self._rounds: dict[int, Round] = {}
        self._has_ended = threading.Event()
        # The trainer's thread, the one of `updates` and the giver's send messages, which must not be mixed in the pipe.
        self._sending = threading.Lock()
        # Reading the state waits for an update that is under way. In the listener's thread, all rounds' results would
        # have to wait too.
        self._giver = ThreadPoolExecutor(1, thread_name_prefix="giver")
        self._process: multiprocessing.process.BaseProcess | None = None
        if start:
            self.start()

    def start(self) -> None:
        """Starts the process.

        Raises:
            TrainingError: If it does not serve within `START_SECONDS`.
        """
        # Any other way to start a process pickles the arguments, and hivemind's node cannot be pickled.
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        service = Service(
            self.dht,
            self.settings,
            pipe=theirs,
            tensors=self._tensors,
            lock=self._lock,
            tensor_infos=self._tensor_infos,
            method=self.method,
            donor=self._make_donor,
        )
        self._process = context.Process(target=serve, args=(service,), daemon=True, name=self.settings.prefix)
        self._process.start()
        # With this copy closed, only the process has one: if it dies, `recv` here raises EOFError.
        theirs.close()
        ready = self._pipe.recv() if self._pipe.poll(START_SECONDS) else Ready("it did not answer")
        if not isinstance(ready, Ready) or ready.fault is not None:
            self.shutdown()
            raise TrainingError(
                f"The averager {self.settings.prefix} did not start: {getattr(ready, 'fault', ready)}.",
                cure="Start the program again; if that does not help, tell the run's maintainer.",
            )
        threading.Thread(target=self._listen, daemon=True, name=f"{self.settings.prefix}-listener").start()

    def begin_round(self, announcement: object = None, *, seconds: float, expected_peers: int = 0) -> Round:
        """Begins to look for a group. `Round.start` of the result lets the round average.

        Args:
            announcement: Message for the peers of the group.
            seconds: Time after which the round fails if it has no group.
            expected_peers: Number of peers that the group should have; 0: unknown.
        """
        admission = admission_of(self.dht)
        ticket = admission.own_ticket if admission is not None else ""
        packed = GroupMessage(
            mbits=self.bandwidth, client_mode=self.settings.client_mode, announcement=announcement, ticket=ticket
        ).packed()
        number = next(self._numbers)
        # Kept before it is sent: the listener looks it up, and the process may answer before this method ends.
        round_ = self._rounds[number] = Round(number, self._send)
        self._send(Begin(number, packed, seconds, expected_peers, self.peers.left_out()))
        if self._has_ended.is_set():  # the listener has ended all earlier rounds, and would not see this round
            self._end_rounds()
        return round_

    def offer_state(self, priority: float | None) -> None:
        """Tells the DHT that newcomers can download the state here, or (None) that they no longer can."""
        self._send(Offer(priority))

    @contextmanager
    def get_tensors(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Context with the tensors, in which no round reads or changes them."""
        while not (held := self._lock.acquire(timeout=POLL_SECONDS)):
            if self._has_ended.is_set():  # the process was killed while it held the lock, which is never released now
                break
        try:
            yield self._tensors
        finally:
            if held:
                self._lock.release()

    def is_alive(self) -> bool:
        """True while the averager's process runs."""
        return self._process is not None and self._process.is_alive()

    def check_process(self) -> None:
        """Checks that the averager's process still runs; call it now and then.

        Each round of a dead process fails, so the peer would train alone for ever.

        Raises:
            ProcessEnded: If the process has ended.
        """
        if self._has_ended.is_set():
            raise ProcessEnded(
                f"The process that averages ({self.settings.prefix}) has ended, perhaps because memory ran out.",
                cure="Start the peer again; it goes on where the others are.",
            )

    def shutdown(self) -> None:
        """Ends the averager's process."""
        if self._process is not None:
            # The process is asked to end. Closing the pipe would not show it: forked, it has a copy of this end. Killed
            # in the midst of a call, it may leave a lock behind that hivemind shares between processes, and all others
            # would wait for that lock for ever.
            self._send(None)
            self._process.join(SHUTDOWN_SECONDS)
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._giver.shutdown(wait=False)

    def _send(self, message: object) -> None:
        with self._sending, suppress(OSError):  # if the process is gone, the listener ends all rounds
            self._pipe.send(message)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._take(self._pipe.recv())
        self._has_ended.set()
        self._end_rounds()

    def _end_rounds(self) -> None:
        while self._rounds:
            with suppress(KeyError):  # the trainer and the listener may both run this
                self._rounds.popitem()[1].end(None, "the averager's process has ended")

    def _take(self, message: object) -> None:
        match message:
            case Reached(number, stage):
                self._rounds[number].stage = stage
            case Ended(number, group, fault, spoiled_by):
                for peer, weight in spoiled_by.items():  # also if the trainer has cancelled the round
                    self.peers.spoiled(id_bytes(peer), weight)
                self._rounds.pop(number).end(group, fault)
            case Caught(peer, weight, deed):
                self.peers.spoiled(id_bytes(peer), weight, deed)
            case Wanted(number, what):
                self._giver.submit(self._answer, number, what)

    def _answer(self, number: int, what: object) -> None:
        answer = None
        try:
            answer = self._give(what)
        except Exception:  # the other peer asks another donor; this peer goes on
            logger.exception("What another peer asks for could not be read.")
        self._send(Given(number, answer))
