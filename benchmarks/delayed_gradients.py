"""The effect of delayed gradients on the loss: the demo's model, trained with gradients at once and one update late.

    python benchmarks/delayed_gradients.py --json benchmarks/results/delayed_gradients.json

With `delay_gradient_averaging` a peer computes an epoch while the gradients of the epoch before are averaged and
applied, so an update may use gradients that were computed at the weights before the last update. Here one process
computes the worst case, in which every update does. It uses the synthetic samples of `local_updates.py`, and the
recipe's optimizer and schedule. Both runs see the same samples in the same order and are compared on held-out samples;
several seeds show the effect of chance.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from local_updates import BATCH, held_out_loss, samples  # noqa: E402
from memory_report import record, result  # noqa: E402

PEAK_LEARNING_RATE = 1e-2
WARMUP_SHARE = 0.1


def train(seed: int, updates: int, *, delayed: bool) -> float:
    """Loss on held-out samples after training.

    Args:
        seed: Of the model's first weights and of the samples.
        updates: How many; the schedule has as many.
        delayed: Whether each update uses the gradients of the batch before, computed before the last update.
    """
    import torch

    from training.config import load_recipe
    from training.model.transformer import build_model
    from training.optim.build import build_optimizer
    from training.optim.groups import parameter_groups
    from training.optim.schedule import learning_rate_factor

    torch.set_num_threads(1)
    run = load_recipe("demo")
    changes = {"warmup_epochs": int(WARMUP_SHARE * updates), "total_epochs": updates}
    schedule = run.schedule.model_copy(update={"peak_learning_rate": PEAK_LEARNING_RATE, **changes})
    model, batches = build_model(run.model, seed), samples(run.model, seed=seed + 1, size=BATCH)
    optimizer = build_optimizer(run.optimizer, parameter_groups(model, run.optimizer), lr=PEAK_LEARNING_RATE)
    parameters, late = list(model.parameters()), None
    for update in range(updates):
        optimizer.zero_grad()
        model(*next(batches)).loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        applied, late = (late, gradients) if delayed else (gradients, None)
        if applied is None:
            continue  # after the first batch there are no earlier gradients
        for parameter, gradient in zip(parameters, applied, strict=True):
            parameter.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = schedule.peak_learning_rate * learning_rate_factor(update, schedule)
        optimizer.step()
    return held_out_loss(model, run.model)


def main(arguments: list[str] | None = None) -> int:
    """Trains with and without delay for each seed, prints the losses, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--updates", type=int, default=300, metavar="N", help="updates of each run (300)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each kind (3)")
    flags = parser.parse_args(arguments)
    at_once, late = [], []
    print(f"{'seed':>6}{'at once':>12}{'one late':>12}{'ratio':>8}")
    for seed in range(flags.seeds):
        at_once.append(train(seed, flags.updates, delayed=False))
        late.append(train(seed, flags.updates, delayed=True))
        print(f"{seed:>6}{at_once[-1]:>12.4f}{late[-1]:>12.4f}{late[-1] / at_once[-1]:>8.3f}", flush=True)
    if flags.json:
        import torch

        median = statistics.median(late)
        found = result(
            "held-out loss with gradients one update late",
            "nats",
            median,
            peer=statistics.median(at_once),
            peer_name="updates at once",
            runs=flags.seeds,
            min=min(late),
            max=max(late),
        )
        more = {"updates": flags.updates, "batch": BATCH, "at_once": at_once, "late": late}
        record(flags.json, "delayed_gradients", {"torch": torch.__version__}, [found], **more)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
