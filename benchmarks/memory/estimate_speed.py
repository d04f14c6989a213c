"""How fast the calculator answers: the time of one estimate, and setups per second of `python -m calculator batch`.

    python benchmarks/memory/estimate_speed.py --json benchmarks/results/estimate_speed.json

Times are CPU seconds of one thread. Every measurement starts with empty caches, and no setup is repeated. The
calculator records the operations of a training step and reuses the record for other sizes. It is compared with itself
without these records, when each estimate computes the whole step anew.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from calculator import PRESETS, Setup, estimate
from calculator.__main__ import batch_line
from calculator.step import timeline

LINES, MANY_LINES, RUNS = 500, 5000, 5
"""Setups of a batch. In one of 500 of all presets, every fourth is the first of its kind, whose step is recorded."""
PEER = "every step computed anew"


def forget() -> None:
    """Empties the calculator's caches of training steps."""
    timeline.play.cache_clear()
    timeline._recordings.cache_clear()


def milliseconds(work: Callable[[], object]) -> float:
    """Processor time of a call."""
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def one_estimate(model: str) -> list[dict]:
    """Results for the first estimate of a model, and for a second one with another batch."""
    first, later = [], []
    for batch in range(2, 42, 2):
        forget()
        first.append(milliseconds(lambda batch=batch: estimate(Setup(model=model, micro_batch_size=batch))))
        later.append(milliseconds(lambda batch=batch: estimate(Setup(model=model, micro_batch_size=batch + 1))))
    return [
        _entry(f"one estimate, {model}, the first of its kind", "ms", first),
        _entry(f"one estimate, {model}, another batch", "ms", later, peer=first),
    ]


def batch(words: str, models: list[str], count: int = LINES) -> dict:
    """Result for a batch of different setups: estimates per second, reading and writing of lines included."""
    lines = drawn_lines(models, count)
    ours, peer = [], []
    for _ in range(RUNS):
        for rates, each_anew in ((ours, False), (peer, True)):
            forget()
            taken = 0.0
            for line in lines:
                if each_anew:
                    forget()
                taken += milliseconds(lambda line=line: batch_line(line))
            rates.append(1000 * count / taken)
    return _entry(f"batch of {count:,} different setups, {words}", "estimates/s", ours, peer=peer)


def drawn_lines(models: list[str], count: int = LINES) -> list[str]:
    """The lines of a batch: random setups of these models, all of which have an answer."""
    draw = random.Random(0)
    return [_drawn(draw, draw.choice(models)) for _ in range(count)]


def _drawn(draw: random.Random, model: str) -> str:
    """A random line of a batch."""
    setup: dict[str, object] = {
        "model": model,
        "micro_batch_size": draw.randint(1, 100_000),
        "precision": draw.choice(["amp-bf16", "fp32", "bf16"]),
        "optimizer": draw.choice(["adamw", "adamw8bit", "lamb"]),
    }
    architecture = PRESETS[model]
    if architecture.diffuses or not architecture.fixed_length:
        setup["sequence_length"] = draw.randint(1, 512)
    if not architecture.reversible:
        setup["checkpointing"] = draw.random() < 0.5
    return json.dumps(setup)


def _entry(metric: str, unit: str, ours: list[float], peer: list[float] | None = None) -> dict:
    found = {"runs": len(ours), "min": min(ours), "max": max(ours)}
    if peer is not None:
        found |= {"peer": statistics.median(peer), "peer_name": PEER, "peer_runs": len(peer)}
    return result(metric, unit, statistics.median(ours), **found)


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    flags = parser.parse_args(arguments)
    results = [
        entry for model in ("gpt3-175b", "t5-11b", "llama-3.1-8b", "deepseek-v3") for entry in one_estimate(model)
    ]
    results += [batch("GPT-3 175B", ["gpt3-175b"])]
    results += [batch("all presets", list(PRESETS), count) for count in (LINES, MANY_LINES)]
    for entry in results:
        peer = f"; {PEER}: {entry['peer']:.3g}" if entry["peer"] else ""
        print(
            f"{entry['metric']}: {entry['ours']:.3g} {entry['unit']} ({entry['min']:.3g} to {entry['max']:.3g}){peer}"
        )
    if flags.json:
        record(flags.json, "estimate_speed", {}, results)


if __name__ == "__main__":
    main()
