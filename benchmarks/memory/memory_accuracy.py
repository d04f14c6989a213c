"""The errors of three memory calculators, this one, the one of 2021 and EleutherAI's, on steps of real model code.

    python benchmarks/memory/memory_accuracy.py --calculator-2021 mem_calc.py --eleutherai calc_transformer_mem.py
    python benchmarks/memory/memory_accuracy.py --others-from benchmarks/results/memory_accuracy.json
    python benchmarks/memory/memory_accuracy.py --ours-only

The true sizes of each step (reference_steps.json) were counted on models of transformers with fake CUDA tensors, which
have no content. Some steps were chosen by hand; those marked `held_out` were drawn at random after the calculator was
written. The program prints the errors and names the worst cases.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import error_percent, record, result, summary
from calculator import Architecture, Setup, estimate
from calculator.step.setups import resolve, setup_from

STEPS = ROOT / "benchmarks/reference_steps.json"
FIGURES = {
    "parameters": "parameter count",
    "saved_activations": "activations kept for backward",
    "peak": "peak on the GPU",
    "optimizer_state": "optimizer state on the GPU",
    "gradients": "gradients",
    "host": "host memory with offload",
}
GIB = 2**30
Answer = dict[str, float] | None


def true_figures(step: dict) -> dict[str, float]:
    """The sizes that were counted for a step; host memory only if the optimizer is offloaded."""
    figures = {
        "parameters": step["parameters"],
        "saved_activations": step["saved_activations"],
        "peak": step["peak"],
        "optimizer_state": step["optimizer_state_bytes"],
        "gradients": step["gradient_bytes"],
    }
    return figures | ({"host": step["host_total"]} if step["setup"].get("offload_optimizer") else {})


def ours(setup: Setup) -> Answer:
    """This calculator's answer."""
    answer = estimate(setup)
    return {
        "parameters": answer.parameters,
        "saved_activations": answer.saved_activations,
        "peak": answer.gpu.total,
        "optimizer_state": answer.optimizer_state_bytes,
        "gradients": answer.gradient_bytes,
        "host": answer.host.total,
    }


def calculator_2021(module: ModuleType) -> Callable[[Setup], Answer]:
    """The 2021 calculator (github.com/training-transformers-together/calc, mem_calc.py) with its nearest options.

    It has one number of layers and one length: layers of encoder and decoder are added up, and both stacks get the
    encoder's length. It has no LAMB; its Adam stands for it, which keeps the same state.
    """
    optimizers = {"adamw": "adam", "lamb": "adam", "adafactor": "adafactor-fac-only"}
    levels = {"fp32": "O0", "amp-bf16": "O1", "amp-fp16": "O1"}

    def answer(setup: Setup) -> Answer:
        a = resolve(setup)
        flags = SimpleNamespace(
            model="", nlayers=a.num_layers + a.num_decoder_layers, bsz=setup.micro_batch_size,
            seqlen=setup.sequence_length or a.sequence_length, dmodel=a.hidden_size, dhid=a.intermediate_size,
            vocab_size=a.vocab_size, fp16_level=levels.get(setup.precision, "O3"),
            optimizer=optimizers.get(setup.optimizer, "8-bit-adam"), offload=setup.offload_optimizer, ngpus=1, zero=0,
            shared_groups=setup.shared_groups, checkpoint=bool(setup.checkpointing),
        )  # fmt: skip
        figures = module.calculate_memory(flags)
        return {
            "parameters": figures["parameters"],
            "saved_activations": figures["grad"] * GIB,
            "peak": figures["total_mem"] * GIB,
            "optimizer_state": figures["optim"] * GIB,
            "gradients": figures["wgrad"] * GIB,
            "host": figures["cpu_mem"] * GIB,
        }

    return answer


