"""hivemind's optimizer with a run's settings, which says how each epoch's averaging went.

The known faults of hivemind 1.1.12 that are met here: `client_mode` must be given (its condition is inverted), the
gradient averager gets its settings from a factory alone (`averager_opts` do not reach it), downloads of the state have
an end, and an epoch that was not averaged is told from one that was.
"""

from __future__ import annotations

import logging
import math
import queue
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import hivemind
import torch
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.dht import DHT
from hivemind.optim.progress_tracker import GlobalTrainingProgress, ProgressTracker
from hivemind.optim.state_averager import load_optimizer_state
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from training.config import RunConfig
from training.errors import TrainingError
from training.optim.lamb import build_optimizer, load_optimizer_tensors, parameter_groups
from training.optim.schedule import learning_rate_factor
from training.swarm.allreduce import RoundReport
from training.swarm.averaging import AveragedGroup, SwarmStateAverager, standings, state_codec
from training.swarm.codecs import exchange_codec
from training.swarm.download import download_state
from training.swarm.identity import Identity
from training.swarm.powersgd import gradient_averager

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""A peer without a group looks this often whether the others still wait for one."""
LIVELY_WINDOWS = 6
"""A peer that has not reported a sample for so many windows of matchmaking is not waited for."""
RETRY_SECONDS, COMPLAIN_SECONDS = 1.0, 30.0
"""A peer that needs the others' state and gets none asks again, and says so, this often."""
CATCH_UP_EPOCHS = 3
"""A peer that has missed no more updates than this takes only the others' parameters, not all of their state."""
LAST_AVERAGE_SECONDS = 5.0
"""A peer that leaves waits so long for an average that runs; it must be gone ten seconds after it was asked."""
DOWNLOAD_SECONDS = 1800.0
"""Longest download of the state from one donor."""
DOWNLOAD_BYTES_PER_PARAMETER = 12
"""A donor that sends more than float32 weights and two float32 moments is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """How the averaging of one epoch went for this peer."""

    epoch: int
    """The epoch that begins, that is the number of updates done."""
    samples: int
    """Samples that this peer contributed."""
    group_size: int
    """Peers in the gradients' group; 1 without one."""
    senders: int
    """Peers whose gradients entered the update with weight; 0 if this peer made no update."""
    own_share: float | None
    """Share of this peer's own gradient in its update; 1 means that nothing was averaged."""
    update_samples: float | None
    """Samples of all peers in this peer's update; None if it averages no part itself, and so does not see them."""
    others: int
    """Other peers that were known to train."""
    waiting_seconds: float
    """From this peer's being ready for the update to the start of the average."""
    averaging_seconds: float
    """The average itself."""
    bytes_sent: int
    """Gradients, and parameters where they were averaged in the background."""
    bytes_received: int
    fault: str | None
    """Why the gradients were not averaged, or not all of them; None if they were or nobody else was there."""
    note: str | None = None
    """What else was out of the ordinary: who was lost, or left out."""

    @property
    def alone(self) -> bool:
        """Whether the peer took a step of its own although others were there."""
        return self.others > 0 and self.senders == 1

    @property
    def missed(self) -> bool:
        """Whether the peer made no update, because the others went on without it."""
        return self.senders == 0


@dataclass(kw_only=True, slots=True)
class _Ending:
    """The end of an epoch, from the gradients' being ready to the update; in the background if it is delayed."""

    epoch: int
    """The epoch that ends."""
    samples: int
    others: int
    began: float
    report: RoundReport | None = None
    fault: str | None = None
    left_behind: bool = False
    notes: list[str] = field(default_factory=list)


class _LeftBehind(Exception):
    """The others have averaged without this peer and begun the next epoch."""


