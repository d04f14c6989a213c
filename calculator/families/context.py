"""What a family's forward is given: sizes, options, and its parameters on a tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from calculator.architectures import Architecture
from calculator.autograd import Parameter, Tensor
from calculator.operations import Operations


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a stack, as it is played."""

    key: tuple
    """Names its segment of the step."""
    weights: dict[str, Parameter]
    checkpointed: bool
    kind: str = ""
    """Its attention mask, where layers differ in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """One forward pass on one device."""

    tape: Operations
    architecture: Architecture
    batch: int
    """B, sequences."""
    length: int
    """T, tokens a sequence; of the encoder, if there are two stacks."""
    target_length: int
    """Tokens a sequence of the decoder, if there are two stacks."""
    fused_attention: bool
    """Attention by `scaled_dot_product_attention` rather than in single operations."""
    dropout: float
    """Probability in the residual stream."""
    attention_dropout: float
    """Probability on attention weights."""
    half: str
    """"bf16" or "fp16", whichever 16-bit type is used; empty in fp32."""
    reversible: bool
    weights: dict[str, Parameter]
    """Parameters outside of the layers."""
    stacks: dict[str, list[Layer]]

    def run(self, layer: Layer, block: Callable, *inputs: Tensor):
        """Plays one block, checkpointed or not, as a segment of its own."""
        self.tape.enter(layer.key)
        bound = partial(block, self, layer.weights)
        return self.tape.checkpoint(bound, *inputs) if layer.checkpointed else bound(*inputs)
