"""Hostile peers in a swarm that trains: its loss by the weighted mean and by CenteredClip.

    pip install --no-deps byzfl==0.0.11
    python benchmarks/attacks/attacks.py byzantine --json benchmarks/results/byzantine.json

Peers of one process train a small text-to-image transformer with the trainer's own parts: gradients and their momentum,
codecs, reducers and the update. What they send has gone through the block-wise 8-bit codec; each tensor is one part, as
in the trainer, where no part spans two tensors. Hostile peers know all that the honest ones send, and send the same
vector, made by byzfl 0.0.11 (https://github.com/LPD-EPFL/byzfl, MIT) or as in the attacks that were tried on this
trainer. Each run is compared with one of the same seed in which nobody is hostile and the mean is used.

Averages do not help against hostile peers that answer wrongly as reducers. There the peers average by the trainer's
own all-reduce (`in_process`), with signatures and checks of reducers beside CenteredClip, with none beside the mean.
Hostile peers then send what an honest peer sends, and answer all peers alike. A reducer that is caught is left out for
as long as the trainer does it, if an update takes `UPDATE_SECONDS`.

The samples are those of `swarm/samples.py` with fewer captions, so that the loss is near its least when a run ends.
This file, run with the name of a FILE, writes what byzfl makes of small vectors there, for
tests/training/swarm/defence/test_clipping.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import multiprocessing
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.record import replaced, result
from benchmarks.swarm.samples import held_out_loss, samples
from training.model.config import ModelConfig
from training.recipe import RunConfig, load_recipe
from training.swarm.epoch.strategies.momentum import optimizer_of_averages, peer_momentum

PACKAGES = ("torch", "hivemind", "byzfl")
BYZFL_VERSION = "0.0.11"
CAPTIONS, HELD_OUT, BATCH = 8, 512, 8
"""Captions, held-out samples, and samples of a peer in each update."""
LOOK_EVERY, PEAK_LEARNING_RATE = 5, 1e-1
STATE_EVERY, DRIFT = 5, 3e-4
"""Updates between rounds of parameters in the attack on these, and how far honest peers' weights differ before one: as
much as an average in 16 bits leaves (`SwarmConfig.state_bits`)."""
RECOVERED = 1.03
"""A run is back on the clean curve when its loss is at most this multiple of the clean run's at the same update."""
CLAIM = 1e9
"""Weight that a hostile peer claims where it does."""
UPDATE_SECONDS = 60.0
"""Time of an update in the run that these runs stand for: a peer is left out for some seconds, not updates."""
HIDDEN = 1.5
"""Standard deviations by which a reducer's answer is off that hides among the honest vectors, as in ALIE."""
COST_STEPS, COST_ROUNDS = 10, 5
MODEL = ModelConfig(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    head_dim=16,
    attention_cycle=("row", "column"),
    shared_groups=None,
    text_vocab_size=64,
    text_seq_len=4,
    image_grid=4,
    image_vocab_size=64,
    reversible=False,
)
EIGHT_BIT_FROM = 2048
"""Tensors of so many values travel in 8 bit, and have 8-bit moments; this model has few of a recipe's 65 536."""
MEAN, CLIP = "mean", "centered-clip"


# -- the attacks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What hostile peers do."""

    byzfl: str | None = None
    """byzfl's class that makes the vector that they send."""
    best: bool = False
    """byzfl searches the strength that harms the average most."""
    sends: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor] | None = None
    """Makes that vector of the honest peers' vectors, one a row, and of the last average."""
    claims: bool = False
    """True if hostile peers claim a weight of `CLAIM`."""
    wrong_codes: bool = False
    """True if they send honest gradients of wrong picture codes."""
    parameters: bool = False
    """True if they send 0.5 for all parameters, with a weight of `CLAIM`."""
    answers: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    """Makes their answer as reducers of the average of a part and all senders' parts, one a row."""
    hides: bool = False
    """True if they do not show what they have averaged when they lie."""
    every_other: bool = False
    """True if they lie in every other average only."""


