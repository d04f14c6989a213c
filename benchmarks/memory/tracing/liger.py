"""Liger's fused linear cross-entropy without its kernels: their launches do nothing, and allocate nothing either."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

import torch


class _Nothing:
    """A kernel of Triton whose launch does nothing."""

    def __getitem__(self, grid: tuple):
        return lambda *args, **kwargs: None


class _Torch:
    """PyTorch, except for what it cannot do with fake tensors in Liger's backward."""

    def __getattr__(self, name: str):
        return getattr(torch, name)

    def tensor(self, value: float, device: torch.device) -> torch.Tensor:
        """A number on a device."""
        return torch.full((), value, device=device)

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Returns True if the gradient of the loss is 1, as `loss.backward()` makes it."""
        return True


@contextmanager
def without_kernels() -> Iterator[None]:
    """Replaces launches of Liger's kernels by nothing, and what it reads from tensors, which have no values here."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    with ExitStack() as changed:
        for name in ("liger_cross_entropy_kernel", "element_mul_kernel"):
            changed.enter_context(patch.object(fused, name, _Nothing()))
        changed.enter_context(patch.object(fused, "torch", _Torch()))
        changed.enter_context(patch.object(torch.Tensor, "item", lambda tensor: 1))  # the number of labels
        yield


@cache
def take_cpu_for_gpu() -> None:
    """Makes Liger do on a CPU, whose tensors those of `several_gpus` are, what it does on a GPU."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    path = Path(fused.__file__)
    asked = re.sub(r'(\.device\.type [!=]=) "cuda"', r'\1 "cpu"', source := path.read_text(encoding="utf-8"))
    if asked == source:
        raise SystemExit(f"{path.name} no longer asks where its tensors are: see what it asks, and mend this program.")
    exec(compile(asked, path, "exec"), vars(fused))
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
