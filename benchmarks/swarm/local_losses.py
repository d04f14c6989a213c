"""Loss of local updates after equal samples, over that of synchronous training; all peers in one process.

    python benchmarks/swarm/local_losses.py --updates 400 --seeds 0 1 2 --json benchmarks/results/local_losses.json

The language model of the recipe `stories` learns its stories, whose tokens are words here. With `diloco` and `sparse`,
peers are played one after the other: each has its own stories, weights and inner optimizer, as the strategies make
them, and updates its weights with its share of the recipe's batch. All exchange after `--inner` such updates, in
memory: distances in 8 bits, or sparse messages; with `--overlap`, each average arrives as late as it may, when the next
stretch ends. So every mode makes as many updates with as many samples. The losses are of held-out stories, at the end,
with the common weights.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from calculator.swarm.settings import DEFAULTS

PEERS = 4
HELD_OUT_STORIES, HELD_OUT_SEED = 256, 10**6
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
    """Ids of words, by first sight; 0 ends a story."""

    def __init__(self):
        self.ids: dict[str, int] = {}

    def batches(self, run: object, seed: int, size: int) -> Iterator[tuple]:
        """Endless batches of packed stories, and where stories begin."""
        import torch

        from training.data.demo.stories import make_story

        dice, length = random.Random(seed), run.model.block_length
        tokens: list[int] = []
        while True:
            while len(tokens) < size * length:
                for word in make_story(dice).text.replace(".", " .").replace(",", " ,").split():
                    tokens.append(self.ids.setdefault(word, len(self.ids) + 1))
                tokens.append(0)
            batch = torch.tensor(tokens[: size * length]).view(size, length)
            del tokens[: size * length]
            starts = torch.zeros_like(batch, dtype=torch.bool)
            starts[:, 0] = True
            starts[:, 1:] = batch[:, :-1] == 0
            yield batch, starts


def held_out_loss(model: object, run: object, words: Words) -> float:
    """Mean loss on held-out stories."""
    import torch

    batches = words.batches(run, HELD_OUT_SEED, 32)
    with torch.no_grad():
        losses = [float(model(*batch).loss) for batch in itertools.islice(batches, HELD_OUT_STORIES // 32)]
    return statistics.fmean(losses)


# -- training ----------------------------------------------------------------------------------------------------------


def synchronous(run: object, flags: argparse.Namespace) -> float:
    """The loss after updates with the mean gradient of all peers."""
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
    return held_out_loss(model, run, words)


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


def local(run: object, flags: argparse.Namespace) -> float:
    """The loss of the common weights after local updates and exchanges."""
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
    return held_out_loss(peers[0].model, run, words)


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
    flags = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    losses: dict[str, list[float]] = {mode: [] for mode in flags.modes}
    for seed in flags.seeds:
        for mode in flags.modes:
            run, began = recipe(mode, flags, seed), time.process_time()
            loss = (synchronous if mode == "synchronous" else local)(run, flags)
            losses[mode].append(loss)
            over = f", {loss / losses['synchronous'][-1] - 1:+.1%}" if "synchronous" in losses else ""
            print(f"seed {seed}, {mode}: {loss:.4f}{over}  ({time.process_time() - began:.0f} s)", flush=True)
    if flags.json:
        from importlib.metadata import version

        results = []
        for mode in set(losses) - {"synchronous"}:
            ratios = [one / other for one, other in zip(losses[mode], losses["synchronous"], strict=True)]
            facts = {"runs": len(ratios), "min": min(ratios), "max": max(ratios)}
            results.append(result(f"{mode}: loss over the synchronous one", "", statistics.median(ratios), **facts))
        settings = {key: value for key, value in vars(flags).items() if key != "json"}
        record(flags.json, "local_losses", {"torch": version("torch")}, results, course=losses, settings=settings)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
