"""Who trains, and how far all have come together: each peer posts its samples in the DHT, and adds up everybody's."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import PrivateKey
from hivemind.utils.performance_ema import PerformanceEMA
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint

from training.swarm.engine.ids import MOST_ID_BYTES, peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.admission import admission_of
from training.swarm.node.record_tickets import accounts_of
from training.swarm.node.slow_nodes import silent_peers
from training.swarm.peers.table import Fault, Peers
from training.swarm.peers.times import LONGEST_RETRY_SECONDS, RETRY_SECONDS

REPORTS_SHARE = 1 / 8
"""A peer tells its samples again after this share of the time that is left of the epoch, so more and more often."""
LIVELY_REPORTS = 3
"""But at least so often within the time after which it would be taken for dead."""
LOOK_SECONDS = 5.0
"""A node that has not answered by then is busy; that says nothing of the others."""
LONGEST_SECONDS = 1e9
"""No epoch takes so long: nobody computes."""
EPSILON = 1e-20
"""Samples per second of those who compute nothing."""
NEWCOMERS, NEWCOMERS_SHARE = 3, 0.2
"""A peer looks again as early as if so many peers, or this share of all, joined in the meantime (as in hivemind)."""


class PeerProgress(BaseModel):
    """A peer's record of its progress; hivemind's, in which numbers have no upper bounds."""

    peer_id: conbytes(strict=True, max_length=MOST_ID_BYTES)
    epoch: conint(strict=True, ge=0, le=10**9)
    samples_accumulated: conint(strict=True, ge=0, le=10**12)
    """Of this epoch."""
    samples_per_second: confloat(strict=True, ge=0, le=10**7)
    time: confloat(strict=True, ge=0, le=10**11)
    client_mode: StrictBool


class _AllProgress(BaseModel):
    """Schema of the key of progress: `{prefix}_progress`. A peer that has left stores None."""

    progress: dict[BytesWithPublicKey, PeerProgress | None]


def progress_validator(prefix: str) -> RecordValidatorBase:
    """Refuses what is no progress under the key of progress. All nodes of a run need it: who asks for the records of
    all peers gets none if one of them is malformed.

    Args:
        prefix: See `lineage.run_prefix`.
    """
    return SchemaValidator(_AllProgress, prefix=prefix)


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshSeconds:
    """How often a peer looks how far the others are: the pause is between `least` and `most`."""

    least: float
    most: float
    alone: float
    """While it finds nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalProgress:
    """How far all have come, as this peer sees it."""

    epoch: int
    """The newest epoch that peers with a voice have begun, as far as they agree; see `agreed_epoch`."""
    reported: int
    """The same, of all peers as long as none of them has a voice. It is a reason to look for a state, no more."""
    of_most: int
    """The newest of those reports that no fewer peers make than do not, this one included; see `begun_by_most`."""
    has_voices: bool
    """Whether any of the others has a voice."""
    samples: float
    """Samples of this epoch that count: this peer's, and those of peers that bring theirs to averages."""
    num_peers: int
    """Peers with a record, this one included; 0 if it finds none, not even its own."""
    epoch_seconds: float
    """How long an epoch takes; ages if nobody computes."""
    ends_at: float
    """DHT time at which the epoch's samples will be there."""
    full_at: float
    """DHT time at which they would be there if newcomers' samples counted; a group is looked for by that."""
    look_at: float
    """DHT time of the next look."""


