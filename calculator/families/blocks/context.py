"""The input of a family's forward: sizes, options, and its parameters on a tape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from calculator.models.architecture import Architecture
from calculator.tape.autograd import Parameter, Tensor
from calculator.tape.operations import Operations


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a stack, as it is played."""

    key: tuple
    """Key of the layer's segment of the step."""
    weights: dict[str, Parameter]
    checkpointed: bool
    kind: str = ""
    """Name of the layer's attention mask; empty if all layers have one mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """One forward pass on one device."""

    tape: Operations
    architecture: Architecture
    batch: int
    """B, sequences."""
    length: int
    """T, tokens per sequence; of the encoder, if there are two stacks."""
    target_length: int
    """Tokens per sequence of the decoder, if there are two stacks."""
    fused_attention: bool
    """True if attention is `scaled_dot_product_attention` rather than separate operations."""
    dropout: float
    """Probability in the residual stream."""
    attention_dropout: float
    """Probability on attention weights."""
    half: str
    """The 16-bit type in use, "bf16" or "fp16"; empty in fp32."""
    reversible: bool
    loss: str
    """True if there are all logits at once; see `calculator.step.setups.Setup`."""
    packed: bool
    """True if each sequence is a pack of samples; see `calculator.step.setups.Setup`."""
    weights: dict[str, Parameter]
    """Parameters outside of the layers."""
    stacks: dict[str, list[Layer]]

    def run(self, layer: Layer, block: Callable, *inputs: Tensor):
        """Plays one layer, checkpointed or not, as its own segment."""
        self.tape.enter(layer.key)
        bound = partial(block, self, layer.weights)
        return self.tape.checkpoint(bound, *inputs) if layer.checkpointed else bound(*inputs)
