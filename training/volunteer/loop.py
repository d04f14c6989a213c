"""A peer's training loop: micro-batches, losses, and a report of each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from calculator.units import show_time
from training.compute.choices import Choices
from training.compute.micro_batches import MicroBatches
from training.errors import TrainingError
from training.optim.config import ScheduleConfig
from training.processes.notices import Notices
from training.processes.uptime import Sleep
from training.swarm.config import SwarmConfig
from training.swarm.node.dht import check_node
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.peers.epochs import EpochReport
from training.swarm.peers.times import POLL_SECONDS
from training.tasks.task import TrainedModel
from training.volunteer.belonging import LeaveRequest
from training.volunteer.manners.awake import Awake
from training.volunteer.manners.manners import Manners
from training.volunteer.reporter import Reporter
from training.volunteer.samples import OwnSamples

SERVE_SECONDS = 30.0
"""Seconds for which a peer serves its state after the schedule's last epoch, so that the monitor can save a last
checkpoint."""
WAIT_SECONDS = 1.0
"""Interval at which a waiting peer looks for others."""
SHOWN_SHARE, WAITING_SHARE = 0.01, 0.1
"""Shares of an epoch: a peer that waits for samples for the first one shows it, for the second one it warns of it."""
STREAM_COSTS = ("waiting_seconds", "skipped_samples", "repeated_samples")
"""Attributes of `SampleStream` that each epoch's report contains."""
APART_IN_A_ROW = 10
"""Epochs in a row without an average although others train, after which a peer says why none counts and what helps."""
NOT_FINITE_IN_A_ROW = 10
"""Non-finite losses in a row after which a peer downloads the others' state again."""


@dataclass
class _WeightedMean:
    """Mean of losses, weighted by samples."""

    total: float = 0.0
    samples: int = 0

    def add(self, value: float, samples: int) -> None:
        self.total += value * samples
        self.samples += samples

    @property
    def mean(self) -> float:
        return self.total / self.samples