class Progress:
    """Tells the others how far this peer is, and finds out how far they are; in two threads that `start` starts.

    A record stays in the DHT long after its peer has died. So `num_peers` counts all records, and `lively_peers` those
    that a group should wait for. A look that finds nobody else does not prove that nobody trains: a busy node may not
    have answered. So what was known before stays valid for `lively_seconds`, unless a peer has said goodbye.

    hivemind tells the swarm of each micro-batch; a fast peer far from the end of its epoch then sends more bytes of
    such records than of gradients. Here a pause follows each report. A record carries its peer's rate, from which the
    others estimate the samples since the report.

    Args:
        dht: A running node.
        prefix: Of the run; see `lineage.run_prefix`.
        target_batch_size: Samples of all peers together for one epoch.
        private_key: Signs this peer's record; None: a key of this process.
        client_mode: Told to the others.
        lively_seconds: A peer that has not reported for so long is not waited for.
        record_seconds: A record that is not renewed disappears after this time.
        refresh: How often it looks.
        peers: What this peer knows of the others.
    """

    def __init__(
        self,
        *,
        dht: DHT,
        prefix: str,
        target_batch_size: int,
        private_key: PrivateKey | None = None,
        client_mode: bool = False,
        lively_seconds: float,
        record_seconds: float = 60.0,
        refresh: RefreshSeconds = RefreshSeconds(least=0.5, most=10.0, alone=3.0),
        peers: Peers | None = None,
    ):
        self.dht, self.key, self.target_batch_size = dht, f"{prefix}_progress", target_batch_size
        self.lively_seconds = lively_seconds
        self.lively_peers = 1
        """Peers that should be in a group, this one included: they have reported within `lively_seconds`, and since
        they were last lost in an average. Each look that was answered counts them again."""
        self._client_mode, self._record_seconds, self._refresh = client_mode, record_seconds, refresh
        signer = RSASignatureValidator(private_key)
        self._subkey = signer.local_public_key
        # Where peers sign with their identities, nobody can speak for another peer.
        self._signed_by_peers = peer_id_of(self._subkey) == dht.peer_id
        dht.add_validators([progress_validator(prefix), signer])
        self.performance = PerformanceEMA(alpha=0.1)
        self._others_seen = -math.inf
        self.peers = peers or Peers()
        self._doubted_until, self._retry_seconds = -math.inf, RETRY_SECONDS
        self._first_seen_ahead: dict[bytes, float] = {}
        """Times of records that are ahead, as each peer's was when nobody's clock seemed right first."""
        self.left_out: frozenset[str] = frozenset()
        """Peers whose records do not count; see `standing`."""
        self._others: list[PeerProgress] = []
        self._local, self._epoch_began = self._record(epoch=0, samples=0), get_dht_time()
        self._global = self._combine(self._look_if_answered())
        self._paused = threading.Lock()
        # A peer is behind if its first look in an epoch shows a newer one. The look above counts as that first look. By
        # the next look, the others may have ended the epoch that they began together with this peer: taken for a first
        # one, it would make the peer drop its gradients.
        self._has_looked, self._has_compared = True, False
        self._epochs_begun = 0
        self._reports = PacedEvent(self._pause_between_reports)
        self._ending = threading.Event()

    def start(self) -> None:
        """Starts the threads."""
        for work in (self._keep_telling, self._keep_looking):
            threading.Thread(target=work, daemon=True, name=f"{self.key}-{work.__name__}").start()

    # -- what the trainer asks -------------------------------------------------------------------------------------

    @property
    def global_epoch(self) -> int:
        """The newest epoch that peers with a voice have begun."""
        return self._global.epoch

    @property
    def reported_epoch(self) -> int:
        """The newest epoch that the others report; see `GlobalProgress.reported`."""
        return self._global.reported

    @property
    def has_voices(self) -> bool:
        """Whether any of the others has a voice; see `training.swarm.peers`."""
        return self._global.has_voices

    @property
    def num_peers(self) -> int:
        """Peers that are known to train, this one included; some may be dead."""
        return self._global.num_peers

    @property
    def awaited_peers(self) -> int:
        """Those of `lively_peers` for which the next group waits, this one included; see `Peers.is_awaited`."""
        return 1 + sum(self._is_lively(one.peer_id) and self.peers.is_awaited(one.peer_id) for one in self._others)

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether the epoch's samples are there, by the last look or by the rates since, or the others have gone on."""
        known = self._global
        is_full = known.samples >= self.target_batch_size or get_dht_time() >= known.ends_at
        return is_full or known.epoch > self._local.epoch

    @property
    def ready_with_a_group(self) -> bool:
        """Whether the samples would be there if those of strangers counted, and all others are strangers.

        Newcomers, and peers that start a run together, know nobody yet. Reports of strangers end no epoch by
        themselves; a group does that the strangers have come to.
        """
        known = self._global
        return not known.has_voices and get_dht_time() >= known.full_at

    @property
    def epoch_seconds(self) -> float:
        """How long an epoch takes at the rate of all; 0 if that is not known."""
        return self._global.epoch_seconds if self._global.epoch_seconds < LONGEST_SECONDS else 0.0

    @property
    def seconds_left(self) -> float:
        """Until the epoch ends, at the rate of all; infinite if that is not known."""
        return 0.0 if self.ready_to_update_epoch else max(self._global.full_at - get_dht_time(), 0.0)

    def is_behind(self, epoch: int) -> bool:
        """Whether a peer at this epoch is so far back that ending the epoch does not bring it to where the others are.

        That is so if the first look in an epoch shows a newer one, and after that if the others are two epochs ahead.
        The first look is compared once only; `SwarmOptimizer.step` remembers the answer until the peer has caught up.
        """
        if self._has_looked and not self._has_compared:
            self._has_compared = True
            return epoch != self.reported_epoch
        return epoch < self.reported_epoch - 1

    def doubt(self) -> None:
        """No state was found of the epoch that others report: for a while, their reports of newer epochs do not count.

        The pause doubles each time, until a state has come (`begin_epoch`).
        """
        self._doubted_until = get_dht_time() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)
        epoch = self._local.epoch
        self._global = replace(self._global, epoch=epoch, reported=epoch, of_most=epoch)

    def believe(self) -> None:
        """A state of the others has come; see `doubt`."""
        self._doubted_until, self._retry_seconds = -math.inf, RETRY_SECONDS
        self.peers.trust_reports()

    def look_around(self) -> tuple[int, int]:
        """Looks now: the newest epoch that the others report, and how many of them train.

        Raises:
            TimeoutError: If the node does not answer.
        """
        known = self._combine(self._look())
        return known.reported, max(self.lively_peers - 1, 0)

    def look_who_stays(self) -> tuple[int, int]:
        """Looks now: the newest epoch that most peers have begun, and how many others train.

        Raises:
            TimeoutError: If the node does not answer.
        """
        known = self._combine(self._look())
        return known.of_most, max(self.lively_peers - 1, 0)

    # -- what the trainer tells ------------------------------------------------------------------------------------

    def report(self, epoch: int, samples: int) -> None:
        """This peer has computed so many samples of the epoch.

        The others learn of it at once if the epoch begins or ends with them, otherwise after a while.
        """
        before, new = self._local, samples - self._local.samples_accumulated
        # Own samples count at once. The next look replaces the sum by that of all records, this peer's among them.
        if epoch == before.epoch == self._global.epoch:
            self._global = replace(self._global, samples=self._global.samples + new)
        if new > 0:
            self.performance.update(task_size=new)
        else:
            self.performance.reset_timer()  # the time since the last samples was spent on something else
        self._local = self._record(epoch=epoch, samples=samples)
        self._reports.set()
        began = epoch != before.epoch or new <= 0
        if began or not before.samples_accumulated or self.ready_to_update_epoch:
            self._reports.hurry()

    def still_here(self) -> None:
        """Renews this peer's record now and then while it computes nothing, so that groups wait for it."""
        if (now := get_dht_time()) - self._local.time >= self.lively_seconds / LIVELY_REPORTS:
            self._local = self._local.copy(update={"time": now})
            self._reports.set()
        # Otherwise the time that it waited would count as that of its next micro-batch.
        self.performance.reset_timer()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """While an epoch ends, what is known stays as it is, and time does not count against this peer's speed."""
        with self._paused, self.performance.pause():
            yield

    def reports_of(self, epoch: int) -> dict[bytes, float]:
        """The samples of this epoch that each of the others should have by its reports; None for those that have
        reported none, but live."""
        now = get_dht_time()
        reports = {one.peer_id: self._samples_by(now, one, epoch) for one in self._others}
        return {peer: samples for peer, samples in reports.items() if samples or self._is_lively(peer)}

    def note_average(
        self, reports: Mapping[bytes, float], brought: Mapping[bytes, float | None], lost: Collection[bytes]
    ) -> None:
        """An average has ended.

        Args:
            reports: From `reports_of`, when the epoch ended.
            brought: Samples of each of the others that were there to the end; None: this peer cannot tell.
            lost: Those that were not.
        """
        for peer, samples in brought.items():
            self.peers.brought(peer, samples, reported=reports.get(peer))
        if brought:
            # In a large run a peer may be in another group: it should have been here only by so much.
            chance = len(brought) / len(reports.keys() | brought.keys())
            for peer in reports.keys() - brought.keys() - set(lost):
                self.peers.failed(peer, Fault.MISSED, chance)

    def begin_epoch(self, epoch: int) -> None:
        """This peer goes on with another epoch; call it while paused."""
        known = self._global
        if epoch > known.epoch:
            reported = max(epoch, known.reported)
            ends = dict(ends_at=math.inf, full_at=math.inf)
            self._global = replace(known, epoch=epoch, reported=reported, samples=0, **ends)
        self._epochs_begun, self._epoch_began = self._epochs_begun + 1, get_dht_time()
        self.report(epoch, 0)
        self._has_looked = self._has_compared = False

    def give_up(self, peers: Iterable[str]) -> None:
        """Notes that these peers were lost in an average: groups do not wait for them until they report again."""
        for peer in peers:
            self.peers.failed(PeerID.from_base58(peer).to_bytes(), Fault.LOST)
        self.lively_peers = self._count_lively()

    def give_up_the_silent(
        self, silent_seconds: float, answer_seconds: float, *, slow_seconds: float = math.inf
    ) -> None:
        """Asks the peers that a group waits for, and that have told nothing lately, for a sign of life.

        Those that have not answered the last time are asked again: a full link delays answers, and is not death.

        Args:
            silent_seconds: A peer whose last word is older is asked.
            answer_seconds: One that does not answer within this time is given up.
            slow_seconds: So is one that takes longer than this, and much longer than most.
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
        with suppress(TimeoutError):  # this peer's own node is busy; that says nothing of the others
            silent = silent_peers(self.dht, asked, answer_seconds, slow_seconds=slow_seconds)
            for peer in asked - silent:
                self.peers.heard(peer)
            for peer in silent:
                self.peers.failed(peer, Fault.LOST, is_silent=True)
            self.lively_peers = self._count_lively()

    def shutdown(self) -> None:
        """Ends the threads and tells the others that this peer is gone."""
        self._ending.set()
        self._reports.hurry()
        self._store(None)

    # -- in the background -----------------------------------------------------------------------------------------

    def _keep_telling(self) -> None:
        """Stores this peer's record when there is news, and before the last one disappears."""
        trained_at = -math.inf
        while not self._ending.is_set():
            if self._reports.wait(self._record_seconds / 2):
                self._reports.clear()
            local = self._local
            if local.samples_accumulated:
                trained_at = self.global_epoch
            # A peer without samples for a whole epoch hangs or catches up. It lets its record expire, and the others do
            # not count it any more.
            if trained_at >= self.global_epoch - 1 and not self._ending.is_set():
                self._store(local.dict())

    def _keep_looking(self) -> None:
        while not self._ending.wait(self._seconds_to_next_look()):
            epochs_begun = self._epochs_begun
            try:
                # The look itself takes no lock: the trainer would wait for the network whenever it ends an epoch.
                found = self._look(timeout=None)
                with self._paused:
                    if epochs_begun == self._epochs_begun:  # else it shows how things were before this epoch
                        self._global = self._combine(found)
                        self._has_looked = True
            except Exception:  # the node is gone or ends, or a record makes no sense; the next look may show more
                if self._ending.wait(self._refresh.alone):
                    return

    def _seconds_to_next_look(self) -> float:
        # No longer than the longest pause: the last look may have been by a clock that was ahead then.
        return min(max(0.0, self._global.look_at - get_dht_time()), self._refresh.most)

    def _pause_between_reports(self) -> float:
        """Seconds from one report of this peer's samples to the next; 0 if nobody knows when the epoch ends."""
        left = self.seconds_left
        return min(max(left, 0.0) * REPORTS_SHARE, self.lively_seconds / LIVELY_REPORTS) if math.isfinite(left) else 0.0

    # -- records in the DHT ----------------------------------------------------------------------------------------

    def _record(self, *, epoch: int, samples: int) -> PeerProgress:
        return PeerProgress(
            peer_id=self.dht.peer_id.to_bytes(),
            epoch=epoch,
            samples_accumulated=samples,
            samples_per_second=self.performance.samples_per_second,
            time=get_dht_time(),
            client_mode=self._client_mode,
        )

    def _store(self, record: dict | None) -> None:
        expiration = get_dht_time() + self._record_seconds
        with suppress(Exception):  # a record that is lost now is stored again soon
            self.dht.store(self.key, subkey=self._subkey, value=record, expiration_time=expiration, return_future=True)

    def _look(self, timeout: float | None = LOOK_SECONDS) -> dict | None:
        """What the DHT has of all peers."""
        found = self.dht.get(self.key, latest=True, return_future=True).result(timeout=timeout)
        if not isinstance(found, ValueWithExpiration) or not isinstance(found.value, dict):
            return None
        self._note_accounts(found.value)
        return found.value

    def _note_accounts(self, found: Mapping[bytes, object]) -> None:
        """Asks this peer's node for the tickets that came with the records."""
        if admission_of(self.dht) is not None:
            signers = [peer for subkey in found if (peer := peer_id_of(subkey)) is not None]
            self.peers.note_accounts(accounts_of(self.dht, signers))

    def _look_if_answered(self) -> dict | None:
        with suppress(TimeoutError):  # a busy node; the threads look again
            return self._look()
        return None

    def _combine(self, found: dict | None) -> GlobalProgress:
        """How far all are, by their records; what was known before, if the look may not have been answered."""
        now, own = get_dht_time(), self.dht.peer_id.to_bytes()
        told = {subkey: entry.value for subkey, entry in (found or {}).items()}
        said_goodbye = not all(told.values())  # a peer that leaves stores None as its record
        records = [
            record
            for subkey, value in told.items()
            if value and (record := _read(value)) and self._is_of(subkey, record) and not self._is_left_out(record)
        ]
        records = self._of_right_clocks(records, now, own)
        for record in records:
            self.peers.heard(record.peer_id, record.time)
        others = sum(record.peer_id != own for record in records)
        known = self._sum(records, now, num_peers=others + 1 if others else len(records))
        if not (others or said_goodbye) and abs(now - self._others_seen) < self.lively_seconds:
            return replace(self._global, look_at=known.look_at)
        self._others = [record for record in records if record.peer_id != own]
        self.lively_peers = self._count_lively()
        if others:
            self._others_seen = now
        return known

    def _is_of(self, subkey: bytes, record: PeerProgress) -> bool:
        """Whether the peer that signed a record is the one that it names."""
        return not self._signed_by_peers or str(peer_id_of(subkey)) == str(PeerID(record.peer_id))

    def _is_left_out(self, record: PeerProgress) -> bool:
        return bool(self.left_out) and str(PeerID(record.peer_id)) in self.left_out

    def _of_right_clocks(self, records: list[PeerProgress], now: float, own: bytes) -> list[PeerProgress]:
        """Leaves out the peers whose clocks are ahead: the DHT keeps such a record long after it has become wrong.

        The others would wait for a peer that is gone, or follow it to an epoch that it has reached alone. If all others
        are ahead, this peer's own clock may be behind. Then those count that are renewed from look to look: what a peer
        has left behind, whose clock was ahead for a moment, is not.
        """
        right = [record for record in records if record.time <= now + self.lively_seconds]
        if any(record.peer_id != own for record in right):
            self._first_seen_ahead = {}
            return right
        ahead = [record for record in records if record not in right]
        first = {record.peer_id: self._first_seen_ahead.get(record.peer_id, record.time) for record in ahead}
        self._first_seen_ahead = first
        return right + [record for record in ahead if record.time > first[record.peer_id]]

    def _count_lively(self) -> int:
        return 1 + sum(self._is_lively(record.peer_id) for record in self._others)

    def _is_lively(self, peer: bytes) -> bool:
        return self.peers.is_alive(peer, self.lively_seconds)

    def _leaders(self, records: list[PeerProgress]) -> list[PeerProgress]:
        """The others that can lead a group.

        Those count that live and have trained, if there are any: a newcomer at epoch 0 does not know better.
        """
        leaders = [record for record in records if not record.client_mode and record.peer_id != self._local.peer_id]
        leaders = [record for record in leaders if self._is_lively(record.peer_id)] or leaders
        return [record for record in leaders if record.epoch or record.samples_accumulated] or leaders

    def _samples_by(self, now: float, record: PeerProgress, epoch: int) -> float:
        """How many samples of an epoch a peer should have by now; with those of all, the epoch ends.

        A peer that is ahead has ended the epoch. It has computed since this peer began it, first for this epoch and
        then for the next.
        """
        samples, rate = record.samples_accumulated, record.samples_per_second
        if record.epoch > epoch == self._local.epoch:
            samples = max(0.0, (record.time - self._epoch_began) * rate - samples)
        elif record.epoch == epoch:
            samples += max(0.0, now - record.time) * rate
        else:
            samples = 0.0
        return min(samples, self.target_batch_size)

    def _sum(self, records: list[PeerProgress], now: float, *, num_peers: int) -> GlobalProgress:
        """What the records say together; without any, this peer's own progress counts."""
        local, leaders = self._local, self._leaders(records)
        heard = {} if now < self._doubted_until else {one.peer_id: one.epoch for one in leaders}
        voices, has_voices = self.peers.voices(heard), self.peers.any_voice([one.peer_id for one in leaders])
        reported = max(local.epoch, agreed_epoch(voices))
        epoch = reported if has_voices else local.epoch
        if all(record.peer_id != local.peer_id for record in records):
            records = [*records, local.copy(update={"time": now})]
        counted = self._sources(records, now, epoch, self.peers.counted_samples)
        expected = self._sources(records, now, epoch, self.peers.expected_samples)
        seconds_left = seconds_until(self.target_batch_size, counted)
        full_in = seconds_until(self.target_batch_size, expected)
        soon = full_in * num_peers / max(num_peers + NEWCOMERS, num_peers * (1 + NEWCOMERS_SHARE))
        look_in = min(max(soon, self._refresh.least), self._refresh.most) if num_peers else self._refresh.alone
        rates = counted if has_voices else expected
        return GlobalProgress(
            epoch=epoch,
            reported=reported,
            of_most=max(local.epoch, begun_by_most(voices)),
            has_voices=has_voices,
            samples=sum(source.told for source in counted),
            num_peers=num_peers,
            epoch_seconds=seconds_until(self.target_batch_size, [replace(source, have=0.0) for source in rates]),
            ends_at=now + seconds_left,
            full_at=now + full_in,
            look_at=now + look_in,
        )

    def _sources(
        self, records: Iterable[PeerProgress], now: float, epoch: int, counts: Callable[[bytes, float], float]
    ) -> list[Source]:
        """Where the epoch's samples come from.

        Args:
            records: Of all peers.
            now: DHT time.
            epoch: Peers at older ones count for the rate, since they soon catch up.
            counts: How many of a peer's samples count.
        """
        sources = []
        for record in records:
            peer, is_own = record.peer_id, record.peer_id == self._local.peer_id
            count = partial(counts, peer) if not is_own else float
            sources.append(
                Source(
                    told=count(self._samples_by(record.time, record, epoch)),
                    have=count(self._samples_by(now, record, epoch)),
                    rate=count(record.samples_per_second),
                    most=count(self.target_batch_size),
                )
            )
        return sources


