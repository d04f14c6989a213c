"""hivemind's optimizer with a run's settings, which says how each epoch's averaging went.

The known faults of hivemind 1.1.12 that are met here: `client_mode` must be given (its condition is inverted), the
gradient averager gets its settings from a factory alone (`averager_opts` do not reach it; see `build`), downloads of
the state have an end (see `catching_up`), and an epoch that was not averaged is told from one that was.
"""

from __future__ import annotations

import queue
import time
from contextlib import suppress
from dataclasses import replace

from hivemind.averaging.control import StepControl
from hivemind.utils import get_dht_time
from torch import Tensor

from training.config import RunConfig
from training.errors import TrainingError
from training.swarm.averaging import SwarmStateAverager, standings
from training.swarm.catching_up import CatchingUpOptimizer
from training.swarm.epochs import Ending, EpochReport
from training.swarm.groups import AveragedGroup, RoundReport
from training.swarm.tracker import LivelyTracker
from training.swarm.waiting import LOOK_SECONDS, LeftBehindError, NobodyElseError, await_group

LIVELY_WINDOWS = 6
"""A peer that has not reported a sample for so many windows of matchmaking is not waited for."""
LAST_AVERAGE_SECONDS = 5.0
"""A peer that leaves waits so long for an average that runs; it must be gone ten seconds after it was asked."""


