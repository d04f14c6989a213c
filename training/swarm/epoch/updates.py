"""Updates of the weights and rounds of parameters, in the background, one after the other.

The trainer computes meanwhile. `apply`, which the trainer calls between two micro-batches, copies finished results to
the model.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait

from training.swarm.epoch.waiting import LeftBehindError
from training.swarm.peers.groups import AveragedGroup, RoundReport
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.averager import Round
from training.swarm.round.pipe import Stage
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.parameters import ParameterAverager

logger = logging.getLogger(__name__)


class Updates:
    """Runs updates and rounds of parameters in the background, one update with its round at a time.

    Args:
        master: The weights that are updated.
        parameters: Averages these weights.
        alignment: Notes when a round of parameters has brought the others' weights.
        round_seconds: Longest round of parameters, with the search for its group.
        epoch_seconds: Returns the duration of an epoch; 0 if it is unknown.
        search_seconds: Time after which a round of parameters without a group is given up when the next epoch ends.
    """

    def __init__(
        self,
        master: MasterWeights,
        parameters: ParameterAverager,
        alignment: AlignmentState,
        *,
        epoch_seconds: Callable[[], float],
        round_seconds: float,
        search_seconds: float,
    ):
        self.master, self.parameters, self._alignment = master, parameters, alignment
        self._round_seconds, self._search_seconds, self._epoch_seconds = round_seconds, search_seconds, epoch_seconds
        # A single thread, so that a round of parameters begins when the update before it has ended.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="updates")
        self._updating: Future[bool] | None = None
        self._averaging: Future[AveragedGroup | None] | None = None
        self._round: Round | None = None
        self._reports: queue.SimpleQueue[RoundReport] = queue.SimpleQueue()

    def begin(
        self,
        epoch: int,
        *,
        gradients_ready: Callable[[], None] = lambda: None,
        average_parameters: bool,
        expected_peers: int,
    ) -> None:
        """Begins the update that ends an epoch, and a round of parameters after it.

        Args:
            epoch: The epoch that ends.
            gradients_ready: Waits until the master weights have the update's gradients; by default they have them
                already. If it raises LeftBehindError, nothing is updated.
            average_parameters: True to average the parameters as well.
            expected_peers: Number of peers that the round of parameters should have.
        """
        self.wait()
        if average_parameters:  # the search for a group begins now, while the weights are updated
            seconds = self._round_seconds
            self._round = self.parameters.begin_round(epoch + 1, seconds=seconds, expected_peers=expected_peers)
        self._updating = self._executor.submit(self._update, epoch, gradients_ready)
        if average_parameters:
            self._averaging = self._executor.submit(self._average, self._updating, self._round)

    def apply(self) -> None:
        """Copies finished results to the model."""
        changed = False
        if self._averaging is not None and self._averaging.done():
            if (group := self._averaging.result()) is not None:
                # No update has changed the master weights since they were copied for this round: `begin` waits for it.
                self.parameters.give_back()
                changed = True
                if group.report.senders > 1 and not group.report.torn:
                    self._alignment.note(Event.PARAMETERS_AVERAGED)
            self._averaging = None
        if self._updating is not None and self._updating.done():
            updating, self._updating = self._updating, None
            changed |= updating.result()
        if changed:
            self.master.update_model()

    def await_update(self) -> None:
        """Waits for the update and applies it; does not wait for the round of parameters after it."""
        if self._updating is not None:
            wait([self._updating])
        self.apply()

    def wait(self) -> None:
        """Waits until no update or round is under way, and applies the results.

        A round of parameters without a group is given up: the others' next average of gradients would wait for this
        peer during its search.
        """
        while pending := {job for job in (self._updating, self._averaging) if job is not None and not job.done()}:
            self._give_up_idle_search()
            wait(pending, POLL_SECONDS)
        self.apply()

    def take_reports(self) -> list[RoundReport]:
        """Returns the reports of the rounds of parameters that have ended since the last call."""
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get_nowait())
        return reports

    def end(self) -> None:
        """Ends the background thread after the current work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _give_up_idle_search(self) -> None:
        searches = self._round is not None and self._round.started and self._round.stage is Stage.SEARCHING
        if searches and time.monotonic() - self._round.began >= self._search_seconds:
            self._round.cancel()

    # -- in the background -----------------------------------------------------------------------------------------

    def _update(self, epoch: int, gradients_ready: Callable[[], None]) -> bool:
        """Updates the weights once their gradients are ready. Returns False if the others have gone on before."""
        try:
            gradients_ready()
        except LeftBehindError as error:
            logger.info("No update ends epoch %s: %s", epoch, error)
            return False
        self.master.update(epoch)  # if this fails, `apply` raises the error in the trainer
        self._alignment.updated()
        return True

    def _average(self, updating: Future[bool], round_: Round) -> AveragedGroup | None:
        """Averages the parameters. Returns the round's group, or None if the round has failed."""
        # Without the update, these weights are of another epoch than those of the round's other peers.
        if updating.exception() is not None or not updating.result():
            round_.cancel()
            return None
        self.parameters.load()
        seconds = self._epoch_seconds()
        round_.start(self.parameters.weight, cycle_seconds=seconds or None, free_seconds=seconds)
        try:
            group = round_.result(self._round_seconds)
        except (Exception, CancelledError) as error:
            logger.info("The parameters were not averaged: %s", error)
            round_.cancel()
            return None
        self._reports.put(group.report)
        return group
