"""Where each number comes from: its formula with the setup's own figures, and the source of the rule."""

from __future__ import annotations

from calculator.estimate import Estimate, Setup
from calculator.optimizers import ADAMW, OPTIMIZERS

from .words import show_bytes, show_count

ALLOCATOR = "Source of the rounding: PyTorch's CUDA allocator, c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize."
KEPT = "Source: what each operation saves for its backward in PyTorch, tools/autograd/derivatives.yaml."
HIVEMIND = "Source: hivemind, optim/state_averager.py: offload_optimizer keeps 32-bit copies on the host."


def explanations(setup: Setup, result: Estimate) -> dict[str, str]:
    """A text for every part of the two tables, by the name of its place."""
    optimizer = ADAMW[setup.optimizer_impl] if setup.optimizer == "adamw" else OPTIMIZERS[setup.optimizer]
    size = 2 if setup.precision in ("bf16", "fp16") else 4
    count = show_count(result.parameters)
    if setup.offload_optimizer:
        state = "Nothing stays on the GPU: the optimizer works on the host."
    else:
        state = f"{optimizer.title}: {_per_parameter(result.optimizer_state_bytes, result.parameters)}."
    host_state = _per_parameter(result.host.optimizer_state, result.parameters)
    copies = f"{count} parameters × 4 bytes" if setup.offload_optimizer else "Nothing: the optimizer is on the GPU"
    return {
        "gpu-weights": (
            f"{count} parameters × {size} bytes, every tensor rounded up to 512 bytes, and the model's own tables. "
            f"{ALLOCATOR}"
        ),
        "gpu-gradients": (
            f"As many values as weights: {show_bytes(result.gradient_bytes)} in all. At the peak "
            f"{show_bytes(result.gpu.gradients)} of them are there. Source: PyTorch's autograd makes a gradient when "
            "backward reaches its weight and keeps it for the optimizer."
        ),
        "gpu-optimizer_state": f"{state} Source: {optimizer.source}.",
        "gpu-activations": (
            f"At the end of forward {show_bytes(result.saved_activations)} are kept for backward, and "
            f"{show_bytes(result.autocast_weight_copies)} of 16-bit copies of weights; at the peak "
            f"{show_bytes(result.gpu.activations)} of them are there, inputs included. {KEPT}"
        ),
        "gpu-temporary": (
            f"What the operation at the peak works with, and lets go when it is done. {result.peak.instant} {KEPT}"
        ),
        "host-parameters": f"{copies}. {HIVEMIND}",
        "host-gradients": f"{copies}. {HIVEMIND}",
        "host-optimizer_state": f"{optimizer.title}: {host_state}. Source: {optimizer.source}.",
        "host-delta_rule": (
            f"{f'One more copy: {copies}' if setup.delta_rule else 'Nothing: the delta rule is off'}. "
            "Source: hivemind, optim/state_averager.py, delta_rule_averaging."
        ),
    }


def _per_parameter(size: int, parameters: int) -> str:
    return f"{show_bytes(size)}, {size / parameters:.2f} bytes a parameter"