ATTACKS = {
    "sign flip": Attack(byzfl="SignFlipping"),
    "IPM": Attack(byzfl="InnerProductManipulation"),
    "IPM, best": Attack(byzfl="Optimal_InnerProductManipulation", best=True),
    "ALIE": Attack(byzfl="ALittleIsEnough"),
    "ALIE, best": Attack(byzfl="Optimal_ALittleIsEnough", best=True),
    "mimic": Attack(byzfl="Mimic"),
    "Gaussian": Attack(byzfl="Gaussian"),
    "infinite": Attack(byzfl="Inf"),
    "label flip": Attack(wrong_codes=True),
    "not a number": Attack(sends=lambda honest, last: torch.full_like(honest[0], torch.nan)),
    "weight 1e9": Attack(sends=lambda honest, last: -honest.mean(0), claims=True),
    "copied": Attack(sends=lambda honest, last: honest[0] if last is None else last),
    "times -1000": Attack(sends=lambda honest, last: -1000 * honest.mean(0)),
    "parameters": Attack(parameters=True),
    "reducer": Attack(answers=lambda average, parts: -1000 * average),
    "reducer, hidden": Attack(answers=lambda average, parts: average - HIDDEN * parts.std(0)),
    "reducer, silent": Attack(answers=lambda average, parts: -average, hides=True),
    "reducer, every other time": Attack(answers=lambda average, parts: -average, hides=True, every_other=True),
}
NO_MOMENTUM, MANY_SEEDS, NOBODY = "without momentum", "many seeds", "nobody hostile"
SCENARIOS = (*ATTACKS, NO_MOMENTUM, MANY_SEEDS, NOBODY)
SEEN_WITH_MANY_SEEDS = ("mimic", "copied", "infinite")
"""Attacks whose cost is as small as the differences of seeds; peers that send infinity count for nothing."""


@cache
def byzfl(module: str) -> types.ModuleType:
    """Imports a module of byzfl, without the rest of it, which needs torchvision and libraries for drawing."""
    if "byzfl" not in sys.modules:
        found = importlib.util.find_spec("byzfl")
        if found is None:
            raise SystemExit(f"byzfl is not installed: pip install --no-deps byzfl=={BYZFL_VERSION}")
        package = types.ModuleType("byzfl")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{module}")


def of_byzfl(attack: Attack, aggregate: Callable, hostile: int) -> Callable:
    """Makes byzfl's attack on gradients with its own strength, or the one that harms `aggregate` most."""
    search = {"agg": aggregate, "pre_agg_list": [], "f": hostile} if attack.best else {}
    return getattr(byzfl("attacks.attacks"), attack.byzfl)(**search)


# -- the swarm ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    attack: str | None
    """A key of `ATTACKS`; None: nobody is hostile."""
    aggregation: str
    peers: int
    hostile: int
    seed: int
    steps: int
    attacked: range | None = None
    """Updates in which they attack; None: in all. Afterwards they send nothing."""
    momentum: bool = True
    """True if peers have momentum of their own, with CenteredClip."""


def recipe(case: Case) -> RunConfig:
    """Changes the demo's recipe: this program's small model and schedule."""
    run = load_recipe("demo")
    changes = {
        "schedule": {"peak_learning_rate": PEAK_LEARNING_RATE, "warmup_epochs": 10, "total_epochs": case.steps},
        "swarm": {"aggregation": case.aggregation},
    }
    sections = {name: getattr(run, name).model_copy(update=values) for name, values in changes.items()}
    return run.model_copy(update={"model": MODEL, **sections})


