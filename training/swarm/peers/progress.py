"""Progress of a run: each peer posts its samples in the DHT, and adds up those of all peers."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import PrivateKey
from hivemind.utils.performance_ema import PerformanceEMA

from calculator.swarm.forecast import PATIENCE_WINDOWS
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.admission import admission_of
from training.swarm.node.record_tickets import accounts_of
from training.swarm.node.slow_nodes import NODE_SECONDS, silent_peers
from training.swarm.peers.estimate import ENDLESS_SECONDS, Epoch, GlobalProgress, Look
from training.swarm.peers.pacing import PacedEvent
from training.swarm.peers.records import PeerProgress, progress_validator, read_progress
from training.swarm.peers.table import Fault, Peers, id_bytes
from training.swarm.peers.times import LIVELY_WINDOWS

REPORTS_SHARE = 1 / 8
"""Share of the epoch's remaining time after which a peer reports its samples again, so more and more often."""
LIVELY_REPORTS = 3
"""Fewest reports within the time after which a silent peer counts as dead."""
NEWCOMERS, NEWCOMERS_SHARE = 3, 0.2
"""Number of peers, and share of all, that may join before the next look, which comes early enough for them (as in
hivemind)."""


class Progress:
    """Reports this peer's progress and reads the other peers' progress, in two threads that `start` starts.

    A record stays in the DHT long after its peer has died. So `num_peers` counts all records, and `lively_peers` the
    peers that a group should wait for. A look that finds no other peer does not prove that none trains: a busy node may
    not have answered. So earlier knowledge stays valid for `lively_seconds`, unless a peer has said goodbye.

    hivemind reports each micro-batch; a fast peer far from the end of its epoch then sends more bytes of
    such records than of gradients. Here a pause follows each report. A record carries its peer's rate, from which the
    others estimate the samples since the report.

    Args:
        dht: A running node.
        prefix: Prefix of the run; see `lineage.run_prefix`.
        target_batch_size: Samples of all peers together for one epoch.
        private_key: Signs this peer's record; None: a new key of this process does.
        client_mode: True if this peer accepts no connections; its record says so.
        matchmaking_seconds: A window of matchmaking. No group waits for a peer that has not reported for
            `LIVELY_WINDOWS`; the pauses between looks are shorter.
        record_seconds: A record that is not renewed disappears after this time.
        peers: Table of the other peers.
    """

    def __init__(
        self,
        *,
        dht: DHT,
        prefix: str,
        target_batch_size: int,
        private_key: PrivateKey | None = None,
        client_mode: bool = False,
        matchmaking_seconds: float,
        record_seconds: float = 60.0,
        peers: Peers | None = None,
    ):
        self.dht, self.key, self.target_batch_size = dht, f"{prefix}_progress", target_batch_size
        self.window, self.lively_seconds = matchmaking_seconds, LIVELY_WINDOWS * matchmaking_seconds
        self._client_mode, self._record_seconds = client_mode, record_seconds
        signer = RSASignatureValidator(private_key)
        self._subkey = signer.local_public_key
        # Where peers sign with their identities, nobody can speak for another peer.
        self._signed_by_peers = peer_id_of(self._subkey) == dht.peer_id
        dht.add_validators([progress_validator(prefix), signer])
        self.performance = PerformanceEMA(alpha=0.1)
        self._others_seen = -math.inf
        self.peers = peers or Peers()
        self._others: list[PeerProgress] = []
        self._patience_seconds = (PATIENCE_WINDOWS - 1) * matchmaking_seconds  # the first one lies before the end
        self.step_seconds = 0.0
        """Time of this peer's last micro-batch, without the wait at an epoch's end."""
        self._step_samples, self._trained_at = 0, -math.inf
        """Samples of that micro-batch, and the newest epoch of all at its end."""
        self._local, self._epoch_began = self._record(epoch=0, samples=0), get_dht_time()
        self._global = self._combine(self._look_if_answered())
        self._paused = threading.Lock()
        # A peer is behind if its first look in an epoch shows a newer one. The look above counts as that first look. By
        # the next look, the others may have ended the epoch that they began together with this peer: taken for a first
        # one, it would make the peer drop its gradients.
        self._has_looked, self._has_compared = True, False
        self._epochs_begun, self._is_away = 0, False
        self._reports = PacedEvent(self._pause_between_reports)
        self._ending = threading.Event()

    def start(self) -> None:
        """Starts the threads."""
        for work in (self._keep_telling, self._keep_looking):
            threading.Thread(target=work, daemon=True, name=f"{self.key}-{work.__name__}").start()

    # -- what the trainer asks -------------------------------------------------------------------------------------

    @property
    def global_epoch(self) -> int:
        """Newest epoch that peers with a voice have begun."""
        return self._global.epoch

    @property
    def reported_epoch(self) -> int:
        """Newest epoch that the others report; see `GlobalProgress.reported`."""
        return self._global.reported

    @property
    def has_voices(self) -> bool:
        """True if any other peer has a voice; see `training.swarm.peers`."""
        return self._global.has_voices

    @property
    def num_peers(self) -> int:
        """Number of peers known to train, this one included; some may be dead."""
        return self._global.num_peers

    @property
    def lively_peers(self) -> int:
        """Number of peers that should be in a group, this one included: they have reported within `lively_seconds`, and
        since they were last lost in an average."""
        return 1 + sum(self._is_lively(one.peer_id) for one in self._others)

    @property
    def awaited_peers(self) -> int:
        """Number of `lively_peers` for which the next group waits, this one included; see `Peers.is_awaited`."""
        return 1 + sum(self._is_lively(one.peer_id) and self.peers.is_awaited(one.peer_id) for one in self._others)

    @property
    def coming_peers(self) -> int:
        """Number of `lively_peers` that no long micro-batch keeps from coming to a group, this one included."""
        now, patience = get_dht_time(), self._patience_seconds
        free = [one for one in self._others if one.is_free(now, within_seconds=patience)]
        return 1 + sum(self._is_lively(one.peer_id) for one in free)

    @property
    def ready_to_update_epoch(self) -> bool:
        """True if this peer's samples and those that the others can bring now are an epoch's, or if the others have
        gone on."""
        known, local = self._global, self._local
        samples = local.samples_accumulated + known.others_bring(get_dht_time())
        return known.epoch > local.epoch or samples >= self.target_batch_size

    @property
    def ready_with_a_group(self) -> bool:
        """True if all other peers are strangers and the epoch would be full if their samples counted.

        Newcomers, and peers that start a run together, know no other peer yet. Reports of strangers alone do not end an
        epoch; a group that the strangers have joined does.
        """
        known = self._global
        return not known.has_voices and get_dht_time() >= known.full_at

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch at the rate of all peers; 0 if the rate is unknown."""
        return self._global.epoch_seconds if self._global.epoch_seconds < ENDLESS_SECONDS else 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until the epoch ends at the rate of all peers; infinite if the rate is unknown."""
        return 0.0 if self.ready_to_update_epoch else max(self._global.full_at - get_dht_time(), 0.0)

    def is_behind(self, epoch: int) -> bool:
        """Returns True if a peer at this epoch is so far back that it does not reach the others by ending the epoch.

        A peer is behind if its first look in an epoch shows a newer epoch, and later if the others are two epochs
        ahead. The first look is compared once only; `SwarmOptimizer.step` remembers the result until the peer has
        caught up.
        """
        if self._has_looked and not self._has_compared:
            self._has_compared = True
            return epoch != self.reported_epoch
        return epoch < self.reported_epoch - 1

    def doubt(self) -> None:
        """Notes that no peer sent a state of the epoch that others report; see `Peers.doubt_reports`."""
        self.peers.doubt_reports()
        epoch = self._local.epoch
        self._global = replace(self._global, epoch=epoch, reported=epoch, of_most=epoch)

    def believe(self) -> None:
        """Notes that a state of the others has come; this ends the doubt that `doubt` began."""
        self.peers.trust_reports()

    def look_around(self) -> tuple[int, int]:
        """Looks at once. Returns the newest epoch that the others report, and the number of other peers that train.

        Raises:
            TimeoutError: If the node does not answer.
        """
        known = self._combine(self._look())
        return known.reported, self.lively_peers - 1

    def look_who_stays(self) -> tuple[int, int]:
        """Looks at once. Returns the newest epoch that at least half of all peers have begun, and the number of others
        that train.

        Raises:
            TimeoutError: If the node does not answer.
        """
        known = self._combine(self._look())
        return known.of_most, self.lively_peers - 1

    # -- what the trainer tells ------------------------------------------------------------------------------------

    def report(self, epoch: int, samples: int) -> None:
        """Notes the number of the epoch's samples that this peer has computed.

        The others get the number at once if these samples begin or end the epoch, or show this peer's rate for the
        first time; otherwise after a while.
        """
        before, new = self._local, samples - self._local.samples_accumulated
        if new > 0 and math.isfinite(self._trained_at):
            self.performance.update(task_size=new)
            self._step_samples = new
        else:  # the time since the last samples was not spent on samples alone, but also on the program's start
            self.performance.reset_timer()
        if samples:
            self._trained_at = self.global_epoch
        self._local, self._is_away = self._record(epoch=epoch, samples=samples, step_samples=self._step_samples), False
        self.step_seconds = self._local.counted_at - before.counted_at
        if self.ready_to_update_epoch:  # it begins no further micro-batch, and can bring what it has
            self._local = self._record(epoch=epoch, samples=samples)
        self._reports.set()
        began = epoch != before.epoch or new <= 0
        if began or not (before.samples_accumulated and before.step_samples) or self.ready_to_update_epoch:
            self._reports.hurry()

    def still_here(self) -> None:
        """Renews this peer's record at intervals while it computes nothing, so that groups wait for it."""
        local = self._local
        if get_dht_time() - local.counted_at >= self.lively_seconds / LIVELY_REPORTS:
            self._local = self._record(epoch=local.epoch, samples=local.samples_accumulated)
            self._reports.set()
        # Otherwise the time that it waited would count as time of its next micro-batch.
        self.performance.reset_timer()

    def rest(self, epoch: int, samples: int) -> None:
        """Tells the others that this peer computes nothing until its next report; call it at intervals.

        Groups wait for a peer that has samples to bring. Without any, the peer is away.
        """
        resting = self._record(epoch=epoch, samples=samples).copy(update={"samples_per_second": 0.0})
        times = {"time": 0.0, "counted_at": 0.0}
        is_news = resting.copy(update=times) != self._local.copy(update=times)
        if is_news or resting.time - self._local.time >= self.lively_seconds / LIVELY_REPORTS:
            self._local, self._is_away = resting, not samples
            self._reports.set()
            if is_news:
                self._reports.hurry()
        self.performance.reset_timer()  # as in `still_here`

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keeps the facts about the others unchanged while an epoch ends, and does not count that time in this peer's
        speed."""
        with self._paused, self.performance.pause():
            yield

    def reports_of(self, epoch: int) -> dict[bytes, float]:
        """Samples of this epoch that each other peer should have by its reports, by id; 0 for a live peer without a
        report."""
        now, own = get_dht_time(), self._epoch
        reports = {one.peer_id: own.samples_of(one, epoch, now) for one in self._others}
        return {peer: samples for peer, samples in reports.items() if samples or self._is_lively(peer)}

    def note_average(
        self, reports: Mapping[bytes, float], brought: Mapping[bytes, float | None], lost: Collection[bytes]
    ) -> None:
        """Notes which peers have taken part in an average that has ended.

        Args:
            reports: Result of `reports_of` when the epoch ended.
            brought: Samples of each other peer that was there to the end; None: this peer cannot know.
            lost: Peers that were lost before the end.
        """
        for peer, samples in brought.items():
            self.peers.brought(peer, samples, reported=reports.get(peer))
        if brought:
            # In a large run a peer may be in another group: it is expected here only with this probability.
            chance = len(brought) / len(reports.keys() | brought.keys())
            for peer in reports.keys() - brought.keys() - set(lost):
                self.peers.failed(peer, Fault.MISSED, chance)

    def begin_epoch(self, epoch: int) -> None:
        """Moves this peer to another epoch; call it while paused."""
        known = self._global
        if epoch > known.epoch:
            reported = max(epoch, known.reported)
            self._global = replace(known, epoch=epoch, reported=reported, full_at=math.inf, others_bring=lambda at: 0.0)
        self._epochs_begun, self._epoch_began = self._epochs_begun + 1, get_dht_time()
        self.report(epoch, 0)
        self._has_looked = self._has_compared = False

    def give_up(self, peers: Iterable[str]) -> None:
        """Notes that peers were lost in an average: groups do not wait for them until they report again."""
        for peer in peers:
            self.peers.failed(id_bytes(peer), Fault.LOST)

    def give_up_the_silent(
        self, silent_seconds: float, answer_seconds: float, *, slow_seconds: float = math.inf
    ) -> None:
        """Pings the peers that a group waits for and that have not reported recently.

        Peers that did not answer the last ping are pinged again: a full link delays the answers of a live peer.

        Args:
            silent_seconds: Age of the last report from which on a peer is pinged.
            answer_seconds: Time to answer after which a peer is given up.
            slow_seconds: Time to answer after which a peer is given up if most others are much faster.
        """
        now = get_dht_time()
        asked = {
            one.peer_id
            for one in self._others
            if self.peers.is_silent(one.peer_id)
            or (
                self._is_lively(one.peer_id)
                and not one.client_mode
                and now - self.peers.heard_at(one.peer_id) > silent_seconds
            )
        }
        if not asked:
            return
        with suppress(TimeoutError):  # this peer's own node is busy; that shows nothing about the others
            silent = silent_peers(self.dht, asked, answer_seconds, slow_seconds=slow_seconds)
            for peer in asked - silent:
                self.peers.answered(peer)
            for peer in silent:
                self.peers.failed(peer, Fault.SILENT)

    def shutdown(self) -> None:
        """Ends the threads, and posts that this peer has left."""
        self._ending.set()
        self._reports.hurry()
        self._store(None)

    # -- in the background -----------------------------------------------------------------------------------------

    def _keep_telling(self) -> None:
        """Stores this peer's record when there is news, and before the others would take the peer for dead: a
        micro-batch may last longer than that."""
        was_away = False
        while not self._ending.is_set():
            if self._reports.wait(self.lively_seconds / LIVELY_REPORTS):
                self._reports.clear()
            is_away = self._is_away
            if not self._ending.is_set():
                if not is_away:
                    self.tell()
                elif not was_away:
                    self._store(None)  # as a peer that leaves
            was_away = is_away

    def tell(self) -> None:
        """Stores this peer's record.

        A peer without samples for a whole epoch hangs or catches up. It lets its record expire, and the others no
        longer count it.
        """
        if self._trained_at >= self.global_epoch - 1:
            self._store(self._local.copy(update={"time": get_dht_time()}).dict())

    def _keep_looking(self) -> None:
        pause = self._pause_between_looks()
        while not self._ending.wait(pause):
            pause, epochs_begun = 0.0, self._epochs_begun
            try:
                # The look itself takes no lock: the trainer would wait for the network whenever it ends an epoch.
                found = self._look(timeout=None)
                with self._paused:
                    if epochs_begun == self._epochs_begun:  # otherwise it shows the progress from before this epoch
                        self._global = self._combine(found)
                        self._has_looked, pause = True, self._pause_between_looks()
            except Exception:  # the node is gone or ends, or a record makes no sense; the next look may show more
                pause = self._pause_alone

    @property
    def _pause_alone(self) -> float:
        return min(3.0, self.window)

    def _pause_between_looks(self) -> float:
        known, peers = self._global, self._global.num_peers
        if not peers:
            return self._pause_alone
        soon = (known.full_at - get_dht_time()) * peers / max(peers + NEWCOMERS, peers * (1 + NEWCOMERS_SHARE))
        return min(max(soon, min(0.5, self.window / 5)), min(10.0, 2 * self.window))

    def _pause_between_reports(self) -> float:
        """Seconds from one report of this peer's samples to the next; 0 if the end of the epoch is unknown."""
        left = self.seconds_left
        return min(max(left, 0.0) * REPORTS_SHARE, self.lively_seconds / LIVELY_REPORTS) if math.isfinite(left) else 0.0

    # -- records in the DHT ----------------------------------------------------------------------------------------

    def _record(self, *, epoch: int, samples: int, step_samples: int = 0) -> PeerProgress:
        now = get_dht_time()
        return PeerProgress(
            peer_id=self.dht.peer_id.to_bytes(),
            epoch=epoch,
            samples_accumulated=samples,
            samples_per_second=self.performance.samples_per_second,
            time=now,
            counted_at=now,
            step_samples=step_samples,
            client_mode=self._client_mode,
        )

    def _store(self, record: dict | None) -> None:
        expiration = get_dht_time() + self._record_seconds
        with suppress(Exception):  # a record that is lost now is stored again soon
            self.dht.store(self.key, subkey=self._subkey, value=record, expiration_time=expiration, return_future=True)

    def _look(self, timeout: float | None = NODE_SECONDS) -> dict | None:
        """Reads the records of all peers in the DHT."""
        found = self.dht.get(self.key, latest=True, return_future=True).result(timeout=timeout)
        if not isinstance(found, ValueWithExpiration) or not isinstance(found.value, dict):
            return None
        self._note_accounts(found.value)
        return found.value

    def _note_accounts(self, found: Mapping[bytes, object]) -> None:
        """Asks this peer's node for the accounts in the tickets that came with the records."""
        if admission_of(self.dht) is not None:
            signers = [peer for subkey in found if (peer := peer_id_of(subkey)) is not None]
            self.peers.note_accounts(accounts_of(self.dht, signers))

    def _look_if_answered(self) -> dict | None:
        with suppress(TimeoutError):  # a busy node; the threads look again
            return self._look()
        return None

    def _combine(self, found: dict | None) -> GlobalProgress:
        """Estimates the progress of all peers from their records; keeps the last estimate if a look may have failed."""
        now, own = get_dht_time(), self.dht.peer_id.to_bytes()
        values = {subkey: entry.value for subkey, entry in (found or {}).items()}
        said_goodbye = not all(values.values())  # a peer that leaves stores None as its record
        records = [record for subkey, value in values.items() if (record := self._read(subkey, value)) is not None]
        others = [record for record in records if record.peer_id != own and self._counts(record)]
        if not (others or said_goodbye) and abs(now - self._others_seen) < self.lively_seconds:
            return self._global
        self._others, self._others_seen = others, now if others else self._others_seen
        is_known = any(record.peer_id == own for record in records)
        return Look(
            now=now,
            others=others,
            own=self._local,
            num_peers=len(others) + 1 if others else int(is_known),
            epoch=self._epoch,
            peers=self.peers,
            lively_seconds=self.lively_seconds,
            patience_seconds=self._patience_seconds,
        ).progress()

    @property
    def _epoch(self) -> Epoch:
        return Epoch(number=self._local.epoch, began=self._epoch_began, target_batch_size=self.target_batch_size)

    def _read(self, subkey: bytes, value: object) -> PeerProgress | None:
        """Reads a record. Returns None if it is malformed, or names a peer other than its signer."""
        record = read_progress(value) if value else None
        if record is None or not self._signed_by_peers:
            return record
        return record if str(peer_id_of(subkey)) == str(PeerID(record.peer_id)) else None

    def _counts(self, record: PeerProgress) -> bool:
        is_heard = self.peers.heard(record.peer_id, record.time, may_be_ahead=self.lively_seconds)
        return is_heard and not self.peers.is_left_out(record.peer_id)

    def _is_lively(self, peer: bytes) -> bool:
        return self.peers.is_alive(peer, self.lively_seconds)
