"""Attention and feed-forward blocks with hand-written backward passes: pre-norm, token shift, body, layer scale.

With its own backward pass, a block keeps only what its gradient needs, writes in place where autograd would copy, and
folds the layer scale into the output weights. `run_block` lets autograd use it; the reversible stack calls it directly.

Norms, inputs and outputs have the type of the residual stream and the weights. In between, a block computes in `dtype`,
which autocast may lower.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from training.model.attention import AttentionPattern
from training.model.kernels.pointwise import gated, gated_backward, norm_and_shift, norm_and_shift_backward, turned
from training.model.layout import Layout


class Block(Protocol):
    """A residual branch, whose output is added to the stream. Its weights begin with norm weight and norm bias."""

    def forward(self, hidden: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Returns the branch's output (B, T, D) and the tensors that `backward` needs."""

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Computes the gradients of `hidden` and of each weight from the gradient of the output."""


class FeedForwardBlock(Block):
    """GEGLU feed-forward (Shazeer 2020): half of the inner channels times the gelu of the other half.

    Weights: norm weight and bias (D), inner weight (2F, D) and bias (2F), output weight (D, F) and bias (D), scale (D).

    Args:
        shift: Layout for the token shift, or None for no shift.
        dtype: Type in which to compute.
    """

    def __init__(self, shift: Layout | None, dtype: torch.dtype):
        self.shift = shift
        self.dtype = dtype

    def forward(self, hidden: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        norm_weight, norm_bias, inner_weight, inner_bias, out_weight, out_bias, scale = weights
        normed, *norms = norm_and_shift(hidden, norm_weight, norm_bias, self.shift, self.dtype)
        # Two products instead of one whose result is split: both results are contiguous.
        value_weight, gate_weight = inner_weight.to(self.dtype).chunk(2)
        value_bias, gate_bias = inner_bias.to(self.dtype).chunk(2)
        values = torch.addmm(value_bias, normed, value_weight.t())
        gates = torch.addmm(gate_bias, normed, gate_weight.t())
        gate, product = gated(values, gates)
        out = _scaled_output(product, out_weight, out_bias, scale)
        return out.view_as(hidden), (normed, hidden, *norms, values, gates, gate, product)

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        normed, hidden, mean, inverse, values, gates, gate, product = saved
        norm_weight, norm_bias, inner_weight, inner_bias, out_weight, out_bias, scale = weights
        flat = grad.reshape(-1, grad.shape[-1]).to(self.dtype)
        grad_product = flat @ (out_weight * scale[:, None]).to(self.dtype)
        output_grads = _output_grads(flat, product, out_weight, out_bias, scale)
        grad_values, grad_gates = gated_backward(grad_product, values, gates, gate)
        grad_inner, grad_bias = torch.empty_like(inner_weight), torch.empty_like(inner_bias)
        value_weight, gate_weight = inner_weight.to(self.dtype).chunk(2)
        for part, weight_rows, bias_rows in zip(
            (grad_values, grad_gates), grad_inner.chunk(2), grad_bias.chunk(2), strict=True
        ):
            weight_grad(part, normed, out=weight_rows)
            torch.sum(part, 0, dtype=bias_rows.dtype, out=bias_rows)
        grad_normed = torch.mm(grad_values, value_weight).addmm_(grad_gates, gate_weight)
        grad_hidden, *norm_grads = norm_and_shift_backward(
            grad_normed, hidden, mean, inverse, norm_weight, norm_bias, self.shift
        )
        return grad_hidden, (*norm_grads, grad_inner, grad_bias, *output_grads)


class AttentionBlock(Block):
    """Attention along one pattern, with rotary embeddings on queries, keys and values.

    Weights: norm weight and bias (D), qkv weight (3NH, D), output weight (D, NH) and bias (D), scale (D).

    Args:
        pattern: Mask of the tokens that attend to each other.
        shift: Layout for the token shift, or None for no shift.
        rotation: Rotation factors, complex (3, X + I, H / 2); see `rotation_table`.
        num_heads: N, number of heads.
        text_key_bias: Bias of the text's keys, (B * N, 1, X), -inf at padding; None if no text is masked.
        dtype: Type in which to compute, which the pattern and `text_key_bias` have.
    """

    def __init__(
        self,
        pattern: AttentionPattern,
        shift: Layout | None,
        rotation: Tensor,
        num_heads: int,
        text_key_bias: Tensor | None,
        dtype: torch.dtype,
    ):
        self.dtype = dtype
        self.pattern = pattern
        self.shift = shift
        self.num_heads = num_heads
        self.text_key_bias = text_key_bias
        text_len = pattern.layout.text_len
        self._text_turn = rotation[:, None, None, :text_len]
        self._image_turn = rotation[:, None, None, text_len:]

    def forward(self, hidden: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        norm_weight, norm_bias, qkv_weight, out_weight, out_bias, scale = weights
        normed, *norms = norm_and_shift(hidden, norm_weight, norm_bias, self.shift, self.dtype)
        qkv = (normed @ qkv_weight.to(self.dtype).t()).view(*hidden.shape[:2], -1)
        text, image = self._turn(qkv)
        text_out, image_out, *probabilities = self.pattern.attend(text, image, self.text_key_bias)
        merged = self._merge(text_out, image_out, hidden)
        out = _scaled_output(merged, out_weight, out_bias, scale)
        image_saved = () if image is None else (image,)
        return out.view_as(hidden), (normed, hidden, *norms, merged, text, *image_saved, *probabilities)

    def backward(
        self, grad: Tensor, saved: tuple[Tensor, ...], weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        has_image = grad.shape[1] > self.pattern.layout.text_len
        normed, hidden, mean, inverse, merged, text, *rest = saved
        image, probabilities = (rest[0], rest[1:]) if has_image else (None, rest)
        norm_weight, norm_bias, qkv_weight, out_weight, out_bias, scale = weights
        flat = grad.reshape(-1, grad.shape[-1]).to(self.dtype)
        output_grads = _output_grads(flat, merged, out_weight, out_bias, scale)
        grad_merged = flat @ (out_weight * scale[:, None]).to(self.dtype)
        grad_text, grad_image = self._split(grad_merged, grad, has_image)
        text, image = self.pattern.backward(text, image, tuple(probabilities), grad_text, grad_image)
        grad_qkv = self._turn_back(text, image, grad)
        grad_normed = grad_qkv @ qkv_weight.to(self.dtype)
        grad_hidden, *norm_grads = norm_and_shift_backward(
            grad_normed, hidden, mean, inverse, norm_weight, norm_bias, self.shift
        )
        grad_weight = weight_grad(grad_qkv, normed, out=torch.empty_like(qkv_weight))
        return grad_hidden, (*norm_grads, grad_weight, *output_grads)

    def turned_text(self, saved: tuple[Tensor, ...]) -> Tensor:
        """Returns the rotated queries, keys and values of the text, (3, B * N, X, H), from the saved tensors of
        `forward`."""
        return saved[5]

    def _turn(self, qkv: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rotates queries, keys and values. Returns text (3, B * N, X, H) and image (3, B * N, I, H) in the pattern's
        order."""
        layout, batch = self.pattern.layout, qkv.shape[0]
        split = qkv.view(batch, qkv.shape[1], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        text = turned(split[..., : layout.text_len, :], self._text_turn).view(
            3, batch * self.num_heads, -1, split.shape[-1]
        )
        if qkv.shape[1] == layout.text_len:
            return text, None
        grid = (layout.grid, layout.grid)
        image = self.pattern.image_order(split[..., layout.text_len :, :].unflatten(3, grid))
        turn = self.pattern.image_order(self._image_turn.unflatten(3, grid))
        return text, turned(image, turn).view(3, batch * self.num_heads, layout.image_len, split.shape[-1])

    def _turn_back(self, text: Tensor, image: Tensor | None, like: Tensor) -> Tensor:
        """Reverses `_turn` for gradients; returns (B * T, 3NH)."""
        layout, (batch, length, _) = self.pattern.layout, like.shape
        qkv = text.new_empty(batch, length, 3, self.num_heads, text.shape[-1])
        split = qkv.permute(2, 0, 3, 1, 4)
        turned(
            text.view(3, batch, self.num_heads, layout.text_len, -1),
            self._text_turn.conj(),
            out=split[..., : layout.text_len, :],
        )
        if image is not None:
            grid = (layout.grid, layout.grid)
            turned(
                image.view(3, batch, self.num_heads, *grid, -1),
                self.pattern.image_order(self._image_turn.unflatten(3, grid)).conj(),
                out=self.pattern.image_order(split[..., layout.text_len :, :].unflatten(3, grid)),
            )
        return qkv.view(batch * length, -1)

    def _merge(self, text: Tensor, image: Tensor | None, like: Tensor) -> Tensor:
        """Puts the outputs of all heads side by side: (B * T, NH)."""
        batch, length, _ = like.shape
        merged = text.new_empty(batch, length, self.num_heads, text.shape[-1])
        for part, out in zip(self._parts(merged), (text, image), strict=False):
            part.copy_(out.view(part.shape))
        return merged.view(batch * length, -1)

    def _split(self, merged: Tensor, like: Tensor, has_image: bool) -> tuple[Tensor, Tensor | None]:
        """Reverses `_merge`; returns the parts of text and image."""
        batch, length, _ = like.shape
        parts = self._parts(merged.view(batch, length, self.num_heads, -1))
        text = parts[0].contiguous().view(batch * self.num_heads, self.pattern.layout.text_len, -1)
        if not has_image:
            return text, None
        return text, parts[1].contiguous().view(batch * self.num_heads, self.pattern.layout.image_len, -1)

    def _parts(self, merged: Tensor) -> tuple[Tensor, ...]:
        """Returns views of (B, T, N, H): text (B, N, X, H) and, if there, image (B, N, G, G, H) in the pattern's
        order."""
        layout = self.pattern.layout
        heads_first = merged.transpose(1, 2)
        text = heads_first[:, :, : layout.text_len]
        if merged.shape[1] == layout.text_len:
            return (text,)
        image = heads_first[:, :, layout.text_len :].unflatten(2, (layout.grid, layout.grid))
        return text, self.pattern.image_order(image)


def run_block(block: Block, hidden: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """Returns the block's output, differentiable (once) by autograd."""
    return _BlockFunction.apply(block, hidden, *weights)


def run_block_again(block: Block, hidden: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """Runs a block that keeps only its input; backward runs the block again."""
    return _CheckpointedBlockFunction.apply(block, hidden, *weights)


class _BlockFunction(torch.autograd.Function):
    # `once_differentiable`: a second derivative through a hand-written backward would be wrong without any error.

    @staticmethod
    def forward(ctx, block: Block, hidden: Tensor, *weights: Tensor) -> Tensor:
        out, saved = block.forward(hidden, weights)
        ctx.block, ctx.count = block, len(saved)
        ctx.save_for_backward(*saved, *weights)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        tensors = ctx.saved_tensors
        grad_hidden, grads = ctx.block.backward(grad, tensors[: ctx.count], tensors[ctx.count :])
        return None, grad_hidden, *grads


class _CheckpointedBlockFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block: Block, hidden: Tensor, *weights: Tensor) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(hidden, *weights)
        return block.forward(hidden, weights)[0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        hidden, *weights = ctx.saved_tensors
        _, saved = ctx.block.forward(hidden, tuple(weights))
        grad_hidden, grads = ctx.block.backward(grad, saved, tuple(weights))
        return None, grad_hidden, *grads


def _scaled_output(inputs: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    """Computes scale * (inputs @ weight.T + bias), in the weight's type."""
    # Scaling the weight costs little, since its size does not depend on the number of tokens; to scale the output,
    # backward would also need the unscaled output.
    scaled_weight = (weight * scale[:, None]).to(inputs.dtype)
    return torch.addmm((bias * scale).to(inputs.dtype), inputs, scaled_weight.t()).to(weight.dtype)


def _output_grads(
    grad: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of output weight, output bias and layer scale of `_scaled_output`."""
    scaled_weight = weight_grad(grad, inputs, out=torch.empty_like(weight))
    scaled_bias = grad.sum(0, dtype=bias.dtype)
    # The output is scale * z with z = inputs @ weight.T + bias. The sum of grad * z over tokens follows from the two
    # gradients above, so z need not be kept.
    grad_scale = (scaled_weight * weight).sum(1) + scaled_bias * bias
    return scaled_weight * scale[:, None], scaled_bias * scale, grad_scale


def weight_grad(grad: Tensor, inputs: Tensor, out: Tensor) -> Tensor:
    """Writes grad.T @ inputs to `out` in the type of `out`, and returns it."""
    # `mm` cannot write in a type other than the one it computes in.
    if out.dtype == grad.dtype:
        return torch.mm(grad.t(), inputs, out=out)
    return out.copy_(grad.t() @ inputs)
