"""Draws training steps of nearly all kinds anew, traces them, and compares the calculator with each.

    pip install --no-deps galore-torch==1.0 apollo-torch==1.0.3 torchao==0.18.0 liger-kernel==0.8.5 triton==3.9.0
    python benchmarks/memory/redraw.py --seed 20261128 --keep FOLDER

A rule that is right for the steps that taught it may be wrong for others. So all kinds but LoRA with 4 bits are
drawn again, with a seed that was never used, after the last change of a rule. The programs that draw and trace are
those of the earlier records; this one runs them in turn. `--keep` names a folder for each program's steps; those that
are there are not drawn again.

With the whole folder, `redrawn_steps.json` and `redrawn_divided_steps.json` are written beside this program: steps on
one GPU, and on one of several.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from calculator.step.estimate import estimate
from calculator.step.setups import setup_from

KINDS = {
    "decoders": ("decoder_steps.py", 80),
    "DeepSeek-V3": ("decoder_steps.py --deepseek", 40),
    "GPT-2 and GPT-J": ("decoder_steps.py --older --whole", 40),
    "BERT and T5": ("decoder_steps.py --encoders --whole", 40),
    "GPT-2 and GPT-J with LoRA": ("decoder_steps.py --older", 40),
    "BERT and T5 with LoRA": ("decoder_steps.py --encoders", 40),
    "mixtures with LoRA": ("decoder_steps.py --mixtures", 30),
    "DeepSeek-V3 with LoRA": ("decoder_steps.py --deepseek --adapters", 30),
    "packed samples": ("decoder_steps.py --packed", 40),
    "vision transformers": ("picture_steps.py", 40),
    "vision transformers with LoRA": ("picture_steps.py --vit-lora", 30),
    "diffusion transformers": ("picture_steps.py --diffusion", 40),
    "diffusion transformers with LoRA": ("picture_steps.py --lora", 40),
    "GaLore and APOLLO": ("low_rank_steps.py", 30),
    "Muon": ("low_rank_steps.py --muon", 30),
    "activations on the host": ("low_rank_steps.py --offload", 30),
    "loss in pieces": ("liger_steps.py", 30),
    "loss of DeepSeek-V3 in pieces": ("liger_steps.py --deepseek", 20),
    "FP8": ("eight_bit_steps.py", 30),
}
"""The program of each kind of step on one GPU, and how many it draws."""
DIVIDED_KINDS = {
    "several GPUs": ("sharded_steps.py", 40),
    "T5 on several GPUs": ("sharded_steps.py --two-stacks", 20),
    "LoRA on several GPUs": ("decoder_steps.py --divided", 40),
    "DeepSeek-V3 on several GPUs": ("decoder_steps.py --deepseek --divided", 20),
    "LoRA of BERT and T5 on several GPUs": ("decoder_steps.py --divided --encoders", 20),
    "loss in pieces on several GPUs": ("liger_steps.py --divided", 20),
    "tensor parallelism": ("sharded_steps.py --together", 20),
}
"""The same, of steps on one of several GPUs."""


def drawn(kind: str, program: str, cases: int, *, seed: int, folder: Path) -> list[dict]:
    """Steps of a kind, from the folder if they are there."""
    file = folder / f"{kind.replace(' ', '_')}.json"
    if not file.exists():
        unfinished = file.with_suffix(".part")
        name, *flags = program.split()
        command = [sys.executable, str(ROOT / "benchmarks" / name), *flags, "--cases", str(cases), "--seed", str(seed)]
        command += ["--json", str(unfinished)]
        with (folder / f"{file.stem}.log").open("w", encoding="utf-8") as log:
            ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if ended.returncode:
            raise SystemExit(f"{program} ended with {ended.returncode}; what it said is in {log.name}.")
        unfinished.rename(file)
    return [{"kind": kind, **step} for step in json.loads(file.read_text(encoding="utf-8"))]


def errors(steps: list[dict]) -> list[float]:
    """By which share of the traced peak each estimate is off."""
    return [abs(estimate(setup_from(step["setup"])).gpu.total / step["peak"] - 1) for step in steps]


def main(arguments: list[str] | None = None) -> None:
    """Draws and prints a line for each kind; writes the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="of all draws")
    parser.add_argument("--keep", type=Path, required=True, metavar="FOLDER", help="keeps each program's steps")
    flags = parser.parse_args(arguments)
    flags.keep.mkdir(parents=True, exist_ok=True)
    for name, kinds in (("redrawn_steps", KINDS), ("redrawn_divided_steps", DIVIDED_KINDS)):
        steps = []
        for kind, (program, cases) in kinds.items():
            found = drawn(kind, program, cases, seed=flags.seed, folder=flags.keep)
            off = errors(found)
            print(f"{kind}: {off.count(0)} of {len(off)} equal; the worst is {100 * max(off):.2f} % off", flush=True)
            steps += found
        lines = ",\n".join(json.dumps(step) for step in steps)
        (ROOT / "benchmarks" / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
