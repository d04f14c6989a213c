"""Forward and backward pass of the run's model beside dalle-pytorch 1.6.6: CPU seconds and peak memory.

    python benchmarks/model_step.py --json benchmarks/results/model_step.json
    python benchmarks/model_step.py --cases S --ours-only

Each measurement is a process of its own with one thread, ours and theirs in turn, in both of which the C library keeps
freed memory as in training. A process builds the model, takes a step that shows the peak (resident memory, over what
the built model has), then the steps that are timed. Linux only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import peer_dalle_pytorch as peer  # noqa: E402
from memory_report import record, result  # noqa: E402
from model_cases import batch, case, forward_flops, in_own_process, matrix_rate  # noqa: E402

PEER = "dalle-pytorch 1.6.6"
STEPS = {"S": 5, "M": 2, "full": 1}
"""Steps timed in a process; of the full model the first one is."""


def measure(side: str, name: str, batch_size: int) -> dict:
    """Seconds a sample, bytes at the peak over the built model, and what they mean; for a process of its own."""
    import torch

    from training.model.memory import keep_freed_memory

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = case(name)
    if side == "ours":
        from training.model.transformer import build_model

        model = build_model(config, seed=0)
    else:
        model = peer.build(config).train()
    keep_freed_memory()
    text, codes = batch(config, batch_size)

    def step() -> float:
        started = time.process_time()
        loss = model(text, codes).loss if side == "ours" else model(text, codes, return_loss=True)
        loss.backward()
        seconds = time.process_time() - started
        model.zero_grad()
        return seconds / batch_size

    rate = matrix_rate()
    reset_peak()
    before = status("VmRSS")
    first = step()
    peak = status("VmHWM") - before
    seconds = [first] if name == "full" else [step() for _ in range(STEPS[name])]
    rate = max(rate, matrix_rate())
    flops = 3 * forward_flops(config)
    share = flops / statistics.median(seconds) / rate
    return {"seconds": seconds, "peak_bytes": peak, "matrix_rate": rate, "flops": flops, "share": share}


def reset_peak() -> None:
    """Has the kernel count the peak of resident memory from here on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def status(key: str) -> int:
    """A size from the kernel's account of this process, bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("This system does not report resident memory; the program needs Linux.")


def main() -> None:
    """See the file's first lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=STEPS, default=["S", "M"], help="models to measure")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1], help="samples a step")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--ours-only", action="store_true", help="leave dalle-pytorch out")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "CASE", "BATCH"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(measure(flags.one[0], flags.one[1], int(flags.one[2]))))
        return
    if not flags.ours_only and not peer.is_installed():
        raise SystemExit(f"dalle-pytorch is not installed: {peer.INSTALL} (or leave it out with --ours-only)")
    sides = ("ours",) if flags.ours_only else ("peer", "ours")
    results = []
    for name in flags.cases:
        for size in flags.batch_sizes:
            rounds = 1 if name == "full" else flags.rounds
            runs = {side: [] for side in sides}
            for _ in range(rounds):
                for side in sides:
                    runs[side].append(in_own_process("model_step.py", ["--one", side, name, str(size)]))
            results += summarize(name, size, runs)
    if flags.json:
        import torch

        record(flags.json, "model_step", {"torch": torch.__version__, "dalle-pytorch": "1.6.6"}, results)


def summarize(name: str, size: int, runs: dict[str, list[dict]]) -> list[dict]:
    """Entries of the record for one model, printed as they are made."""
    entries = []
    for metric, unit, values in (
        ("forward + backward per sample", "CPU s", lambda run: run["seconds"]),
        ("peak memory over the built model", "bytes", lambda run: [run["peak_bytes"]]),
        ("share of the fp32 matrix rate", "1", lambda run: [run["share"]]),
    ):
        ours, theirs = ([value for run in runs.get(side, []) for value in values(run)] for side in ("ours", "peer"))
        others = {"peer": statistics.median(theirs), "peer_name": PEER} if theirs else {}
        entry = result(
            f"{name}, micro-batch {size}: {metric}",
            unit,
            statistics.median(ours),
            runs=len(ours),
            min=min(ours),
            max=max(ours),
            **others,
        )
        entries.append(entry)
        beside = f"   {PEER}: {entry['peer']:.4g}   ratio {entry['ratio']:.2f}" if theirs else ""
        print(f"{entry['metric']}: {entry['ours']:.4g} {unit}{beside}", flush=True)
    return entries


if __name__ == "__main__":
    main()
