"""The errors of memory calculators for the page Accuracy, as `benchmarks/memory_accuracy.py` recorded them."""

from __future__ import annotations

import html
import json
from pathlib import Path
from statistics import median

from builder.benchmark_records import record, recorded
from builder.folders import RESULTS
from builder.markup.tables import table
from calculator.architectures import PRESETS
from calculator.estimate import estimate
from calculator.inference import cache_bytes
from calculator.optimizers import OPTIMIZERS
from calculator.setups import setup_from

LATER = RESULTS.parent / "later_steps.json"
"""Training steps that were drawn after the last change of a rule (tests/calculator/test_reference_steps.py)."""
DECODERS = RESULTS.parent / "decoder_steps.json"
"""The same for today's decoders."""
PICTURES = RESULTS.parent / "picture_steps.json"
"""The same for models of pictures."""
DIFFUSION = RESULTS.parent / "diffusion_steps.json"
"""The same for diffusion transformers."""
ADAPTERS = RESULTS.parent / "lora_steps.json"
"""Those of decoders with LoRA's adapters."""
DIFFUSION_ADAPTERS = RESULTS.parent / "diffusion_lora_steps.json"
"""Those of diffusion transformers with LoRA's adapters."""
LOW_RANK = RESULTS.parent / "low_rank_steps.json"
"""The same with GaLore and APOLLO (benchmarks/low_rank_steps.py)."""
OFFLOADED = RESULTS.parent / "offloaded_steps.json"
"""Steps of which the host keeps what backward needs."""
MUON = RESULTS.parent / "muon_steps.json"
"""The same with Muon."""
LIGER = RESULTS.parent / "liger_steps.json"
"""Those whose loss is computed in pieces (benchmarks/liger_steps.py)."""
PACKED = RESULTS.parent / "packed_steps.json"
"""Those on packs of samples (benchmarks/decoder_steps.py)."""
EIGHT_BIT = RESULTS.parent / "eight_bit_steps.json"
"""Those with products in FP8 (benchmarks/eight_bit_steps.py)."""
SHARDED = RESULTS.parent / "sharded_steps.json"
"""Steps on one of several GPUs (benchmarks/sharded_steps.py)."""
DIVIDED_LIGER = RESULTS.parent / "divided_liger_steps.json"
"""The same with FSDP2 and Liger's loss in pieces (benchmarks/liger_steps.py)."""
TOGETHER = RESULTS.parent / "tensor_steps.json"
"""The same with tensor parallelism."""
SHARDINGS = {
    "none": "DDP",
    "zero-1": "DDP, ZeroRedundancyOptimizer (ZeRO-1)",
    "zero-2": "FSDP2 without resharding (ZeRO-2)",
    "zero-3": "FSDP2 (ZeRO-3)",
    "tensor": "tensor parallelism",
    "tensor-sequence": "tensor and sequence parallelism",
}
ANOTHER_8B_GB = 21
"""What another calculator gave for a QLoRA of Llama 3.1 8B "instead of 9 GB" (unsloth pull request 10815)."""
CACHES = (
    ("gemma-3-27b", 131_072, 81.38),
    ("deepseek-v3", 163_840, 2.08),
    ("qwen3-0.6b", 40_960, 2.19),
)
"""Model, tokens, and what another calculator gave in GiB before it was corrected (unsloth pull request 4757)."""

STATISTICS = ("median", "p95", "worst")


def accuracy_table() -> str:
    """HTML table: the errors of each calculator, figure by figure: median, 95th percentile, worst."""
    errors: dict[str, dict[str, list[str]]] = {}
    for result in recorded("memory_accuracy"):
        figure, _, statistic = result["metric"].partition(": ")
        if result["unit"] != "%" or statistic.split()[0] not in STATISTICS:
            continue
        row = errors.setdefault(figure, {})
        row.setdefault("this calculator", [])
        row.setdefault(result["peer_name"], []).append(_percent(result["peer"]))
        # The record repeats our error for each other calculator that has this figure; it is shown once.
        if len(row["this calculator"]) < len(row[result["peer_name"]]):
            row["this calculator"].append(_percent(result["ours"]))
    names = ("this calculator", *dict.fromkeys(name for row in errors.values() for name in list(row)[1:]))
    rows = [
        (html.escape(figure), *(" / ".join(row[name]) if name in row else "–" for name in names))
        for figure, row in errors.items()
    ]
    return table("Errors of memory calculators", ("Error, %", *names), rows, kind="numbers errors")


def worst_cases() -> str:
    """Markdown list: for each calculator the steps at which the error of its peak is largest."""
    lines = []
    for name, cases in record("memory_accuracy")["worst_cases"].items():
        named = [f"{case['step']}: {_percent(case['error_percent'])} %" for case in cases if case["error_percent"]]
        lines.append(f"- **{name}**: " + ("; ".join(named) if named else "no error at any step") + ".")
    return "\n".join(lines)


def family_table() -> str:
    """HTML table: for each family, how many steps were drawn last, and the largest errors there."""
    steps = [step for path in (LATER, DECODERS, PICTURES, DIFFUSION) for step in _steps(path)]
    configs = [step["setup"]["config"] for step in steps]
    names = [config.get("model_type") or config["_class_name"] for config in configs]
    return _errors_table("Errors of each family on steps drawn last", "model_type", names, steps)