class SwarmOptimizer(CatchingUpOptimizer):
    """`hivemind.Optimizer` for a run; make it with `build.build_swarm_optimizer`."""

    def __init__(self, *, run: RunConfig, **kwargs):
        self._reports: queue.SimpleQueue[EpochReport] = queue.SimpleQueue()
        self._endings: dict[StepControl, Ending] = {}
        self._ending: Ending | None = None
        self._state_rounds: queue.SimpleQueue[RoundReport] = queue.SimpleQueue()
        self._state_round_epoch = 0
        self._step_seconds, self._last_step = 0.0, time.monotonic()
        super().__init__(run=run, **kwargs)

    def _make_state_averager(self, **kwargs) -> SwarmStateAverager:
        swarm = self._run.swarm
        return SwarmStateAverager(
            dht=self.dht,
            prefix=f"{self.run_id}_state_averager",
            min_matchmaking_time=self.matchmaking_time,
            request_timeout=swarm.request_timeout_seconds,
            min_group_size=swarm.min_group_size,
            allreduce_timeout=self.allreduce_timeout,
            next_chunk_timeout=self.next_chunk_timeout,
            shutdown_timeout=self.shutdown_timeout,
            offload_optimizer=self.offload_optimizer,
            custom_gradients=self.offload_optimizer,
            status_loglevel=self.status_loglevel,
            client_mode=self.client_mode,
            auxiliary=self.auxiliary,
            start=True,
            **kwargs,
        )

    @property
    def average_state_every(self) -> int:
        """Parameters are averaged where the epoch divides by this: as the recipe says, or now for a newcomer's sake."""
        return 1 if self.local_epoch + 1 == self._state_round_epoch else self._average_state_every

    @average_state_every.setter
    def average_state_every(self, value: int) -> None:
        self._average_state_every = value

    def declare_bandwidth(self, mbits: float | None) -> None:
        """Tells groupmates what this peer's link carries, both ways, in Mbit/s: slow ones average smaller parts.

        Who does not know (None) counts as the mean of those who do; hivemind, averaging/load_balancing.py.
        """
        self.grad_averager.bandwidth = self.state_averager.bandwidth = mbits

    def take_epoch_reports(self) -> list[EpochReport]:
        """Reports of the epochs that have ended since the last call."""
        return _drain(self._reports)

    def _update_global_epoch(self, grad_scaler: object) -> None:
        ending = self._ending = Ending(
            epoch=self.local_epoch,
            samples=self.grad_averager.local_samples_accumulated,
            others=max(self.tracker.global_progress.num_peers - 1, 0),
            began=time.monotonic(),
        )
        self._prepare_to_average()
        with suppress(LeftBehindError):
            super()._update_global_epoch(grad_scaler)
        if not ending.in_background:  # else it is reported when its average ends, which may have been before this
            if not ending.left_behind:
                self._note_what_was_left_out(ending)
            self._report(ending)
            if ending.left_behind:
                self._catch_up()

    def _begin_averaging_gradients(self, grad_scaler: object) -> bool:
        if self._out_of_step:  # so the last average has shown, for which this one has waited
            self._fall_behind(self._ending)
            raise LeftBehindError("the others have gone on without this peer")
        scheduled = self.scheduled_grads
        if scheduled is not None and (scheduled.triggered or scheduled.done()):
            self.scheduled_grads = None  # hivemind would not average at all, where it finds the last epoch's group
        began = super()._begin_averaging_gradients(grad_scaler)
        if began and self.delay_grad_averaging:
            self._note_what_was_left_out(self._ending)
            self._ending.in_background = True
            self._endings[self.scheduled_grads] = self._ending
        return began

    def _note_what_was_left_out(self, ending: Ending) -> None:
        if self.grad_averager.not_finite:
            ending.samples = 0
            ending.notes.append("this peer's own gradients were not finite and were left out")

    def _report(self, ending: Ending) -> None:
        """Tells how the end of an epoch went."""
        _drain(self.grad_averager.reports)
        self._note_state_rounds()
        background = _drain(self._state_rounds)
        report = ending.report
        averaging = report.seconds if report else 0.0
        self._reports.put(
            EpochReport(
                epoch=ending.epoch + (not ending.left_behind),
                samples=0 if ending.left_behind else ending.samples,
                group_size=report.group_size if report else 1,
                senders=report.senders if report else 1 - ending.left_behind,
                own_share=report.own_share if report else 1.0,
                update_samples=report.weight if report else (None if ending.left_behind else ending.samples),
                others=ending.others,
                waiting_seconds=max(time.monotonic() - ending.began - averaging, 0.0),
                averaging_seconds=averaging,
                bytes_sent=sum(r.bytes_sent for r in (report, *background) if r),
                bytes_received=sum(r.bytes_received for r in (report, *background) if r),
                fault=ending.fault if ending.others else None,
                note="; ".join(ending.notes) or None,
            )
        )

    def _note_state_rounds(self) -> None:
        """Takes the reports of rounds of parameters; the weights that this peer may have wanted came with them."""
        for round_ in _drain(self.state_averager.reports):
            self._state_rounds.put(round_)
            if round_.senders > 1 and not round_.torn:
                self._want_weights(False)

    def _prepare_to_average(self) -> None:
        """Sets what the averagers tell the next group, and how many peers, whom the tracker knows, it waits for.

        Weights are asked for once: a group that has heard of it averages its parameters, which costs all of its peers.
        """
        self._note_state_rounds()
        expected = min(self.tracker.lively_peers, self._run.swarm.max_group_size)
        self.grad_averager.expected_group_size = self.state_averager.expected_group_size = expected
        self.grad_averager.local_epoch = self.local_epoch
        is_due = self._state_round_epoch > self.local_epoch
        self.grad_averager.wants_weights = self.state_averager.wants_weights and not is_due

    def step(self, *args, **kwargs) -> Tensor | None:
        """See hivemind."""
        now = time.monotonic()
        self._step_seconds, self._last_step = now - self._last_step, now
        return super().step(*args, **kwargs)

    def _maybe_schedule_gradient_averaging(self) -> None:
        """As in hivemind, but early enough for a peer whose steps are longer than the window.

        And not while the last average is still under way: a group would start without this peer, which cannot answer.
        """
        self._prepare_to_average()
        if self._endings:
            return
        now, due = get_dht_time(), self.tracker.estimated_next_update_time
        if due - now > max(self.matchmaking_time, 1.5 * self._step_seconds):
            return
        if self.scheduled_grads is None or self.scheduled_grads.triggered or self.scheduled_grads.done():
            self.scheduled_grads = self.grad_averager.schedule_step(timeout=self.averaging_timeout)

    def _make_progress_tracker(self, target_batch_size: int, **kwargs) -> LivelyTracker:
        return LivelyTracker(
            lively_seconds=LIVELY_WINDOWS * self.matchmaking_time,
            dht=self.dht,
            prefix=self.run_id,
            target_batch_size=target_batch_size,
            client_mode=self.client_mode,
            status_loglevel=self.status_loglevel,
            start=True,
            **kwargs,
        )

    def _average_gradients_and_load_into_optimizer(self, maybe_step_control: StepControl | None) -> None:
        """Waits for the average and keeps its report, or the reason why there is none.

        Without an average the optimizer uses what the averager's buffers hold, this peer's own gradients. hivemind
        would fill them anew from accumulators that it has emptied before, and step with zero gradients.
        """
        delayed = self._endings.get(maybe_step_control)
        ending = delayed or self._ending
        try:
            if maybe_step_control is None:
                raise TrainingError("no group was looked for")
            group = self._average_with_the_rest(
                maybe_step_control, self._await_group(maybe_step_control, ending), ending
            )
            ending.report = group.report
            if group.report.senders < 2:
                ending.fault = "no other peer's gradients arrived"
            elif group.report.torn:
                ending.fault = "a peer was lost in the middle of the average"
            elif group.report.repeated:
                lost = "a peer" if group.report.lost else "a connection"
                left = f"{group.report.senders} of {group.report.group_size}"
                ending.notes.append(f"{lost} was lost in the middle of the average, so {left} have averaged again")
            if group.report.refused:
                refused = ", ".join(group.report.refused)
                ending.notes.append(f"what {refused} sent was not finite and was left out")
            if group.report.torn:  # the others' update is not the same
                self._want_weights(True)
            told = standings(group)
            self._out_of_step |= max((standing.epoch for standing in told), default=0) > ending.epoch
            if any(standing.wants_weights for standing in told):
                self._state_round_epoch = ending.epoch + 1 + self.delay_grad_averaging
        except LeftBehindError:
            self._fall_behind(ending)
            if self.scheduled_grads is maybe_step_control:
                self.scheduled_grads = None
            raise
        except Exception as error:  # also what the averager's process has met; the peer goes on and says so
            ending.fault = str(error) or type(error).__name__
            if maybe_step_control is not None and not maybe_step_control.done():
                maybe_step_control.cancel()
        finally:
            if delayed:
                del self._endings[maybe_step_control]
                self._report(delayed)
        self._load_averaged_gradients_into_optimizer_()

    def _fall_behind(self, ending: Ending) -> None:
        self._out_of_step, ending.left_behind = True, True
        ending.fault = "the others were faster; it takes their weights and goes on, and its samples do not count"

    def _await_group(self, control: StepControl, ending: Ending) -> AveragedGroup:
        """The group's average, as long as there is hope for one; see `waiting`. Who was lost is not waited for."""
        swarm = self._run.swarm
        try:
            group = await_group(
                control,
                usual_seconds=swarm.matchmaking_seconds + swarm.request_timeout_seconds,
                timeout_seconds=self.averaging_timeout,
                newest_epoch=ending.epoch + self.delay_grad_averaging,  # delayed, all begin the next one at once
                look_around=self._look_around,
            )
        except NobodyElseError:
            ending.others = 0
            raise
        self.tracker.give_up(set(group.report.lost) - set(group.report.absent))
        return group

    def _average_with_the_rest(self, control: StepControl, group: AveragedGroup, ending: Ending) -> AveragedGroup:
        """What comes of another group with the same gradients, where all others of the first were lost on the way.

        A peer of a small group that breaks would else step alone although others train, who then wait for it.
        """
        if not group.report.lost or len(group.report.lost) < group.report.group_size - 1:
            return group
        try:
            _, others = self._look_around()
        except TimeoutError:
            return group
        if not others:
            return group
        self._prepare_to_average()
        again = self.grad_averager.schedule_step(timeout=self.averaging_timeout, epoch=ending.epoch)
        again.weight = control.weight
        again.allow_allreduce()
        ending.notes.append("all others of its group were lost, so it has looked for another one")
        try:
            found = self._await_group(again, ending)
        except TimeoutError:
            again.cancel()
            return group
        found.report = replace(
            found.report,
            bytes_sent=found.report.bytes_sent + group.report.bytes_sent,
            bytes_received=found.report.bytes_received + group.report.bytes_received,
        )
        return found

    def __del__(self):
        """Nothing: hivemind would wait here for a group that waits for this peer. The role's end ends its processes."""

    def say_goodbye(self, timeout_seconds: float = 2.0) -> None:
        """Tells the others not to wait for this peer; the processes end with the role.

        An average that runs in the background is ended first, for the others need this peer's part of it.
        """
        deadline = time.monotonic() + LAST_AVERAGE_SECONDS
        while self._endings and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 5)
        self.state_averager.allow_state_sharing = False
        for scheduled in (self.scheduled_grads, self.scheduled_state):  # first: no group is to begin with this peer
            if scheduled is not None and not scheduled.done() and not scheduled.triggered:
                scheduled.cancel()
        self.tracker.shutdown(timeout_seconds)


def _drain(reports: queue.SimpleQueue) -> list:
    drained = []
    with suppress(queue.Empty):
        while True:
            drained.append(reports.get_nowait())
    return drained
