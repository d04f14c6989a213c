"""Functions of a block between its matrix products: norm and token shift, rotation, gate, and their gradients.

All of them are limited by memory bandwidth.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import gelu

from training.model.layout import Layout, shift_tokens, shift_tokens_backward

NORM_EPS = 1e-5
"""Term added to the variance in layer norms (PyTorch's default, which dalle-pytorch uses)."""


def norm_and_shift(
    hidden: Tensor, weight: Tensor, bias: Tensor, shift: Layout | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the block's input to its first matrix, (B * T, D), and the norm's mean and 1 / deviation, for
    backward."""
    # Unlike `layer_norm`, it returns the mean and 1 / deviation too.
    normed, mean, inverse = torch.native_layer_norm(hidden, hidden.shape[-1:], weight, bias, NORM_EPS)
    normed = normed.to(dtype)
    if shift is not None:
        normed = shift_tokens(normed, shift)
    return normed.view(-1, hidden.shape[-1]), mean, inverse


def norm_and_shift_backward(
    grad: Tensor, hidden: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor, shift: Layout | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of the input and of the norm's weight and bias, from that of the output, (B * T, D)."""
    grad = grad.view_as(hidden)
    if shift is not None:
        grad = shift_tokens_backward(grad, shift)
    return torch.ops.aten.native_layer_norm_backward(
        grad.to(hidden.dtype), hidden, hidden.shape[-1:], mean, inverse, weight, bias, [True, True, True]
    )


def turned(channels: Tensor, turn: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiplies adjacent channels (..., H) by complex factors (..., H / 2); contiguous unless `out` is given."""
    if out is None:
        # Not `empty_like`, which would take over the strides of a transposed input; callers reshape the result.
        out = torch.empty(channels.shape, dtype=channels.dtype, device=channels.device)
    if channels.dtype in (torch.float32, torch.float64):
        torch.mul(_as_complex(channels), turn, out=_as_complex(out))
    else:  # no complex type has parts this narrow
        out.copy_(torch.view_as_real(_as_complex(channels.float()) * turn).flatten(-2))
    return out


def gated(values: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the gelu of the gates, and its product with the values."""
    gate = gelu(gates)
    return gate, values * gate


def gated_backward(grad: Tensor, values: Tensor, gates: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the gradients of values and gates, from that of the product, which is overwritten."""
    grad_gates = torch.ops.aten.gelu_backward(grad * values, gates)
    return grad.mul_(gate), grad_gates


def _as_complex(channels: Tensor) -> Tensor:
    return torch.view_as_complex(channels.unflatten(-1, (-1, 2)))
