"""Forward and backward pass of a language model compared with a plain loop over transformers: seconds and peak memory.

    python benchmarks/model/language_step.py --json benchmarks/results/language_step.json

The model has Llama's shape: 512 wide, 8 layers, 8 heads, 32 000 ids, in float32; a step takes two blocks of 512 tokens,
each of one document. The peer is what a user of transformers writes: `model(input_ids, labels=input_ids)` and backward.
Both hold the same weights. Each measurement is a process of its own with one thread, and the sides take turns. A
process builds the model, takes one step to measure by how much the peak of resident memory exceeds the built model, and
then takes the timed steps. Times are CPU seconds. Linux only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.model.model_cases import in_own_process
from benchmarks.model.model_step import clock, held, highest, reset_peak
from benchmarks.record import record, result

ARCHITECTURE = {
    "model_type": "llama",
    "vocab_size": 32_000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}
BLOCK_LENGTH = 512
BATCH_SIZE = 2
TIMED_STEPS = 5
STORED_LAYERS = {"ours": 8, "ours-most": 6, "ours-half": 4, "ours-recomputed": 0}
"""The ways in which our model computes: how many layers keep their activations."""
WORDS = {
    "ours": "activations kept",
    "ours-most": "activations of three quarters of the layers kept",
    "ours-half": "activations of half of the layers kept",
    "ours-recomputed": "activations recomputed",
}
"""Their words in the record."""
SIDES = ("peer", *STORED_LAYERS)


def measure(side: str) -> dict:
    """Seconds of each step, peak bytes above the built model, and the loss. Must run in a process of its own."""
    import torch

    from training.model.kernels.memory import give_back_freed_memory, keep_freed_memory
    from training.model.language.config import LanguageModelConfig
    from training.model.language.folders import build_language_model

    torch.set_num_threads(1)
    config = LanguageModelConfig(architecture=ARCHITECTURE, block_length=BLOCK_LENGTH)
    model = build_language_model(config, seed=0)
    tokens, starts = model.example(BATCH_SIZE)
    starts[:, 1:] = False  # the peer knows no borders
    keep_freed_memory()

    def loss_of():
        if side == "peer":
            return model.network(input_ids=tokens, labels=tokens, use_cache=False).loss
        return model(tokens, starts, stored_layers=STORED_LAYERS[side]).loss

    def step() -> tuple[float, float]:
        started = clock("cpu")
        loss = loss_of()
        loss.backward()
        seconds = clock("cpu") - started
        model.zero_grad()
        return seconds, float(loss.detach())

    # Otherwise the step would first use what building the model has left, which is not counted as the step's.
    give_back_freed_memory()
    before = held("cpu")
    reset_peak("cpu")
    loss = step()[1]
    peak = highest("cpu") - before
    return {"seconds": [step()[0] for _ in range(TIMED_STEPS)], "peak_bytes": peak, "loss": loss}


def main() -> None:
    """See the file's first lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--json", type=Path, help="also write the result")
    parser.add_argument("--one", choices=SIDES, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(measure(flags.one)))
        return
    import torch
    import transformers

    runs: dict[str, list[dict]] = {side: [] for side in SIDES}
    for number in range(flags.rounds):
        for side in SIDES:
            runs[side].append(in_own_process("language_step.py", ["--one", side]))
            print(f"round {number + 1} of {flags.rounds}, {side}: {runs[side][-1]}", file=sys.stderr, flush=True)
    theirs = runs.pop("peer")
    peer_name = f"transformers {transformers.__version__}"
    results = [entry for side, ours in runs.items() for entry in summarize(WORDS[side], ours, theirs, peer_name)]
    if flags.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        record(flags.json, "language_step", versions, results)


def summarize(title: str, ours: list[dict], theirs: list[dict], peer_name: str) -> list[dict]:
    """Makes the results of the record for one way of computing, and prints each."""
    rows = [
        ("forward + backward", "CPU s", lambda run: run["seconds"]),
        ("peak memory over the built model", "bytes", lambda run: [run["peak_bytes"]]),
        ("loss of the first step", "nats per token", lambda run: [run["loss"]]),
    ]
    entries = []
    for metric, unit, values in rows:
        mine, others = ([value for run in runs for value in values(run)] for runs in (ours, theirs))
        beside = {"peer": statistics.median(others), "peer_name": peer_name}
        entry = result(
            f"{title}: {metric}", unit, statistics.median(mine), runs=len(mine), min=min(mine), max=max(mine), **beside
        )
        entries.append(entry)
        print(
            f"{entry['metric']}: {entry['ours']:.4g} {unit}   {peer_name}: {entry['peer']:.4g}   "
            f"ratio {entry['ratio']:.2f}",
            flush=True,
        )
    return entries


if __name__ == "__main__":
    main()
