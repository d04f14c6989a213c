"""Traces training steps of drawn or recorded setups, and compares the calculator, or the record, with each.

    python benchmarks/memory/trace_steps.py packed --cases 20 --seed 7
    python benchmarks/memory/trace_steps.py decoders --check benchmarks/memory/steps/decoders.json
    python benchmarks/memory/trace_steps.py all --seed 20261128 --keep FOLDER

Real code of transformers, diffusers, peft and others runs on tensors without values; nothing is fitted. With `all`,
steps of every kind are drawn anew: a rule that is right for the steps that taught it may be wrong for others. They
become `steps/redrawn.json` and `steps/redrawn_several_gpus.json`.

Steps on one GPU need a C++ compiler and PyTorch's build for CPUs. Some kinds need packages that the tests do not:
    pip install --no-deps galore-torch==1.0 apollo-torch==1.0.3 torchao==0.18.0 liger-kernel==0.8.5 triton==3.9.0 \
        deepspeed==0.19.8 einops hjson ninja py-cpuinfo
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory.tracing.draws import ONE_GPU, OPTIMIZERS_OF_PICTURES, SEVERAL_GPUS
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.estimate import estimate
from calculator.step.gpus.deepspeed import Zero
from calculator.step.resolve import resolve
from calculator.step.setups import DEEPSPEED, Setup, setup_from

KINDS = ONE_GPU | SEVERAL_GPUS
STEPS = Path(__file__).parent / "steps"
"""Recorded steps: files of {kind: [step]}, a step a line."""
ALL = "all"
TRACED_OPTIMIZERS = (*OPTIMIZERS_OF_PICTURES, "muon", *DEFAULT_RANKS)
FIGURES = (
    "parameters", "trained_parameters", "saved_activations", "autocast_weight_copies", "gradient_bytes",
    "optimizer_state_bytes", "host_total", "peak", "peak_phase",
)  # fmt: skip


def trace(setup: Setup) -> dict:
    """Counts what the device, or one of several, holds in a step of a setup."""
    if setup.sharding in DEEPSPEED:
        from benchmarks.memory.tracing import of_deepspeed as tracing
    elif setup.gpus > 1:
        from benchmarks.memory.tracing import several_gpus as tracing
    else:
        from benchmarks.memory.tracing import one_gpu as tracing
    return tracing.trace(setup)


def can_trace(setup: Setup) -> bool:
    """Tells whether the tracer knows a setup's optimizer, bits and kernels: those of experts in bfloat16 only."""
    has_kernels = setup.precision == "bf16" or setup.gpus > 1 or not resolve(setup).num_experts
    return has_kernels and setup.base_bits != 4 and setup.optimizer in TRACED_OPTIMIZERS


def written(setup: Setup) -> dict:
    """Makes a record of the fields of a setup that differ from their defaults, and of some others."""
    always = ("precision", "attention", "optimizer")
    values = {field.name: getattr(setup, field.name) for field in fields(Setup)}
    defaults = {field.name: field.default for field in fields(Setup)}
    return {name: value for name, value in values.items() if value != defaults[name] or name in always}


def write(path: Path, steps: dict[str, list[dict]]) -> None:
    """Writes a record of steps by kind, a step a line."""
    kinds = []
    for kind, of_kind in steps.items():
        lines = ",\n".join(json.dumps(step) for step in of_kind)
        kinds.append(f'"{kind}": [\n{lines}\n]')
    path.write_text("{" + ",\n".join(kinds) + "}\n", encoding="utf-8")


def estimated(setup: Setup) -> dict:
    """Takes the calculator's figures of a step."""
    with limited(setup):
        answer = estimate(setup)
    figures = {name: getattr(answer, name, None) for name in FIGURES}
    figures |= {"host_total": answer.host.total, "peak": answer.gpu.total, "peak_phase": answer.peak.phase}
    phases = {instant.phase for instant in answer.timeline}
    highest = {phase: max(one.bytes for one in answer.timeline if one.phase == phase) for phase in phases}
    return figures | {"peaks": highest}


def limited(setup: Setup):
    """Within `with`, DeepSpeed has the limits of a traced step."""
    if setup.sharding not in DEEPSPEED:
        return nullcontext()
    from benchmarks.memory.tracing.of_deepspeed import limits_of

    return patch("calculator.step.play.Zero", partial(Zero, **limits_of(setup)))


