"""Stacks of residual blocks, reversible (Gomez et al. 2017; Bruegger et al. 2019) or not.

A reversible stack carries two streams, y1 = x1 + f(x2) and y2 = x2 + g(y1), and returns the mean of both. This is
another function than that of an ordinary stack with these weights. Backward recomputes each layer's input from its
output, so that the memory for activations does not grow with the depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from training.model.blocks import Block, run_block, run_block_again


class Layer(NamedTuple):
    """Attention and feed-forward block of one layer, with the indices of their weights among the stack's."""

    attention: Block
    attention_weights: tuple[int, ...]
    feed_forward: Block
    feed_forward_weights: tuple[int, ...]


def run_sequential(hidden: Tensor, layers: Sequence[Layer], weights: Sequence[Tensor], *, stored_layers: int) -> Tensor:
    """Runs an ordinary stack: each block adds to one stream. Arguments as for `run_reversible`.

    A layer whose activations are not stored keeps its two blocks' inputs (activation checkpointing).
    """
    for index, layer in enumerate(layers):
        run = run_block if index >= len(layers) - stored_layers else run_block_again
        hidden = hidden + run(layer.attention, hidden, _pick(weights, layer.attention_weights))
        hidden = hidden + run(layer.feed_forward, hidden, _pick(weights, layer.feed_forward_weights))
    return hidden


def run_reversible(hidden: Tensor, layers: Sequence[Layer], weights: Sequence[Tensor], *, stored_layers: int) -> Tensor:
    """Runs a reversible stack.

    Args:
        hidden: Start of both streams, (B, T, D).
        layers: The layers in order.
        weights: All weights without duplicates; layers refer to them by index.
        stored_layers: Number of the last layers that keep their activations, which saves their second forward pass but
            takes memory. The result does not depend on it, up to rounding.
    """
    return _ReversibleStack.apply(hidden, tuple(layers), stored_layers, *weights)


class _ReversibleStack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, layers: tuple[Layer, ...], stored_layers: int, *weights: Tensor) -> Tensor:
        first = second = hidden
        stored: list[Tensor] = []
        counts: list[int] = []
        # If no backward follows, nothing is stored.
        split = max(0, len(layers) - stored_layers) if any(ctx.needs_input_grad) else len(layers)
        at_split = (first, second)

        def add(block: Block, indices: tuple[int, ...], source: Tensor, target: Tensor, *, store: bool) -> Tensor:
            out, saved = block.forward(source, _pick(weights, indices))
            if store:
                stored.extend(saved)
                counts.append(len(saved))
            # `out` is new and not used elsewhere, so the sum needs no further memory.
            return out.add_(target)

        for index, layer in enumerate(layers):
            store = index >= split
            if index == split:
                at_split = (first, second)
            first = add(layer.attention, layer.attention_weights, second, first, store=store)
            second = add(layer.feed_forward, layer.feed_forward_weights, first, second, store=store)
        ctx.layers, ctx.split, ctx.counts = layers, split, counts
        ctx.save_for_backward(*(at_split if split < len(layers) else (first, second)), *stored, *weights)
        return (first + second).div_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        first, second, *tensors = ctx.saved_tensors
        stored, weights = tensors[: sum(ctx.counts)], tensors[sum(ctx.counts) :]
        counts = list(ctx.counts)
        grad_first, grad_second = grad / 2, grad / 2
        grads: list[Tensor | None] = [None] * len(weights)

        def through(block: Block, indices: tuple[int, ...], saved: Sequence[Tensor], gradient: Tensor) -> Tensor:
            """Returns the gradient that `target += block(source)` adds to the source's."""
            grad_source, grad_weights = block.backward(gradient, tuple(saved), _pick(weights, indices))
            for index, value in zip(indices, grad_weights, strict=True):
                # The layers of a group share weights, so their gradients are summed.
                grads[index] = value if grads[index] is None else grads[index].add_(value)
            return grad_source

        def step_back(
            block: Block, indices: tuple[int, ...], source: Tensor, target: Tensor, gradient: Tensor
        ) -> Tensor:
            """Does as `through` for streams that were not stored: it reverses the addition first."""
            out, saved = block.forward(source, _pick(weights, indices))
            target -= out
            return through(block, indices, saved, gradient)

        def pop_saved() -> list[Tensor]:
            count = counts.pop()
            saved = stored[len(stored) - count :]
            del stored[len(stored) - count :]
            return saved

        # The feed-forward first: its output was added last.
        for layer in reversed(ctx.layers[ctx.split :]):
            grad_first += through(layer.feed_forward, layer.feed_forward_weights, pop_saved(), grad_second)
            grad_second += through(layer.attention, layer.attention_weights, pop_saved(), grad_first)
        if ctx.split:
            # `step_back` subtracts in place, and autograd's saved tensors must not change.
            first, second = first.clone(), second.clone()
        for layer in reversed(ctx.layers[: ctx.split]):
            grad_first += step_back(layer.feed_forward, layer.feed_forward_weights, first, second, grad_second)
            grad_second += step_back(layer.attention, layer.attention_weights, second, first, grad_first)
        return grad_first.add_(grad_second), None, None, *grads


def _pick(weights: Sequence[Tensor], indices: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(weights[index] for index in indices)
