"""Simulated swarm: the rules by which peers train together, played event by event.

An epoch ends when all peers together have computed the target batch, which each peer extrapolates from the others'
reports. Peers finish their micro-batches, form groups and average their gradients; then they make the update, and at
intervals they average their parameters. The rules are those of training/swarm (`patient`) or of plain hivemind 1.1.12
(not `patient`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from calculator.swarm.exchange import WIRE_BYTES_PER_BYTE as WIRE
from calculator.swarm.exchange import Link, all_reduce_seconds
from calculator.swarm.forecast import (
    COSTS,
    MESSAGE_BYTES,
    PATIENCE_WINDOWS,
    PROGRESS_COPIES,
    PROGRESS_RECORD_BYTES,
    Costs,
    ExchangedVectors,
)
from calculator.swarm.settings import AVERAGING_TIMEOUT_SECONDS, REQUEST_TIMEOUT_SECONDS
from training.simulate.accounts import Accounts, Cause
from training.simulate.clock import Clock
from training.simulate.population import Person

EARLY_STEPS = 1.5
"""Steps of a peer before the end of an epoch at which it begins to look for a group, if they take longer than a window
(`Exchange.look_for_group_early` of training/swarm/epoch/exchange.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Sizes that peers exchange, and rules by which they meet."""

    exchange: ExchangedVectors
    costs: Costs = COSTS
    patient: bool = True
    """True if groups wait for the peers that they know, and start as soon as these have joined."""
    delay_optimizer_step: bool = True
    averaging_timeout_seconds: float = AVERAGING_TIMEOUT_SECONDS
    """Longest duration of averaging, including the search for a group."""
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    progress_limited: bool = True
    """True if the progress record has its limits; without them, the next limit becomes visible."""


@dataclass(slots=True, eq=False)
class Peer:
    """A volunteer while it is present."""

    person: Person
    step_seconds: float
    leaves: float
    since: float = 0.0
    """Time at which the peer began to compute for this epoch."""
    training: bool = False
    gone: bool = False
    uploads: int = 0
    """Number of newcomers that download from the peer."""
    busy_until: float = 0.0
    """Time at which the peer's averages and updates in the background end."""

    @property
    def rate(self) -> float:
        """Samples per second, with the time to accumulate gradients."""
        return self.person.micro_batch_size / self.step_seconds

    def link(self) -> Link:
        """Returns the part of the peer's link that newcomers leave free."""
        link = self.person.link
        return (
            replace(link, up_bytes_per_second=link.up_bytes_per_second / (1 + self.uploads)) if self.uploads else link
        )


@dataclass(slots=True)
class Ending:
    """End of an epoch for one peer."""

    peer: Peer
    boundary: float
    """Time at which the peer's last micro-batch ends."""
    ready: float
    """Time at which the peer can average: `boundary`, or later if the last average still runs in the background."""
    looks: float
    """Time at which the peer began to look for a group."""


@dataclass(slots=True)
class Tally:
    """Counts of the events since the warm-up."""

    began: float = 0.0
    epochs: int = 0
    samples: float = 0.0
    groups: int = 0
    averaging_seconds: float = 0.0
    """Total time of all groups' averages of gradients."""
    sent_bytes: float = 0.0
    senders: int = 0
    """Total number of peers in all groups."""
    alone: int = 0
    """Number of updates that peers made on their own although others were present."""
    states: int = 0
    """Number of averages of the parameters."""
    aborted_states: int = 0
    """Number of those that took too long."""
    left_behind: int = 0
    given_up: int = 0
    """Number of times that a peer was dropped because its link was too slow for its group."""
    vanished: int = 0
    newcomers: int = 0
    newcomer_seconds: float = 0.0


class Swarm:
    """A swarm of volunteers that train together.

    Args:
        people: All volunteers, present or not.
        rules: Sizes that the peers exchange, and rules by which they meet.
        chance: Draws sessions, groups and donors.
    """

    def __init__(self, people: Sequence[Person], rules: Rules, chance: random.Random):
        self.rules, self.chance, self.clock, self.accounts = rules, chance, Clock(), Accounts()
        self.epoch, self.tally, self.stalled = 0, Tally(), False
        # A dict, since a set would have another order in each process, and random choices would differ for the same
        # seed.
        self.peers: dict[Peer, None] = {}
        self._samples = self._rate = self._counted_at = self._began = 0.0
        self._due, self._ends = 0, False
        self._added = rules.costs.step_seconds_per_parameter * rules.exchange.parameters
        for person in people:
            if chance.random() < person.present:
                self._arrive(person, person.rest_of_session(chance), newcomer=False)
            else:
                self._return_later(person)

    def begin_tally(self) -> None:
        """Starts counting; earlier events do not count."""
        self.tally = Tally(began=self.clock.now)
        self.accounts.begin(self.clock.now)

    def end_tally(self) -> None:
        """Stops counting; time that was recorded in advance does not count."""
        self.accounts.end(self.clock.now)

    def _spend(self, cause: Cause, start: float, end: float) -> None:
        self.accounts.add(cause, start, end, self.clock.now)

    # -- coming and going --------------------------------------------------------------------------------------------

    def _return_later(self, person: Person) -> None:
        when = self.clock.now + person.absence(self.chance)
        self.clock.at(when, lambda: self._arrive(person, person.session(self.chance), newcomer=True))

    def _arrive(self, person: Person, length: float, *, newcomer: bool) -> None:
        now = self.clock.now
        step = person.micro_batch_size / person.samples_per_second + self._added
        peer = Peer(person=person, step_seconds=step, leaves=now + length)
        self.peers[peer] = None
        if math.isfinite(length):
            self.clock.at(peer.leaves, partial(self._leave, peer))
        if newcomer:
            self.clock.at(now + self.rules.costs.start_seconds, partial(self._download, peer, now))
        else:
            self._train(peer)

    def _leave(self, peer: Peer) -> None:
        now = self.clock.now
        peer.gone = True
        del self.peers[peer]
        if peer.training:
            self._count()
            self._samples = max(0.0, self._samples - peer.rate * (now - peer.since))
            self._rate = max(0.0, self._rate - peer.rate)
            self._spend(Cause.LEAVING, peer.since, now)
            self._look_ahead()
        self._return_later(peer.person)

    def _download(self, peer: Peer, began: float) -> None:
        """Downloads the state from a random peer, at the rate of its own link and its share of the donor's upload."""
        now = self.clock.now
        donor = None if peer.gone else self._donor()
        if peer.gone:
            self._spend(Cause.JOINING, began, peer.leaves)
        elif donor is None:
            self.clock.at(now + self.rules.exchange.next_chunk_timeout_seconds, partial(self._download, peer, began))
        else:
            # The rate of a download is that of its start, also if the donor's other newcomers come or go: an
            # approximation.
            donor.uploads += 1
            up = donor.person.link.up_bytes_per_second / donor.uploads
            rate = min(peer.person.link.down_bytes_per_second, up) * self.rules.costs.link_share / WIRE
            seconds = self.rules.exchange.newcomer_bytes / rate
            self.clock.at(now + seconds, partial(self._downloaded, peer, donor, began))

    def _donor(self) -> Peer | None:
        able = [peer for peer in self.peers if peer.training and not peer.person.link.client_mode]
        return self.chance.choice(able) if able else None

    def _downloaded(self, peer: Peer, donor: Peer, began: float) -> None:
        donor.uploads -= 1
        if donor.gone and not peer.gone:
            self.clock.at(
                self.clock.now + self.rules.exchange.next_chunk_timeout_seconds, partial(self._download, peer, began)
            )
            return
        self._spend(Cause.JOINING, began, min(self.clock.now, peer.leaves))
        if not peer.gone:
            self.tally.newcomers += 1
            self.tally.newcomer_seconds += self.clock.now - began
            self._train(peer)

    # -- counting samples --------------------------------------------------------------------------------------------

    def _train(self, peer: Peer) -> None:
        """Makes the peer begin to compute now."""
        if not peer.gone:
            peer.training, peer.since = True, self.clock.now
            self._count()
            self._rate += peer.rate
            self._look_ahead()

    def _count(self) -> None:
        self._samples += self._rate * (self.clock.now - self._counted_at)
        self._counted_at = self.clock.now

    def _look_ahead(self) -> None:
        """Schedules the end of the epoch as peers extrapolate it now."""
        # Outdates the ends that were scheduled before: a heap cannot remove them, so `_target_reached` compares the
        # number.
        self._due += 1
        if self._rate > 0 and not self._ends:
            missing = max(0.0, self.rules.exchange.target_batch_size - self._samples)
            self.clock.at(self.clock.now + missing / self._rate, partial(self._target_reached, self._due))

    def _target_reached(self, due: int) -> None:
        if due != self._due:
            return
        peers = len(self.peers)
        if self.rules.progress_limited and peers * PROGRESS_RECORD_BYTES > MESSAGE_BYTES:
            self.stalled = True
            return
        self._ends = True
        self.clock.at(max(self.clock.now, self._began + self._look_seconds(peers)), self._end_epoch)

    def _look_seconds(self, peers: int) -> float:
        """Seconds to read the progress: a peer downloads several copies, and each holder sends one to every peer."""
        if not self.rules.progress_limited or peers < 2:
            return 0.0
        record = peers * PROGRESS_RECORD_BYTES * WIRE
        # The median of the first 51: sorting thousands in each epoch would slow the simulation down.
        some = [peer.person.link for peer in itertools.islice(self.peers, 51)]
        down = sorted(link.down_bytes_per_second for link in some)[len(some) // 2]
        up = sorted(link.up_bytes_per_second for link in some)[len(some) // 2]
        return max(PROGRESS_COPIES * record / down, record * peers / up)

    # -- the end of an epoch -----------------------------------------------------------------------------------------

    def _end_epoch(self) -> None:
        """Ends the epoch: each training peer finishes its micro-batch, then its group averages."""
        now = self.clock.now
        self._count()
        duration, self._began = now - self._began, now
        endings = [self._ending(peer, now) for peer in self.peers if peer.training]
        self._samples = self._rate = 0.0
        self._ends = False
        for ending in endings:
            ending.peer.training = False
        self.epoch += 1
        self.tally.epochs += 1
        self.accounts.prune(now)
        full, rest = self._groups(endings)
        ends = [self._average(group, starts) for group, starts in full]
        if rest:
            self._wait_for_a_group(rest, min(ends, default=math.inf), duration, others=len(endings) > len(rest))

    def _ending(self, peer: Peer, now: float) -> Ending:
        # 1e-6: rounding must not add a step if the epoch ends exactly with one.
        steps = max(math.ceil((now - peer.since) / peer.step_seconds - 1e-6), 1)
        boundary = peer.since + steps * peer.step_seconds
        lead = self.rules.exchange.matchmaking_seconds
        if self.rules.patient:
            lead = max(lead, EARLY_STEPS * peer.step_seconds)
        early = min(math.floor((boundary - now + lead) / peer.step_seconds + 1e-6), steps - 1)
        ready = max(boundary, peer.busy_until)
        return Ending(peer=peer, boundary=boundary, ready=ready, looks=boundary - early * peer.step_seconds)

    def _groups(self, endings: list[Ending]) -> tuple[list[tuple[list[Ending], float]], list[Ending]]:
        """Forms groups. Returns them with the times at which they have formed, and the peers that do not fill a
        group."""
        most = self.rules.exchange.max_group_size
        self.chance.shuffle(endings)
        if self.rules.patient:
            endings.sort(
                key=lambda one: one.ready if one.ready > one.boundary else 0.0
            )  # a peer whose last average still runs meets others later
            size = min(len(endings), most)
            cut = len(endings) - len(endings) % size if size else 0
            full = [endings[first : first + size] for first in range(0, cut, size)]
            formed = [(group, max(one.looks for one in group) + self._meeting_seconds(group)) for group in full]
            return formed, endings[cut:]
        formed, left = [], sorted(endings, key=lambda one: one.looks)
        while left:
            closes = left[0].looks + self.rules.exchange.matchmaking_seconds
            group = [one for one in left if one.looks <= closes][:most]
            formed.append((group, closes + self._meeting_seconds(group)))
            left = [one for one in left if one not in group]
        return formed, []

    def _meeting_seconds(self, group: list[Ending]) -> float:
        """Seconds of two requests and their answers, and of the leader's work for each peer that joins."""
        if len(group) < 2:
            return 0.0
        latency = max(one.peer.person.link.latency_seconds for one in group)
        return 4 * latency + self.rules.costs.join_seconds * len(group)

    def _wait_for_a_group(self, rest: list[Ending], others_end: float, duration: float, *, others: bool) -> None:
        """Lets peers that do not fill a group wait for some windows; by then the others may be in the next epoch."""
        exchange = self.rules.exchange
        ready = max(one.ready for one in rest)
        patient_until = min(one.looks for one in rest) + PATIENCE_WINDOWS * exchange.matchmaking_seconds
        usual = ready + exchange.matchmaking_seconds + self.rules.request_timeout_seconds
        if exchange.is_delayed:
            lost, noticed = patient_until - ready > duration, ready
        else:
            noticed = max(usual, others_end)
            lost = noticed < patient_until
        if others and (lost or len(rest) == 1):
            self._go_on_without(rest, noticed)
        else:
            self._average(rest, patient_until)

    def _go_on_without(self, rest: list[Ending], noticed: float) -> None:
        for one in rest:
            leaves = one.peer.leaves
            self._spend(Cause.UNSHARED, one.peer.since, min(one.boundary, leaves))
            self._spend(Cause.MEETING, min(one.boundary, leaves), min(max(noticed, one.boundary), leaves))
            self.tally.left_behind += 1
            self.clock.at(max(noticed, one.boundary), partial(self._train, one.peer))

    def _average(self, group: list[Ending], formed: float) -> float:
        """Averages and updates one group. Returns the time at which the average ends."""
        exchange, costs = self.rules.exchange, self.rules.costs
        ready = max(one.ready for one in group)
        starts = ready if len(group) == 1 else max(ready, formed)
        given_up = min(one.looks for one in group) + self.rules.averaging_timeout_seconds
        there, slow = self._able(group, starts)
        links = [one.peer.link() for one in there]
        seconds = state = 0.0
        held_up = exchange.next_chunk_timeout_seconds if slow else 0.0
        shared = len(there) > 1 and starts <= given_up and not all(link.client_mode for link in links)
        if shared:
            parts = exchange.parts(links)
            seconds = exchange.exchange_seconds(links, parts, costs)
            shared = seconds <= exchange.allreduce_timeout_seconds
        if shared:
            if self.epoch % exchange.average_state_every == 0:
                needed = all_reduce_seconds(links, exchange.state_bytes, parts, costs.link_share)
                state = min(needed, exchange.allreduce_timeout_seconds)
                self.tally.states += 1
                self.tally.aborted_states += needed > state
            if gone := [one.peer.link() for one in there if one.peer.leaves < starts + seconds]:
                held_up += max(map(exchange.vanished_seconds, gone))
                self.tally.vanished += 1
            self._tally_average(parts, seconds)
        elif len(self.peers) > 1:
            self.tally.alone += len(there)
            starts, held_up = ready, 0.0
            seconds = max(given_up - ready, 0.0) if len(there) > 1 else 0.0
        averaged, ends = starts + seconds, starts + seconds + held_up
        update = exchange.update_seconds(len(there), costs)
        goes_on = ends
        if exchange.local_updates:
            goes_on = ends + update + state
        elif not self.rules.delay_optimizer_step:
            goes_on = ends + update
        last = max(one.boundary for one in group)
        marks = [
            (Cause.LAST_MICRO_BATCH, last),
            (Cause.AVERAGING, ready),
            (Cause.MEETING, starts),
            (Cause.AVERAGING, averaged),
            (Cause.LEAVING, ends),
            (Cause.AVERAGING, goes_on),
        ]
        for one in group:
            self._account(one, marks, averaged, (shared and id(one) not in slow) or len(self.peers) == 1)
            late = exchange.is_delayed
            self.clock.at(one.ready if late else goes_on, partial(self._train, one.peer))
            one.peer.busy_until = max(goes_on, ends + update + state)
        return ends

    def _tally_average(self, parts: Sequence[float], seconds: float) -> None:
        """Counts one group's average; `parts` are the fractions of the vector that its peers average."""
        exchange, peers = self.rules.exchange, len(parts)
        states = float(self.epoch % exchange.average_state_every == 0)
        self.tally.groups += 1
        self.tally.averaging_seconds += seconds
        self.tally.senders += peers
        self.tally.sent_bytes += sum(exchange.sent_bytes(part, peers, states=states) for part in parts)

    def _able(self, group: list[Ending], starts: float) -> tuple[list[Ending], set[int]]:
        """Returns the peers whose gradients the others get, and the ids of those dropped because their links are too
        slow."""
        exchange = self.rules.exchange
        there = [one for one in group if one.peer.leaves > starts]
        links = [(one, one.peer.link()) for one in there]
        reducers = sum(not link.client_mode for _, link in links)
        longest = exchange.next_chunk_timeout_seconds
        able = [one for one, link in links if exchange.message_seconds(link, reducers, self.rules.costs) <= longest]
        self.tally.given_up += len(there) - len(able)
        return able, {id(one) for one in there} - {id(one) for one in able}

    def _account(self, one: Ending, marks: list[tuple[Cause, float]], averaged: float, shared: bool) -> None:
        """Records the time of one peer of a group, from the start of the epoch to that of the next."""
        peer, leaves, add = one.peer, one.peer.leaves, self._spend
        if leaves < averaged or not shared:
            cause = Cause.LEAVING if leaves < averaged else Cause.UNSHARED
            add(cause, peer.since, min(one.boundary, leaves))
        else:
            plain = peer.person.micro_batch_size / peer.person.samples_per_second / peer.step_seconds
            split = peer.since + plain * (one.boundary - peer.since)
            add(Cause.COMPUTING, peer.since, split)
            add(Cause.ADDING_UP, split, one.boundary)
            self.tally.samples += peer.rate * (one.boundary - peer.since)
        if self.rules.exchange.is_delayed:
            add(Cause.AVERAGING, min(one.boundary, leaves), min(one.ready, leaves))
            return
        before = min(one.boundary, leaves)
        for cause, until in [(Cause.AVERAGING, one.ready), *marks]:
            if min(until, leaves) > before:
                add(cause, before, min(until, leaves))
                before = min(until, leaves)
