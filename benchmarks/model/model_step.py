"""Forward and backward pass of the run's model compared with dalle-pytorch 1.6.6: seconds and peak memory.

    python benchmarks/model/model_step.py --json benchmarks/results/model_step.json
    python benchmarks/model/model_step.py --cases S --ours-only
    python benchmarks/model/model_step.py --cases full --modes plain kept bf16 bf16-kept
    python benchmarks/model/model_step.py --device cuda --gpu h100-80gb --cases full --batch-sizes 1 8 32 --modes bf16

Each measurement is a process of its own; those of our model and of dalle-pytorch take turns. A process builds the
model, takes one step to measure by how much the peak of memory exceeds the built model, and then takes the timed steps.

On a CPU (Linux only) a process has one thread, times are CPU seconds, and memory is resident memory, which the C
library keeps when it is freed, as in training. On a GPU only our model is measured, memory is what PyTorch allocates,
and `--gpu` names the card whose published peak rate the model's rate is compared with.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.model import peer_dalle_pytorch as peer
from benchmarks.model.model_cases import batch, case, forward_flops, in_own_process, matrix_rate
from benchmarks.record import record, result

PEER = "dalle-pytorch 1.6.6"
STEPS = {"S": 5, "M": 2, "full": 1}
"""Timed steps of a process on a CPU. Of the full model only the first step is taken, which also shows the peak."""
STEPS_ON_GPU = 10
MODES = {
    "plain": "",
    "kept": ", activations kept",
    "bf16": ", bf16 autocast",
    "bf16-kept": ", bf16 autocast, activations kept",
}
"""Ways in which our model computes, and their words in the record; `plain` is fp32, as dalle-pytorch computes."""


def measure(side: str, name: str, batch_size: int, device: str) -> dict:
    """Seconds per sample, peak bytes above the built model, and rates. Must run in a process of its own.

    Args:
        side: "peer" for dalle-pytorch, or a key of `MODES`.
        name: A model of `model_cases.case`.
        batch_size: Samples per step.
        device: "cpu" or "cuda".
    """
    import torch

    from training.model.kernels.memory import keep_freed_memory

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config, low = case(name), side.startswith("bf16")
    dtype = torch.bfloat16 if low else torch.float32
    if side == "peer":
        model, facts = peer.build(config).train(), {}
    else:
        from training.model.transformer import build_model, usual_activation_budget

        model = build_model(config, seed=0).to(device)
        budget = None if "kept" in side else usual_activation_budget(config)
        stored_layers = model.stored_layers(batch_size, budget, dtype)
        facts = expected(model, batch_size, dtype, budget)
    keep_freed_memory()
    text, codes = (tensor.to(device) for tensor in batch(config, batch_size))

    def step() -> float:
        started = clock(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
            if side == "peer":
                loss = model(text, codes, return_loss=True)
            else:
                loss = model(text, codes, stored_layers=stored_layers).loss
        loss.backward()
        seconds = clock(device) - started
        model.zero_grad()
        return seconds / batch_size

    rate = matrix_rate(device=device, dtype=dtype)
    before = held(device)
    reset_peak(device)
    first = step()
    peak = highest(device) - before
    if name == "full" and device == "cpu":
        seconds = [first]
    else:
        seconds = [step() for _ in range(STEPS_ON_GPU if device == "cuda" else STEPS[name])]
    rate = max(rate, matrix_rate(device=device, dtype=dtype))
    flops = 3 * forward_flops(config)
    share = flops / statistics.median(seconds) / rate
    return {"seconds": seconds, "peak_bytes": peak, "matrix_rate": rate, "flops": flops, "share": share} | facts


def expected(model, batch_size: int, dtype, activation_budget_bytes: int | None) -> dict:
    """The calculator's peak above the built model, and the kernels that compute attention."""
    from calculator import estimate
    from training.compute.machine import this_machine
    from training.compute.plan import PRECISIONS, layers_of, training_of
    from training.recipe import load_recipe
    from training.tasks.known import task_of

    device = model.final_norm.weight.device
    run = load_recipe("dalle-2021").model_copy(update={"model": model.config})
    precision = PRECISIONS[str(dtype).removeprefix("torch.")]
    setup = training_of(run).setup(this_machine(str(device)), batch_size, precision=precision)
    memory = estimate(setup).gpu
    return {
        "estimated_bytes": memory.total
        - memory.weights
        + layers_of(task_of(run), lambda: model).stored_bytes(batch_size, activation_budget_bytes, precision),
        "kernels": model.kernel_choice(dtype).kernels,
    }


