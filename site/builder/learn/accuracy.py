"""The errors of memory calculators for the page Accuracy, as `benchmarks/memory/memory_accuracy.py` recorded them."""

from __future__ import annotations

import html
import json
from functools import cache, partial
from statistics import median
from unittest.mock import patch

from builder.benchmark_records import record, recorded
from builder.folders import RESULTS
from builder.markup.tables import stacked, table
from calculator.choose.inference import cache_bytes
from calculator.models.architecture import Architecture
from calculator.models.architectures import PRESETS, from_config
from calculator.models.decoders import USUAL_LENGTH
from calculator.parts.optimizers import OPTIMIZERS
from calculator.step.estimate import estimate
from calculator.step.gpus.deepspeed import Zero, play_with_deepspeed
from calculator.step.resolve import lora_of, resolve
from calculator.step.setups import setup_from
from calculator.units import show_bytes

STEPS = RESULTS.parent / "memory" / "steps"
"""Recorded training steps: files of {kind: steps}. Each kind was drawn after its rules had been written."""
FAMILIES = (("reference", "later"), ("decoders", "decoders"), ("pictures", "vit"), ("pictures", "diffusion"))
"""File and kind of the steps in the table of families, beside those of `families`, a kind for each model type."""
SHARDINGS = {
    "none": "DDP",
    "zero-1": "DDP, ZeroRedundancyOptimizer (ZeRO-1)",
    "zero-2": "FSDP2 without resharding (ZeRO-2)",
    "zero-3": "FSDP2 (ZeRO-3)",
    "tensor": "tensor parallelism",
    "tensor-sequence": "tensor and sequence parallelism",
}
ANOTHER_8B_GB = 21
"""GB that another calculator gave for a QLoRA of Llama 3.1 8B "instead of 9 GB" (unsloth pull request 10815)."""
QWEN3_5_27B = {
    "model_type": "qwen3_5_text", "vocab_size": 248_320, "hidden_size": 5120, "intermediate_size": 17_408,
    "num_hidden_layers": 64, "num_attention_heads": 24, "linear_num_value_heads": 48,
    "max_position_embeddings": 262_144,
}  # fmt: skip
"""The sizes of the text model of Qwen3.5-27B (its config.json) that differ from Qwen3.5's defaults."""
CACHES = (
    ("gemma-3-27b", PRESETS["gemma-3-27b"], 131_072, 81.38),
    ("qwen3.5-27b", from_config(QWEN3_5_27B), 262_144, 53.25),
    ("deepseek-v3", PRESETS["deepseek-v3"], 163_840, 2.08),
    ("qwen3-0.6b", PRESETS["qwen3-0.6b"], 40_960, 2.19),
)
"""Model, tokens, and the GiB that another calculator gave before it was corrected (unsloth pull request 4757)."""


def accuracy_table() -> str:
    """Makes an HTML table of the calculator's errors, figure by figure: median, 95th percentile, worst."""
    errors: dict[str, list[str]] = {}
    for result in recorded("memory_accuracy"):
        figure, _, _statistic = result["metric"].partition(": ")
        errors.setdefault(figure, []).append(_percent(result["ours"]))
    rows = [(html.escape(figure), *found) for figure, found in errors.items()]
    return stacked("Errors of the calculator", ("Error", "median, %", "95th percentile, %", "worst, %"), rows)


def family_table() -> str:
    """HTML table: for each family the number of the steps drawn last, and their largest errors."""
    steps = [step for file, kind in FAMILIES for step in _steps(file, kind)] + _steps("families")
    configs = [step["setup"]["config"] for step in steps]
    names = [config.get("model_type") or config["_class_name"] for config in configs]
    return _errors_table("Errors of each family on steps drawn last", "model_type", names, steps)


def _frozen_bits(written: dict) -> int:
    setup = setup_from(written)
    return lora_of(setup, resolve(setup)).base_bits


def adapter_table() -> str:
    """HTML table: steps and largest errors with LoRA, by the precision of training and the bits of the frozen
    weights."""
    steps = _steps("adapters")
    names = [f"{step['setup']['precision']}, frozen in {_frozen_bits(step['setup'])} bits" for step in steps]
    return _errors_table("Errors with LoRA on steps drawn last", "precision", *_by_name(names, steps))


