"""Loss and judged stories of local updates after equal samples, beside synchronous training; all peers in one process.

    python benchmarks/swarm/local_losses.py --updates 400 --seeds 0 1 2 --json benchmarks/results/local_losses.json

The language model of the recipe `stories` learns its stories, whose tokens are words here. With `diloco` and `sparse`,
peers are played one after the other: each has its own stories, weights and inner optimizer, as the strategies make
them, and updates its weights with its share of the recipe's batch. All exchange after `--inner` such updates, in
memory: distances in 8 bits, or sparse messages; with `--overlap`, each average arrives as late as it may, when the next
stretch ends. So every mode makes as many updates with as many samples. At the end, the common weights' loss on held-out
stories is computed, and they continue openings that they have never seen, by the likeliest word each time; judged as
`evaluate` judges them.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from calculator.swarm.settings import DEFAULTS

if TYPE_CHECKING:
    from training.generate.story_judge import StoryShare

PEERS = 4
SPAWN = multiprocessing.get_context("spawn")
HELD_OUT_BLOCKS, HELD_OUT_SEED = 256, 10**6
MODES = ("synchronous", "diloco", "sparse")


def recipe(mode: str, flags: argparse.Namespace, seed: int) -> object:
    """The recipe `stories` with other lengths of the schedule; an epoch of local updates is an exchange."""
    from training.recipe import load_recipe

    run, inner = load_recipe("stories"), 1 if mode == "synchronous" else flags.inner
    warmup = max(round(run.schedule.warmup_epochs * flags.updates / run.schedule.total_epochs / inner), 1)
    schedule = {"warmup_epochs": warmup, "total_epochs": flags.updates // inner}
    swarm = {"mode": mode, "target_batch_size": flags.batch, "inner_batch_size": flags.batch // PEERS}
    swarm |= {"sparse_kept": flags.kept, "delay_outer_step": flags.overlap and mode != "synchronous"}
    optimizer = {"name": flags.optimizer} if flags.optimizer else {}
    faster = 1.0 if mode == "synchronous" else flags.faster
    schedule["peak_learning_rate"] = faster * (flags.learning_rate or run.schedule.peak_learning_rate)
    wide = flags.hidden * 21 // 8  # as in the recipe
    sizes = {"hidden_size": flags.hidden, "intermediate_size": wide, "num_hidden_layers": flags.layers}
    return run.model_copy(
        update={
            "seed": seed,
            "model": run.model.model_copy(update={"architecture": run.model.architecture | sizes}),
            "swarm": run.swarm.model_copy(update=swarm),
            "schedule": run.schedule.model_copy(update=schedule),
            "optimizer": run.optimizer.model_copy(update=optimizer),
        }
    )


# -- stories -----------------------------------------------------------------------------------------------------------


class Words:
    """Ids of words, by first sight."""

    end_of_text = 0

    def __init__(self):
        self.ids: dict[str, int] = {}

    def encode(self, texts: list[str]) -> list:
        """Ids of each text's words and signs."""
        import torch

        pieces = [text.replace(".", " .").replace(",", " ,").split() for text in texts]
        return [torch.tensor([self.ids.setdefault(word, len(self.ids) + 1) for word in words]) for words in pieces]

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        words = {number: word for word, number in self.ids.items()}
        return " ".join(words.get(number, "?") for number in ids).replace(" .", ".").replace(" ,", ",")

    def batches(self, run: object, seed: int, size: int, split: str = "train") -> Iterator[tuple]:
        """Endless batches of packed stories of one split, and where stories begin."""
        import torch

        from training.data.demo.stories import make_story

        dice, length = random.Random(seed), run.model.block_length
        tokens: list[int] = []
        while True:
            while len(tokens) < size * length:
                story = make_story(dice)
                if story.split == split:
                    tokens += [*self.encode([story.text])[0].tolist(), self.end_of_text]
            batch = torch.tensor(tokens[: size * length]).view(size, length)
            del tokens[: size * length]
            starts = torch.zeros_like(batch, dtype=torch.bool)
            starts[:, 0] = True
            starts[:, 1:] = batch[:, :-1] == self.end_of_text
            yield batch, starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What a model has learned."""

    loss: float
    """Mean loss on held-out stories."""
    judged: StoryShare
    """Continuations of unseen openings."""
    cpu_seconds: float
    """CPU time of the process since its start."""


def learned(model: object, run: object, words: Words, prompts: list[str]) -> Learned:
    """Computes the loss on held-out stories, and judges continuations of prompts."""
    import torch

    from training.generate.pictures import Sampling
    from training.generate.story_judge import evaluate_stories
    from training.generate.texts import continued

    batches = words.batches(run, HELD_OUT_SEED, 32, "held-out")
    with torch.no_grad():
        losses = [float(model(*batch).loss) for batch in itertools.islice(batches, HELD_OUT_BLOCKS // 32)]
    how = {"sampling": Sampling.of_recipe(run.monitor), "most_tokens": run.monitor.continuation_tokens, "seed": 0}

    def write(openings: list[str]) -> list[str]:
        return ["".join(continued(model, words, opening, **how)) for opening in openings]

    judged = evaluate_stories({"unseen": prompts}, write)["unseen"]
    return Learned(loss=statistics.fmean(losses), judged=judged, cpu_seconds=time.process_time())


# -- training ----------------------------------------------------------------------------------------------------------


def synchronous(run: object, flags: argparse.Namespace, prompts: list[str]) -> Learned:
    """Trains by updates with the mean gradient of all peers."""
    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups
    from training.optim.schedule import learning_rate_factor
    from training.tasks.known import task_of

    model, words = task_of(run).build_model(), Words()
    peak, share = run.schedule.peak_learning_rate, run.swarm.target_batch_size // PEERS
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=peak)
    streams = [words.batches(run, 100 * run.seed + number, share) for number in range(PEERS)]
    for epoch in range(flags.updates):
        for group in optimizer.param_groups:
            group["lr"] = peak * learning_rate_factor(epoch, run.schedule)
        optimizer.zero_grad()
        for stream in streams:
            (model(*next(stream)).loss / PEERS).backward()
        optimizer.step()
    return learned(model, run, words, prompts)


class Played:
    """A peer with local updates, without a network."""

    def __init__(self, run: object, number: int, words: Words):
        from training.swarm.epoch.sparse import SparseMean
        from training.swarm.epoch.strategies import strategy_of
        from training.swarm.epoch.strategies.local_updates import DistanceAverager
        from training.swarm.round.pipe import AveragerSettings
        from training.tasks.known import task_of

        self.model, kind = task_of(run).build_model(), strategy_of(run.swarm)
        self.master = kind.make_master(self.model, run)
        method = SparseMean(self.master.shapes, kept=run.swarm.sparse_kept)
        if run.swarm.mode == "sparse":
            self.master.unsent, self.master.own_share = method.unsent, kind.own_share
        settings = AveragerSettings(prefix="played")
        self.averager = DistanceAverager(self.master, dht=None, settings=settings, method=method, start=False)
        with self.averager.get_tensors() as tensors:
            self.master.use_gradients(tensors)
            self.tensors = tensors
        exchange = SimpleNamespace(averager=self.averager)
        parts = dict.fromkeys(("updates", "begin_update", "report"))
        self.strategy = kind(SimpleNamespace(run=run, model=self.model, master=self.master, exchange=exchange, **parts))
        self.batches = words.batches(run, 100 * run.seed + number, run.swarm.inner_batch_size)

    def train(self, updates: int, epoch: int) -> None:
        """Makes inner updates."""
        for batch in itertools.islice(self.batches, updates):
            self.model(*batch).loss.backward()
            self.strategy.add_gradients(len(batch[0]), epoch)

    def update(self, epoch: int) -> None:
        """Updates the common weights with the averaged distances, and the peer's own."""
        self.master.update(epoch)
        self.master.update_model()


