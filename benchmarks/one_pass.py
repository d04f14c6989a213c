"""Peers that share one pass over a set, while some leave and others join: how many samples are seen twice too early.

    python benchmarks/one_pass.py --json benchmarks/results/one_pass.json

Each simulated peer runs the trainer's own code (`training.data.shared`), by a simulated clock. What it announces
reaches the others after 0.2 to 1 s, and each 100th look fails. Peers compute 2 to 50 samples a second and update every
30 s. During the pass, as many peers leave as the given share, at random times, and as many others join; half of those
that leave are killed: they announce nothing, and nobody goes on with their claims until these end.

A sample counts as repeated for each time that it was computed again before all samples were computed once; also if the
gradient was lost with a killed peer. A set of the given size has row groups of 256 samples.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from memory_report import record, result  # noqa: E402

from training.data.order import Order, Place  # noqa: E402
from training.data.shared import (  # noqa: E402
    PATIENCE_SECONDS,
    PIECES,
    SETTLE_SECONDS,
    Ledger,
    Piece,
    SharedPass,
    Word,
)

GROUP_ROWS, MIXED = 256, 8192
UPDATE_SECONDS, TICK_SECONDS = 30.0, 1.0
DELAY_SECONDS = (0.2, 1.0)
LOST_LOOKS = 0.01
RATES = (2.0, 50.0)
CASES = (
    {"peers": 50, "samples": 1_000_000, "leaving": 0.3},
    {"peers": 50, "samples": 3_000_000, "leaving": 0.3},
    {"peers": 50, "samples": 10_000_000, "leaving": 0.3},
    {"peers": 50, "samples": 10_000_000, "leaving": 0.0},
)


class World:
    """A clock, and what peers have announced."""

    def __init__(self, seed: int):
        self.now, self.chance = 0.0, random.Random(seed)
        self.announced: dict[str, list[tuple[float, Word]]] = {}
        """For each peer the words that are on their way, and the last one that has arrived."""

    def post(self, word: Word) -> None:
        arrives = self.now + self.chance.uniform(*DELAY_SECONDS)
        self.announced.setdefault(word.peer, []).append((arrives, word))

    def look(self) -> list[Word]:
        if self.chance.random() < LOST_LOOKS:
            raise TimeoutError("no answer")
        found = []
        for peer, words in self.announced.items():
            arrived = [word for arrives, word in words if arrives <= self.now]
            if arrived:
                self.announced[peer] = [(0.0, arrived[-1]), *((at, word) for at, word in words if at > self.now)]
                found.append(arrived[-1])
        return found


@dataclass
class Peer:
    """A peer that computes samples of the pieces that it gets."""

    shared: SharedPass
    rate: float
    pieces: list[Piece] = field(default_factory=list)
    """That its stream has: the one in use, from the next sample on, and the one that is being fetched."""
    owed: float = 0.0
    waits_since: float | None = None
    updated_at: float = 0.0
    is_gone: bool = False
    settles: bool = False


class Simulation:
    """A swarm that trains until each sample of the first pass was computed."""

    def __init__(self, *, peers: int, samples: int, leaving: float, seed: int):
        self.order = Order([GROUP_ROWS] * (samples // GROUP_ROWS), window_samples=MIXED).in_windows(PIECES)
        self.world, self.names, self.turns = World(seed), count(), count()
        self.seen = np.zeros(2 * self.order.samples, dtype=np.uint8)
        self.left, self.computed = self.order.samples, 0
        self.peers, self.events = [], []
        for _ in range(peers):
            self.join()
        expected = self.order.samples / (peers * sum(RATES) / 2)
        for _ in range(round(leaving * peers)):
            self.at(self.world.chance.uniform(0, expected), self.leave)
            self.at(self.world.chance.uniform(0, expected), self.join)

    def at(self, when: float, what, *arguments) -> None:
        heapq.heappush(self.events, (when, next(self.turns), what, arguments))

    def run(self) -> dict[str, float]:
        """Share of repeated samples, hours that the pass took, and ranges of the longest announcement."""
        ranges = 0
        while self.left:
            self.world.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
            if self.peers:
                ranges = max(ranges, len(self.peers[-1].shared._ledger.done))
        repeated = self.computed - self.order.samples
        return {"repeated": repeated / self.order.samples, "hours": self.world.now / 3600, "ranges": ranges}

    def join(self) -> None:
        world = self.world
        ledger = Ledger(self.order, seed=7, peer=f"{next(self.names):05d}", chance=world.chance)
        shared = SharedPass(ledger, world, file=None, now=lambda: world.now)
        peer = Peer(shared=shared, rate=world.chance.uniform(*RATES), updated_at=world.now)
        self.peers.append(peer)
        self.at(world.now, self.step, peer)
        self.at(world.now, self.tick, peer)

    def leave(self) -> None:
        peer = self.world.chance.choice(self.peers)
        self.peers.remove(peer)
        peer.is_gone = True
        if self.world.chance.random() < 0.5:  # the other half is killed
            self.update(peer)
            peer.shared.close()

    def step(self, peer: Peer) -> None:
        if not peer.is_gone:
            pause = peer.shared.step()
            peer.settles = pause == SETTLE_SECONDS
            self.at(self.world.now + pause, self.step, peer)

    def tick(self, peer: Peer) -> None:
        if peer.is_gone:
            return
        peer.owed += peer.rate * TICK_SECONDS
        while peer.owed >= 1 and self.has_piece(peer):
            begin, end = peer.pieces[0]
            stop = min(end, begin + int(peer.owed))
            self.compute(begin, stop)
            peer.owed -= stop - begin
            if stop < end:
                peer.pieces[0] = (stop, end)
                break
            if len(peer.pieces) == 1:
                self.update(peer, at=stop)
            peer.pieces.pop(0)
        if self.world.now - peer.updated_at >= UPDATE_SECONDS:
            self.update(peer)
        self.at(self.world.now + TICK_SECONDS, self.tick, peer)

    def has_piece(self, peer: Peer) -> bool:
        """Whether there is one to compute; the stream fetches one beside it."""
        ready = peer.shared._ledger.claims
        while len(peer.pieces) < 2 and ready:
            peer.pieces.append(peer.shared.piece(0))
            if not peer.settles:
                self.step_now(peer)
        if peer.pieces:
            peer.waits_since = None
            return True
        peer.waits_since = self.world.now if peer.waits_since is None else peer.waits_since
        peer.owed = 0.0
        if self.world.now - peer.waits_since >= PATIENCE_SECONDS:
            peer.pieces.append(peer.shared.piece(0))
        return bool(peer.pieces)

    def step_now(self, peer: Peer) -> None:
        """The thread does not wait for its next turn if a piece was taken."""
        for at, (_, turn, what, arguments) in enumerate(self.events):
            if what == self.step and arguments == (peer,):
                self.events[at] = (self.world.now, turn, what, arguments)
        heapq.heapify(self.events)

    def update(self, peer: Peer, at: int | None = None) -> None:
        """What was computed enters an update."""
        peer.updated_at = self.world.now
        if peer.pieces:
            finished, position = divmod(peer.pieces[0][0] if at is None else at, self.order.samples)
            peer.shared.reached(Place(seed=7, finished_passes=finished, position=position))

    def compute(self, begin: int, end: int) -> None:
        self.computed += end - begin
        seen, samples = self.seen, self.order.samples
        if begin < samples:
            end = min(end, samples)
            self.left -= int((seen[begin:end] == 0).sum())
            seen[begin:end] = 1


def simulated(case: dict, seed: int) -> dict[str, float]:
    """What `Simulation.run` returns."""
    return Simulation(**case, seed=seed).run()


def main() -> int:
    """Simulates, prints and, if asked, records; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=1, metavar="N", help="simulations of each case (1)")
    arguments.add_argument("--json", metavar="FILE", help="record the results")
    chosen = arguments.parse_args()
    rows, pool = [], ProcessPoolExecutor(os.cpu_count())
    running = [[pool.submit(simulated, case, seed) for seed in range(chosen.rounds)] for case in CASES]
    for case, futures in zip(CASES, running, strict=True):
        found = [future.result() for future in futures]
        shares = sorted(one["repeated"] for one in found)
        name = f"{case['peers']} peers, {case['samples']:,} samples, {100 * case['leaving']:.0f} % leave and join"
        spread = {"runs": len(shares), "min": shares[0], "max": shares[-1]}
        hours = sum(one["hours"] for one in found) / len(found)
        rows.append(result(name, "1", shares[len(shares) // 2], **spread, **case, hours=hours))
        rows[-1]["ranges"] = max(one["ranges"] for one in found)
        print(f"{name:<60} {100 * shares[0]:.2f} to {100 * shares[-1]:.2f} % in {hours:.1f} h", flush=True)
    if chosen.json:
        record(Path(chosen.json), "one_pass", {"numpy": np.__version__}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