def low_rank_table() -> str:
    """HTML table: steps and largest errors with GaLore, APOLLO and Muon."""
    steps = _steps("optimizers", "low-rank", "muon")
    names = [OPTIMIZERS[step["setup"]["optimizer"]].title for step in steps]
    title = "Errors with GaLore, APOLLO and Muon on steps drawn last"
    return _errors_table(title, "optimizer", *_by_name(names, steps))


def sharded_table() -> str:
    """HTML table: for each way to divide a model among GPUs, how many steps were traced, and the errors of the peak."""
    errors: dict[str, list[float]] = {name: [] for name in SHARDINGS}
    for step in _steps("several_gpus"):
        errors[step["setup"].get("sharding", "none")].append(_error_of_peak(step))
    rows = [
        (html.escape(SHARDINGS[name]), str(len(found)), _percent(median(found)), _percent(max(found)))
        for name, found in errors.items()
        if found
    ]
    heads = ("on each GPU", "steps", "peak: median error, %", "peak: largest error, %")
    return table("Errors on one of several GPUs", heads, rows, kind="numbers")


@cache
def _recorded(file: str) -> dict[str, list[dict]]:
    return json.loads((STEPS / f"{file}.json").read_text(encoding="utf-8"))


def _steps(file: str, *kinds: str) -> list[dict]:
    """Takes the steps of some kinds, or of all, from a record."""
    return [step for kind in kinds or _recorded(file) for step in _recorded(file)[kind]]


def _error_of_peak(step: dict) -> float:
    """Error of a peak, in percent."""
    return abs(estimate(setup_from(step["setup"])).gpu.total / step["peak"] - 1) * 100


def _by_name(names: list[str], steps: list[dict]) -> tuple[list[str], list[dict]]:
    pairs = sorted(zip(names, steps, strict=True), key=lambda pair: pair[0])
    return [name for name, _ in pairs], [step for _, step in pairs]


def _errors_table(title: str, head: str, names: list[str], steps: list[dict]) -> str:
    """HTML table: for each name its number of steps, and the largest errors of these steps."""
    errors: dict[str, list[tuple[float, float]]] = {}
    for name, step in zip(names, steps, strict=True):
        result = estimate(setup_from(step["setup"]))
        pairs = (result.saved_activations, step["saved_activations"]), (result.gpu.total, step["peak"])
        differences = tuple(abs(ours / true - 1) * 100 if true else 0.0 for ours, true in pairs)
        errors.setdefault(name, []).append(differences)
    rows = [
        (html.escape(name), str(len(found)), *(_percent(max(column)) for column in zip(*found, strict=True)))
        for name, found in errors.items()
    ]
    heads = (head, "steps", "kept activations: largest error, %", "peak: largest error, %")
    return table(title, heads, rows, kind="numbers")


def galore_8b() -> dict[str, str]:
    """GiB of optimizer state of Llama 3.1 8B: GaLore's with weights in 32 and in 16 bits, and that of 8-bit AdamW."""
    named = {"amp": ("galore", "amp-bf16"), "pure": ("galore", "bf16"), "eight_bit": ("adamw8bit", "amp-bf16")}
    setups = {
        name: setup_from({"model": "llama-3.1-8b", "optimizer": optimizer, "precision": precision})
        for name, (optimizer, precision) in named.items()
    }
    return {name: f"{estimate(setup).optimizer_state_bytes / 2**30:.1f}" for name, setup in setups.items()}


def reports_table() -> str:
    """HTML table: memory that public bug reports state for other tools, and this calculator's results."""
    qlora = {"lora_rank": 16, "base_bits": 4, "optimizer": "adamw8bit", "checkpointing": True, "sequence_length": 2048}
    total = estimate(setup_from({"model": "llama-3.1-8b", **qlora})).gpu.total
    rows = [("unsloth #10815", "QLoRA of llama-3.1-8b", f"{ANOTHER_8B_GB} GB", show_bytes(total))]
    for name, architecture, length, other in CACHES:
        ours = cache_bytes(architecture, batch=1, length=length)
        wrong = f"{other:.2f} GiB ({100 * (other * 2**30 / ours - 1):+.0f}\u00a0%)"
        rows.append(("unsloth #4757", f"cache of {name}, {length:,} tokens", wrong, show_bytes(ours)))
    for chosen in (1, 2):
        setup = setup_from({"config": {"model_type": "mixtral", "num_experts_per_tok": chosen}, "precision": "bf16"})
        other = show_bytes(megatron_activations(PRESETS["mixtral-8x7b"], USUAL_LENGTH))
        words = f"activations of mixtral-8x7b, {USUAL_LENGTH:,} tokens, with {chosen} of its experts for each"
        rows.append(("Megatron-LM #1784", words, other, show_bytes(estimate(setup).saved_activations)))
    logits = large_logits()
    words = f"logits and loss at the peak of LoRA, qwen3-8b, {logits['tokens']:,} tokens"
    rows.append(("NeMo Automodel #2603", words, "not counted", f"{logits['saved']} GiB"))
    return stacked("Public bug reports", ("report", "case", "that tool", "this calculator"), rows)


