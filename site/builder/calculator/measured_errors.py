"""How far off each number of the calculator's page is, as the benchmarks have recorded it, or why that is not known."""

from __future__ import annotations

from builder.benchmark_records import recorded

STEPS = {
    "gpu-weights": ("parameter count", "the number of parameters"),
    "gpu-gradients": ("gradients", "all gradients"),
    "gpu-optimizer_state": ("optimizer state on the GPU", "the state"),
    "gpu-activations": ("activations kept for backward", "the activations kept for backward"),
    "gpu-total": ("peak on the GPU", "the peak"),
    "host-total": ("host memory with offload", "all host memory"),
}
"""Place on the page -> the figure in the record of training steps, and what it is in words."""

UNMEASURED = {
    "overhead": "no GPU was measured yet; the driver's part differs from GPU to GPU.",
    "usable": "no GPU was measured here; the figure is what the source reports.",
    "host-delta_rule": "no measured run uses the delta rule.",
    "transfer": "that takes a GPU, and none was measured yet; a bus reaches less than its published rate.",
}


def measured_errors() -> dict[str, str]:
    """For each number of the page that opens, a sentence by the name of its place."""
    said = {place: f"Measured error: {_of_steps(figure, words)}" for place, (figure, words) in STEPS.items()}
    said["gpu-temporary"] = f"Not measured by itself; with all other parts, {_of_steps(*STEPS['gpu-total'])}"
    grown = _of_processes()
    said["host-total"] += f" {grown}"
    said["host-optimizer_state"] = f"Not measured by itself, but with all host memory. {grown}"
    for part in ("parameters", "gradients"):
        said[f"host-{part}"] = said["host-optimizer_state"]
    return said | {place: f"Not measured: {reason}" for place, reason in UNMEASURED.items()}


def _of_steps(figure: str, words: str) -> str:
    """Of the training steps of real model code."""
    worst = next(entry for entry in recorded("memory_accuracy") if entry["metric"] == f"{figure}: worst error")
    off = "none" if worst["ours"] == 0 else f"at most {worst['ours']:.2g} %"
    return f"{off} in {words}, at {worst['runs']} training steps of real model code."


def _of_processes() -> str:
    """Of processes that train with hivemind."""
    errors = [abs(entry["error_percent"]) for entry in recorded("memory_on_host")]
    return f"Beside the growth of {len(errors)} processes that train with hivemind: at most {max(errors):.2g} % off."