class LivelyTracker(ProgressTracker):
    """hivemind's count of everyone's samples, which also knows who has reported a moment ago.

    A record stays for long after its peer has died; groups should not wait for that peer. The other way round, a look
    that finds nobody else is no proof that nobody trains: a busy node may not have answered. And a peer whose own
    record is missing is not alone with the one other that it finds, as hivemind has it.
    """

    def __init__(self, *, lively_seconds: float, **kwargs):
        self.lively_seconds, self.lively_peers = lively_seconds, 0
        self._others_seen = -math.inf
        self._given_up: dict[bytes, float] = {}
        super().__init__(**kwargs)

    def give_up(self, peers: Iterable[str]) -> None:
        """These were lost in an average: they are not waited for unless they report again."""
        self._given_up |= dict.fromkeys((PeerID.from_base58(peer).to_bytes() for peer in peers), get_dht_time())

    def _parse_swarm_progress_data(self, metadata: dict | None) -> GlobalTrainingProgress:
        now, own = get_dht_time(), self.dht.peer_id.to_bytes()
        entries = metadata.values() if isinstance(metadata, dict) else ()
        records = [entry.value for entry in entries if entry.value is not None]
        others = sum(record["peer_id"] != own for record in records)
        said_goodbye = len(records) < len(entries)
        progress = super()._parse_swarm_progress_data(metadata)
        if not (others or said_goodbye) and now - self._others_seen < self.lively_seconds:
            return replace(self.global_progress, next_fetch_time=progress.next_fetch_time)
        self.lively_peers = sum(
            record["time"] >= now - self.lively_seconds
            and record["time"] > self._given_up.get(record["peer_id"], -math.inf)
            for record in records
        )
        if not others:
            return progress
        self._others_seen = now
        return replace(progress, num_peers=others + 1)