def eleutherai(module: ModuleType) -> Callable[[Setup], Answer]:
    """EleutherAI's calculator (github.com/EleutherAI/cookbook, calc/calc_transformer_mem.py), by what it prints.

    It has only one Adam, with 12 bytes per parameter, of which 4 are master weights and not state. It has no offloading
    and no shared layers; the answer for such setups is None.
    """

    def answer(setup: Setup) -> Answer:
        if setup.optimizer != "adamw" or setup.offload_optimizer or setup.shared_groups:
            return None
        flags = [str(flag) for flag in _eleutherai_flags(setup, resolve(setup))]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            module.calc_mem(module.config_parser().parse_args(flags))
        lines = printed.getvalue().split("*** Total GPU Memory")[0].splitlines()

        def figure(begins: str) -> list[str]:
            return next(line for line in lines if line.startswith(begins)).split(":")[1].split()

        count, unit = figure("Number of Parameters")
        return {
            "parameters": float(count) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[unit],
            "saved_activations": float(figure("Per-GPU Activation Memory")[0]) * GIB,
            "peak": float(figure("Per-GPU Memory Required for Training")[0]) * GIB,
            "optimizer_state": float(figure("Per-GPU Optimizer Memory")[0]) * GIB * 8 / 12,
            "gradients": float(figure("Per-GPU Gradient Memory")[0]) * GIB,
        }

    return answer


def _eleutherai_flags(setup: Setup, a: Architecture) -> Iterator[object]:
    yield from ("--num-layers", a.num_layers + a.num_decoder_layers, "--num-attention-heads", a.num_heads)
    yield from ("--sequence-length", setup.sequence_length or a.sequence_length, "--hidden-size", a.hidden_size)
    yield from ("--vocab-size", a.vocab_size, "--ffn-expansion-factor", a.intermediate_size / a.hidden_size)
    yield from ("--batch-size-per-gpu", setup.micro_batch_size, "--zero-stage", 0)
    yield from ("--low-prec-bytes-per-val", 4 if setup.precision == "fp32" else 2)
    if setup.checkpointing:
        yield "--checkpoint-activations"
    if setup.precision == "fp32":
        yield "--disable-mixed-precision"


def judge(steps: list[dict], answer: Callable[[Setup], Answer]) -> list[dict[str, float]]:
    """For each step the errors of its figures in percent; empty if the calculator has no answer for its setup."""
    rows = []
    for step in steps:
        predicted = answer(setup_from(step["setup"]))
        true = true_figures(step)
        rows.append({f: error_percent(predicted[f], true[f]) for f in true if f in predicted} if predicted else {})
    return rows


def name_of(step: dict) -> str:
    """A short description of a step."""
    setup = dict(step["setup"])
    model = setup.pop("model", None) or f"{setup.pop('config')['model_type']} of a few layers"
    words = [str(setup[key]) for key in ("precision", "attention", "optimizer") if key in setup]
    words += [f"batch {setup['micro_batch_size']}"]
    every = setup.get("checkpointing")
    words += [f"every {every}th block" if every is not True else "checkpointing"] * bool(every)
    words += [f"{setup.get('shared_groups')} shared groups"] * bool(setup.get("shared_groups"))
    words += ["offload"] * bool(setup.get("offload_optimizer"))
    return ", ".join([model, *words])


def _table(title: str, rows: list[dict[str, float]]) -> None:
    answered = [row for row in rows if row]
    print(f"\n{title}: {len(answered)} of {len(rows)} steps answered; errors in %")
    print(f"  {'':<32}{'steps':>6}{'median':>10}{'95th pct':>10}{'worst':>10}")
    for figure, words in FIGURES.items():
        errors = [row[figure] for row in answered if figure in row]
        if errors:
            s = summary(errors)
            print(f"  {words:<32}{len(errors):>6}{s['median']:>10.3f}{s['p95']:>10.3f}{s['worst']:>10.3f}")


def _worst(steps: list[dict], rows: list[dict[str, float]], figure: str, number: int = 3) -> list[dict]:
    errors = [(row[figure], step) for row, step in zip(rows, steps, strict=True) if figure in row]
    errors.sort(key=lambda pair: -abs(pair[0]))
    return [{"step": name_of(step), "figure": figure, "error_percent": error} for error, step in errors[:number]]


def _recorded(path: Path, steps: list[dict]) -> dict[str, list]:
    """The other calculators' errors on the same steps, from a record."""
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    if [case["step"] for case in cases] != [name_of(step) for step in steps]:
        raise SystemExit(f"{path} is a record of other steps; run the other calculators again.")
    names = dict.fromkeys(name for case in cases for name in case["errors"] if name != "this calculator")
    return {name: [case["errors"].get(name, {}) for case in cases] for name in names}