def compared(setup: Setup, step: dict, known: dict) -> str:
    """Describes the differences of known figures from a traced step in one line."""
    named = {name: (known[name], step[name]) for name in FIGURES if name in step and name in known}
    phases = known.get("peaks", {}).keys() & step.get("peaks", {}).keys()
    named |= {f"peak in {phase}": (known["peaks"][phase], step["peaks"][phase]) for phase in sorted(phases)}
    wrong = [f"{name} {told} instead of {true}" for name, (told, true) in named.items() if told != true]
    if known["peak"] != step["peak"]:
        wrong.append(f"{100 * (known['peak'] / step['peak'] - 1):+.2f} % of the peak")
    shown = {key: value for key, value in step["setup"].items() if key != "config"}
    kind = setup.config.get("model_type") or setup.config["_class_name"]
    return f"{'; '.join(wrong) or 'equal'}; peak {step['peak']:,} in {step['peak_phase']}: {kind} {shown}"


def traced(pairs: Iterable[tuple[Setup, dict | None]]) -> Iterator[dict]:
    """Traces steps, and prints for each how the calculator, or what is recorded, differs.

    Args:
        pairs: Setups, each with its recorded step; None: compares the calculator.
    """
    for setup, known in pairs:
        step = {"setup": written(setup), **trace(setup)}
        print(compared(setup, step, known or estimated(setup)), flush=True)
        yield step


def recorded(path: Path, kind: str) -> list[tuple[Setup, dict]]:
    """Reads the steps of a kind that can be traced again."""
    pairs = [(setup_from(step["setup"]), step) for step in json.loads(path.read_text(encoding="utf-8"))[kind]]
    return [(setup, step) for setup, step in pairs if can_trace(setup)]


def draw_all(seed: int, folder: Path) -> None:
    """Draws and traces all kinds, each by this program in turn; prints a line for each kind, and writes the records.

    Args:
        seed: Of all draws.
        folder: Keeps the steps of each kind; kinds that are there are not drawn again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, kinds in (("redrawn", ONE_GPU), ("redrawn_several_gpus", SEVERAL_GPUS)):
        steps = {}
        for kind, (_, cases) in kinds.items():
            file, unfinished = folder / f"{kind}.json", folder / f"{kind}.part"
            if not file.exists():
                given = [kind, "--cases", str(cases), "--seed", str(seed), "--json", str(unfinished)]
                with (folder / f"{kind}.log").open("w", encoding="utf-8") as log:
                    ended = subprocess.run([sys.executable, __file__, *given], stdout=log, stderr=subprocess.STDOUT)
                if ended.returncode:
                    raise SystemExit(f"{kind}: the tracer ended with {ended.returncode}; see {log.name}.")
                unfinished.rename(file)
            steps |= json.loads(file.read_text(encoding="utf-8"))
            peaks = [(estimate(setup_from(step["setup"])).gpu.total, step["peak"]) for step in steps[kind]]
            off = [abs(ours / true - 1) for ours, true in peaks]
            print(f"{kind}: {off.count(0)} of {len(off)} equal; the worst is {100 * max(off):.2f} % off", flush=True)
        write(STEPS / f"{name}.json", steps)


def main(arguments: list[str] | None = None) -> None:
    """Draws and traces steps of a kind, or traces recorded ones again; writes them if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", help=f"of the steps: {', '.join(KINDS)}, or {ALL}; with --check, one of the record's")
    parser.add_argument("--cases", type=int, default=40, help="steps to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="trace the steps of this record again instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the steps, after each one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help=f"with {ALL}: keeps the steps of each kind")
    flags = parser.parse_args(arguments)
    if flags.kind == ALL:
        if flags.keep is None:
            parser.error(f"{ALL} needs --keep FOLDER.")
        return draw_all(flags.seed, flags.keep)
    if flags.check:
        pairs = recorded(flags.check, flags.kind)
    elif flags.kind in KINDS:
        draw, chance = KINDS[flags.kind][0], random.Random(flags.seed)
        pairs = ((draw(chance), None) for _ in range(flags.cases))
    else:
        parser.error(f"There is no kind {flags.kind!r}.")
    steps = []
    for step in traced(pairs):
        steps.append(step)
        if flags.json:
            write(flags.json, {flags.kind: steps})
    print(f"{len(steps)} steps traced")


if __name__ == "__main__":
    main()