class SwarmOptimizer(hivemind.Optimizer):
    """`hivemind.Optimizer` for a run; make it with `build_swarm_optimizer`."""

    def __init__(self, *, run: RunConfig, **kwargs):
        self._run = run
        self._reports: queue.SimpleQueue[EpochReport] = queue.SimpleQueue()
        self._endings: dict[StepControl, _Ending] = {}
        self._ending: _Ending | None = None
        self._out_of_step = False
        self._state_round_epoch = 0
        self._step_seconds, self._last_step = 0.0, time.monotonic()
        self._complained = -math.inf
        self.last_download = (0, 0.0)
        """Bytes and seconds of the last state that was downloaded; zeros before."""
        super().__init__(run_id=run.run_id, **kwargs)

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

    @property
    def parameter_shapes(self) -> list[torch.Size]:
        """Shapes of the parameters in the order in which they travel."""
        return [parameter.shape for group in self.opt.param_groups for parameter in group["params"]]

    def declare_bandwidth(self, mbits: float | None) -> None:
        """Tells groupmates what this peer's link carries, both ways, in Mbit/s: slow ones average smaller parts.

        Who does not know (None) counts as the mean of those who do; hivemind, averaging/load_balancing.py.
        """
        self.grad_averager.bandwidth = self.state_averager.bandwidth = mbits

    def take_epoch_reports(self) -> list[EpochReport]:
        """Reports of the epochs that have ended since the last call."""
        return _drain(self._reports)

    def _update_global_epoch(self, grad_scaler: object) -> None:
        ending = self._ending = _Ending(
            epoch=self.local_epoch,
            samples=self.grad_averager.local_samples_accumulated,
            others=max(self.tracker.global_progress.num_peers - 1, 0),
            began=time.monotonic(),
        )
        self._expect_peers()
        with suppress(_LeftBehind):
            super()._update_global_epoch(grad_scaler)
        if ending not in self._endings.values():
            self._report(ending)

    def _begin_averaging_gradients(self, grad_scaler: object) -> bool:
        scheduled = self.scheduled_grads
        if scheduled is not None and (scheduled.triggered or scheduled.done()):
            self.scheduled_grads = None  # hivemind would not average at all, where it finds the last epoch's group
        began = super()._begin_averaging_gradients(grad_scaler)
        if began and self.grad_averager.not_finite:
            self._ending.samples = 0
            self._ending.notes.append("this peer's own gradients were not finite and were left out")
        if began and self.delay_grad_averaging:
            self._endings[self.scheduled_grads] = self._ending
        return began

    def _report(self, ending: _Ending) -> None:
        """Tells how the end of an epoch went."""
        _drain(self.grad_averager.reports)
        background = _drain(self.state_averager.reports)
        if any(round_.senders > 1 and not round_.torn for round_ in background):
            self._want_weights(False)
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

    def _expect_peers(self) -> None:
        """Tells the averagers how many peers the tracker knows, so that they need not wait out their windows."""
        expected = min(self.tracker.lively_peers, self._run.swarm.max_group_size)
        self.grad_averager.expected_group_size = self.state_averager.expected_group_size = expected
        self.grad_averager.local_epoch = self.local_epoch

    def step(self, *args, **kwargs) -> Tensor | None:
        """See hivemind."""
        now = time.monotonic()
        self._step_seconds, self._last_step = now - self._last_step, now
        if self._should_load_state_from_peers():
            if not self._catch_up():
                self.load_state_from_peers()
            return None
        return super().step(*args, **kwargs)

    def _maybe_schedule_gradient_averaging(self) -> None:
        """As in hivemind, but early enough for a peer whose steps are longer than the window.

        And not while the last average is still under way: a group would start without this peer, which cannot answer.
        """
        self._expect_peers()
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
            group = self._await_group(maybe_step_control, ending)
            ending.report = group.report
            if group.report.senders < 2:
                ending.fault = "no other peer's gradients arrived"
            elif group.report.torn:
                ending.fault = "a peer was lost in the middle of the average"
            elif group.report.repeated:
                left = f"{group.report.senders} of {group.report.group_size}"
                ending.notes.append(f"a peer was lost in the middle of the average, so {left} have averaged again")
            if group.report.refused:
                refused = ", ".join(group.report.refused)
                ending.notes.append(f"what {refused} sent was not finite and was left out")
            self.tracker.give_up(group.report.lost)
            if group.report.torn:  # the others' update is not the same
                self._want_weights(True)
            told = standings(group)
            self._out_of_step |= max((epoch for epoch, _ in told), default=0) > ending.epoch
            if any(wants_weights for _, wants_weights in told):
                self._state_round_epoch = ending.epoch + 1 + self.delay_grad_averaging
        except _LeftBehind:
            self._out_of_step, ending.left_behind = True, True
            ending.fault = "the others were faster; it takes their weights and goes on, and its samples do not count"
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

    def _await_group(self, control: StepControl, ending: _Ending) -> AveragedGroup:
        """The group's average, as long as there is hope for one.

        Raises:
            _LeftBehind: If no group was found in the usual time and the others have begun the next epoch by now.
            TrainingError: If nobody else is left.
            TimeoutError: If there is no average within `averaging_timeout`.
        """
        swarm, began = self._run.swarm, time.monotonic()
        usual_seconds = swarm.matchmaking_seconds + swarm.request_timeout_seconds
        while True:
            try:
                return control.result(timeout=LOOK_SECONDS)
            except TimeoutError:
                waited = time.monotonic() - began
                if control.done() or waited >= self.averaging_timeout:
                    raise
                if control.stage != AveragingStage.LOOKING_FOR_GROUP or waited < usual_seconds:
                    continue
                newest_epoch, others = self._look_around()
                if newest_epoch > ending.epoch + self.delay_grad_averaging:  # delayed, all begin the next one at once
                    control.cancel()
                    raise _LeftBehind from None
                if not others:
                    control.cancel()
                    ending.others = 0
                    raise TrainingError("nobody else trains any more") from None

    def _look_around(self) -> tuple[int, int]:
        """The newest epoch of all peers and how many others train; the tracker itself stands still in an average."""
        found = self.dht.get(self.tracker.training_progress_key, latest=True, return_future=True).result(timeout=5)
        progress = self.tracker._parse_swarm_progress_data(found.value if found is not None else None)
        return progress.epoch, max(self.tracker.lively_peers - 1, 0)

    def _should_load_state_from_peers(self) -> bool:
        """As in hivemind, and at once when a group has shown that this peer is behind the others."""
        return self._out_of_step or super()._should_load_state_from_peers()

    def _catch_up(self) -> bool:
        """Goes on with the others' epoch if it is a few updates behind; its parameters become theirs after the next.

        Only they are exchanged then, in a round that takes place anyway for all, and nothing is downloaded. The moments
        lack the updates that were missed.
        """
        if not self.local_epoch:
            return False
        try:
            newest_epoch, others = self._look_around()
        except TimeoutError:
            return False
        if not others or not 0 < newest_epoch - self.local_epoch <= CATCH_UP_EPOCHS:
            return False
        self._let_rounds_end()
        with self.tracker.pause_updates():
            self._begin_epoch(newest_epoch)
        self._want_weights(True)
        return True

    def _want_weights(self, wanted: bool) -> None:
        self.grad_averager.wants_weights = self.state_averager.wants_weights = wanted

    def _let_rounds_end(self) -> None:
        """Before the state changes: a group that waits for this peer goes on without weight, updates end."""
        scheduled = self.scheduled_grads
        if scheduled is not None and not scheduled.done() and not scheduled.triggered:
            self._tag_along_with_zero_weight(scheduled)
        self.scheduled_grads = None
        self.state_averager.step(wait_for_delayed_updates=True)

    def load_state_from_peers(self, **kwargs) -> bool:
        """Downloads the state of the run from a peer; whether one gave it. Every wait has an end.

        Unlike hivemind's own, it does not try again without end, downloads no gradient buffers, checks what comes,
        and refuses an older state than its own. A download may take longer than an epoch: the peer goes on with the
        epoch that the others have by then, and takes their parameters with the next update (see `_catch_up`).
        """
        self._let_rounds_end()
        try:
            state = download_state(
                self.dht,
                self.run_id,
                shapes=self.parameter_shapes,
                chunk_seconds=max(
                    self._run.swarm.next_chunk_timeout_seconds, 2 * self._run.swarm.request_timeout_seconds
                ),
                total_seconds=DOWNLOAD_SECONDS,
                max_bytes=1_000_000
                + DOWNLOAD_BYTES_PER_PARAMETER * sum(shape.numel() for shape in self.parameter_shapes),
                epochs=range(self.local_epoch, self._run.schedule.total_epochs + 1),
                averager=SwarmStateAverager,
            )
        except TrainingError as error:
            self._go_without_state(str(error))
            return False
        self.last_download = (state.received_bytes, state.seconds)
        with self.tracker.pause_updates():
            parameters = [parameter for group in self.opt.param_groups for parameter in group["params"]]
            with torch.no_grad(), self.state_averager.lock_averaged_tensors:
                settings = [{**group} for group in self.opt.param_groups]
                try:
                    load_optimizer_state(self.opt, state.optimizer_metadata, state.tensors[len(parameters) :])
                except Exception as error:  # the metadata is a stranger's
                    logger.warning("The optimizer state of %s cannot be read: %s", state.donor, error)
                    return False
                for group, own in zip(self.opt.param_groups, settings, strict=True):
                    group.update(own)  # the recipe says the settings, not the donor
                for parameter, tensor in zip(parameters, state.tensors, strict=False):
                    parameter.copy_(tensor)
            newest_epoch = state.epoch
            with suppress(TimeoutError):
                newest_epoch = max(newest_epoch, self._look_around()[0])
            self._begin_epoch(newest_epoch)
        self._want_weights(newest_epoch > state.epoch)
        return True

    def _go_without_state(self, reason: str) -> None:
        """Says now and then that no peer gives its state; waits a moment, or goes on alone if nobody else trains.

        A peer that others have overtaken is alone when they end before it could take their state.
        """
        if time.monotonic() - self._complained >= COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            logger.warning("The state could not be loaded: %s", reason)
        others = 1
        with suppress(TimeoutError):
            others = self._look_around()[1]
        if not others:
            self._out_of_step = False
        else:
            time.sleep(RETRY_SECONDS)

    def load_checkpoint(self, model: nn.Module, optimizer_state: dict[str, Tensor], epoch: int) -> None:
        """Goes on from a checkpoint of the run: weights, moments (none: they start from zero) and epoch."""
        with torch.no_grad(), self.state_averager.lock_averaged_tensors:
            groups = parameter_groups(model, self._run.optimizer.weight_decay)
            loaded = (parameter for group in groups for parameter in group["params"])
            parameters = (parameter for group in self.opt.param_groups for parameter in group["params"])
            for parameter, tensor in zip(parameters, loaded, strict=True):
                parameter.copy_(tensor)
            if optimizer_state:
                load_optimizer_tensors(self.opt, optimizer_state)
        with self.tracker.pause_updates():
            self._begin_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Uses the host's parameters for the model and counts samples anew; the tracker must be paused."""
        self._out_of_step = False
        self.state_averager._apply_optimizer_parameters_()
        self.state_averager.local_epoch = epoch
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step", category=UserWarning)
            self.state_averager._update_scheduler()
        self.grad_averager.reset_accumulated_grads_()
        self.tracker.update_epoch(epoch)
        self._should_check_synchronization_on_update = True
        if not self.client_mode:
            self.state_averager.state_sharing_priority = epoch

    def say_goodbye(self, timeout_seconds: float = 2.0) -> None:
        """Tells the others not to wait for this peer; the processes end with the role.

        An average that runs in the background is ended first, for the others need this peer's part of it.
        """
        deadline = time.monotonic() + LAST_AVERAGE_SECONDS
        while self._endings and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 5)
        self.state_averager.allow_state_sharing = False
        self.tracker.shutdown(timeout_seconds)
        for scheduled in (self.scheduled_grads, self.scheduled_state):
            if scheduled is not None and not scheduled.done() and not scheduled.triggered:
                scheduled.cancel()