def _load(path: Path, needed: str) -> ModuleType:
    """Another calculator's program as a module; it imports files beside it, so its folder must be on the path."""
    if not path.is_file():
        raise SystemExit(f"{path} is not a file; give the path of the calculator's program.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, needed):
        raise SystemExit(f"{path} does not define {needed}, so it is not the expected program.")
    return module


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calculator-2021", type=Path, metavar="FILE", help="mem_calc.py of the 2021 calculator")
    parser.add_argument("--eleutherai", type=Path, metavar="FILE", help="calc_transformer_mem.py of EleutherAI")
    parser.add_argument("--others-from", type=Path, metavar="FILE", help="take the others' errors from this record")
    parser.add_argument("--ours-only", action="store_true", help="omit the other calculators")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--per-case", action="store_true", help="print every step")
    flags = parser.parse_args(arguments)
    if not flags.ours_only and not (flags.calculator_2021 or flags.eleutherai or flags.others_from):
        parser.exit(
            2,
            "Say what to compare with: --calculator-2021 (git clone "
            "https://github.com/training-transformers-together/calc) and --eleutherai (git clone "
            "https://github.com/EleutherAI/cookbook), or --others-from FILE, or --ours-only.\n",
        )
    steps = json.loads(STEPS.read_text(encoding="utf-8"))
    judged = {"this calculator": judge(steps, ours)}
    if flags.others_from and not flags.ours_only:
        judged |= _recorded(flags.others_from, steps)
    if flags.calculator_2021 and not flags.ours_only:
        judged["2021 calculator"] = judge(steps, calculator_2021(_load(flags.calculator_2021, "calculate_memory")))
    if flags.eleutherai and not flags.ours_only:
        judged["EleutherAI cookbook"] = judge(steps, eleutherai(_load(flags.eleutherai, "calc_mem")))

    if flags.per_case:
        for index, step in enumerate(steps):
            errors = [f"{name} {rows[index]['peak']:+.2f} %" for name, rows in judged.items() if rows[index]]
            print(f"{name_of(step):<75} peak: {', '.join(errors)}")
    for name, rows in judged.items():
        _table(name, rows)
    held_out = [step.get("held_out", False) for step in steps]
    mine = judged["this calculator"]
    _table("this calculator, held out", [row for row, kept in zip(mine, held_out, strict=True) if kept])
    worst = {name: _worst(steps, rows, "peak") for name, rows in judged.items()}
    print("\nWorst peaks")
    for name, cases in worst.items():
        for case in cases:
            print(f"  {name:<22}{case['error_percent']:>+12.4f} %  {case['step']}")
    if flags.json:
        cases = [
            {
                "step": name_of(step),
                "held_out": kept,
                "errors": {name: rows[i] for name, rows in judged.items() if rows[i]},
            }
            for i, (step, kept) in enumerate(zip(steps, held_out, strict=True))
        ]
        versions = {"transformers": "5.23 (of the steps)", "torch": "2.13 (of the steps)"}
        record(flags.json, "memory_accuracy", versions, _results(judged), worst_cases=worst, cases=cases)


def _results(judged: dict[str, list[dict[str, float]]]) -> list[dict]:
    results = []
    mine = judged["this calculator"]
    for figure, words in FIGURES.items():
        errors = [row[figure] for row in mine if figure in row]
        own, peers = summary(errors), [name for name in judged if name != "this calculator"]
        for statistic in ("median", "p95", "worst"):
            runs = {"runs": len(errors), "min": min(errors), "max": max(errors)}
            entries = [result(f"{words}: {statistic} error", "%", own[statistic], **runs)] if not peers else []
            for peer in peers:
                theirs = [row[figure] for row in judged[peer] if figure in row]
                if theirs:
                    other = {"peer": summary(theirs)[statistic], "peer_name": peer, "peer_runs": len(theirs)}
                    entries.append(result(f"{words}: {statistic} error", "%", own[statistic], **other, **runs))
            results += entries
    return results


if __name__ == "__main__":
    main()
