"""Chooses the kernels that compute attention on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Kernels = Literal["products", "fused"]
"""Separate matrix products (`training.model.attention`), or fused kernels (`training.model.kernels.fused`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Kernels that compute attention on a device, and the reason."""

    kernels: Kernels
    reason: str


def choose_kernels(device: torch.device) -> KernelChoice:
    """Chooses fused kernels on a GPU: they take less time and memory.

    On a CPU they are not faster: a step of model S (benchmarks/model/model_cases.py) takes 1.04 times as long in
    float32, 1.13 times in bfloat16.
    """
    if device.type == "cuda":
        return KernelChoice(kernels="fused", reason="they take less time and memory on a GPU")
    return KernelChoice(kernels="products", reason="fused kernels are faster only on GPUs")