def clock(device: str) -> float:
    """CPU seconds of this process; on a GPU the time, after all work that was started is done."""
    if device == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def held(device: str) -> int:
    """Bytes in use now."""
    if device == "cpu":
        return status("VmRSS")
    import torch

    return torch.cuda.memory_allocated()


def highest(device: str) -> int:
    """The most bytes in use since `reset_peak`."""
    if device == "cpu":
        return status("VmHWM")
    import torch

    return torch.cuda.max_memory_allocated()


def reset_peak(device: str) -> None:
    """Resets the peak of memory that the system's kernel or PyTorch records."""
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return
    import torch

    torch.cuda.reset_peak_memory_stats()


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
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["plain"], help="ways in which ours computes")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to compute")
    parser.add_argument("--gpu", help="the calculator's name of the card, for its published peak rate")
    parser.add_argument("--ours-only", action="store_true", help="leave dalle-pytorch out")
    parser.add_argument("--json", type=Path, help="also write the result")
    parser.add_argument("--one", nargs=4, metavar=("SIDE", "CASE", "BATCH", "DEVICE"), help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        side, name, size, device = flags.one
        print(json.dumps(measure(side, name, int(size), device)))
        return
    import torch

    if flags.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "PyTorch finds no GPU here; omit --device to measure on the CPU.\n")
    published = peak_rate(flags.gpu)
    with_peer = flags.device == "cpu" and not flags.ours_only
    if with_peer and not peer.is_installed():
        raise SystemExit(f"dalle-pytorch is not installed: {peer.INSTALL} (or omit it with --ours-only)")
    sides = [*(["peer"] if with_peer else []), *flags.modes]
    results = []
    for name in flags.cases:
        for size in flags.batch_sizes:
            runs = {side: [] for side in sides}
            for _ in range(1 if name == "full" else flags.rounds):
                for side in sides:
                    arguments = ["--one", side, name, str(size), flags.device]
                    runs[side].append(in_own_process("model_step.py", arguments))
            theirs = runs.pop("peer", [])
            for mode, ours in runs.items():
                title = f"{name}, micro-batch {size}{MODES[mode]}"
                unit = "CPU s" if flags.device == "cpu" else "s"
                results += summarize(title, ours, theirs, unit_of_time=unit, published=published)
    if flags.json:
        card = torch.cuda.get_device_name() if flags.device == "cuda" else None
        record(flags.json, "model_step", {"torch": torch.__version__, "dalle-pytorch": "1.6.6"}, results, gpu=card)


def peak_rate(gpu: str | None) -> float | None:
    """Published FLOP/s of a card in 16 bit; None if no card is named or its rate is not published."""
    from calculator import BadSetup
    from calculator.choose.devices import device_named

    try:
        teraflops = device_named(gpu).teraflops if gpu else None
    except BadSetup as error:
        raise SystemExit(str(error)) from None
    return teraflops * 1e12 if teraflops else None


def summarize(
    title: str, ours: list[dict], theirs: list[dict], *, unit_of_time: str, published: float | None
) -> list[dict]:
    """Makes the results of the record for one model and mode, and prints each."""
    low = "bf16" in title
    rows = [
        ("forward + backward per sample", unit_of_time, lambda run: run["seconds"]),
        ("peak memory over the built model", "bytes", lambda run: [run["peak_bytes"]]),
        (f"share of the {'bf16' if low else 'fp32'} matrix rate", "1", lambda run: [run["share"]]),
    ]
    if published and low:
        rows.append(
            (
                "share of the published bf16 peak",
                "1",
                lambda run: [run["flops"] / statistics.median(run["seconds"]) / published],
            )
        )
    entries = []
    print(f"{title}: attention by {ours[0]['kernels']}")
    for metric, unit, values in rows:
        compared_runs = [] if low and unit == "1" else theirs  # the share is of another rate than the peer's
        mine, others = ([value for run in runs for value in values(run)] for runs in (ours, compared_runs))
        beside = {"peer": statistics.median(others), "peer_name": PEER} if others else {}
        if unit == "bytes":
            beside["estimated"] = ours[0]["estimated_bytes"]
        entry = result(
            f"{title}: {metric}",
            unit,
            statistics.median(mine),
            runs=len(mine),
            min=min(mine),
            max=max(mine),
            **beside,
        )
        entries.append(entry)
        words = f"   {PEER}: {entry['peer']:.4g}   ratio {entry['ratio']:.2f}" if others else ""
        words += f"   the calculator's: {entry['estimated']:.4g}" if unit == "bytes" else ""
        print(f"{entry['metric']}: {entry['ours']:.4g} {unit}{words}", flush=True)
    return entries


if __name__ == "__main__":
    main()
