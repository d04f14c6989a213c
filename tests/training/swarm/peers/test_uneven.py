"""Peers of uneven speed and micro-batch: every update is whole, and samples that are in none count as missed.

Each peer judges the end of an epoch by its own `Progress`, which runs on the test's clock over records that all peers
see. The averaging is played: peers that end the same epoch wait for each other as long as `Matchmaking` and
`await_group` do.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, performance_ema

from calculator.swarm.forecast import PATIENCE_WINDOWS
from tests.tiers import sample
from training.swarm.peers import progress as progress_module
from training.swarm.peers.progress import LIVELY_REPORTS, Progress
from training.swarm.peers.table import Peers
from training.swarm.peers.times import LOOK_SHARE, SILENT_SHARE

WINDOW, REQUEST, TICK = 1.5, 1.0, 0.05
"""Seconds of the demo's matchmaking window, of its requests' time-out, and of a tick of the test's clock."""


@dataclass
class World:
    """The clock, the DHT's records, and the updates."""

    target: int
    now: float = 1000.0
    records: dict[bytes, ValueWithExpiration] = field(default_factory=dict)
    peers: list[Player] = field(default_factory=list)
    updates: list[tuple[int, dict[bytes, int]]] = field(default_factory=list)
    """Epoch, and the samples of each peer in its update."""

    def node(self, peer: bytes) -> SimpleNamespace:
        def get(_key, **_):
            found = Future()
            alive = {one: entry for one, entry in self.records.items() if entry.expiration_time > self.now}
            found.set_result(ValueWithExpiration(alive, self.now + 60))
            return found

        def store(_key, subkey, value, expiration_time, **_):
            self.records[peer] = ValueWithExpiration(value, expiration_time)

        return SimpleNamespace(peer_id=PeerID(peer), add_validators=lambda _: None, get=get, store=store)

    def play(self, epochs: int, seconds: float) -> None:
        """Lets time pass until this number of epochs, or of seconds, is over."""
        until = self.now + seconds
        while len({epoch for epoch, _ in self.updates}) < epochs and self.now < until:
            self.now += TICK
            for peer in self.peers:
                peer.act()
            for peer in self.peers:
                peer.look_for_group()


class Player:
    """A peer with a micro-batch of `step` samples and a speed in samples a second; `load` returns the factor by which
    the next micro-batch takes longer."""

    def __init__(self, world: World, name: bytes, step: int, speed: float, load=lambda: 1.0):
        self.world, self.name, self.step, self.speed, self.load = world, name, step, speed, load
        table = Peers(clock=lambda: world.now)
        facts = {"target_batch_size": world.target, "matchmaking_seconds": WINDOW, "peers": table}
        self.progress = Progress(dht=world.node(name), prefix="run", **facts)
        self.epoch, self.samples, self.computed = 1, 0, 0
        self.missed: list[tuple[int, int]] = []
        """Epoch and samples of each report of a missed update."""
        self.alone = 0
        self.waits_since: float | None = None
        self.looked = self.stored = self.pinged = -1e9
        self.step_ends = 0.0

    def begin(self, others) -> None:
        self.progress.note_average({}, {one.name: 8.0 for one in others if one is not self}, ())
        self.progress.begin_epoch(self.epoch)
        self._compute(0.0)

    def _compute(self, pause: float) -> None:
        self.step_ends = self.world.now + pause + self.step / self.speed * self.load()

    def act(self) -> None:
        """Tells, looks and computes, as the peer's threads do."""
        now, progress = self.world.now, self.progress
        is_hurried, has_news = progress._reports._hurried.is_set(), progress._reports.is_set()
        since = now - self.stored
        if is_hurried or (has_news and since >= progress._pause_between_reports()) or since >= self.heartbeat:
            progress._reports.clear()
            progress._reports._hurried.clear()
            self.stored = now
            progress.tell()
        if self.waits_since is None and now >= self.looked:
            progress._global, progress._has_looked = progress._combine(progress._look()), True
            self.looked = now + progress._pause_between_looks()
        if self.waits_since is None and now >= self.step_ends:
            self._end_step()

    @property
    def heartbeat(self) -> float:
        return self.progress.lively_seconds / LIVELY_REPORTS

    def _end_step(self) -> None:
        self.computed += self.step
        if self.progress.is_behind(self.epoch):
            self._miss(self.samples + self.step)
            return
        self.samples += self.step
        self.progress.report(self.epoch, self.samples)
        if self.progress.ready_to_update_epoch:
            self.waits_since, self.reports = self.world.now, self.progress.reports_of(self.epoch)
        else:
            self._compute(0.0)

    def _miss(self, samples: int) -> None:
        """Reports these samples as missed, and goes on with the others' epoch."""
        self.missed.append((self.epoch, samples))
        self._go_on(max(self.progress.look_who_stays()[0], self.epoch + 1))

    def _go_on(self, epoch: int) -> None:
        self.epoch, self.samples, self.waits_since = epoch, 0, None
        self.progress.begin_epoch(epoch)
        self.looked = self.world.now
        self._compute(0.1)

    def look_for_group(self) -> None:
        """Plays one moment of a search for a group, and its end."""
        world, progress = self.world, self.progress
        if self.waits_since is None:
            return
        if world.now - self.pinged >= WINDOW * LOOK_SHARE:
            self.pinged = world.now
            progress.still_here()
            for one in progress._others:  # all of them answer a ping
                is_lively = progress._is_lively(one.peer_id)
                if is_lively and world.now - progress.peers.heard_at(one.peer_id) > WINDOW * SILENT_SHARE:
                    progress.peers.answered(one.peer_id)
        group = [one for one in world.peers if one.waits_since is not None and one.epoch == self.epoch]
        waited = world.now - self.waits_since
        expected = max(one.progress.awaited_peers for one in group)
        fewest = expected if waited < PATIENCE_WINDOWS * WINDOW else expected // 2 + 1
        if waited >= 0.1 and len(group) >= max(fewest, 2):
            self._average(group)
        elif waited >= WINDOW + REQUEST:
            if progress.look_who_stays()[0] > self.epoch:
                self._miss(self.samples)
            elif progress.coming_peers == 1 and progress.lively_peers <= 2:
                self.alone += 1
                self._average([self])

    def _average(self, group: list[Player]) -> None:
        epoch, brought = self.epoch, {one.name: one.samples for one in group}
        self.world.updates.append((epoch, brought))
        for one in group:
            others = {name: float(samples) for name, samples in brought.items() if name != one.name}
            one.progress.note_average(one.reports, others, ())
            one._go_on(epoch + 1)