class Swarm:
    """Peers with one model, since all have the same weights after an update."""

    def __init__(self, case: Case):
        from training.model.transformer import build_model
        from training.optim.build import build_optimizer
        from training.swarm.defence.clipping import clipping_of_gradients, clipping_of_parameters
        from training.swarm.engine import engine
        from training.swarm.engine.codecs import exchange_codec
        from training.swarm.epoch.gradients import GradientAverager
        from training.swarm.epoch.strategies import Awaited
        from training.swarm.round.pipe import AveragerSettings
        from training.swarm.state.master_weights import MasterWeights

        engine.prepare()
        self.case, swarm = case, recipe(case).swarm
        # Without momentum of the peers, the optimizer keeps it, as with the mean.
        run = recipe(case if case.momentum else replace(case, aggregation=MEAN))
        self.model = build_model(MODEL, case.seed)
        momentum = peer_momentum(run)
        how = {"lr": PEAK_LEARNING_RATE, "given_momentum": momentum, "min_8bit_size": EIGHT_BIT_FROM}
        self.master = MasterWeights(
            Awaited.groups(self.model, run),
            partial(build_optimizer, optimizer_of_averages(run), **how),
            partial(Awaited.learning_rate, run=run),
        )
        given = {"dht": None, "settings": AveragerSettings(prefix="benchmark"), "start": False}
        self.averagers = [
            GradientAverager(self.master.model_parameters, momentum=momentum, **given) for _ in range(case.peers)
        ]
        self.batches = [samples(MODEL, 1000 * case.seed + n + 1, BATCH, captions=CAPTIONS) for n in range(case.peers)]
        self.clipping = {"gradients": clipping_of_gradients(swarm), "parameters": clipping_of_parameters(swarm)}
        codecs = {"gradients": swarm.gradient_codec, "parameters": "float16"}
        self.codec = {kind: exchange_codec(EIGHT_BIT_FROM, codec) for kind, codec in codecs.items()}
        self.noise = torch.Generator().manual_seed(case.seed)
        self.last_average: torch.Tensor | None = None
        self.attack = ATTACKS.get(case.attack, Attack())
        self.vector = self.attack.sends
        if self.attack.byzfl:
            made = of_byzfl(self.attack, self._harmed, case.hostile)
            self.vector = lambda honest, last: made(honest)
        self.left_out_at: dict[int, int] = {}
        """The update before which each lying reducer was left out first."""
        self.lies = False
        self.reducers = self._make_reducers(swarm) if self.attack.answers else None

    def _harmed(self, vectors: torch.Tensor) -> torch.Tensor:
        """The average of all vectors, for attacks that search the strength that harms it most."""
        from training.swarm.defence.clipping import centered_clip

        clipping = self.clipping["gradients"]
        return vectors.mean(0) if clipping is None else centered_clip(list(vectors), [1.0] * len(vectors), clipping)

    def _make_reducers(self, swarm: object) -> object:
        from benchmarks.attacks.in_process import Peers

        case, attack = self.case, self.attack
        return Peers(
            case.peers,
            case.hostile,
            swarm,
            values=sum(parameter.numel() for parameter in self.master.parameters),
            smallest=EIGHT_BIT_FROM,
            lie=lambda average, parts, place: attack.answers(average, parts) if self.lies else average,
            # Reducers that lie in all averages also hide before their attack begins.
            hides=(lambda: self.lies or not attack.every_other) if attack.hides else None,
            audits=case.aggregation == CLIP,
            update_seconds=UPDATE_SECONDS,
            seed=case.seed,
        )

    def step(self, step: int) -> None:
        """Takes one update."""
        case, attack = self.case, self.attack
        attacks = case.attack is not None and (case.attacked is None or step in case.attacked)
        if self.reducers is not None:
            self._update(self._average_by_reducers(step, attacks), step)
            self.master.copy_to_model()
            return
        honest = case.peers - (case.hostile if case.attack else 0)
        sent = [self._gradients(peer, step) for peer in range(honest)]
        weights = [float(BATCH)] * honest
        if attacks and not attack.parameters:
            sent += self._hostile(sent, step)
            weights += [CLAIM if attack.claims else float(BATCH)] * case.hostile
        average = self._average(sent, weights, "gradients")
        self.last_average = flat(average)
        self._update(average, step)
        if attacks and attack.parameters and step % STATE_EVERY == 0:
            self._round_of_parameters(honest)
        self.master.copy_to_model()

    def _hostile(self, sent: list[list[torch.Tensor]], step: int) -> list[list[torch.Tensor]]:
        """What hostile peers send, from what the honest ones have sent."""
        hostile = self.case.hostile
        if self.attack.wrong_codes:
            return [self._gradients(peer, step, wrong=True) for peer in range(len(sent), len(sent) + hostile)]
        vector = self.vector(torch.stack([flat(parts) for parts in sent]), self.last_average).float()
        return [like(vector, sent[0]) for _ in range(hostile)]

    def _update(self, average: Sequence[torch.Tensor], step: int) -> None:
        self.master.use_gradients([part.view(p.shape) for part, p in zip(average, self.master.parameters, strict=True)])
        self.master.update(step)

    def _average_by_reducers(self, step: int, attacks: bool) -> list[torch.Tensor]:
        """What an honest peer has after an average by the trainer's all-reduce."""
        self.lies = attacks and (not self.attack.every_other or step % 2 == 0)
        group = self.reducers.group()
        out = set(range(self.case.peers)) - set(group)
        self.left_out_at |= {peer: step for peer in out - self.left_out_at.keys()}
        for peer in range(self.case.peers):
            self._compute(peer, step)
        tensors = {}
        for peer in group:
            with self.averagers[peer].get_tensors() as own:
                tensors[peer] = [tensor.clone() for tensor in own]
        self.reducers.average(tensors, float(BATCH))
        return tensors[0]

    def _gradients(self, peer: int, step: int, *, wrong: bool = False) -> list[torch.Tensor]:
        """What a peer sends, as the others receive it; `wrong`: computed with wrong picture codes."""
        self._compute(peer, step, wrong=wrong)
        with self.averagers[peer].get_tensors() as tensors:
            return self._received(tensors, "gradients")

    def _compute(self, peer: int, step: int, *, wrong: bool = False) -> None:
        """Leaves what a peer sends in its averager."""
        text, codes = next(self.batches[peer])
        if wrong:
            codes = MODEL.image_vocab_size - 1 - codes
        self.model.zero_grad()
        self.model(text, codes).loss.backward()
        self.averagers[peer].add_gradients(BATCH, step)
        self.averagers[peer].load_mean()

    def _received(self, tensors: Sequence[torch.Tensor], kind: str) -> list[torch.Tensor]:
        from hivemind.compression import CompressionInfo

        from training.swarm.engine.codecs import decode

        codec = self.codec[kind]
        flattened = [tensor.detach().reshape(-1) for tensor in tensors]
        return [decode(codec.compress(one, CompressionInfo.from_tensor(one))) for one in flattened]

    def _round_of_parameters(self, honest: int) -> None:
        """Honest peers' weights differ by `DRIFT`; the hostile ones send 0.5 everywhere, with a weight of `CLAIM`."""
        own = [parameter.detach() for parameter in self.master.parameters]
        sent = []
        for _ in range(honest):
            noise = [1 + DRIFT * torch.randn(one.shape, generator=self.noise) for one in own]
            sent.append(self._received([one * by for one, by in zip(own, noise, strict=True)], "parameters"))
        bad = self._received([torch.full_like(one, 0.5) for one in own], "parameters")
        weights = [1.0] * honest + [CLAIM] * self.case.hostile
        average = self._average(sent + [bad] * self.case.hostile, weights, "parameters")
        self.master.load([part.view(one.shape) for part, one in zip(average, own, strict=True)], self.master.epoch)

    def _average(self, sent: list[list[torch.Tensor]], weights: list[float], kind: str) -> list[torch.Tensor]:
        return asyncio.run(average_parts(sent, weights, self.clipping[kind]))[0]


