"""The cost of an update on the host: CPU time, state and temporary memory per parameter, for several optimizers.

    python benchmarks/model/optimizer_step.py --json benchmarks/results/optimizer_step.json

All optimizers update one matrix of the same size, 1024 values wide, in one thread. In each round every optimizer makes
one update, and the table shows medians over the rounds. The memory of each optimizer is measured in a process of its
own: the bytes of its state's tensors, and as temporary memory the growth of the process's peak in an update. A CPU is
enough; Linux only.

"2021 algorithm" is the algorithm of the 2021 run's optimizer: 8-bit LAMB in blocks of 4096 and chunks of 2^24 values,
which reuses the memory of the gradients. It is written anew with the functions of today's bitsandbytes that quantize
blocks, because the original needs bitsandbytes 0.26, which does not run today. On a CPU, LAMB8bit of bitsandbytes
applies no trust ratio, and so computes the same as AdamW. Muon's time per parameter grows with the shorter side of the
matrix, and so with the width.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory.memory_on_host import resident_bytes
from benchmarks.record import record, result

OURS, OURS_IN_TORCH, PEER = "8-bit LAMB, compiled", "8-bit LAMB, PyTorch alone", "8-bit LAMB, 2021 algorithm"
BASELINE = "AdamW fp32, for-loop"
WIDTH = 1024
"""Values in a row of the matrix."""
UNITS = {"CPU time": "ns per parameter", "state": "bytes per parameter", "temporary memory": "bytes per parameter"}
NAMES = (
    OURS,
    OURS_IN_TORCH,
    PEER,
    "bitsandbytes LAMB8bit",
    "bitsandbytes AdamW8bit",
    BASELINE,
    "AdamW fp32, foreach",
    "AdamW fp32, fused",
    "8-bit AdamW, compiled",
    "32-bit AdamW of the trainer",
    "Muon of the trainer",
    "torch.optim.Muon",
)


def cases() -> dict[str, Callable]:
    """For each optimizer the function that makes it from a list of parameters."""
    import bitsandbytes
    import torch

    from training.optim.adamw import AdamW8bit
    from training.optim.lamb import Lamb8bit
    from training.optim.muon import Muon

    adamw = partial(torch.optim.AdamW, lr=1e-3)
    makers = (
        partial(Lamb8bit, lr=1e-3),
        partial(Lamb8bit, lr=1e-3, native=False),
        partial(lamb_of_2021, lr=1e-3),
        partial(bitsandbytes.optim.LAMB8bit, lr=1e-3),
        partial(bitsandbytes.optim.AdamW8bit, lr=1e-3),
        partial(adamw, foreach=False),
        partial(adamw, foreach=True),
        partial(adamw, fused=True),
        partial(AdamW8bit, lr=1e-3),
        partial(AdamW8bit, lr=1e-3, min_8bit_size=sys.maxsize),
        lambda params: Muon([dict(params=params, hidden=True)], lr=1e-3),
        partial(torch.optim.Muon, lr=1e-3, adjust_lr_fn="match_rms_adamw"),
    )
    return dict(zip(NAMES, makers, strict=True))


def lamb_of_2021(params: list, lr: float) -> object:
    """The 2021 run's optimizer; see the head of this file."""
    import torch
    from bitsandbytes import functional

    block, chunk_values, (beta1, beta2), eps, decay, max_norm = 4096, 2**24, (0.9, 0.96), 1e-6, 0.045, 4.0

    class Lamb2021(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self):
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], max_norm)
            for parameter in self.param_groups[0]["params"]:
                self.update(parameter.view(-1), parameter.grad.view(-1), self.state[parameter])

        def update(self, weights, gradient, state):
            blocks = -(-weights.numel() // block)
            for moment, signed in (("m", True), ("v", False)):
                if moment not in state:
                    state[f"{moment} map"] = functional.create_dynamic_map(signed=signed)
                    zero = int((state[f"{moment} map"] == 0).nonzero())
                    state[moment] = torch.full((weights.numel(),), zero, dtype=torch.uint8)
                    state[f"{moment} scales"] = torch.zeros(blocks)
            for start in range(0, weights.numel(), chunk_values):
                chunk = slice(start, start + chunk_values)
                m, v = (self.read(state, moment, chunk) for moment in ("m", "v"))
                m.mul_(beta1).add_(gradient[chunk], alpha=1 - beta1)
                v.mul_(beta2).addcmul_(gradient[chunk], gradient[chunk], value=1 - beta2)
                for moment, values in (("m", m), ("v", v)):
                    codes, stored = functional.quantize_blockwise(values, code=state[f"{moment} map"], blocksize=block)
                    state[moment][chunk] = codes
                    state[f"{moment} scales"][self.blocks(chunk)] = stored.absmax
                torch.div(m, v.sqrt_().add_(eps), out=gradient[chunk])
                gradient[chunk].add_(weights[chunk], alpha=decay)
            norms = weights.norm(), gradient.norm()
            weights.add_(gradient, alpha=-lr * float(norms[0] / norms[1] if all(norms) else 1.0))

        def read(self, state, moment, chunk):
            return functional.dequantize_blockwise(
                state[moment][chunk],
                absmax=state[f"{moment} scales"][self.blocks(chunk)],
                code=state[f"{moment} map"],
                blocksize=block,
            )

        def blocks(self, chunk):
            return slice(chunk.start // block, chunk.stop // block)

    return Lamb2021(params, {"lr": lr})


def parameter_of(size: int) -> object:
    """A matrix with weights as small as a transformer's."""
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(size // WIDTH, WIDTH, generator=generator) * 0.02)


def gradient_of(size: int) -> object:
    """A gradient, to be copied before each update, because some optimizers overwrite theirs."""
    import torch

    return torch.randn(size // WIDTH, WIDTH, generator=torch.Generator().manual_seed(1)) * 1e-4


def cpu_times(size: int, rounds: int) -> dict[str, list[float]]:
    """CPU nanoseconds per parameter of each update; the updates of round 0 warm up and do not count."""
    gradient, optimizers = gradient_of(size), {}
    for name, make in cases().items():
        parameter = parameter_of(size)
        optimizers[name] = parameter, make([parameter])
    times: dict[str, list[float]] = {name: [] for name in optimizers}
    shared = gradient.clone()
    for number in range(rounds + 1):
        for name, (parameter, optimizer) in optimizers.items():
            shared.copy_(gradient)
            parameter.grad = shared
            began = time.process_time()
            optimizer.step()
            if number:
                times[name].append((time.process_time() - began) / size * 1e9)
            parameter.grad = None
        print(f"round {number} of {rounds}", file=sys.stderr)
    return times


def memory(name: str, size: int) -> tuple[float, float]:
    """Bytes of state and of temporary memory per parameter. Must run in a process of its own, as it measures a peak."""
    import torch

    from training.model.kernels.memory import give_back_freed_memory

    make, small = cases()[name], parameter_of(100 * WIDTH)
    for parameter in (small, parameter_of(size)):
        parameter.grad = gradient_of(parameter.numel())
        optimizer = make([parameter])
        optimizer.step()
    tensors = {
        tensor.data_ptr(): tensor.numel() * tensor.element_size()
        for state in optimizer.state.values()
        for tensor in state.values()
        if isinstance(tensor, torch.Tensor)
    }
    give_back_freed_memory()
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    optimizer.step()
    return sum(tensors.values()) / size, max(peak_bytes() - before, 0) / size


def peak_bytes() -> int:
    """The largest resident memory of this process since its peak was reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


def processor() -> str:
    """The processor's name, as the system tells it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main(arguments: list[str] | None = None) -> int:
    """Measures every case, prints the table, and writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--size", type=int, default=2**25, metavar="N", help="parameters, a multiple of 1024 (2^25)")
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="timed updates of each optimizer (9)")
    parser.add_argument("--measure", choices=("cpu", *NAMES), help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if flags.measure == "cpu":
        print(json.dumps(cpu_times(flags.size, flags.rounds)))
        return 0
    if flags.measure:
        print(json.dumps(memory(flags.measure, flags.size)))
        return 0

    def measured(what: str) -> object:
        command = [sys.executable, __file__, "--measure", what, "--size", str(flags.size)]
        command += ["--rounds", str(flags.rounds)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=one_thread, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    times = measured("cpu")
    sizes = {name: measured(name) for name in NAMES}
    print(f"{'':<38}{'CPU ns':>8}{'spread':>14}{'state B':>9}{'temporary B':>13}   (per parameter)")
    results = []
    for name in NAMES:
        runs, (state, temporary) = times[name], sizes[name]
        spread = f"{min(runs):.2f}-{max(runs):.2f}"
        print(f"{name:<38}{statistics.median(runs):>8.2f}{spread:>14}{state:>9.3f}{temporary:>13.3f}")
        peer = {} if name == PEER else {"peer_name": PEER}
        for kind, ours, of_peer in (
            ("CPU time", statistics.median(runs), statistics.median(times[PEER])),
            ("state", state, sizes[PEER][0]),
            ("temporary memory", temporary, sizes[PEER][1]),
        ):
            counts = {"runs": len(runs), "min": min(runs), "max": max(runs)} if kind == "CPU time" else {}
            others = {**peer, **({"peer": of_peer} if peer else {}), **counts}
            results.append(result(f"{kind}: {name}", UNITS[kind], ours, **others))
    share = statistics.median(times[OURS]) / statistics.median(times[BASELINE])
    print(f"{OURS} takes {share:.2f} of the CPU time of {BASELINE}.")
    if flags.json:
        import bitsandbytes
        import torch

        versions = {"torch": torch.__version__, "bitsandbytes": bitsandbytes.__version__}
        more = {"processor_name": processor(), "parameters": flags.size, "threads": 1}
        record(flags.json, "optimizer_step", versions, results, **more)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
