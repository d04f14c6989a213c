"""Checks of reducers: their cost where nobody lies, and how soon a reducer that always lies is named.

    python benchmarks/attacks/attacks.py audits --json benchmarks/results/audits.json

Four peers average random numbers again and again by the trainer's own all-reduce (`in_process`), by CenteredClip and in
8 bit. First nobody lies: runs with checks and without them take turns, and in one run most answers are checked. Then
one peer answers all the others wrongly in each average, or only one of them, until each honest peer has named it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from unittest.mock import patch

import torch

from benchmarks.attacks.in_process import Peers
from benchmarks.record import replaced, result
from training.recipe import load_recipe
from training.swarm.defence import auditing, auditor
from training.swarm.engine import engine

PACKAGES = ("torch", "hivemind")
PEERS, REPETITIONS = 4, 8
SHARE, LARGE_SHARE = 0.03, 2.0
"""Shares of the traffic for checks: the default of recipes, and one with which two of three answers are checked."""
NOISE, LIE = 0.5, 0.1
"""What each peer's numbers have beside what all have in common, and what a false answer is off by everywhere."""
VALUES, SMALL_VALUES, LIE_VALUES = 4_000_000, 50_000, 500_000
"""Numbers of an average. How soon a liar is named depends on the number of parts, 32 with `LIE_VALUES` as well."""
ROUNDS, SMALL_ROUNDS, MOST_ROUNDS = 25, 2, 200
LIARS: dict[str, Callable[[int], bool]] = {"lies to all": lambda place: True, "lies to one": lambda place: place == 0}
"""Scenario -> whether a liar answers the sender at this place wrongly."""
SCENARIOS = ("cost", "honest", *LIARS)


@contextmanager
def peers_with(values: int, share: float, lies_to: Callable[[int], bool] = lambda place: False) -> Iterator[Peers]:
    """Four peers that check so large a share of the traffic, the last of which lies to some."""
    swarm = load_recipe("demo").swarm.model_copy(update={"aggregation": "centered-clip", "audit_share": share})
    lie = lambda average, parts, place: average + LIE * lies_to(place)  # noqa: E731
    given = {"values": values, "smallest": 1024, "lie": lie, "hides": None, "audits": share > 0}
    with closing(Peers(PEERS, 1, swarm, update_seconds=60.0, seed=0, **given)) as peers:
        yield peers


def averages(peers: Peers, values: int, rounds: int) -> Iterator[float]:
    """Averages again and again; yields the CPU seconds that each average took a peer, with its checks."""
    common, own = torch.randn(values, generator=torch.Generator().manual_seed(1)), torch.Generator().manual_seed(2)
    for _ in range(rounds):
        tensors = {n: [common + NOISE * torch.randn(values, generator=own)] for n in range(PEERS)}
        began = time.process_time()
        peers.average(tensors, 1.0)
        yield (time.process_time() - began) / PEERS


def cost(values: int, rounds: int) -> list[dict]:
    """Compares averages with checks and without them, where nobody lies."""
    seconds: dict[float, list[float]] = {0.0: [], SHARE: []}
    shown: list[int] = []
    accused = 0
    show = auditor.Auditor._show

    async def showing(self, request, peer):
        async for message in show(self, request, peer):
            shown.append(message.ByteSize())
            yield message

    with patch.object(auditor.Auditor, "_show", showing):
        for share, taken in (*seconds.items(), *seconds.items()):
            with peers_with(values, share) as peers:
                # The first average of a process is slower than the others.
                taken += list(averages(peers, values, rounds + 1))[1:]
                accused += sum(len(one.caught) for one in peers.members)
    runs = {"runs": len(seconds[SHARE]), "values": values}
    with_checks, without = (statistics.fmean(seconds[share]) for share in (SHARE, 0.0))
    # Each peer sends 3/4 of its values to the others, and as many averages back, one byte a value.
    sent = 2 * (rounds + 1) * 2 * values * (PEERS - 1)
    other = {"peer": without, "peer_name": "without checks"}
    return [
        result("CPU of an honest average with checks", "s", with_checks, **other, **runs),
        result("bytes of checks over those of the exchange", "", sum(shown) / sent, runs=runs["runs"]),
        result("honest peers that were accused in short runs", "", accused, runs=runs["runs"]),
    ]


def honest(values: int, rounds: int) -> list[dict]:
    """Compares honest answers, most of which are checked, with the limit."""
    limits: list[float] = []
    distance_of = auditing.distance_of

    def noting(*given):
        distance, most = distance_of(*given)
        limits.append(distance / most if most else 0.0)
        return distance, most

    with patch.object(auditing, "distance_of", noting), peers_with(values, LARGE_SHARE) as peers:
        for _ in averages(peers, values, rounds):
            pass
        accused = sum(len(one.caught) for one in peers.members)
    return [
        result("honest answers: distance over the limit, largest", "", max(limits), runs=len(limits)),
        result("honest peers that were accused", "", accused, runs=rounds * PEERS),
    ]


def averages_until_named(scenario: str, values: int, repetitions: int) -> list[dict]:
    """Counts averages until all honest peers have named a reducer that lies in each."""
    counts, innocent = [], 0
    for _ in range(repetitions):
        with peers_with(values, SHARE, LIARS[scenario]) as peers:
            *others, liar = peers.members
            name = str(liar.peer_id)
            count = 0
            for _ in averages(peers, values, MOST_ROUNDS):
                count += 1
                if all(name in one.caught for one in others):
                    break
            innocent += sum(bool(one.caught - {name}) for one in others)
            counts.append(count)
    metric = f"averages until a reducer that {scenario} in each is named by all"
    spread = {"runs": repetitions, "min": min(counts), "max": max(counts), "innocent_named": innocent}
    return [result(metric, "averages", statistics.fmean(counts), median=statistics.median(counts), **spread)]


def measure(scenarios: Sequence[str], earlier: dict, *, small: bool, processes: int) -> dict:
    """Runs scenarios in this process; results beside the earlier ones of other scenarios."""
    values, rounds = (SMALL_VALUES, SMALL_ROUNDS) if small else (VALUES, ROUNDS)
    measured = {"cost": lambda: cost(values, rounds), "honest": lambda: honest(values, 2 * rounds)}
    for scenario in LIARS:
        sizes = (SMALL_VALUES, 1) if small else (LIE_VALUES, REPETITIONS)
        measured[scenario] = lambda scenario=scenario, sizes=sizes: averages_until_named(scenario, *sizes)
    engine.prepare()
    torch.set_num_threads(1)
    results = [one for scenario in scenarios for one in measured[scenario]()]
    facts = {"peers": PEERS, "share": SHARE, "values": values, "rounds": rounds}
    return {"results": replaced(earlier.get("results", ()), results), **facts}