def _read(value: object) -> PeerProgress | None:
    """The record; None if it is none. This peer's node may have taken it before it knew what is progress.

    It hides no other: anybody could leave one at the node of a peer that has just started.
    """
    with suppress(ValueError):
        return PeerProgress.parse_obj(value)
    return None


@dataclass(frozen=True, slots=True)
class Source:
    """Where samples come from: one peer."""

    have: float
    """That it should have by now."""
    rate: float
    """A second."""
    most: float
    told: float = 0.0
    """That its record reports."""


def seconds_until(target: float, sources: Sequence[Source]) -> float:
    """When the sources together have as many samples as wanted; in ages if they never have.

    >>> seconds_until(60, [Source(have=10, rate=2, most=60), Source(have=0, rate=1e7, most=20)])
    15.0
    """
    time_left, rising = 0.0, sorted(sources, key=lambda one: (one.most - one.have) / (one.rate + EPSILON))
    have, rate = sum(source.have for source in rising), sum(source.rate for source in rising) + EPSILON
    while rising:
        first, *rest = rising
        until_full = (first.most - first.have) / (first.rate + EPSILON) - time_left
        if not rest or (target - have) / rate <= until_full:
            break
        time_left, have, rate = time_left + until_full, have + until_full * rate, max(rate - first.rate, EPSILON)
        rising = rest
    return time_left + max(target - have, 0.0) / rate