def adapter_table() -> str:
    """HTML table: the same with LoRA, by the precision of training and the bits of the frozen weights."""
    steps = [*_steps(ADAPTERS), *_steps(DIFFUSION_ADAPTERS)]
    names = [f"{step['setup']['precision']}, frozen in {step['setup']['base_bits']} bits" for step in steps]
    return _errors_table("Errors with LoRA on steps drawn last", "precision", *_by_name(names, steps))


def low_rank_table() -> str:
    """HTML table: the same with GaLore, APOLLO and Muon."""
    steps = [*_steps(LOW_RANK), *_steps(MUON)]
    names = [OPTIMIZERS[step["setup"]["optimizer"]].title for step in steps]
    title = "Errors with GaLore, APOLLO and Muon on steps drawn last"
    return _errors_table(title, "optimizer", *_by_name(names, steps))


def sharded_table() -> str:
    """HTML table: for each way to divide a model among GPUs, how many steps were traced, and the errors of the peak."""
    errors: dict[str, list[float]] = {name: [] for name in SHARDINGS}
    for step in _sharded_steps():
        ours = estimate(setup_from(step["setup"])).gpu.total
        errors[step["setup"].get("sharding", "none")].append(abs(ours / step["peak"] - 1) * 100)
    rows = [
        (html.escape(SHARDINGS[name]), str(len(found)), _percent(median(found)), _percent(max(found)))
        for name, found in errors.items()
        if found
    ]
    heads = ("on each GPU", "steps", "peak: median error, %", "peak: largest error, %")
    return table("Errors on one of several GPUs", heads, rows, kind="numbers")


def _sharded_steps() -> list[dict]:
    return [*_steps(SHARDED), *_steps(DIVIDED_LIGER), *_steps(TOGETHER)]


def _steps(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))


def _by_name(names: list[str], steps: list[dict]) -> tuple[list[str], list[dict]]:
    pairs = sorted(zip(names, steps, strict=True), key=lambda pair: pair[0])
    return [name for name, _ in pairs], [step for _, step in pairs]


def _errors_table(title: str, head: str, names: list[str], steps: list[dict]) -> str:
    """How many steps have a name, and the largest errors there."""
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


def qlora_8b() -> dict[str, str]:
    """GiB of a QLoRA of Llama 3.1 8B on one sequence of 2048 tokens, and what another calculator gave."""
    setup = {"model": "llama-3.1-8b", "lora_rank": 16, "base_bits": 4, "optimizer": "adamw8bit", "checkpointing": True}
    total = estimate(setup_from({**setup, "sequence_length": 2048})).gpu.total
    return {"ours": f"{total / 2**30:.1f}", "other": str(ANOTHER_8B_GB)}


def galore_8b() -> dict[str, str]:
    """GiB of optimizer state of Llama 3.1 8B: GaLore's with weights in 32 and in 16 bits, and that of 8-bit AdamW."""
    named = {"amp": ("galore", "amp-bf16"), "pure": ("galore", "bf16"), "eight_bit": ("adamw8bit", "amp-bf16")}
    setups = {
        name: setup_from({"model": "llama-3.1-8b", "optimizer": optimizer, "precision": precision})
        for name, (optimizer, precision) in named.items()
    }
    return {name: f"{estimate(setup).optimizer_state_bytes / 2**30:.1f}" for name, setup in setups.items()}


def cache_table() -> str:
    """HTML table: caches of keys and values that another calculator got wrong, and what this one gives."""
    rows = []
    for name, length, other in CACHES:
        ours = cache_bytes(PRESETS[name], batch=1, length=length) / 2**30
        rows.append(
            (html.escape(name), f"{length:,}", f"{ours:.2f}", f"{other:.2f} ({100 * (other / ours - 1):+.0f} %)")
        )
    heads = ("model", "tokens", "this calculator, GiB", "unsloth before #4757, GiB")
    return table("Caches of keys and values", heads, rows, kind="numbers")


def accuracy_counts() -> dict[str, int]:
    """How many steps there are, and how many of them were drawn at random, drawn later, or fit EleutherAI's options."""
    cases = record("memory_accuracy")["cases"]
    return {
        "steps": len(cases),
        "held_out": sum(case["held_out"] for case in cases),
        "later": len(_steps(LATER)),
        "decoders": len(_steps(DECODERS)),
        "pictures": len(_steps(PICTURES)),
        "diffusion": len(_steps(DIFFUSION)),
        "adapters": len(_steps(ADAPTERS)),
        "diffusion_adapters": len(_steps(DIFFUSION_ADAPTERS)),
        "low_rank": len(_steps(LOW_RANK)),
        "muon": len(_steps(MUON)),
        "offloaded": len(_steps(OFFLOADED)),
        "liger": len(_steps(LIGER)),
        "packed": len(_steps(PACKED)),
        "eight_bit": len(_steps(EIGHT_BIT)),
        "sharded": len(_sharded_steps()),
        "divided_liger": len(_steps(DIVIDED_LIGER)),
        "eleutherai": sum("EleutherAI cookbook" in case["errors"] for case in cases),
    }


def _percent(value: float) -> str:
    """A number with two significant digits."""
    return "0" if value == 0 else f"{value:.0f}" if value >= 10 else f"{value:.2g}"
