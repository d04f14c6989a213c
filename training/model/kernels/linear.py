"""Detection of modules that multiply their input by a weight."""

from __future__ import annotations

from torch import nn


def multiplies(module: nn.Module) -> bool:
    """Returns True if a module is an `nn.Linear`, or the `Conv1D` in which transformers' GPT-2 keeps a transposed
    weight."""
    kind = type(module)
    # By name, because importing transformers takes seconds; a program that has such a module has imported it.
    is_conv1d = kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"
    return isinstance(module, nn.Linear) or is_conv1d
