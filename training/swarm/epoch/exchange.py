"""The exchange of an epoch's gradients: finds a group, averages with it, and handles averages that go wrong."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace

from calculator.swarm.forecast import PATIENCE_WINDOWS
from training.swarm.config import SwarmConfig
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.epoch.waiting import LeftBehindError, NobodyElseError, await_group
from training.swarm.peers.epochs import Brought, EpochEnd
from training.swarm.peers.estimate import agreed_epoch
from training.swarm.peers.groups import Announcement, AveragedGroup, RoundReport
from training.swarm.peers.progress import Progress
from training.swarm.peers.table import id_bytes
from training.swarm.peers.times import LATE_ANSWER_SHARE, LOOK_SHARE, POLL_SECONDS, SILENT_SHARE
from training.swarm.round.averager import AveragingFailedError, Round
from training.swarm.round.pipe import Stage
from training.swarm.state.alignment import AlignmentState, Event, Minorities

OVERTAKEN = "the others were faster; it takes their weights and goes on, and its samples do not count"
"""Fault of a peer whose epoch the others have ended without it."""
ENOUGH = 0.9
"""Share of the target batch size below which a peer reports how few samples the update of an incomplete group has."""


class Exchange:
    """Averages gradients, or what a strategy sends in their place, with the peers that end the same epoch.

    Args:
        swarm: The recipe's settings.
        averager: Averages the gradients.
        progress: Knows which peers train.
        alignment: Notes what an average shows of this peer's weights.
        epochs_apart: Epochs by which groupmates may differ; see `Strategy.epochs_apart`.
    """

    def __init__(
        self,
        swarm: SwarmConfig,
        averager: GradientAverager,
        progress: Progress,
        alignment: AlignmentState,
        *,
        epochs_apart: int,
    ):
        self._swarm, self.averager, self._progress, self._alignment = swarm, averager, progress, alignment
        self._epochs_apart = epochs_apart
        self._search: Round | None = None
        self._running: Round | None = None
        self._present = 0
        """Number of training peers when the search for the group began."""
        self._minorities = Minorities()
        self._average_ended = time.monotonic()
        self.parameters_wanted_at = 0
        """Epoch that begins with a round of parameters because a groupmate has asked for weights."""

    @property
    def under_way(self) -> bool:
        """True while an average runs."""
        return self._running is not None

    @property
    def expected_peers(self) -> int:
        """Number of peers that the next group should have."""
        return min(self._progress.awaited_peers, self._swarm.max_group_size)

    @property
    def is_awaited(self) -> bool:
        """True if this peer has found a group early, and most of that group average already and wait for it.

        Most of the group have ended the epoch, so this peer ends it too: it may know less of the others' samples, or
        count fewer of those that they report. If the peer let its group wait until its own count is full, the group
        would give it up, and after several times leave it out as a peer that spoils averages.
        """
        return self.has_group and self._search.stage is Stage.AWAITED

    @property
    def has_group(self) -> bool:
        """True if this peer has found a group that waits for it."""
        search = self._search
        return search is not None and not search.started and search.stage in (Stage.WAITING, Stage.AWAITED)

    # -- a group ---------------------------------------------------------------------------------------------------

    def look_for_group_early(self, epoch: int) -> None:
        """Begins to look for a group when the epoch is about to end; call it after each micro-batch.

        The group forms while the peer computes. The next look comes a micro-batch later. So the search begins at the
        last look that is at least half a micro-batch before the end: a peer whose micro-batches last longer than a
        window of matchmaking would otherwise come too late.
        """
        if self.under_way:  # a new group would start without this peer, which still averages with the last one
            return
        if self._progress.seconds_left > max(self._swarm.matchmaking_seconds, 1.5 * self._progress.step_seconds):
            return
        if self._search is None or self._search.started or self._search.done():
            self._search = self._look_for_group(epoch)

    def await_group_of_strangers(self) -> bool:
        """Waits up to a window of matchmaking for the search to find a group. Returns True if it has.

        Called while this peer has averaged with none of the others: they may post records and never average.
        """
        deadline = time.monotonic() + self._swarm.matchmaking_seconds
        while self._search is not None and self._search.stage is Stage.SEARCHING and not self._search.done():
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        return self.has_group

    def _look_for_group(self, epoch: int) -> Round:
        # Weights are asked for once: a group that has heard the request averages its parameters, which costs all its
        # peers. That round may last until the end of the epoch that it begins in.
        is_due = self.parameters_wanted_at >= epoch
        self._present = min(self._progress.lively_peers, self._swarm.max_group_size)
        expected = self.expected_peers
        search = self.averager.look_for_group(
            epoch,
            wants_weights=self._alignment.drifted and not is_due,
            expected_peers=expected,
            seconds=self._swarm.averaging_timeout_seconds,
        )
        if expected > 1:
            watch = threading.Thread(target=self._watch_for_the_dead, args=(search, expected), daemon=True)
            watch.start()
        return search

    def _watch_for_the_dead(self, search: Round, expected: int) -> None:
        """Runs in a thread during the search. Lowers the number of expected peers when some die or leave.

        A peer that answers again is expected again.
        """
        window = self._swarm.matchmaking_seconds
        while search.stage is Stage.SEARCHING and not search.done():
            self._progress.give_up_the_silent(window * SILENT_SHARE, window, slow_seconds=window * LATE_ANSWER_SHARE)
            left = self.expected_peers
            if left != expected:
                search.expect_fewer(expected - left)
            expected = left
            time.sleep(window * LOOK_SHARE)

    def drop_search(self) -> None:
        """Stops looking for a group."""
        if self._search is not None and not self._search.started:
            self._search.cancel()
        self._search = None

    def leave_group(self) -> None:
        """Leaves the group that this peer may have found early, when its gradients can no longer be used.

        If there is a group, the peer takes part in its average with weight 0, and waits for the end. If the peer left
        without that, the group would have to repeat the average.
        """
        search = self._search
        if self.has_group:
            search.start(0.0)
            with suppress(Exception):
                search.result(self._swarm.allreduce_timeout_seconds)
        self.drop_search()

    # -- the average -----------------------------------------------------------------------------------------------

    def begin(self, epoch_end: EpochEnd) -> Round | None:
        """Loads this peer's gradients and begins to average them. Returns None if no other peer trains.

        Raises:
            LeftBehindError: If the last average has shown that the others are at a later epoch.
        """
        if self._alignment.behind:
            self._fall_behind(epoch_end)
            raise LeftBehindError("the others have gone on without this peer")
        search, self._search = self._search, None
        # The gradients are written before `search.start`: the averager's process may read them from then on.
        epoch_end.samples = self.averager.load_mean()
        if self.averager.not_finite:
            epoch_end.notes.append("this peer's own gradients were not finite and were left out")
        if self._progress.num_peers <= 1:
            if search is not None:
                search.cancel()
            return None
        if search is None or search.started or search.done():
            search = self._look_for_group(epoch_end.epoch)
        self._start(search, epoch_end)
        self._running = search
        return search

    def _start(self, round_: Round, epoch_end: EpochEnd) -> None:
        cycle = self._progress.epoch_seconds  # as all peers know it, so that they wait equally long
        round_.start(
            epoch_end.samples,
            cycle_seconds=cycle or None,
            free_seconds=cycle * self._epochs_apart,
        )

    def finish(self, round_: Round | None, epoch_end: EpochEnd) -> None:
        """Waits for the average, and notes in `epoch_end` how it went.

        Without an average, the update is made with this peer's own gradients.

        Raises:
            LeftBehindError: If the others have gone on without this peer; there must be no update then.
        """
        if round_ is None:
            epoch_end.fault = "no group was looked for"
            self._note_alone()
            return
        began, before = time.monotonic(), self._average_ended
        try:
            group = self._average_with_the_rest(self._await(round_, epoch_end), epoch_end)
            epoch_end.round = group.report
            self._average_ended = now = time.monotonic()
            self._note_delays(group.report, waited=now - began, cycle=now - before)
            self._note_who_brought(group, epoch_end)
            self._note_faults(group, epoch_end)
            self._note_announcements(group, epoch_end)
        except LeftBehindError:
            self._fall_behind(epoch_end)
            raise
        except (Exception, CancelledError) as error:  # after any error the peer goes on, and reports it
            epoch_end.fault = str(error) or type(error).__name__
            self._note_alone()
            round_.cancel()
        finally:
            self._running = None
            epoch_end.notes += self._progress.peers.take_news()

    def _await(self, round_: Round, epoch_end: EpochEnd) -> AveragedGroup:
        """Returns the group's average, and tells the progress which peers were lost."""
        try:
            group = await_group(
                round_,
                usual_seconds=self._swarm.matchmaking_seconds + self._swarm.request_timeout_seconds,
                lonely_seconds=self._seconds_until_lonely(epoch_end.others),
                timeout_seconds=self._swarm.averaging_timeout_seconds,
                newest_epoch=epoch_end.epoch + self._epochs_apart,
                look_around=self._look_who_stays,
            )
        except NobodyElseError as error:
            epoch_end.others = 0
            epoch_end.notes.append(f"{error}, so the update is of this peer's {epoch_end.samples} samples alone")
            raise
        # An absent peer lives, in another group or in none, so it may come to the next group; the other lost peers may
        # be dead.
        self._progress.give_up(set(group.report.lost) - set(group.report.absent))
        if group.report.senders > 1:
            self.averager.is_new = False
        return group

    def _look_who_stays(self) -> tuple[int, int]:
        """Calls `Progress.look_who_stays` for a peer that only waits for a group, and renews the peer's record.

        If most peers have gone on, this peer gives its samples up. If a few have, in a group of their own, it averages
        with the rest.
        """
        # Waiting peers have no news to report. Without this, each would soon count all others as dead.
        if not self._epochs_apart:  # otherwise the trainer computes meanwhile and reports its samples
            self._progress.still_here()
        epoch, others = self._progress.look_who_stays()
        # Two peers have no group without each other. Of more, those that do not wait would split off.
        return epoch, others if others > 1 else self._progress.coming_peers - 1

    def _seconds_until_lonely(self, others: int) -> float:
        """Seconds without a group after which this peer considers all others gone."""
        # It is less likely that several peers have died at once than that this peer's own link fails for a moment.
        windows = PATIENCE_WINDOWS if others > 1 else 1
        return windows * self._swarm.matchmaking_seconds + self._swarm.request_timeout_seconds

    def _average_with_the_rest(self, group: AveragedGroup, epoch_end: EpochEnd) -> AveragedGroup:
        """Looks for another group with the same gradients if this peer is the last of its group, and others train.

        Otherwise this peer would make the update alone, and the others would wait for it.
        """
        first = group.report
        if not first.lost or len(first.lost) < first.group_size - 1 or not self._others_train():
            return group
        epoch_end.notes.append("all others of its group were lost, so it has looked for another one")
        again = self._look_for_group(epoch_end.epoch)
        self._start(again, epoch_end)
        try:
            found = self._await(again, epoch_end)
        except (TimeoutError, AveragingFailedError):
            again.cancel()
            return group
        sent, received = first.bytes_sent, first.bytes_received
        report = replace(
            found.report,
            bytes_sent=found.report.bytes_sent + sent,
            bytes_received=found.report.bytes_received + received,
        )
        return replace(found, report=report)

    def _others_train(self) -> bool:
        try:
            return self._progress.look_around()[1] > 0
        except TimeoutError:
            return False

    def _note_delays(self, report: RoundReport, *, waited: float, cycle: float) -> None:
        """Notes how long each groupmate has delayed this peer, at most for the time that this peer has waited.

        While the trainer computes, as with delayed gradients, a slow peer costs it nothing.
        """
        for peer, delay in report.delays.items():
            seconds = min(delay.seconds, waited)
            self._progress.peers.delayed(id_bytes(peer), seconds, brought=delay.share, cycle=max(cycle, waited))

    def _note_who_brought(self, group: AveragedGroup, epoch_end: EpochEnd) -> None:
        """Notes the samples that each groupmate has brought: they give it a voice and scale its reports."""
        own, brought = self._progress.dht.peer_id, group.report.brought
        # A peer that averages no part does not see the others' samples: then a groupmate only has to be there to the
        # end.
        samples = {peer.to_bytes(): brought.get(str(peer), 0.0) if brought else None for peer in group.messages}
        samples.pop(own.to_bytes(), None)
        epoch_end.brought = {
            str(peer): Brought(announced.epoch + 1, samples[peer.to_bytes()])
            for peer, packed in group.messages.items()
            if peer != own and (announced := Announcement.read(packed)) is not None
        }
        lost = [id_bytes(peer) for peer in group.report.lost]
        self._progress.note_average(epoch_end.reports, samples, lost)

    # -- what an average shows -------------------------------------------------------------------------------------

    def _note_faults(self, group: AveragedGroup, epoch_end: EpochEnd) -> None:
        report = group.report
        if report.senders < 2:
            epoch_end.fault = "no other peer's gradients arrived"
            self._note_alone()
        elif report.torn:
            epoch_end.fault = "a peer was lost in the middle of the average"
        elif report.repeated:
            lost = "a peer" if report.lost else "a connection"
            left = f"{report.senders} of {report.group_size}"
            epoch_end.notes.append(f"{lost} was lost in the middle of the average, so {left} have averaged again")
        if report.refused:
            epoch_end.notes.append(f"what {', '.join(report.refused)} sent was not finite and was left out")
        if report.torn:  # the others make another update
            self._alignment.note(Event.AVERAGE_TORN)
        if report.senders > 1:
            self._note_few_samples(report, epoch_end)
            self._note_minority(report, epoch_end)
        # A newcomer has downloaded its weights, and takes another peer's weights if its own lack updates. One of the
        # announcements is this peer's own.
        settled = sum(not (one.wants_weights or one.expected_peers) for one in group.announcements)
        if settled > 1 and report.senders > 1:
            self._alignment.met_others()

    def _note_alone(self) -> None:
        """Notes that this peer makes an update with its own gradients alone. It is no newcomer afterwards."""
        self._alignment.updated_alone()
        self.averager.is_new = False

    def _note_few_samples(self, report: RoundReport, epoch_end: EpochEnd) -> None:
        target = self._swarm.target_batch_size
        whole = min(epoch_end.others + 1, self._swarm.max_group_size)  # with more peers, each group has a part of them
        if report.group_size < whole and report.weight is not None and report.weight < ENOUGH * target:
            group = f"{report.group_size} of {whole} volunteers"
            epoch_end.notes.append(f"its group of {group} had {report.weight:.0f} of {target} samples")

    def _note_minority(self, report: RoundReport, epoch_end: EpochEnd) -> None:
        is_minority = 2 * report.group_size <= self._present
        if self._minorities.want_weights(is_minority):
            seen = (
                f"group had {report.group_size} of {self._present}"
                if is_minority
                else "last groups had at most half of the"
            )
            epoch_end.notes.append(
                f"its {seen} volunteers; another group may have averaged as well, so it asks for a round of parameters"
            )
            self._alignment.note(Event.AVERAGE_TORN)

    def _note_announcements(self, group: AveragedGroup, epoch_end: EpochEnd) -> None:
        others = [peer for peer in group.messages if peer != self._progress.dht.peer_id]
        epochs = {
            peer.to_bytes(): one.epoch
            for peer in others
            if (one := Announcement.read(group.messages[peer])) is not None
        }
        if agreed_epoch(self._progress.peers.voices(epochs)) > epoch_end.epoch:
            self._alignment.note(Event.OVERTAKEN)
        # With delayed gradients, this epoch's update was begun before its group was known, and so was the decision on a
        # round of parameters. So the next update gets the round.
        if any(one.wants_weights for one in group.announcements):
            self.parameters_wanted_at = epoch_end.epoch + 1 + self._epochs_apart

    def _fall_behind(self, epoch_end: EpochEnd) -> None:
        self._alignment.note(Event.OVERTAKEN)
        epoch_end.left_behind = True
        epoch_end.fault = OVERTAKEN
