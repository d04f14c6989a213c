"""A family of models: its parameters, its training step, and the techniques that are counted for it.

A new family is one file in `language/`, `mixtures/` or `pictures/` that ends with `FAMILY = Family(...)`; `registry`
finds it. Its models come from a preset or a reader of config.json in `calculator.models`, which name the family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calculator.families.blocks.context import Context
from calculator.models.architecture import Architecture, ParameterGroup, ParameterTensor
from calculator.tape.autograd import Tensor, allocated_bytes

DECODER_MODULES = {
    "attention.query": "q_proj",
    "attention.key": "k_proj",
    "attention.value": "v_proj",
    "attention.qkv": "qkv_proj",
    "attention.out": "o_proj",
    "feed_forward.gate": "gate_proj",
    "feed_forward.in": "up_proj",
    "feed_forward.out": "down_proj",
}
"""Maps our names of the linear modules in a decoder's layer to those of transformers."""
CAUSAL_LM = "AutoModelForCausalLM"


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The inputs of one micro-batch."""

    samples: int
    length: int
    """T, tokens of a sample; of the encoder, if there are two stacks."""
    target_length: int
    """Tokens of a sample of the decoder; 0 if there is one stack."""
    packed: bool
    """True if each sequence is a pack of samples."""
    itemsize: int
    """Bytes of a value of the model's weights."""


def no_buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Returns 0, for models without tables that are not trained."""
    return 0


def token_input_bytes(a: Architecture, batch: Batch) -> int:
    """Bytes of token ids and labels, 64-bit integers, and of the positions that every pack has for itself."""
    ids = allocated_bytes(batch.samples * batch.length, 8)
    labels = allocated_bytes(batch.samples * (batch.target_length or batch.length), 8)
    return ids * (2 if batch.packed else 1) + labels


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models. A technique that a family does not name is refused for its models, in a sentence."""

    name: str
    """Name of the family, which is `Architecture.family` of its models."""
    models: tuple[str, ...]
    """Names of the family's models for people; the first is the family's title."""
    parameters: Callable[[Architecture], list[ParameterGroup]]
    """The parameters outside of the layers and in one layer, in the order of the model's `parameters()`."""
    buffer_bytes: Callable[[Architecture, int], int] = no_buffer_bytes
    """Bytes of tables that are not trained; arguments: the model, the bytes of a value."""
    forward: Callable[[Context], tuple[Tensor, Tensor | None]] | None = None
    """One forward pass to the loss and the logits that the caller holds; None: training is not counted."""
    why_untrained: str = ""
    """The reason why training is not counted, as a clause."""
    input_bytes: Callable[[Architecture, Batch], int] = token_input_bytes
    """Bytes of one micro-batch's inputs and labels."""
    forward_flops: Callable[[Architecture, tuple[ParameterTensor, ...], int], int] | None = None
    """Operations of a sample's forward pass; arguments: the model, its parameters, its length. None: not counted."""
    more_gradient_bytes: Callable[[Architecture, int, int], int] | None = None
    """Bytes of gradients beyond the parameters' sizes; arguments: the model, the samples, the bytes of a value."""

    generates: bool = False
    """True if it continues text token by token, with one stack."""
    modules: Callable[[Architecture], Mapping[str, str]] | None = None
    """Our names of the linear modules that may have an adapter, and those of transformers or diffusers; None: LoRA is
    not counted."""
    in_4_bits: bool = False
    """True if its frozen weights may be in 4 bits (QLoRA)."""
    input_first: bool = False
    """True if weights are stored as (in, out), as transformers' Conv1D has them."""
    in_32_bits: frozenset[str] = frozenset()
    """Modules that transformers loads in 32 bits where the others are in float16 (`_keep_in_fp32_modules`)."""
    matrix_optimizers: bool = False
    """True if GaLore, APOLLO and Muon are counted."""
    liger: bool = False
    """True if Liger computes its output head and loss in pieces."""
    packs: bool = False
    """True if its sequences may be packs of samples."""
    fp8: bool = False
    """True if its linear layers may multiply in FP8."""
    offload_activations: bool = False
    """True if the host may keep its activations."""
    tensor_parallel: bool = False
    """True if GPUs may divide its matrices as torchtitan divides Llama's."""
    reversible: bool = False
    """True if its layers may be reversible."""
    position_table: bool = False
    """True if positions are rows of a table, so that there are no more than `Architecture.max_positions`."""
    own_trainer: bool = False
    """True if only this project's trainer trains it: with weights in 32 bits, and an attention of its own."""

    shares_tables: bool = False
    """True if all layers of a kind use the same rotary tables and mask."""
    holds_embeddings: bool = False
    """True if a variable of the real code keeps the first layer's input until the last layer has ended."""
    scaled_embeddings: bool = False
    """True if embeddings are multiplied by a 32-bit number, whose 16-bit copy backward needs."""
    attention_note: str = ""
    """A sentence on why `attention` makes no difference; empty if it does."""
    auto_class: str = CAUSAL_LM
    """Class of transformers that loads the models."""
    layers: str = "model.model.layers"
    """Python expression for the layers of a `model` of transformers."""

    @property
    def title(self) -> str:
        """Name of the family for people."""
        return self.models[0]
