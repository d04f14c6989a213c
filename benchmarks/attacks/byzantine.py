"""Loss of a swarm with hostile peers: weighted mean and CenteredClip, under byzfl's attacks and this trainer's own.

    pip install --no-deps byzfl==0.0.11
    python benchmarks/attacks/byzantine.py --json benchmarks/results/byzantine.json

Peers of one process train a small text-to-image transformer with the trainer's own parts: gradients and their momentum,
codecs, reducers and the update. What they send has gone through the block-wise 8-bit codec; each tensor is one part, as
in the trainer, where no part spans two tensors. Hostile peers know all that the honest ones send, and send the same
vector, made by byzfl 0.0.11 (https://github.com/LPD-EPFL/byzfl, MIT) or as in the attacks that were tried on this
trainer. Each run is compared with one of the same seed in which nobody is hostile and the mean is used.

Against hostile peers that answer wrongly as reducers, averages do not help. There the peers average by the trainer's
own all-reduce (`in_process.py`), with signatures and checks of reducers beside CenteredClip, with none beside the mean.
Hostile peers send what an honest peer sends; each averages as large a share of the vector as any other, and answers all
peers alike. Whoever is caught is left out for as long as the trainer does it, if an update takes `UPDATE_SECONDS`.

The samples are those of `swarm/samples.py` with fewer captions, so that the loss is near its least when a run ends.
`--reference FILE` writes what byzfl makes of small vectors, for tests/training/swarm/defence/test_clipping.py.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import multiprocessing
import statistics
import sys
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.record import record, result
from benchmarks.swarm.samples import held_out_loss, samples
from training.model.config import ModelConfig
from training.recipe import RunConfig, load_recipe
from training.swarm.epoch.strategies.momentum import peer_momentum

BYZFL_VERSION = "0.0.11"
CAPTIONS, HELD_OUT, BATCH, SEEDS = 8, 512, 8, (0, 1, 2)
"""Captions, held-out samples, samples of a peer in each update, and seeds."""
MANY_SEEDS, MANY_SEEDS_OF = range(10), ("mimic", "copied", "infinite")
"""With `--many-seeds`; those who send infinity count for nothing, as if they were not there."""
STEPS, LOOK_EVERY, PEAK_LEARNING_RATE = 40, 5, 1e-1
STATE_EVERY, DRIFT = 5, 3e-4
"""Updates between rounds of parameters in the attack on these, and how far honest peers' weights differ before one: as
much as an average in 16 bits leaves (`SwarmConfig.state_bits`)."""
ATTACKED = range(10, 30)
"""Updates in which seven of sixteen attack; afterwards they are silent."""
LONG_STEPS, LONGEST_STEPS = 80, 230
"""Updates of these runs; the one in which seven peers send what an honest one sends takes longer to recover."""
RECOVERED = 1.03
"""A run is back on the clean curve when its loss is at most so many times that of the clean run at the same update."""
CLAIM = 1e9
"""Weight that a hostile peer claims where it does."""
UPDATE_SECONDS = 60.0
"""Of the run that these ones stand for: how long a peer is left out counts in seconds. In updates that is less, the
longer they take."""
HIDDEN = 1.5
"""Standard deviations by which a reducer's answer is off that hides among the honest vectors, as in ALIE."""
MODEL = ModelConfig(
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    head_dim=16,
    attention_cycle=("row", "column"),
    conv_kernel_size=3,
    shared_groups=None,
    text_vocab_size=64,
    text_seq_len=4,
    image_grid=4,
    image_vocab_size=64,
    reversible=False,
)
EIGHT_BIT_FROM = 2048
"""Tensors of so many values travel in 8 bit, and have 8-bit moments; this model has few of a recipe's 65 536."""

BYZFL_ATTACKS = ("sign flip", "IPM", "IPM, best", "ALIE", "ALIE, best", "mimic", "Gaussian", "infinite", "label flip")
OWN_ATTACKS = ("not a number", "weight 1e9", "copied", "times -1000", "parameters")
SILENT, ALTERNATING = "reducer, silent", "reducer, every other time"
REDUCER_ATTACKS = ("reducer", "reducer, hidden", SILENT, ALTERNATING)
ATTACKS = (*BYZFL_ATTACKS, *OWN_ATTACKS, *REDUCER_ATTACKS)
MEAN, CLIP = "mean", "centered-clip"

