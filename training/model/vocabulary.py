"""Matrices of the vocabulary at both ends of the model: the embedding and the output head.

The gradient of a large vocabulary is as large as its matrix. Here it is allocated only once: each part of the
vocabulary writes its rows, and if both ends share a matrix, the embedding adds to what the output head wrote. Autograd
would allocate a whole matrix for each part and each end, and sum them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.model.blocks import weight_grad

CHUNK_BYTES = 8 << 20
"""Bytes of logits that the softmax processes at a time, so that they stay in the CPU's cache."""


class TiedGradient:
    """Passes the gradient of a shared matrix from the output head, whose backward comes first, to the embedding."""

    def __init__(self):
        self._matrix: Tensor | None = None

    def leave(self, matrix: Tensor) -> None:
        """Stores the output head's gradient, to which the embedding adds its own."""
        self._matrix = matrix

    def take(self, like: Tensor) -> Tensor:
        """Returns the stored gradient, or zeros in the shape of the matrix."""
        matrix, self._matrix = self._matrix, None
        return torch.zeros_like(like) if matrix is None else matrix


def embed_tied(ids: Tensor, weight: Tensor, tied: TiedGradient) -> Tensor:
    """Looks up rows (B, T, D) of the matrix (V, D) that is also the output head's; give both the same `tied`."""
    return _TiedEmbedding.apply(ids, weight, tied)


class _TiedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, ids: Tensor, weight: Tensor, tied: TiedGradient) -> Tensor:
        ctx.tied = tied
        ctx.save_for_backward(ids, weight)
        return functional.embedding(ids, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        ids, weight = ctx.saved_tensors
        matrix = ctx.tied.take(weight)
        return None, matrix.index_add_(0, ids.flatten(), grad.flatten(0, 1).to(matrix.dtype)), None


class _Part(NamedTuple):
    """Tokens whose predictions use the same rows of the output matrix."""

    tokens: slice
    rows: slice


def output_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor,
    text: Tensor,
    codes: Tensor,
    *,
    text_rows: int,
    dtype: torch.dtype,
    tied: TiedGradient | None,
) -> tuple[Tensor, Tensor]:
    """Computes the mean cross entropies of text and image tokens.

    Args:
        hidden: Output of the last norm, (B, T, D). Position i predicts token i of text and image; positions after the
            last token predict nothing.
        weight: Output matrix (V, D), text rows before image rows.
        bias: Bias (V,).
        text: Ids of the text's tokens, (B, X - 1).
        codes: Codes of the image's tokens, (B, I).
        text_rows: Number of rows that belong to the text.
        dtype: Type in which logits are computed; they are normalized in the weights' type.
        tied: The embedding's `TiedGradient` if the two share the matrix, otherwise None.

    Returns:
        Two scalars, differentiable (once) by autograd.
    """
    split, end = text.shape[1], text.shape[1] + codes.shape[1]
    parts = (
        _Part(slice(0, split), slice(0, text_rows)),
        _Part(slice(split, end), slice(text_rows, weight.shape[0])),
    )
    return _OutputLosses.apply(hidden, weight, bias, text, codes, parts, dtype, tied)


class _OutputLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, bias: Tensor, text: Tensor, codes: Tensor, parts, dtype, tied):
        losses, kept = [], []
        for part, labels in zip(parts, (text, codes), strict=True):
            inputs = hidden[:, part.tokens].flatten(0, 1).to(dtype)
            logits = torch.addmm(bias[part.rows].to(dtype), inputs, weight[part.rows].to(dtype).t()).to(weight.dtype)
            labels = labels.reshape(-1, 1)
            chosen, total = exponentiate(logits, labels)
            losses.append((total.log() - chosen).mean())
            kept += [inputs, logits, total, labels]
        ctx.shape, ctx.parts, ctx.dtype, ctx.tied = hidden.shape, parts, dtype, tied
        ctx.save_for_backward(weight, *kept)
        return tuple(losses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads: Tensor):
        weight, *kept = ctx.saved_tensors
        grad_hidden, grad_weight = weight.new_zeros(ctx.shape), torch.empty_like(weight)
        grad_bias = weight.new_empty(weight.shape[0])
        for index, (part, grad) in enumerate(zip(ctx.parts, grads, strict=True)):
            inputs, logits, total, labels = kept[4 * index : 4 * index + 4]
            share = grad / len(labels)
            # The gradient of a logit is its probability, minus 1 at the label.
            logits.mul_(share / total).scatter_add_(1, labels, -share.expand(labels.shape))
            torch.sum(logits, 0, out=grad_bias[part.rows])
            logits = logits.to(ctx.dtype)
            grad_inputs = logits @ weight[part.rows].to(ctx.dtype)
            grad_hidden[:, part.tokens] = grad_inputs.view(ctx.shape[0], -1, ctx.shape[2])
            weight_grad(logits, inputs, out=grad_weight[part.rows])
        if ctx.tied is not None:
            # The embedding, whose backward comes last, returns the sum; if this part also returned it, it would count
            # twice.
            ctx.tied.leave(grad_weight)
            grad_weight = None
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None


def exponentiate(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Replaces logits (n, V) in place by exp(logit - the row's largest), from which backward makes their gradient.

    Args:
        logits: Logits (n, V); overwritten.
        labels: Index of each row's label, (n, 1).

    Returns:
        Logits of the labels minus the largest logit, and the sums of the exponentials, (n, 1) each: the loss of a row
        is log(sum) minus the first.
    """
    chosen, sums = logits.gather(1, labels), []
    for chunk, chosen_chunk in zip(_chunks(logits, logits), _chunks(chosen, logits), strict=True):
        largest = chunk.amax(-1, keepdim=True)
        chosen_chunk.sub_(largest)
        sums.append(chunk.sub_(largest).exp_().sum(-1, keepdim=True))
    return chosen, torch.cat(sums)


def _chunks(rows: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """Splits rows into parts that have `CHUNK_BYTES` of logits each."""
    return rows.split(max(1, CHUNK_BYTES // (logits.shape[1] * logits.element_size())))