def build_swarm_optimizer(
    model: nn.Module, run: RunConfig, *, dht: DHT, identity: Identity, micro_batch_size: int, client_mode: bool = False
) -> SwarmOptimizer:
    """The optimizer with which a peer takes part in a run.

    Starts two averagers, each a process. hivemind then makes this process ignore SIGINT: listen to signals again.

    Args:
        model: Its parameters are trained; host copies in float32 belong to the optimizer.
        run: The recipe.
        dht: A running node that signs with `identity`.
        identity: Whose progress is reported.
        micro_batch_size: Samples a `step`.
        client_mode: Accept no incoming connections.
    """
    swarm, schedule = run.swarm, run.schedule
    settings = dict(
        run=run,
        dht=dht,
        target_batch_size=swarm.target_batch_size,
        batch_size_per_step=micro_batch_size,
        params=parameter_groups(model, run.optimizer.weight_decay),
        optimizer=partial(build_optimizer, run.optimizer, lr=schedule.peak_learning_rate),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda epoch: learning_rate_factor(epoch, schedule)),
        matchmaking_time=swarm.matchmaking_seconds,
        averaging_timeout=swarm.averaging_timeout_seconds,
        allreduce_timeout=swarm.allreduce_timeout_seconds,
        next_chunk_timeout=swarm.next_chunk_timeout_seconds,
        load_state_timeout=DOWNLOAD_SECONDS,
        offload_optimizer=True,
        delay_optimizer_step=swarm.delay_optimizer_step,
        delay_grad_averaging=swarm.delay_gradient_averaging,
        delay_state_averaging=True,
        average_state_every=swarm.average_state_every,
        client_mode=client_mode,
        grad_compression=exchange_codec(swarm.compression_threshold, swarm.gradient_codec),
        state_averaging_compression=exchange_codec(
            swarm.compression_threshold, "float16" if swarm.state_bits == 16 else swarm.gradient_codec
        ),
        load_state_compression=state_codec(swarm.newcomer_bits, swarm.compression_threshold),
        grad_averager_factory=partial(
            gradient_averager(swarm.powersgd_rank),
            request_timeout=swarm.request_timeout_seconds,
            min_group_size=swarm.min_group_size,
            allow_state_sharing=False,
        ),
        tracker_opts=dict(
            private_key=identity.private_key,
            min_refresh_period=min(0.5, swarm.matchmaking_seconds / 5),
            max_refresh_period=min(10.0, 4 * swarm.matchmaking_seconds),
            default_refresh_period=min(3.0, swarm.matchmaking_seconds),
            metadata_expiration=swarm.metrics_expiration_seconds,
        ),
        shutdown_timeout=2,
    )
    if swarm.mode == "diloco":
        from training.swarm.local_updates import build_local_update_optimizer  # which builds upon this module

        return build_local_update_optimizer(model, settings)
    return SwarmOptimizer(**settings)


def _drain(reports: queue.SimpleQueue) -> list:
    drained = []
    with suppress(queue.Empty):
        while True:
            drained.append(reports.get_nowait())
    return drained