@dataclass(kw_only=True)
class TrainingLoop:
    """The loop over micro-batches."""

    schedule: ScheduleConfig
    swarm: SwarmConfig
    choices: Choices
    model: TrainedModel
    optimizer: SwarmOptimizer
    samples: OwnSamples
    reporter: Reporter
    notices: Notices
    manners: Manners = field(default_factory=Manners)
    """Decides whether the peer may compute now."""
    awake: Awake = field(default_factory=Awake)
    """Keeps the machine awake while the peer computes."""
    sleep: Sleep = field(default_factory=Sleep)
    """Notices that the machine has slept nevertheless."""
    reconnect: Callable[[], None] = lambda: None
    """Called after such a sleep: makes the connections to the run anew."""
    keep: Callable[[], None] = lambda: None
    """Called when an epoch has ended, so that its weights may be kept."""
    not_finite: int = 0
    """Number of losses in a row that were not finite."""
    apart: int = 0
    """Number of epochs in a row that were not averaged although others train."""
    micro_batch: tuple[int, float] = (0, 0.0)
    """Samples of the last micro-batch, and the seconds that it took, the wait for its samples included."""
    told: dict[str, float] = field(default_factory=dict)
    """Costs of the stream that earlier reports contain, by the names in `STREAM_COSTS`."""
    losses: _WeightedMean = field(default_factory=_WeightedMean)
    """Losses since the last report of an epoch."""
    loss: float = math.nan
    """Mean loss in that report."""
    began: float = field(default_factory=time.monotonic)
    """Time of that report; later by as long as the peer has computed nothing since then."""

    def train(self, epochs: int | None, stop: LeaveRequest) -> None:
        """Trains until the run has done `epochs` epochs, its schedule ends, or `stop` is requested."""
        samples, total = self.samples, self.schedule.total_epochs
        last = min(epochs or total, total)
        micro_batches = MicroBatches(
            self.model,
            micro_batch_size=self.choices.micro_batch_size,
            activation_budget_bytes=self.choices.activation_budget_bytes,
            precision=self.choices.precision,
            tell=self.notices.warn,
        )
        self.losses, self.began = _WeightedMean(), time.monotonic()
        self.model.train()
        self.awake.hold()
        self._rest(stop)
        step_began = time.monotonic()
        while not self._is_over(last, stop):
            batch = next(samples)
            for piece in micro_batches.gradients_of(batch):
                self.micro_batch = piece.samples, time.monotonic() - step_began
                if (size := micro_batches.micro_batch_size) != self.reporter.record.micro_batch_size:
                    self.reporter.update(micro_batch_size=size)
                if not self._is_finite(piece.loss):
                    samples.computed(piece.samples, is_added=False, held=self.optimizer.samples_held)
                    step_began = time.monotonic()
                    continue
                self.losses.add(piece.loss, piece.samples)
                self.optimizer.step(batch_size=piece.samples)
                self.optimizer.zero_grad()
                samples.computed(piece.samples, is_added=True, held=self.optimizer.samples_held)
                self._report_epochs()
                if self.optimizer.waits_for_others:
                    self._wait_for_others(stop)
                self._catch_up_after_sleep()
                self._rest(stop)
                if self._is_over(last, stop):
                    break
                step_began = time.monotonic()
        self.awake.release()
        if self.optimizer.local_epoch >= total and not stop.asked:
            self.notices.tell(f"The schedule is done; serving the result for {SERVE_SECONDS:.0f} s.")
            stop.wait(SERVE_SECONDS)

    def _is_over(self, last: int, stop: LeaveRequest) -> bool:
        """Returns True if the peer leaves now; one that finishes its epoch has its average first."""
        if self.optimizer.local_epoch >= last or stop.asked:
            return True
        if not self.manners.is_finishing or (self.optimizer.samples_held and not self.optimizer.waits_for_others):
            return False
        while self.optimizer.averages and not stop.wait(POLL_SECONDS):
            self.optimizer.rest()
        self._report_epochs()
        return True

    def _report_epochs(self) -> None:
        """Reports the epochs that have ended since the last call."""
        reports = self.optimizer.take_epoch_reports()
        for report in reports:
            if report.missed:
                self.reporter.miss_epoch(report)
                self._warn_of(report)
        if ended := [report for report in reports if not report.missed]:
            # An average in the background may end in the same step as the next epoch, if no average follows: both get
            # the loss of all samples since the last report, and share the time.
            # A peer that rests may have computed nothing since the last report.
            self.loss = self.losses.mean if self.losses.samples else self.loss
            seconds = (time.monotonic() - self.began) / len(ended)
            self.losses, self.began = _WeightedMean(), time.monotonic()
            for report in ended:
                self._end_epoch(report, self.loss, seconds)
            self.keep()

    def _rest(self, stop: LeaveRequest) -> None:
        """Computes nothing while `manners` has a reason for that, then catches up with the others.

        What the peer has computed enters the update that ends its epoch; after that the others do not wait for it.
        """
        began, told = time.monotonic(), None
        while not stop.asked and (why := self.manners.rest()) is not None:
            if why != told:
                told = why
                self.notices.events.write("paused", reason=why)
                self.notices.console.print(f"This peer computes nothing now: {why}.", markup=False)
                self.reporter.wait("paused")
                self.awake.release()
            if self.sleep.noticed():
                self.reconnect()
            self.optimizer.rest()
            self._report_epochs()
            if self.manners.is_finishing and not self.optimizer.samples_held:
                return
            stop.wait(WAIT_SECONDS)
        if told is None or stop.asked:
            return
        self.began += time.monotonic() - began
        self.optimizer.catch_up()
        self.notices.events.write("resumed")
        self.notices.console.print("This peer computes again.")
        self.reporter.update(status="training")
        self.awake.hold()

    def _catch_up_after_sleep(self) -> None:
        """If the machine has slept, connects to the run again, and catches up with the others."""
        if slept := self.sleep.noticed():
            self.notices.tell(f"This machine has slept for {show_time(slept)}; this peer catches up with the others.")
            self.reconnect()
            self.optimizer.catch_up()

    def _wait_for_others(self, stop: LeaveRequest) -> None:
        """Computes nothing until another peer trains, or this peer must rest or leave.

        Raises:
            ProcessEnded: If the node has ended, so that no peer can come.
        """
        began, epochs = time.monotonic(), self.swarm.max_epochs_alone
        self.notices.tell(
            f"No other volunteer has trained during the last {epochs} epochs. This peer keeps its gradients of epoch "
            f"{self.optimizer.local_epoch + 1} and waits until others come."
        )
        self.reporter.wait()
        self.awake.release()
        while self.optimizer.waits_for_others and not stop.wait(WAIT_SECONDS):
            if self.manners.is_finishing or self.manners.rest() is not None:
                break
            check_node(self.optimizer.dht)
            self.optimizer.keep_waiting()
        if not (stop.asked or self.optimizer.waits_for_others):
            self.notices.tell("Another volunteer is there: training goes on.")
            self.reporter.update(status="training")
        self.awake.hold()
        self.began += time.monotonic() - began

    def _is_finite(self, loss: float) -> bool:
        """Returns True if the loss is finite. After `NOT_FINITE_IN_A_ROW` losses that are not, downloads the others'
        state."""
        if math.isfinite(loss):
            self.not_finite = 0
            return True
        self.not_finite += 1
        self.notices.warn(f"The loss is {loss}; this micro-batch is skipped.")
        if self.not_finite >= NOT_FINITE_IN_A_ROW and not self.optimizer.load_state_from_peers():
            raise TrainingError(
                f"The loss was not finite {self.not_finite} times in a row, and no peer sends a better state.",
                cure="Join again: the state then comes from another peer. If all volunteers see this, "
                "the maintainer must go back to an earlier checkpoint.",
            )
        return False

    def _end_epoch(self, report: EpochReport, loss: float, seconds: float) -> None:
        streamed = {name: getattr(self.samples.stream, name) for name in STREAM_COSTS}
        since, self.told = {name: cost - self.told.get(name, 0) for name, cost in streamed.items()}, streamed
        self.notices.events.write(
            "epoch",
            epoch=report.epoch,
            loss=loss,
            samples=report.samples,
            group_size=report.group_size,
            senders=report.senders,
            own_share=report.own_share,
            step_seconds=seconds,
            averaging_seconds=report.averaging_seconds,
            waiting_seconds=report.waiting_seconds,
            bytes_sent=report.bytes_sent,
            bytes_received=report.bytes_received,
            update_samples=report.update_samples,
            missed=report.reason,
            **{f"data_{name}": cost for name, cost in since.items()},
        )
        # After the log: if the peer is killed here, its log has all that it has reported to others.
        self.reporter.end_epoch(report, loss, seconds)
        together = f"with {report.senders - 1} others" if report.senders > 1 else "alone"
        share = since["waiting_seconds"] / seconds if seconds else 0.0
        waiting = f"  {share:.0%} waiting for samples" if share >= SHOWN_SHARE else ""
        samples = f"{report.samples:>5} samples  {self.reporter.record.samples_per_second:6.1f}/s"
        self.notices.console.print(
            f"epoch {report.epoch:>5}  loss {loss:.4f}  {samples}  {together}{waiting}", markup=False
        )
        if share > WAITING_SHARE:
            self.notices.warn(
                f"Epoch {report.epoch}: this peer waited for samples for {share:.0%} of the time. The link, or the "
                "server of the shards, is too slow for it."
            )
        self._warn_of(report)

    def _warn_of(self, report: EpochReport) -> None:
        """Warns of the fault of an epoch, if it has one."""
        epoch, warn = f"Epoch {report.epoch + report.missed}", self.notices.warn
        self.apart = self.apart + 1 if report.others and report.senders <= 1 else 0
        too_slow = self._too_slow() if report.missed else None
        if report.missed:
            warn(f"{epoch} was missed: {too_slow or report.fault}.")
        elif report.alone:
            warn(f"{epoch} was not averaged though {report.others} others train: {report.fault}.")
        elif report.fault:
            warn(f"{epoch} was averaged in part: {report.fault}; a round of parameters soon repairs that.")
        if report.note:
            warn(f"{epoch}: {report.note}.")
        if self.apart and self.apart % APART_IN_A_ROW == 0 and not too_slow:
            warn(
                f"{epoch}: none of the last {self.apart} epochs was averaged, though others train. They and this peer "
                "do not reach each other, so no average has its samples. `doctor` with the same recipe and addresses "
                "says what is in the way; of two peers for whom no server relays, as with --client-mode, one needs an "
                "open port."
            )

    def _too_slow(self) -> str | None:
        """Says that a micro-batch takes this peer longer than an epoch of the run, and what helps; None if it does not,
        or if the peer has missed few epochs yet."""
        (samples, seconds), epoch_seconds = self.micro_batch, self.optimizer.progress.epoch_seconds
        if self.apart < APART_IN_A_ROW or not 0 < epoch_seconds < seconds:
            return None
        times = (
            f"a micro-batch of {samples} sample{'s' * (samples > 1)} takes {show_time(seconds)} here, an epoch of the "
            f"run {show_time(epoch_seconds)}"
        )
        if seconds < samples * epoch_seconds:
            return f"{times}; join again with --micro-batch-size 1"
        return (
            f"{times}; end programs that keep this machine busy, or join again with --normal-priority, otherwise it is "
            "too slow for this run now"
        )
