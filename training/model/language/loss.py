"""Loss of a language model over its vocabulary, computed piece by piece.

The logits (B, T, V) of a large vocabulary can take more memory than the rest of a step. Here they are computed for one
piece of the tokens at a time. Forward already computes the gradients, because they need the piece's logits, which would
otherwise be kept or computed twice (Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989, section 3.2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from calculator.families.blocks.trainer_loss import LARGEST_PIECE, LEAST_PIECE
from training.model.vocabulary import exponentiate


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Output layer: logits = softcap * tanh((hidden @ weight.T + bias) / softcap)."""

    weight: Tensor
    """Weight matrix (V, D)."""
    bias: Tensor | None = None
    """Bias (V,); None: no bias."""
    softcap: float | None = None
    """Bound of the logits (Gemma 2, arXiv:2408.00118, section 2); None: no bound."""


def next_token_loss(hidden: Tensor, head: Head, labels: Tensor, counted: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Mean cross entropy in nats; 0 if no token counts.

    Args:
        hidden: Output of the last norm, (n, D).
        head: Output layer, which makes the logits.
        labels: Ids of the next tokens, (n,).
        counted: True for tokens that enter the mean, bool (n,).
        dtype: Type in which products are computed; logits are normalized in the weight's type, float32 at least.

    Returns:
        Scalar, differentiable once by hidden states, weight and bias.
    """
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, head.weight, head.bias)
    )
    return _NextTokenLoss.apply(hidden, head.weight, head.bias, labels, counted, head.softcap, dtype, wanted)


class _NextTokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, counted, softcap, dtype, wanted):
        with torch.autocast(hidden.device.type, enabled=False):
            grads = _Gradients(hidden, weight, bias, dtype, ctx.needs_input_grad if wanted else (False,) * 3)
            share, ctx.count = counted.to(grads.precise)[:, None], counted.sum().clamp(min=1)
            loss, size = weight.new_zeros((), dtype=grads.precise), piece_tokens(weight)
            parts = (part.split(size) for part in (hidden, labels[:, None], share))
            for start, (inputs, label, part) in zip(range(0, len(hidden), size), zip(*parts, strict=True), strict=True):
                loss += _piece(inputs.to(dtype), grads, label, part, softcap, start if wanted else None)
        ctx.save_for_backward(grads.hidden, grads.weight, grads.bias)
        return loss / ctx.count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        # Divided only now, when `grad` contains the loss scale that keeps float16 from rounding to 0. In place: a copy
        # would be as large as the matrix.
        scaled = (None if one is None else one.mul_(grad / ctx.count) for one in ctx.saved_tensors)
        return *scaled, None, None, None, None, None


class _Gradients:
    """Output layer in the type of the products, and the gradients to which the pieces add; None where no gradient is
    needed."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, needed: tuple):
        self.hidden = torch.empty_like(hidden) if needed[0] else None
        self.weight = torch.empty_like(weight) if needed[1] else None
        self.bias = torch.zeros_like(bias) if needed[2] and bias is not None else None
        self.matrix, self.shift = weight.to(dtype), None if bias is None else bias.to(dtype)
        # A frozen head may be in 16 bits, which are too inexact to normalize probabilities.
        self.precise = torch.promote_types(weight.dtype, torch.float32)
        self._logits: Tensor | None = None

    def logits(self, inputs: Tensor) -> Tensor:
        """Computes the logits (n, V) of a piece, in the weight's type; the next piece's logits overwrite them."""
        if inputs.dtype != self.precise:
            return functional.linear(inputs, self.matrix, self.shift).to(self.precise)
        if self._logits is None:
            # Once for all pieces: with new memory for each, glibc puts a piece's logits beside the freed ones of the
            # last piece instead of in their place, and the process grows by a piece more.
            self._logits = inputs.new_empty(len(inputs), len(self.matrix))
        logits = self._logits[: len(inputs)]
        if self.shift is None:
            return torch.mm(inputs, self.matrix.t(), out=logits)
        return torch.addmm(self.shift, inputs, self.matrix.t(), out=logits)

    def add(self, grad_logits: Tensor, inputs: Tensor, start: int) -> None:
        """Adds a piece's part of the gradients; `start` is the number of the piece's first token."""
        if self.bias is not None:
            self.bias += grad_logits.sum(0)
        grad_logits = grad_logits.to(inputs.dtype)
        if self.hidden is not None:
            self.hidden[start : start + len(inputs)] = grad_logits @ self.matrix
        if self.weight is None:
            return
        if self.weight.dtype == inputs.dtype:
            # With beta 0, `addmm` does not read the old content of the memory.
            self.weight.addmm_(grad_logits.t(), inputs, beta=float(start > 0))
        elif start == 0:
            self.weight.copy_(grad_logits.t() @ inputs)
        else:
            self.weight += grad_logits.t() @ inputs


def _piece(
    inputs: Tensor, grads: _Gradients, labels: Tensor, share: Tensor, softcap: float | None, start: int | None
) -> Tensor:
    """Returns the piece's part of the loss; adds its part of the gradients unless `start` is None.

    Args:
        inputs: Hidden states (n, D) in the type of the products.
        grads: Output layer, with the gradients to which the piece adds.
        labels: Ids of the next tokens, (n, 1).
        share: Weight of each token, (n, 1): 1 for tokens that count, else 0.
        softcap: Bound of the logits; see `Head`.
        start: Number of the piece's first token; None: no gradient is wanted.
    """
    logits = grads.logits(inputs)
    slope = None
    if softcap is not None:
        logits.div_(softcap).tanh_()
        if start is not None:
            slope = 1 - logits.square()
        logits.mul_(softcap)
    chosen, total = exponentiate(logits, labels)
    if start is not None:
        # The gradient of a logit is its probability, minus 1 at the label.
        logits.mul_(share / total).scatter_add_(1, labels, -share)
        grads.add(logits if slope is None else logits.mul_(slope), inputs, start)
    return ((total.log() - chosen) * share).sum()


def piece_tokens(weight: Tensor) -> int:
    """Number of tokens of a piece, whose logits take at most half as much memory as the gradient of the matrix (V,
    D)."""
    return min(max(weight.shape[1] // 2, LEAST_PIECE), LARGEST_PIECE)
