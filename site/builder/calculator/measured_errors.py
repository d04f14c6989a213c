"""Errors of the numbers on the calculator's page, as measured by the benchmarks,
or reasons why they were not measured."""

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
"""Name of a number on the page -> name of that figure in the record of training steps, and words for it."""

UNMEASURED = {
    "overhead": "we have not measured a GPU yet; the driver's part differs from GPU to GPU.",
    "usable": "we have not measured a GPU; the figure is the source's.",
    "host-activations": "the reference steps keep them on the GPU; those that do not are counted apart (Accuracy).",
    "host-delta_rule": "none of the measured runs uses the delta rule.",
    "transfer": "this needs a GPU, and we have not measured one yet; a bus is slower than its published rate.",
}


def measured_errors() -> dict[str, str]:
    """Name of a number on the page -> the sentence on its error, which the page shows with its explanation."""
    sentences = {place: f"Measured error: {_error_of_steps(figure, words)}" for place, (figure, words) in STEPS.items()}
    sentences["gpu-temporary"] = f"Measured only as a part of the peak: {_error_of_steps(*STEPS['gpu-total'])}"
    of_processes = _error_of_processes()
    sentences["host-total"] += f" {of_processes}"
    sentences["host-optimizer_state"] = f"Measured only as a part of all host memory. {of_processes}"
    for part in ("parameters", "gradients"):
        sentences[f"host-{part}"] = sentences["host-optimizer_state"]
    return sentences | {place: f"Not measured: {reason}" for place, reason in UNMEASURED.items()}


def _error_of_steps(figure: str, words: str) -> str:
    """The worst error at the recorded training steps of real model code."""
    worst = next(entry for entry in recorded("memory_accuracy") if entry["metric"] == f"{figure}: worst error")
    error = "none" if worst["ours"] == 0 else f"at most {worst['ours']:.2g} %"
    return f"{error} in {words}, for {worst['runs']} training steps of real model code."


def _error_of_processes() -> str:
    """The worst error at the recorded processes that train with hivemind."""
    errors = [abs(entry["error_percent"]) for entry in recorded("memory_on_host")]
    measured = f"the memory that {len(errors)} processes took to train with hivemind"
    return f"Compared with {measured}: at most {max(errors):.2g} % off."