def average_dense(peers: list[Played]) -> None:
    """Averages distances as 8 bits carry them."""
    from hivemind.compression import CompressionInfo

    from training.swarm.engine.codecs import decode, exchange_codec

    codec = exchange_codec(65_536, "blockwise8")
    for tensors in zip(*(peer.tensors for peer in peers), strict=True):
        carried = [decode(codec.compress(tensor, CompressionInfo.from_tensor(tensor))) for tensor in tensors]
        mean = sum(carried) / len(carried)
        for tensor in tensors:
            tensor.copy_(mean)


def average_sparsely(peers: list[Played]) -> None:
    """Averages distances as `SparseMean` does; each peer computes the mean for itself."""
    from training.swarm.engine.coroutine import wait_for_result
    from training.swarm.peers.groups import RoundReport
    from training.swarm.round.reducer import WeightedMean

    facts = dict.fromkeys(("own_share", "weight", "torn"))
    report = RoundReport(
        group_size=len(peers), senders=len(peers), bytes_sent=0, bytes_received=0, seconds=0.0, **facts
    )
    messages = {str(number): peer.averager.method.pack(peer.tensors, 1.0) for number, peer in enumerate(peers)}

    async def gather(message: object) -> tuple:
        return messages, report

    for number, peer in enumerate(peers):
        group = SimpleNamespace(
            contribution=SimpleNamespace(weight=1.0),
            all_reduces=SimpleNamespace(peer_id=str(number)),
            travel=SimpleNamespace(reduction=WeightedMean()),
            gather=gather,
        )
        wait_for_result(peer.averager.method.average(peer.tensors, None, group))