def agreed_epoch(claims: Sequence[int]) -> int:
    """The newest epoch that more of the other peers claim than may lie: fewer than a third of all, this one included.

    With one other peer nobody can tell who is right, so its word counts. Of two, one may lie.

    >>> agreed_epoch([7, 7, 10**9]), agreed_epoch([7, 10**9]), agreed_epoch([7]), agreed_epoch([])
    (7, 7, 7, 0)
    """
    return sorted(claims, reverse=True)[most_liars(len(claims))] if claims else 0


def most_liars(others: int) -> int:
    """How many of so many other peers may lie at once: fewer than a third of all, this one included; see
    `agreed_epoch`."""
    return 0 if others < 2 else max(1, others // 3)


def begun_by_most(claims: Sequence[int]) -> int:
    """The newest epoch that no fewer of all peers have begun than have not, by what the others claim.

    A peer that asks has not begun it. So with two others ahead and two beside it, most have not.

    >>> begun_by_most([8, 8, 7, 7]), begun_by_most([8, 8, 7]), begun_by_most([8, 8, 8, 7]), begun_by_most([8])
    (7, 8, 8, 8)
    """
    return sorted(claims, reverse=True)[len(claims) // 2] if claims else 0


class PacedEvent(threading.Event):
    """An event whose waiting thread goes on only when a pause has passed since the last time, unless there is a hurry.

    Args:
        pause: Gives the length of the pause at this moment, in seconds.
    """

    def __init__(self, pause: Callable[[], float]):
        super().__init__()
        self._pause, self._seen, self._hurried = pause, -math.inf, threading.Event()

    def hurry(self) -> None:
        """Sets the event, and ends the pause: the waiting thread goes on now."""
        self._hurried.set()
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event`; the pause comes on top of the timeout."""
        came = super().wait(timeout)
        if came:
            self._hurried.wait(max(self._seen + self._pause() - time.monotonic(), 0.0))
        self._hurried.clear()
        self._seen = time.monotonic()
        return came