def megatron_activations(a: Architecture, tokens: int) -> int:
    """Bytes of activations on one GPU by Megatron-LM's formula, which reads the width of a dense layer, not of experts.

    Source: megatron/training/theoretical_memory_usage.py, compute_activation_memory.
    """
    layers = a.num_layers * (18 * a.hidden_size + 4 * a.intermediate_size)
    return tokens * (layers + 8 + a.hidden_size + 4 * (a.hidden_size + a.vocab_size))


def large_logits() -> dict[str, str | int]:
    """GiB at the peak of LoRA of Qwen3 8B, with all logits at once and in pieces, and the difference."""
    setup = {"model": "qwen3-8b", "lora_rank": 16, "precision": "bf16", "checkpointing": True}
    tokens = 2 * USUAL_LENGTH
    whole, pieces = (
        estimate(setup_from({**setup, "sequence_length": tokens, "loss": loss})).gpu.total
        for loss in ("whole", "liger")
    )
    named = {"whole": whole, "pieces": pieces, "saved": whole - pieces}
    return {"tokens": tokens, **{name: f"{size / 2**30:.1f}" for name, size in named.items()}}


def linear_states() -> str:
    """MiB of the state that layers of linear attention in Qwen3.5-27B keep for a sequence."""
    return f"{cache_bytes(from_config(QWEN3_5_27B), batch=1, length=0) / 2**20:.0f}"


def accuracy_counts() -> dict[str, int | str]:
    """Counts the steps: of the main table, drawn at random, of each kind, and drawn anew.

    For the steps that were drawn anew, also the number of exact estimates and the worst error.
    """
    cases = record("memory_accuracy")["cases"]
    kinds = (
        "reference", "decoders", "adapters", "pictures", "optimizers", "in_backward", "liger", "several_gpus",
        "deepspeed",
    )  # fmt: skip
    found = {kind: len(steps) for file in kinds for kind, steps in _recorded(file).items()}
    return {
        **{kind.replace("-", "_"): count for kind, count in found.items()},
        "steps": len(cases),
        "held_out": sum(case["held_out"] for case in cases),
        "families": len(_steps("families")),
        "of_each_family": len(_steps("families", "olmo2")),
        "sharded": len(_steps("several_gpus")),
        "divided_adapters": found["several-gpus-lora"] + found["several-gpus-encoders-lora"],
        **_deepspeed(),
        **_redrawn(),
    }


@cache
def _deepspeed() -> dict[str, str]:
    """The largest error of a peak in stages 1 and 2 of DeepSpeed's ZeRO, and in stage 3."""
    errors: dict[str, list[float]] = {}
    for step in _steps("deepspeed"):
        with patch("calculator.step.play.Zero", partial(Zero, **step["limits"])):
            play_with_deepspeed.cache_clear()
            third = "third" if step["setup"]["sharding"] == "deepspeed-3" else "first"
            errors.setdefault(third, []).append(_error_of_peak(step))
    play_with_deepspeed.cache_clear()
    return {f"deepspeed_{stage}": f"{_percent(max(found))}\N{NO-BREAK SPACE}%" for stage, found in errors.items()}


@cache
def _redrawn() -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name in ("redrawn", "redrawn_several_gpus"):
        off = [_error_of_peak(step) for step in _steps(name)]
        found |= {
            name: len(off),
            f"{name}_equal": off.count(0),
            f"{name}_worst": f"{_percent(max(off))}\N{NO-BREAK SPACE}%",
        }
    return found


def _percent(value: float) -> str:
    """A number with two significant digits."""
    return "0" if value == 0 else f"{value:.0f}" if value >= 10 else f"{value:.2g}"
