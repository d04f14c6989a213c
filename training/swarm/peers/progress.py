"""Who trains, and how far all have come together: each peer posts its samples in the DHT, and adds up everybody's."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from hivemind.dht import DHT
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from hivemind.utils.crypto import RSAPrivateKey
from hivemind.utils.performance_ema import PerformanceEMA
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint

from training.swarm.node.identity import peer_id_of
from training.swarm.node.signs_of_life import silent_peers
from training.swarm.peers.claims import Claims, Ending
from training.swarm.peers.groups import RoundReport
from training.swarm.round.gathering import MOST_ID_BYTES

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
    """The newest that peers have begun, as far as they agree; see `agreed_epoch`."""
    newest: int
    """The newest that any peer claims that is believed by itself; see `claims`."""
    of_most: int
    """The newest that no fewer peers have begun than have not, this one included; see `begun_by_most`."""
    samples: float
    """In this epoch, of all peers."""
    num_peers: int
    """Peers with a record, this one included; 0 if it finds none, not even its own."""
    epoch_seconds: float
    """How long an epoch takes; ages if nobody computes."""
    ends_at: float
    """DHT time at which the epoch's samples will be there."""
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
    """

    def __init__(
        self,
        *,
        dht: DHT,
        prefix: str,
        target_batch_size: int,
        private_key: RSAPrivateKey | None = None,
        client_mode: bool = False,
        lively_seconds: float,
        record_seconds: float = 60.0,
        refresh: RefreshSeconds = RefreshSeconds(least=0.5, most=10.0, alone=3.0),
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
        self._given_up: dict[bytes, float] = {}
        self._heard_of: dict[bytes, float] = {}
        self._silent: frozenset[bytes] = frozenset()
        self._first_seen_ahead: dict[bytes, float] = {}
        """Times of records that are ahead, as each peer's was when nobody's clock seemed right first."""
        self._claims = Claims(target_batch_size)
        self.left_out: frozenset[str] = frozenset()
        """Peers whose records do not count; see `standing`."""
        self._others: list[PeerProgress] = []
        self._local = self._record(epoch=0, samples=0)
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
        """The newest epoch that a peer has begun."""
        return self._global.epoch

    @property
    def num_peers(self) -> int:
        """Peers that are known to train, this one included; some may be dead."""
        return self._global.num_peers

    @property
    def awaited_peers(self) -> int:
        """Of `lively_peers`, those for whom the next group waits: it does not for who comes to none."""
        now = get_dht_time()
        lively = [record for record in self._others if self._is_lively(record, now)]
        return 1 + sum(self._claims.is_awaited(record.peer_id) for record in lively)

    @property
    def ready_to_update_epoch(self) -> bool:
        """Whether the epoch's samples are there, by the last look or by the rates since, or others have gone on."""
        known = self._global
        return (
            known.newest > self._local.epoch
            or known.samples >= self.target_batch_size
            or get_dht_time() >= known.ends_at
        )

    @property
    def epoch_seconds(self) -> float:
        """How long an epoch takes at the rate of all; 0 if that is not known."""
        return self._global.epoch_seconds if self._global.epoch_seconds < LONGEST_SECONDS else 0.0

    @property
    def seconds_left(self) -> float:
        """Until the epoch ends, at the rate of all; infinite if that is not known."""
        return 0.0 if self.ready_to_update_epoch else self._global.ends_at - get_dht_time()

    def is_behind(self, epoch: int) -> bool:
        """Whether a peer at this epoch is so far back that ending the epoch does not bring it to where the others are.

        That is so if the first look in an epoch shows a newer one, and after that if the others are two epochs ahead.
        The first look is compared once only; `SwarmOptimizer.step` remembers the answer until the peer has caught up.
        """
        if self._has_looked and not self._has_compared:
            self._has_compared = True
            return epoch != self.global_epoch
        return epoch < self.global_epoch - 1

    def look_around(self) -> tuple[int, int]:
        """Looks now: the newest epoch of all peers, and how many others train.

        Raises:
            TimeoutError: If the node does not answer.
        """
        known = self._combine(self._look())
        return known.epoch, max(self.lively_peers - 1, 0)

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

    @contextmanager
    def end_epoch(self) -> Iterator[None]:
        """Pauses, and notes what the others have told of the epoch that ends; `note_average` compares."""
        with self.pause():
            self._claims.note_end(self._local.epoch, self._known_at_the_end())
            yield

    def _known_at_the_end(self) -> Ending:
        now, epoch = get_dht_time(), self._local.epoch
        is_led = self._global.epoch <= epoch < self._global.newest
        return Ending(
            told={one.peer_id: self._samples_by(now, one) for one in self._others if one.epoch == epoch},
            leaders=frozenset(
                one.peer_id
                for one in self._leaders(self._others, now)
                if is_led and one.epoch > epoch and self._claims.may_lead(one.peer_id)
            ),
            present=frozenset(one.peer_id for one in self._others if self._is_lively(one, now)),
        )

    def note_average(self, epoch: int, report: RoundReport, members: Collection[PeerID], *, own_samples: float) -> None:
        """The average of an epoch has ended: what its members have brought says how far their words count.

        Args:
            epoch: That was ended within `end_epoch`.
            report: Of the average.
            members: Who took part, without the peers that were lost.
            own_samples: That this peer has brought.
        """
        self._claims.note_average(
            epoch,
            brought={PeerID.from_base58(peer).to_bytes(): samples for peer, samples in report.brought.items()},
            members={peer.to_bytes() for peer in members} - {self.dht.peer_id.to_bytes()},
            lost={PeerID.from_base58(peer).to_bytes() for peer in report.lost},
            own_samples=own_samples,
        )

    def believe_all(self) -> None:
        """The others have gone on while this peer expected more samples; see `claims`."""
        self._claims.believe_all()

    def begin_epoch(self, epoch: int) -> None:
        """This peer goes on with another epoch; call it while paused."""
        if epoch > self._global.epoch:
            newest = max(epoch, self._global.newest)
            self._global = replace(self._global, epoch=epoch, newest=newest, samples=0, ends_at=math.inf)
        self.report(epoch, 0)
        self._epochs_begun += 1
        self._has_looked = self._has_compared = False

    def give_up(self, peers: Iterable[str]) -> None:
        """Notes that these peers were lost in an average: groups do not wait for them until they report again."""
        self._give_up(PeerID.from_base58(peer).to_bytes() for peer in peers)

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
        heard_of = {peer: then for peer, then in self._heard_of.items() if then <= now}
        heard = {record.peer_id: max(record.time, heard_of.get(record.peer_id, 0.0)) for record in self._others}
        asked = {
            record.peer_id
            for record in self._others
            if self._is_lively(record, now) and not record.client_mode and now - heard[record.peer_id] > silent_seconds
        } | {record.peer_id for record in self._others if record.peer_id in self._silent}
        if not asked:
            return
        with suppress(TimeoutError):  # this peer's own node is busy; that says nothing of the others
            silent = silent_peers(self.dht, asked, answer_seconds, slow_seconds=slow_seconds)
            self._heard_of = dict.fromkeys(asked - silent, get_dht_time())
            for peer in self._silent & asked - silent:
                self._given_up.pop(peer, None)
            self._silent = silent
            self._give_up(silent)

    def _give_up(self, peers: Iterable[bytes]) -> None:
        self._given_up |= dict.fromkeys(peers, get_dht_time())
        self.lively_peers = self._count_lively(get_dht_time())

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
        return found.value if isinstance(found, ValueWithExpiration) and isinstance(found.value, dict) else None

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
        others = sum(record.peer_id != own for record in records)
        known = self._sum(records, now, num_peers=others + 1 if others else len(records))
        if not (others or said_goodbye) and abs(now - self._others_seen) < self.lively_seconds:
            return replace(self._global, look_at=known.look_at)
        self._others = [record for record in records if record.peer_id != own]
        self.lively_peers = self._count_lively(now)
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

    def _count_lively(self, now: float) -> int:
        return 1 + sum(self._is_lively(record, now) for record in self._others)

    def _is_lively(self, record: PeerProgress, now: float) -> bool:
        lost = self._given_up.get(record.peer_id, -math.inf)
        is_lost = record.time <= lost <= now  # not if it was lost by a clock that was ahead then
        return record.time >= now - self.lively_seconds and not is_lost

    def _leaders(self, records: list[PeerProgress], now: float) -> list[PeerProgress]:
        """The others that can lead a group.

        Those count that live and have trained, if there are any: a newcomer at epoch 0 does not know better.
        """
        leaders = [record for record in records if not record.client_mode and record.peer_id != self._local.peer_id]
        leaders = [record for record in leaders if self._is_lively(record, now)] or leaders
        return [record for record in leaders if record.epoch or record.samples_accumulated] or leaders

    def _samples_by(self, now: float, record: PeerProgress) -> float:
        """How many samples of its epoch a peer should have by now; with those of all, the epoch ends."""
        since = max(0.0, now - record.time) * record.samples_per_second
        return min(record.samples_accumulated + since, self.target_batch_size)

    def _sum(self, records: list[PeerProgress], now: float, *, num_peers: int) -> GlobalProgress:
        """What the records say together; without any, this peer's own progress counts."""
        local = self._local
        leaders = self._leaders(records, now)
        epoch = max(local.epoch, agreed_epoch([record.epoch for record in leaders]))
        of_most = max(local.epoch, begun_by_most([record.epoch for record in leaders]))
        newest = max([epoch, *(one.epoch for one in leaders if self._claims.may_lead(one.peer_id))])
        samples, sources = 0.0, []
        for record in records or [local.copy(update={"time": now})]:
            share, is_at_epoch = self._claims.share(record.peer_id), record.epoch == epoch
            samples += share * min(record.samples_accumulated, self.target_batch_size) if is_at_epoch else 0.0
            # Peers of older epochs count for the rate, since they soon catch up.
            sources.append(
                Source(
                    have=share * self._samples_by(now, record) if is_at_epoch else 0.0,
                    rate=share * record.samples_per_second,
                    most=share * self.target_batch_size,
                )
            )
        seconds_left = seconds_until(self.target_batch_size, sources)
        soon = seconds_left * num_peers / max(num_peers + NEWCOMERS, num_peers * (1 + NEWCOMERS_SHARE))
        look_in = min(max(soon, self._refresh.least), self._refresh.most) if records else self._refresh.alone
        return GlobalProgress(
            epoch=epoch,
            newest=newest,
            of_most=of_most,
            samples=samples,
            num_peers=num_peers,
            epoch_seconds=seconds_until(self.target_batch_size, [replace(source, have=0.0) for source in sources]),
            ends_at=now + seconds_left,
            look_at=now + look_in,
        )


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
    rate: float
    """A second."""
    most: float


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