def played(monkeypatch, target: int, sizes_and_speeds, *, epochs=30, seconds=3000.0, load=lambda: 1.0) -> World:
    world = World(target)
    monkeypatch.setattr(progress_module, "get_dht_time", lambda: world.now)
    clock = SimpleNamespace(perf_counter=lambda: world.now, monotonic=lambda: world.now, time=lambda: world.now)
    monkeypatch.setattr(performance_ema, "time", clock)
    for number, (size, speed) in enumerate(sizes_and_speeds):
        world.peers.append(Player(world, b"peer%d" % number, size, speed, load))
    for peer in world.peers:
        peer.begin(world.peers)
    world.play(epochs, seconds)
    return world


def check(world: World, allowed: float = 0.0) -> int:
    """Checks that each sample is in an update or was reported as missed, and that updates are whole and made once.

    The first two epochs may be smaller, because no peer knows a speed yet.

    Args:
        world: The world after it was played.
        allowed: Share of updates that may be smaller, or made by two groups. A majority that has not heard that the
            others have gone on averages among itself.

    Returns:
        Number of updates that are smaller.
    """
    later = [(epoch, of) for epoch, of in world.updates if epoch > 2]
    small = [(epoch, of) for epoch, of in later if sum(of.values()) < 0.9 * world.target]
    epochs = [epoch for epoch, _ in world.updates]
    twice = len(epochs) - len(set(epochs))
    assert world.updates and max(len(small), twice) <= allowed * len(later), small
    for peer in world.peers:
        used = sum(of.get(peer.name, 0) for _, of in world.updates)
        assert peer.computed == used + sum(samples for _, samples in peer.missed) + peer.samples
    return len(small)


SIZES = [1, 2, 4, 7, 16, 48, 100, 256]
CASES = [
    (target, ((one, 8.0), (other, 8.0 / ratio)))
    for target in (48, 256)
    for one in SIZES
    for other in SIZES
    for ratio in (1.0, 3.0, 12.0, 50.0)
    if max(one, other) <= target
]


@pytest.mark.parametrize("case", sample(CASES, every=25), ids=str)
def test_every_update_of_two_uneven_peers_is_whole_and_every_sample_is_in_one_or_missed(monkeypatch, case):
    check(played(monkeypatch, *case))


@pytest.mark.parametrize("seed", sample(range(20), every=10))
def test_updates_of_several_peers_of_unsteady_speed_are_whole(monkeypatch, seed):
    """Speeds are up to fifty times apart, and other programs make a micro-batch last up to twice as long."""
    dice, small, count = random.Random(seed), 0, 0
    for _ in range(5):
        target = dice.choice((48, 120, 256))
        peers = [
            (min(dice.choice((*SIZES, 3, 33)), target), 8.0 / 50 ** dice.random()) for _ in range(dice.randint(2, 5))
        ]
        world = played(monkeypatch, target, peers, epochs=20, seconds=1500.0, load=partial(dice.uniform, 1.0, 2.0))
        small += check(world, allowed=0.1)
        count += len(world.updates)
    assert small <= 0.02 * count


def test_a_busy_machine_with_a_micro_batch_as_large_as_an_epoch(monkeypatch):
    """Two peers beside six busy programs: a micro-batch of 48 samples takes half a minute, and both peers are in each
    update."""
    world = played(monkeypatch, 48, ((48, 1.6), (4, 1.6)), epochs=20)
    check(world)
    assert all(len(of) == 2 for _, of in world.updates) and not world.peers[0].missed


def test_a_quick_peer_computes_until_a_slow_micro_batch_is_done(monkeypatch):
    """Before, it computed half of that time and waited for the rest."""
    world = played(monkeypatch, 48, ((48, 8.0), (4, 8.0)), epochs=20)
    assert all(of[b"peer1"] >= 40 for epoch, of in world.updates if epoch > 2)
