"""Choice of the kernels that compute a model on a device, by trials on synthetic samples before the first step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from training.model.attention import AttentionPattern
from training.model.config import AttentionType
from training.model.kernels.fused import FusedPattern
from training.model.layout import Layout

Kernels = Literal["products", "fused"]
"""Kernels of attention: separate matrix products (`training.model.attention`), or fused ones
(`training.model.kernels.fused`)."""

FUSED_DEVICES = ("cuda",)
"""Types of devices on which fused kernels are tried. On a CPU they are not faster: a step of model S
(benchmarks/model/model_cases.py) takes 1.04 times as long in float32, 1.13 times in bfloat16."""
SAMPLES = 4
"""Number of samples of a trial: with fewer, the launches of kernels would dominate a GPU's time."""
AS_EXACT = 3.0
"""Largest accepted error of fused kernels, relative to that of separate products of the same type."""
LEAST_ERROR = 1e-6
"""Relative error below which no kernel counts as inexact."""
AS_FAST = 1.1
"""Largest accepted time of fused kernels, relative to separate products; it is above 1 because they take less
memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Kernels that compute attention on a device, and the reason."""

    kernels: Kernels
    reason: str


def choose_kernels(
    reference: Tensor,
    kinds: Iterable[AttentionType],
    layout: Layout,
    *,
    num_heads: int,
    head_dim: int,
) -> KernelChoice:
    """Chooses fused kernels on a GPU if they are as exact and not slower; takes well below a second there.

    Args:
        reference: A tensor on the device and of the type in which attention is computed.
        kinds: Kinds of masks in use.
        layout: Order of the tokens.
        num_heads: N, number of heads.
        head_dim: H, width of one head.
    """
    if reference.device.type not in FUSED_DEVICES:
        return KernelChoice(kernels="products", reason="fused kernels are faster only on GPUs")
    try:
        trials = [compare(reference, kind, layout, num_heads, head_dim) for kind in sorted(set(kinds))]
    except RuntimeError as error:  # the card or type has no such kernel, or no memory is left
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        return KernelChoice(kernels="products", reason=f"the fused kernels fail here: {first_line}")
    return judge(trials)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Result of a trial of one kind of attention, forward and backward, by both kernels: errors relative to float64,
    and seconds."""

    kind: AttentionType
    fused_error: float
    products_error: float
    fused_seconds: float
    products_seconds: float


def judge(trials: Sequence[Trial]) -> KernelChoice:
    """Chooses the kernels by a number of trials."""
    for trial in trials:
        if trial.fused_error > max(AS_EXACT * trial.products_error, LEAST_ERROR):
            errors = f"off by {trial.fused_error:.2g} where single products are off by {trial.products_error:.2g}"
            return KernelChoice(kernels="products", reason=f"fused kernels are {errors}, in {trial.kind} layers")
    fused, products = (sum(getattr(trial, name) for trial in trials) for name in ("fused_seconds", "products_seconds"))
    times = f"{1e3 * fused:.2g} ms against {1e3 * products:.2g} for a layer of each kind"
    if fused > AS_FAST * products:
        return KernelChoice(kernels="products", reason=f"fused kernels take {times}")
    return KernelChoice(kernels="fused", reason=f"as exact as single products, and {times}")


def compare(reference: Tensor, kind: AttentionType, layout: Layout, num_heads: int, head_dim: int) -> Trial:
    """Runs both kernels on synthetic samples that end in padding."""
    generator, folded = torch.Generator().manual_seed(0), SAMPLES * num_heads
    shapes = [(3, folded, layout.text_len, head_dim), (3, folded, layout.image_len, head_dim)]
    # Drawn on the CPU, so that each device is judged with equal numbers.
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64).to(reference.device) for shape in shapes]
    grads = [torch.randn(shape[1:], generator=generator, dtype=torch.float64).to(reference.device) for shape in shapes]
    for part in exact:
        part[0] *= head_dim**-0.5
    padding = torch.zeros(folded, 1, layout.text_len, dtype=torch.float64, device=reference.device)
    # Half of the text is padding, so that attention with a mask is tried too.
    padding[:, :, layout.text_len // 2 :] = float("-inf")

    def run(pattern: AttentionPattern, dtype: torch.dtype) -> tuple[Tensor, float]:
        text, image, grad_text, grad_image, bias = (part.to(dtype) for part in (*exact, *grads, padding))
        times = []
        for _ in range(3):  # the first run loads the kernels
            began = _now(reference.device)
            text_out, image_out, *kept = pattern.attend(text, image, bias)
            back = pattern.backward(text, image, tuple(kept), grad_text, grad_image)
            times.append(_now(reference.device) - began)
        return torch.cat([part.double().flatten() for part in (text_out, image_out, *back)]), min(times[1:])

    # Sampling may choose first, in inference mode, whose tensors the fused kernels' backward refuses.
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(reference.device.type, enabled=False):
        true, _ = run(AttentionPattern(kind, layout, reference.double()), torch.float64)
        products, products_seconds = run(AttentionPattern(kind, layout, reference), reference.dtype)
        fused, fused_seconds = run(FusedPattern(kind, layout, reference, num_heads), reference.dtype)
    return Trial(
        kind=kind,
        fused_error=float((fused - true).norm() / true.norm()),
        products_error=float((products - true).norm() / true.norm()),
        fused_seconds=fused_seconds,
        products_seconds=products_seconds,
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