Attack = Callable[[torch.Tensor], torch.Tensor]
"""From the honest peers' vectors, one a row, to that of each hostile peer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run."""

    attack: str | None
    """One of `ATTACKS`; None: nobody is hostile."""
    aggregation: str
    peers: int
    hostile: int
    seed: int
    steps: int = STEPS
    attacked: range | None = None
    """Updates in which they attack; None: in all."""
    claims: bool = False
    """Whether hostile peers claim a weight of `CLAIM`."""
    clip_weight: float | None = None
    """As in a recipe; None: the default."""
    momentum: bool = True
    """Whether peers have momentum of their own, with CenteredClip."""


def recipe(case: Case) -> RunConfig:
    """The demo's recipe with this program's small model and schedule."""
    run = load_recipe("demo")
    swarm = {"aggregation": case.aggregation, "clip_weight": case.clip_weight or run.swarm.clip_weight}
    schedule = {"peak_learning_rate": PEAK_LEARNING_RATE, "warmup_epochs": 10, "total_epochs": case.steps}
    return run.model_copy(
        update={
            "model": MODEL,
            "optimizer": run.optimizer.model_copy(update={"min_8bit_size": EIGHT_BIT_FROM}),
            "schedule": run.schedule.model_copy(update=schedule),
            "swarm": run.swarm.model_copy(update=swarm),
        }
    )


# -- hostile peers -----------------------------------------------------------------------------------------------------


@cache
def byzfl(module: str) -> types.ModuleType:
    """A module of byzfl, without the rest of it, which needs torchvision and libraries for drawing."""
    if "byzfl" not in sys.modules:
        found = importlib.util.find_spec("byzfl")
        if found is None:
            raise SystemExit(f"byzfl is not installed: pip install --no-deps byzfl=={BYZFL_VERSION}")
        package = types.ModuleType("byzfl")
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{module}")


def byzfl_attacks(aggregate: Callable, hostile: int) -> dict[str, Callable]:
    """byzfl's attacks on gradients with its own strengths; the best ones search the strength that harms `aggregate`
    most."""
    attacks = byzfl("attacks.attacks")
    search = {"agg": aggregate, "pre_agg_list": [], "f": hostile}
    return {
        "sign flip": attacks.SignFlipping(),
        "IPM": attacks.InnerProductManipulation(),
        "IPM, best": attacks.Optimal_InnerProductManipulation(**search),
        "ALIE": attacks.ALittleIsEnough(),
        "ALIE, best": attacks.Optimal_ALittleIsEnough(**search),
        "mimic": attacks.Mimic(),
        "Gaussian": attacks.Gaussian(),
        "infinite": attacks.Inf(),
    }


def attack_of(case: Case, run: RunConfig, last_average: list[torch.Tensor]) -> Attack:
    """What the hostile peers send. `last_average` holds the flat average of the last update, if there was one."""
    from training.swarm.defence.clipping import centered_clip, clipping_of_gradients

    def against(vectors: torch.Tensor) -> torch.Tensor:
        clipping = clipping_of_gradients(run.swarm)
        return vectors.mean(0) if clipping is None else centered_clip(list(vectors), [1.0] * len(vectors), clipping)

    own = {
        "not a number": lambda honest: torch.full_like(honest[0], torch.nan),
        "weight 1e9": lambda honest: -honest.mean(0),
        "copied": lambda honest: last_average[-1] if last_average else honest[0],
        "times -1000": lambda honest: -1000 * honest.mean(0),
        "parameters": lambda honest: honest[0],
    }
    return own[case.attack] if case.attack in own else byzfl_attacks(against, case.hostile)[case.attack]