def local(run: object, flags: argparse.Namespace, prompts: list[str]) -> Learned:
    """Trains by local updates and exchanges; the common weights are judged."""
    words = Words()
    peers = [Played(run, number, words) for number in range(PEERS)]
    average = average_sparsely if run.swarm.mode == "sparse" else average_dense
    delay, exchanges = int(flags.overlap), flags.updates // flags.inner
    for epoch in range(exchanges + delay):
        if epoch < exchanges:
            for peer in peers:
                peer.train(flags.inner, epoch)
        if delay and epoch:
            for peer in peers:
                peer.update(epoch - 1)
        if epoch < exchanges:
            for peer in peers:
                peer.averager.load_mean()
            average(peers)
        if not delay:
            for peer in peers:
                peer.update(epoch)
    peers[0].master.copy_to_model()
    return learned(peers[0].model, run, words, prompts)


def trained(flags: argparse.Namespace, seed: int, mode: str) -> Learned:
    """Trains with a mode and judges the result, on one core."""
    import torch

    from training.data.demo.stories import prompts

    torch.set_num_threads(1)
    train = synchronous if mode == "synchronous" else local
    return train(recipe(mode, flags, seed), flags, prompts("unseen", flags.prompts, seed))


def main(arguments: list[str] | None = None) -> int:
    """Prints a line for each mode and seed, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--updates", type=int, default=400, help="updates, each with a whole batch's samples (400)")
    parser.add_argument("--batch", type=int, default=128, help="samples of an update of all peers (128)")
    parser.add_argument("--inner", type=int, default=10, help="updates between two exchanges (10)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of weights and stories (0 1 2)")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="modes to train (all)")
    parser.add_argument("--kept", type=int, default=DEFAULTS.sparse_kept, help="values of 4096 that are sent (100)")
    parser.add_argument("--overlap", action="store_true", help="exchange while the next stretch computes")
    parser.add_argument("--optimizer", help="another than the recipe's")
    parser.add_argument("--learning-rate", type=float, help="another peak than the recipe's")
    parser.add_argument("--faster", type=float, default=1.0, help="factor to the peak for local updates (1)")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model (128, the recipe's)")
    parser.add_argument("--layers", type=int, default=3, help="layers of the model (3, the recipe's)")
    parser.add_argument("--prompts", type=int, default=400, help="unseen openings to continue (400)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="trainings at once (one a core)")
    flags = parser.parse_args(arguments)
    found: dict[str, list[Learned]] = {mode: [] for mode in flags.modes}
    jobs = list(itertools.product(flags.seeds, flags.modes))
    with ProcessPoolExecutor(flags.processes, SPAWN, max_tasks_per_child=1) as pool:
        for (seed, mode), one in zip(jobs, pool.map(partial(trained, flags), *zip(*jobs, strict=True)), strict=True):
            found[mode].append(one)
            over = f" ({one.loss / found['synchronous'][-1].loss - 1:+.1%})" if "synchronous" in found else ""
            low, high = one.judged.interval
            right = f"{one.judged.share:.1%} ({low:.1%} to {high:.1%}) of unseen openings continued without a fault"
            print(f"seed {seed}, {mode}: loss {one.loss:.4f}{over}; {right}; {one.cpu_seconds:.0f} s", flush=True)
    if flags.json:
        write(flags, found)
    return 0


def write(flags: argparse.Namespace, found: dict[str, list[Learned]]) -> None:
    """Writes the record."""
    from importlib.metadata import version

    def spread(metric: str, values: list[float]) -> dict:
        return result(metric, "", statistics.median(values), runs=len(values), min=min(values), max=max(values))

    results = []
    for mode in found:
        shares = [one.judged.share for one in found[mode]]
        results.append(spread(f"{mode}: unseen openings that are continued without a fault", shares))
        if mode != "synchronous":
            ratios = [one.loss / other.loss for one, other in zip(found[mode], found["synchronous"], strict=True)]
            results.append(spread(f"{mode}: loss over the synchronous one", ratios))
    course = {
        mode: [{"loss": one.loss, "right": one.judged.share, "interval": list(one.judged.interval)} for one in ones]
        for mode, ones in found.items()
    }
    settings = {key: value for key, value in vars(flags).items() if key != "json"}
    record(flags.json, "local_losses", {"torch": version("torch")}, results, course=course, settings=settings)


if __name__ == "__main__":
    raise SystemExit(main())
