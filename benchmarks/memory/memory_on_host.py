"""Host memory of an offloaded optimizer: predicted, and measured as the growth of a process that trains with hivemind.

    python benchmarks/memory/memory_on_host.py --json benchmarks/results/memory_on_host.json

Each case is a process of its own. It makes a model's parameters and gradients, which stand for those on the GPU, and
notes its resident memory. It then makes a `hivemind.Optimizer` that keeps everything else on the host. As in the
trainer, the C library returns the memory that only this needed to the system. The process takes two updates and notes
its memory again. A second process measures the growth if that memory is not returned. A CPU is enough; Linux only.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import error_percent, record, result
from calculator import Setup, estimate
from calculator.parts.parameters import parameter_tensors
from calculator.step.resolve import resolve

CONFIG = {"model_type": "gpt2", "n_embd": 512, "n_layer": 4, "n_head": 8, "n_positions": 512, "vocab_size": 30_000}
"""A small GPT-2 with 28 million parameters, enough for their copies to be most of what the process needs."""
CASES = {
    "8-bit LAMB of the run": {"optimizer": "lamb8bit-demo"},
    "32-bit LAMB": {"optimizer": "lamb"},
    "32-bit AdamW": {"optimizer": "adamw"},
}


def predicted(case: dict) -> int:
    """Bytes on the host, as the calculator predicts them."""
    return estimate(Setup(config=CONFIG, precision="fp32", offload_optimizer=True, **case)).host.total


def resident_bytes() -> int:
    """Resident memory of this process, shared pages included."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("This system does not report resident memory; the program needs Linux.")


def _optimizer(name: str) -> Callable:
    import torch

    if name == "adamw":
        return partial(torch.optim.AdamW, lr=1e-3, foreach=False)
    from training.optim.lamb import Lamb8bit

    smallest = 65_536 if name == "lamb8bit-demo" else sys.maxsize
    return partial(Lamb8bit, lr=1e-3, min_8bit_size=smallest)


def measure(case: dict, *, give_back: bool) -> int:
    """Bytes by which this process has grown after two updates. Must run in a process of its own.

    Args:
        case: A value of `CASES`.
        give_back: Return the memory to the system that only the creation of the optimizer needed, as the trainer does.
    """
    import hivemind
    import torch

    from training.model.kernels.memory import give_back_freed_memory, keep_freed_memory

    logging.disable(logging.WARNING)
    if case["optimizer"] != "adamw":  # as in the trainer, which runs only LAMB
        keep_freed_memory()
    architecture = resolve(Setup(config=CONFIG))
    shapes = [tensor.shape for tensor in parameter_tensors(architecture) for _ in range(tensor.copies)]
    parameters = [torch.nn.Parameter(torch.rand(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    _warm_up(_optimizer(case["optimizer"]))
    dht = hivemind.DHT(start=True)
    give_back_freed_memory()
    before = resident_bytes()
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="memory",
        params=parameters,
        optimizer=_optimizer(case["optimizer"]),
        target_batch_size=1,
        batch_size_per_step=1,
        matchmaking_time=0.5,
        averaging_timeout=5,
        offload_optimizer=True,
        reuse_grad_buffers=True,
        delay_state_averaging=False,
        tracker_opts={"min_refresh_period": 0.2, "default_refresh_period": 0.2, "max_refresh_period": 0.5},
    )
    if give_back:
        give_back_freed_memory()
    deadline = time.monotonic() + 120
    while optimizer.local_epoch < 2:
        if time.monotonic() > deadline:
            raise SystemExit("hivemind made no two updates within two minutes.")
        optimizer.step()
        for parameter in parameters:
            parameter.grad.fill_(1.0)
        time.sleep(0.1)
    grown = resident_bytes() - before
    optimizer.shutdown()
    dht.shutdown()
    return grown


def _warm_up(make: Callable) -> None:
    """Updates a small tensor: what libraries allocate at their first use would otherwise count as the optimizer's."""
    import torch

    parameter = torch.nn.Parameter(torch.rand(300, 300))
    optimizer = make([parameter])
    for _ in range(2):
        parameter.grad = torch.rand(300, 300)
        optimizer.step()


def _growth(name: str, *flags: str) -> int:
    """The growth of a new process, which runs `measure`."""
    command = [sys.executable, __file__, "--measure", name, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return int(done.stdout.split()[-1])


def main(arguments: list[str] | None = None) -> int:
    """Measures every case, prints the table, writes the JSON if asked; returns 1 if an error is above 3 %, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="processes per case; the median counts (1)")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--keep-all", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.measure:
        print(measure(CASES[flags.measure], give_back=not flags.keep_all))
        return 0
    results = []
    print(f"{'':<24}{'predicted':>14}{'measured':>14}{'error':>9}{'all kept':>14}")
    for name, case in CASES.items():
        runs = sorted(_growth(name) for _ in range(flags.runs))
        all_kept = _growth(name, "--keep-all")
        measured, expected = runs[len(runs) // 2], predicted(case)
        error = error_percent(expected, measured)
        figures = "".join(f"{size / 2**20:>10.1f} MiB" for size in (expected, measured))
        print(f"{name:<24}{figures}{error:>+8.2f}%{all_kept / 2**20:>10.1f} MiB", flush=True)
        more = {
            "runs": len(runs),
            "min": min(runs),
            "max": max(runs),
            "error_percent": error,
            "all_kept": all_kept,
        }
        other = {"peer": measured, "peer_name": "growth of the process"}
        results.append(result(f"host memory: {name}", "bytes", expected, **other, **more))
    if flags.json:
        from importlib.metadata import version

        versions = {name: version(name) for name in ("torch", "hivemind")}
        record(flags.json, "memory_on_host", versions, results, model=CONFIG)
    return int(any(abs(entry["error_percent"]) > 3 for entry in results))


if __name__ == "__main__":
    raise SystemExit(main())