def lie_of(attack: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """What hostile reducers answer, from the average of a part and all senders' parts, one a row."""
    return {
        "reducer": lambda average, parts: -1000 * average,
        "reducer, hidden": lambda average, parts: average - HIDDEN * parts.std(0),
        **dict.fromkeys((SILENT, ALTERNATING), lambda average, parts: -average),
    }[attack]


# -- the swarm ---------------------------------------------------------------------------------------------------------


class Swarm:
    """Peers with one model, since all have the same weights after an update."""

    def __init__(self, case: Case):
        from training.model.transformer import build_model
        from training.swarm.defence.clipping import clipping_of_gradients, clipping_of_parameters
        from training.swarm.engine import engine
        from training.swarm.engine.codecs import exchange_codec
        from training.swarm.epoch.gradients import GradientAverager
        from training.swarm.epoch.strategies import Awaited
        from training.swarm.round.pipe import AveragerSettings

        engine.prepare()
        self.case, run = case, recipe(case)
        if not case.momentum:  # then the optimizer keeps it, as with the mean
            run = run.model_copy(update={"swarm": run.swarm.model_copy(update={"aggregation": MEAN})})
        self.run = recipe(case)
        self.model = build_model(MODEL, case.seed)
        self.master = Awaited.make_master(self.model, run)
        settings = AveragerSettings(prefix="benchmark")
        momentum = peer_momentum(run)
        self.averagers = [
            GradientAverager(self.master.model_parameters, dht=None, settings=settings, momentum=momentum, start=False)
            for _ in range(case.peers)
        ]
        self.batches = [samples(MODEL, 1000 * case.seed + n + 1, BATCH, captions=CAPTIONS) for n in range(case.peers)]
        self.clipping = {
            "gradients": clipping_of_gradients(self.run.swarm),
            "parameters": clipping_of_parameters(self.run.swarm),
        }
        self.codec = {
            "gradients": exchange_codec(EIGHT_BIT_FROM, self.run.swarm.gradient_codec),
            "parameters": exchange_codec(EIGHT_BIT_FROM, "float16"),
        }
        self.noise = torch.Generator().manual_seed(case.seed)
        self.last_average: list[torch.Tensor] = []
        self.attack = attack_of(case, self.run, self.last_average) if self._invents else None
        self.left_out_at: dict[int, int] = {}
        """The update before which each lying reducer was left out first."""
        self.lies = False
        self.reducers = self._make_reducers() if case.attack in REDUCER_ATTACKS else None

    @property
    def _invents(self) -> bool:
        return self.case.attack not in (None, "label flip", *REDUCER_ATTACKS)

    def _make_reducers(self) -> object:
        from benchmarks.attacks.in_process import Peers

        case, lie = self.case, lie_of(self.case.attack)
        return Peers(
            case.peers,
            case.hostile,
            self.run.swarm,
            values=sum(parameter.numel() for parameter in self.master.parameters),
            smallest=EIGHT_BIT_FROM,
            lie=lambda average, parts: lie(average, parts) if self.lies else average,
            hides={SILENT: lambda: True, ALTERNATING: lambda: self.lies}.get(case.attack),
            audits=case.aggregation == CLIP,
            update_seconds=UPDATE_SECONDS,
            seed=case.seed,
        )

    def attacks_at(self, step: int) -> bool:
        """Whether hostile peers attack in this update."""
        case = self.case
        return case.attack is not None and (case.attacked is None or step in case.attacked)

    def step(self, step: int) -> None:
        """One update."""
        attacks = self.attacks_at(step)
        if self.reducers is not None:
            self._update(self._average_by_reducers(step, attacks), step)
            self.master.copy_to_model()
            return
        honest = self.case.peers - (self.case.hostile if self.case.attack else 0)
        sent = [self._gradients(peer, step) for peer in range(honest)]
        weights = [float(BATCH)] * honest
        if attacks and self.case.attack != "parameters":
            if self._invents:
                vector = self.attack(torch.stack([flat(parts) for parts in sent])).float()
                bad = [like(vector, sent[0]) for _ in range(self.case.hostile)]
            else:
                bad = [self._gradients(peer, step, wrong=True) for peer in range(honest, self.case.peers)]
            sent += bad
            claims = self.case.claims or self.case.attack == "weight 1e9"
            weights += [CLAIM if claims else float(BATCH)] * self.case.hostile
        average = self._average(sent, weights, "gradients")
        self.last_average[:] = [flat(average)]
        self._update(average, step)
        if attacks and self.case.attack == "parameters" and step % STATE_EVERY == 0:
            self._round_of_parameters(honest)
        self.master.copy_to_model()

    def _update(self, average: Sequence[torch.Tensor], step: int) -> None:
        self.master.use_gradients([part.view(p.shape) for part, p in zip(average, self.master.parameters, strict=True)])
        self.master.update(step)

    def _average_by_reducers(self, step: int, attacks: bool) -> list[torch.Tensor]:
        """What an honest peer has after an average by the trainer's all-reduce."""
        self.lies = attacks and (self.case.attack != ALTERNATING or step % 2 == 0)
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
        averager = self.averagers[peer]
        averager.add_gradients(BATCH, step)
        averager.load_mean()

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
        clipping = self.clipping[kind]
        return asyncio.run(average_parts(sent, weights, clipping))[0]

    @torch.no_grad()
    def loss(self) -> float:
        """On held-out samples."""
        return held_out_loss(self.model, MODEL, HELD_OUT, captions=CAPTIONS)


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
    """The case's losses after every `LOOK_EVERY` updates, and CPU seconds of the whole run."""
    torch.set_num_threads(1)
    torch.manual_seed(case.seed)  # byzfl's Gaussian attack draws from it
    began, swarm, course = time.process_time(), Swarm(case), []
    for step in range(case.steps):
        swarm.step(step)
        if (step + 1) % LOOK_EVERY == 0:
            course.append(swarm.loss())
    if swarm.reducers is not None:
        swarm.reducers.close()
    left_out = sorted(swarm.left_out_at.values())
    return {"course": course, "cpu_seconds": time.process_time() - began, "left_out": left_out}


# -- the cases and what comes of them ----------------------------------------------------------------------------------

QUARTER = {"peers": 25, "hostile": 5}
TWELVE_OF_53 = {"peers": 53, "hostile": 12}
SEVEN_OF_16 = {"peers": 16, "hostile": 7, "steps": LONG_STEPS}


def many_cases() -> list[Case]:
    """For attacks whose cost is as small as what a run happens to end with: enough seeds to tell the two apart."""
    attacks = (*MANY_SEEDS_OF, None)
    clip = [Case(attack=attack, aggregation=CLIP, seed=seed, **QUARTER) for seed in MANY_SEEDS for attack in attacks]
    return clip + [Case(attack=None, aggregation=MEAN, seed=seed, **QUARTER) for seed in MANY_SEEDS]


def all_cases() -> list[Case]:
    """The long ones first, so that two processes end at about the same time."""
    clean = (TWELVE_OF_53, SEVEN_OF_16, seven_of_16("mimic"))
    cases = [Case(attack=None, aggregation=MEAN, seed=0, **group) for group in clean]
    for attack in ATTACKS:
        cases.append(Case(attack=attack, aggregation=CLIP, seed=0, **TWELVE_OF_53))
        cases.append(Case(attack=attack, aggregation=CLIP, seed=0, attacked=ATTACKED, **seven_of_16(attack)))
        cases += [Case(attack=attack, aggregation=CLIP, seed=seed, **QUARTER) for seed in SEEDS]
        cases.append(Case(attack=attack, aggregation=MEAN, seed=0, **QUARTER))
    cases += [Case(attack=None, aggregation=kind, seed=seed, **QUARTER) for kind in (MEAN, CLIP) for seed in SEEDS]
    claim = {"claims": True, "clip_weight": 2.0}
    claiming = [Case(attack=attack, aggregation=CLIP, seed=0, **claim, **QUARTER) for attack in ("ALIE", "mimic")]
    without = [Case(attack=attack, aggregation=CLIP, seed=0, momentum=False, **QUARTER) for attack in ("ALIE", "mimic")]
    return sorted([*cases, *claiming, *without], key=lambda case: -case.peers * case.steps)


def seven_of_16(attack: str) -> dict:
    """The peers of these runs, and their updates."""
    return {**SEVEN_OF_16, "steps": LONGEST_STEPS} if attack == "mimic" else SEVEN_OF_16


def run_all(cases: Sequence[Case], processes: int) -> dict[Case, dict]:
    """Trains each case; prints its losses."""
    runs = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for case, run in zip(cases, pool.imap(train, cases), strict=True):
            runs[case] = run
            losses = " ".join(f"{loss:.3f}" for loss in run["course"])
            print(f"{case.hostile} of {case.peers}, {case.attack}, {case.aggregation}, seed {case.seed}: {losses}")
            sys.stdout.flush()
    return runs


def clean_of(case: Case, runs: dict[Case, dict]) -> list[float]:
    """Losses of the run of the same peers and seed in which nobody is hostile and the mean is used."""
    clean = replace(case, attack=None, aggregation=MEAN, attacked=None, claims=False, clip_weight=None, momentum=True)
    return runs[clean]["course"]


def over_clean(case: Case, runs: dict[Case, dict]) -> float:
    """Its last loss over that of the clean run."""
    return runs[case]["course"][-1] / clean_of(case, runs)[-1]


def steps_until_back(case: Case, runs: dict[Case, dict]) -> int:
    """Updates from the attack's end until the loss is on the clean curve."""
    for number, (loss, clean) in enumerate(zip(runs[case]["course"], clean_of(case, runs), strict=True)):
        step = (number + 1) * LOOK_EVERY
        if step >= case.attacked.stop and loss <= RECOVERED * clean:
            return step - case.attacked.stop
    return case.steps


def figures(runs: dict[Case, dict], attacks: Sequence[str] = ATTACKS) -> list[dict]:
    """The record's results for these attacks."""
    results = []
    for attack in attacks:
        of_attack = [case for case in runs if case.attack == attack and case.momentum and not case.claims]
        seeds = [case for case in of_attack if case.peers == 25 and case.aggregation == CLIP]
        ours = [over_clean(case, runs) for case in seeds]
        mean = next(over_clean(case, runs) for case in of_attack if case.aggregation == MEAN)
        spread = {"runs": len(ours), "min": min(ours), "max": max(ours), **left_out(seeds, runs)}
        compared = {"peer": mean, "peer_name": "weighted mean"}
        name = f"loss over clean, 5 of 25 hostile: {attack}"
        results.append(result(name, "", statistics.median(ours), **compared, **spread))
    for attack in attacks:
        case = next(case for case in runs if case.attack == attack and case.peers == 53)
        name = f"loss over clean, 12 of 53 hostile: {attack}"
        results.append(result(name, "", over_clean(case, runs), **left_out([case], runs)))
    for attack in attacks:
        case = next(case for case in runs if case.attack == attack and case.peers == 16)
        worst, back = max(runs[case]["course"][ATTACKED.start // LOOK_EVERY :]), steps_until_back(case, runs)
        name = f"updates until back on the clean curve, 7 of 16 hostile for {len(ATTACKED)} updates: {attack}"
        results.append(result(name, "updates", back, **left_out([case], runs)))
        results.append(result(f"highest loss since the attack began, 7 of 16 hostile: {attack}", "nats", worst))
    return results


def left_out(cases: Sequence[Case], runs: dict[Case, dict]) -> dict:
    """Of lying reducers: for each run, after how many updates each was left out first; some may never have been."""
    found = [runs[case].get("left_out", []) for case in cases]
    return {"left_out_after": found} if cases[0].attack in REDUCER_ATTACKS else {}


def many_figures(runs: dict[Case, dict]) -> list[dict]:
    """Of the runs with many seeds: means, with their standard errors."""
    results = []
    for attack in (*MANY_SEEDS_OF, None):
        cases = [case for case in runs if case.attack == attack and case.aggregation == CLIP]
        over = [over_clean(case, runs) for case in cases]
        error = statistics.stdev(over) / math.sqrt(len(over))
        spread = {"runs": len(over), "min": min(over), "max": max(over), "error": error, "seeds": over}
        name = f"loss over clean, 5 of 25 hostile, mean of many seeds: {attack or 'nobody hostile'}"
        results.append(result(name, "", statistics.fmean(over), **spread))
    return results


def limits(runs: dict[Case, dict]) -> list[dict]:
    """What momentum is worth, and what a claim of weight adds if peers may count twice as much as the median one."""
    usual = {case.attack: over_clean(case, runs) for case in runs if case.aggregation == CLIP and _is_usual(case)}
    results = []
    for case in runs:
        if not case.momentum:
            name, other = f"loss over clean without momentum at the peers: {case.attack}", "with momentum"
        elif case.claims:
            name, other = (
                f"loss over clean with clip_weight 2 and a claimed weight: {case.attack}",
                "with clip_weight 1",
            )
        else:
            continue
        results.append(result(name, "", over_clean(case, runs), peer=usual[case.attack], peer_name=other))
    return results


def _is_usual(case: Case) -> bool:
    return case.peers == 25 and case.seed == 0 and case.momentum and not case.claims


def costs(runs: dict[Case, dict]) -> list[dict]:
    """What CenteredClip costs if nobody is hostile."""
    clean = {kind: [run for case, run in runs.items() if _is_clean(case, kind)] for kind in (MEAN, CLIP)}
    losses = {kind: statistics.median(run["course"][-1] for run in clean[kind]) for kind in clean}
    name = {"peer_name": "weighted mean"}
    seconds = updates_cost()
    parts = {kind: one_part(kind) for kind in (MEAN, CLIP)}
    return [
        result("loss with nobody hostile", "nats", losses[CLIP], peer=losses[MEAN], runs=len(SEEDS), **name),
        result(
            f"CPU seconds of {COST_STEPS} updates", "s", seconds[CLIP], peer=seconds[MEAN], runs=COST_ROUNDS, **name
        ),
        *(result(what, unit, parts[CLIP][what], peer=parts[MEAN][what], **name) for what, unit in PART_UNITS.items()),
    ]


def updates_cost() -> dict[str, float]:
    """The least CPU seconds of some updates of 25 honest peers; both take turns, as the machine may do other work."""
    seconds = {MEAN: [], CLIP: []}
    for _ in range(COST_ROUNDS):
        for kind, taken in seconds.items():
            taken.append(train(Case(attack=None, aggregation=kind, seed=0, steps=COST_STEPS, **QUARTER))["cpu_seconds"])
    return {kind: min(taken) for kind, taken in seconds.items()}


def _is_clean(case: Case, kind: str) -> bool:
    return case.attack is None and case.aggregation == kind and case.peers == 25


COST_STEPS, COST_ROUNDS = 10, 5
PART_VALUES, PART_SENDERS, PART_ROUNDS = 1 << 19, 25, 5
PART_UNITS = {
    "CPU seconds of a reducer for a part of 2^19 values from 25 senders, with decoding and encoding": "s",
    "most memory of a reducer of such a part": "bytes",
}


def one_part(kind: str) -> dict[str, float]:
    """What a reducer takes for one of the longest parts, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure_part, (kind,))


def _measure_part(kind: str) -> dict[str, float]:
    import resource

    from training.swarm.defence.clipping import clipping_of_gradients
    from training.swarm.engine import engine
    from training.swarm.engine.codecs import BlockwiseCodec, decode

    torch.set_num_threads(1)
    engine.prepare()
    codec = BlockwiseCodec()
    clipping = clipping_of_gradients(load_recipe("demo").swarm.model_copy(update={"aggregation": kind}))
    messages = [codec.compress(torch.randn(PART_VALUES), None) for _ in range(PART_SENDERS)]
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(PART_ROUNDS):
        began = time.process_time()
        sent = [[decode(message)] for message in messages]
        answers = asyncio.run(average_parts(sent, [1.0] * PART_SENDERS, clipping))
        for (part,), (answer,) in zip(sent, answers, strict=True):
            codec.compress(answer - part, None)
        seconds.append(time.process_time() - began)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return dict(zip(PART_UNITS, (statistics.median(seconds), 1024 * (after - before)), strict=True))


def write_reference(path: Path) -> None:
    """byzfl's attacks on small vectors, and its CenteredClipping from the first estimate that the trainer uses."""
    import numpy

    aggregators = byzfl("aggregators.aggregators")
    generator, hostile = torch.Generator().manual_seed(5), 4
    signal = torch.randn(8, generator=generator)
    honest = numpy.array([(signal + torch.randn(8, generator=generator)).tolist() for _ in range(11)]).round(4)
    cases = []
    for name, attack in byzfl_attacks(aggregators.TrMean(f=hostile), hostile).items():
        bad = attack(honest)
        if not numpy.isfinite(bad).all():  # a reducer refuses it
            continue
        vectors = numpy.vstack([honest, *[bad] * hostile])
        distances = [_majority_distance(vector, vectors) for vector in vectors]
        estimate, radii = vectors[distances.index(min(distances))], []
        for _ in range(5):
            radii.append(float(_majority_distance(estimate, vectors)))
            # byzfl starts from zeros, so everything is moved there and back.
            estimate = estimate + aggregators.CenteredClipping(L=1, tau=radii[-1])(vectors - estimate)
        cases.append(
            {"attack": name, "hostile": [bad.tolist()] * hostile, "radii": radii, "estimate": estimate.tolist()}
        )
    path.write_text(json.dumps({"honest": honest.tolist(), "cases": cases}, indent=1) + "\n", encoding="utf-8")


def _majority_distance(point: object, vectors: object) -> float:
    return sorted(math.dist(point, vector) for vector in vectors)[len(vectors) // 2]


def courses(runs: dict[Case, dict]) -> list[dict]:
    """The losses of each run with the recipe's defaults."""
    named = ("attack", "aggregation", "peers", "hostile", "seed")
    return [
        {**{name: getattr(case, name) for name in named}, "losses": [round(loss, 4) for loss in run["course"]]}
        for case, run in runs.items()
        if case.momentum and not case.claims
    ]


def recorded_runs(content: dict, cases: Sequence[Case]) -> dict[Case, dict]:
    """The clean runs among these cases, from a record: runs of these attacks are compared with those."""
    runs = {}
    for case in cases:
        for one in content["courses"]:
            is_same = all(getattr(case, name) == one[name] for name in ("attack", "aggregation", "peers", "seed"))
            if case.attack is None and is_same and len(one["losses"]) == case.steps // LOOK_EVERY:
                runs[case] = {"course": one["losses"]}
    return runs


def run_some(path: Path, attacks: Sequence[str], processes: int) -> tuple[list[dict], list[dict]]:
    """Runs the cases of these attacks; results and courses of the record, whose others stay."""
    content = json.loads(path.read_text(encoding="utf-8"))
    cases = all_cases()
    known = recorded_runs(content, cases)
    new = run_all([case for case in cases if case.attack in attacks], processes)
    results = [one for one in content["results"] if one["metric"].rpartition(": ")[2] not in attacks]
    kept = [one for one in content["courses"] if one["attack"] not in attacks]
    return results + figures(known | new, attacks), kept + courses(new)


def run_many_seeds(path: Path, processes: int) -> tuple[list[dict], list[dict]]:
    """The same of the runs with many seeds; their courses are in no record."""
    content = json.loads(path.read_text(encoding="utf-8"))
    results = [one for one in content["results"] if "mean of many seeds" not in one["metric"]]
    return results + many_figures(run_all(many_cases(), processes)), content["courses"]


def main(arguments: list[str] | None = None) -> int:
    """Runs all cases, prints the figures, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="runs at a time")
    parser.add_argument("--only", nargs="*", choices=ATTACKS, help="these attacks, for the record in FILE")
    parser.add_argument("--many-seeds", action="store_true", help="ten seeds of some, for the record in FILE")
    parser.add_argument(
        "--reference", type=Path, metavar="FILE", help="write byzfl's results on small vectors, and end"
    )
    flags = parser.parse_args(arguments)
    if flags.reference:
        write_reference(flags.reference)
        return 0
    if flags.only:
        results, losses = run_some(flags.json, flags.only, flags.processes)
    elif flags.many_seeds:
        results, losses = run_many_seeds(flags.json, flags.processes)
    else:
        runs = run_all(all_cases(), flags.processes)
        results, losses = figures(runs) + limits(runs) + costs(runs), courses(runs)
    for one in results:
        peer = "" if one["peer"] is None else f"{one['peer']:14.4g} {one['peer_name']}"
        print(f"{one['metric']:<110}{one['ours']:12.4g}{peer}")
    if flags.json:
        import hivemind

        versions = {"torch": torch.__version__, "hivemind": hivemind.__version__, "byzfl": BYZFL_VERSION}
        record(flags.json, "byzantine", versions, results, look_every=LOOK_EVERY, courses=losses)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