async def average_parts(sent: list[list[torch.Tensor]], weights: list[float], clipping: object) -> list:
    """What each sender has with the answers of the trainer's reducer."""
    from training.swarm.round.reducer import Reducer, WeightedMean

    reducer = Reducer([part.numel() for part in sent[0]], range(len(sent)), clipping or WeightedMean())

    async def send(peer: int) -> list[torch.Tensor]:
        return [part + (await reducer.take(peer, part, weights[peer])).view_as(part) for part in sent[peer]]

    return await asyncio.gather(*map(send, range(len(sent))))


def flat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """All parts as one vector."""
    return torch.cat([part.reshape(-1) for part in parts])


def like(vector: torch.Tensor, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A vector cut as these parts are."""
    return [piece.clone() for piece in vector.split([part.numel() for part in parts])]


def train(case: Case) -> dict:
    """Trains; the losses after every `LOOK_EVERY` updates, and CPU seconds of the whole run."""
    torch.set_num_threads(1)
    torch.manual_seed(case.seed)  # byzfl's Gaussian attack draws from it
    began, swarm, course = time.process_time(), Swarm(case), []
    for step in range(case.steps):
        swarm.step(step)
        if (step + 1) % LOOK_EVERY == 0:
            with torch.no_grad():
                course.append(held_out_loss(swarm.model, MODEL, HELD_OUT, captions=CAPTIONS))
    if swarm.reducers is not None:
        swarm.reducers.close()
    left_out = sorted(swarm.left_out_at.values())
    return {"course": course, "cpu_seconds": time.process_time() - began, "left_out": left_out}


# -- the cases and their figures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the runs are."""

    quarter: tuple[int, int] = (25, 5)
    """Peers, and the hostile ones among them,"""
    large: tuple[int, int] = (53, 12)
    half: tuple[int, int] = (16, 7)
    """which attack in `attacked` only."""
    steps: int = 40
    long_steps: int = 80
    longest_steps: int = 230
    """Updates of the runs that must recover; from mimic, which sends what an honest peer sends, they take longer."""
    attacked: range = range(10, 30)
    seeds: Sequence[int] = (0, 1, 2)
    many_seeds: Sequence[int] = tuple(range(10))

    def case(self, attack: str | None, aggregation: str, group: str = "quarter", seed: int = 0, **more: object) -> Case:
        """One run of a group."""
        peers, hostile = getattr(self, group)
        given = {"attack": attack, "aggregation": aggregation, "peers": peers, "hostile": hostile, "seed": seed}
        return Case(**{"steps": self.steps, **given, **more})

    def recovering(self, attack: str) -> Case:
        """The run of a group that is attacked for a while."""
        steps = self.longest_steps if attack == "mimic" else self.long_steps
        return self.case(attack, CLIP, "half", steps=steps, attacked=self.attacked)


FULL = Sizes()
SMALL = Sizes(
    **{"quarter": (5, 1), "large": (6, 1), "half": (4, 1), "steps": 5, "long_steps": 10, "longest_steps": 10},
    **{"attacked": range(5), "seeds": (0,), "many_seeds": (0, 1)},
)


def cases_of(scenario: str, sizes: Sizes) -> list[Case]:
    """The runs of a scenario, without the clean ones that they are compared with."""
    if scenario in ATTACKS:
        clips = [sizes.case(scenario, CLIP, seed=seed) for seed in sizes.seeds]
        others = [sizes.case(scenario, MEAN), sizes.case(scenario, CLIP, "large"), sizes.recovering(scenario)]
        return clips + others
    return {
        NO_MOMENTUM: lambda: [sizes.case("ALIE", CLIP), sizes.case("ALIE", CLIP, momentum=False)],
        MANY_SEEDS: lambda: [
            sizes.case(attack, CLIP, seed=seed) for attack in (*SEEN_WITH_MANY_SEEDS, None) for seed in sizes.many_seeds
        ],
        NOBODY: lambda: [sizes.case(None, kind, seed=seed) for kind in (CLIP, MEAN) for seed in sizes.seeds],
    }[scenario]()


def clean_of(case: Case) -> Case:
    """The run of the same peers and seed in which nobody is hostile and the mean is used."""
    return replace(case, attack=None, aggregation=MEAN, attacked=None, momentum=True)


def run_all(cases: Iterable[Case], processes: int) -> dict[Case, dict]:
    """Trains each case, the long ones first; prints its losses."""
    ordered, runs = sorted(cases, key=lambda case: -case.peers * case.steps), {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for case, run in zip(ordered, pool.imap(train, ordered), strict=True):
            runs[case] = run
            losses = " ".join(f"{loss:.3f}" for loss in run["course"])
            print(f"{case.hostile} of {case.peers}, {case.attack}, {case.aggregation}, seed {case.seed}: {losses}")
            sys.stdout.flush()
    return runs


def over_clean(case: Case, runs: dict[Case, dict]) -> float:
    """Divides its last loss by that of the clean run."""
    return runs[case]["course"][-1] / runs[clean_of(case)]["course"][-1]


def updates_until_back(case: Case, runs: dict[Case, dict]) -> int:
    """Counts updates from the attack's end until the loss is on the clean curve."""
    for number, (loss, clean) in enumerate(zip(runs[case]["course"], runs[clean_of(case)]["course"], strict=True)):
        step = (number + 1) * LOOK_EVERY
        if step >= case.attacked.stop and loss <= RECOVERED * clean:
            return step - case.attacked.stop
    return case.steps


def figures_of(scenario: str, sizes: Sizes, runs: dict[Case, dict]) -> list[dict]:
    """Makes the results of a scenario."""
    cases, of = cases_of(scenario, sizes), "loss over clean"
    group = f"{sizes.quarter[1]} of {sizes.quarter[0]} hostile"
    if scenario in ATTACKS:
        *seeds, mean, large, half = cases
        ours = [over_clean(case, runs) for case in seeds]
        spread = {"runs": len(ours), "min": min(ours), "max": max(ours), **left_out(seeds, runs)}
        spread |= {"peer": over_clean(mean, runs), "peer_name": "weighted mean"}
        back = f"updates until back on the clean curve, {half.hostile} of {half.peers} hostile for {len(half.attacked)}"
        return [
            result(f"{of}, {group}: {scenario}", "", statistics.median(ours), **spread),
            result(
                f"{of}, {large.hostile} of {large.peers} hostile: {scenario}",
                *("", over_clean(large, runs)),
                **left_out([large], runs),
            ),
            result(f"{back} updates: {scenario}", "updates", updates_until_back(half, runs), **left_out([half], runs)),
        ]
    if scenario == NO_MOMENTUM:
        usual, changed = (over_clean(case, runs) for case in cases)
        return [result(f"{of} without momentum at the peers: ALIE", "", changed, peer=usual, peer_name="with momentum")]
    return (many_seeds if scenario == MANY_SEEDS else costs)(cases, group, sizes, runs)


def many_seeds(cases: Sequence[Case], group: str, sizes: Sizes, runs: dict[Case, dict]) -> list[dict]:
    """Means over many seeds, with their standard errors."""
    results = []
    for attack in dict.fromkeys(case.attack for case in cases):
        over = [over_clean(case, runs) for case in cases if case.attack == attack]
        error = statistics.stdev(over) / math.sqrt(len(over))
        spread = {"runs": len(over), "min": min(over), "max": max(over), "error": error, "seeds": over}
        name = f"loss over clean, {group}, mean of many seeds: {attack or 'nobody hostile'}"
        results.append(result(name, "", statistics.fmean(over), **spread))
    return results


def costs(cases: Sequence[Case], group: str, sizes: Sizes, runs: dict[Case, dict]) -> list[dict]:
    """What CenteredClip costs if nobody is hostile: loss, and the least CPU seconds of some updates, in turn."""
    losses, seconds = ({CLIP: [], MEAN: []} for _ in range(2))
    for case in cases:
        losses[case.aggregation].append(runs[case]["course"][-1])
    for _ in range(COST_ROUNDS):
        for kind, taken in seconds.items():
            taken.append(train(sizes.case(None, kind, steps=COST_STEPS))["cpu_seconds"])
    loss, mean = (statistics.median(losses[kind]) for kind in (CLIP, MEAN))
    other = {"peer_name": "weighted mean"}
    name = f"CPU seconds of {COST_STEPS} updates"
    return [
        result("loss with nobody hostile", "nats", loss, peer=mean, runs=len(sizes.seeds), **other),
        result(name, "s", min(seconds[CLIP]), peer=min(seconds[MEAN]), runs=COST_ROUNDS, **other),
    ]


def left_out(cases: Sequence[Case], runs: dict[Case, dict]) -> dict:
    """For each run with lying reducers, after how many updates each was left out first; some may never have been."""
    lie = ATTACKS[cases[0].attack].answers is not None
    return {"left_out_after": [runs[case]["left_out"] for case in cases]} if lie else {}


def measure(scenarios: Sequence[str], earlier: dict, *, small: bool, processes: int) -> dict:
    """Runs scenarios; results and losses, beside the earlier ones of other scenarios."""
    sizes = SMALL if small else FULL
    cases = [case for scenario in scenarios for case in cases_of(scenario, sizes)]
    runs = run_all({*cases, *map(clean_of, cases)}, processes)
    results = [one for scenario in scenarios for one in figures_of(scenario, sizes, runs)]
    courses = {_key(one): one for one in earlier.get("courses", ())}
    for case, run in runs.items():
        if case.momentum and (MANY_SEEDS not in scenarios or case.seed in sizes.seeds):
            one = {name: getattr(case, name) for name in COURSE_KEY}
            one["losses"] = [round(loss, 4) for loss in run["course"]]
            courses[_key(one)] = one
    results = replaced(earlier.get("results", ()), results)
    return {"results": results, "look_every": LOOK_EVERY, "courses": list(courses.values())}


COURSE_KEY = ("attack", "aggregation", "peers", "hostile", "seed")


def _key(course: dict) -> tuple:
    return (*(course[name] for name in COURSE_KEY), len(course["losses"]))


# -- byzfl's results for a test ----------------------------------------------------------------------------------------


def write_reference(path: Path) -> None:
    """Writes byzfl's attacks on small vectors, and its CenteredClipping from the trainer's first estimate."""
    import numpy

    aggregators = byzfl("aggregators.aggregators")
    generator, hostile = torch.Generator().manual_seed(5), 4
    signal = torch.randn(8, generator=generator)
    honest = numpy.array([(signal + torch.randn(8, generator=generator)).tolist() for _ in range(11)]).round(4)
    cases = []
    for name, attack in ATTACKS.items():
        bad = of_byzfl(attack, aggregators.TrMean(f=hostile), hostile)(honest) if attack.byzfl else None
        if bad is None or not numpy.isfinite(bad).all():  # a reducer refuses infinity
            continue
        vectors = numpy.vstack([honest, *[bad] * hostile])
        distances = [_majority_distance(vector, vectors) for vector in vectors]
        estimate, radii = vectors[distances.index(min(distances))], []
        for _ in range(5):
            radii.append(float(_majority_distance(estimate, vectors)))
            # byzfl starts from zeros, so everything is moved there and back.
            estimate = estimate + aggregators.CenteredClipping(L=1, tau=radii[-1])(vectors - estimate)
        sent = [bad.tolist()] * hostile
        cases.append({"attack": name, "hostile": sent, "radii": radii, "estimate": estimate.tolist()})
    path.write_text(json.dumps({"honest": honest.tolist(), "cases": cases}, indent=1) + "\n", encoding="utf-8")


def _majority_distance(point: object, vectors: object) -> float:
    return sorted(math.dist(point, vector) for vector in vectors)[len(vectors) // 2]


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
