"""Memory of generating text: the weights, and the cache of keys and values of every token so far.

The cache is what transformers' DynamicCache holds once a token after the prompt has been computed. Layers of linear
attention keep a state of constant size there. Engines with paged blocks, such as vLLM, reserve whole blocks. What a
kernel needs while it runs is not counted: it is small, as only one token per sequence is computed at a time.

>>> from calculator.models.architectures import PRESETS
>>> cache_bytes(PRESETS["llama-3.1-8b"], batch=1, length=8192) == 2**30
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from calculator.choose.devices import Device
from calculator.choose.stored import stored_bytes
from calculator.errors import BadSetup
from calculator.families.lengths import most_tokens
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, LayerCache
from calculator.models.architectures import from_config
from calculator.step.add_up import CUBLAS_WORKSPACE_BYTES, CUDA_CONTEXT_BYTES
from calculator.step.resolve import resolve
from calculator.step.setups import Setup

MOST_SEQUENCES = 1_000_000
"""The limit of the search for the largest batch."""
ITEMSIZES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of a cached value, by the name of its type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceMemory:
    """Bytes on the device while text is generated."""

    weights: int
    """Parameters and buffers."""
    cache: int
    """Keys and values, or the latents from which they are computed, and the states of linear attention."""
    overhead: int
    """The CUDA context and workspace, which no figure of PyTorch includes."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.weights + self.cache + self.overhead

    def total_on(self, device: Device) -> int:
        """Bytes of all parts on a device; with unified memory there is no CUDA context."""
        return self.total - (self.overhead if device.unified else 0)


PROMPT = (
    "Reading the prompt takes more for a moment, which is not counted: the activations of all its tokens, or of as "
    "many as the program reads at once."
)
"""Sentence beside every answer."""


def model_of(setup: Setup) -> Architecture:
    """Returns the model of a setup; its training need not be counted.

    Raises:
        BadSetup: If the setup names no model, or several.
    """
    return resolve(Setup(model=setup.model)) if setup.config is None else from_config(setup.config)


def layer_cache(architecture: Architecture, kind: str) -> LayerCache:
    """Cache of a layer of a kind; latent attention caches the latent and the rotated channels."""
    if architecture.listing:
        return architecture.listing.layer(kind).cache
    if "linear" in kind:
        own = architecture.linear
        # The state has 32 bits whatever the weights have (transformers, torch_chunk_gated_delta_rule).
        state = own.value_heads * own.key_dim * own.value_dim
        return LayerCache(state_values=own.channels * own.kernel_size, precise_values=state)
    values = 2 * architecture.key_heads * architecture.head_dim
    if architecture.latent_dim:
        values = architecture.latent_dim + architecture.rotary_dim
    return LayerCache(values_per_token=values, window=architecture.sliding_window if "sliding" in kind else 0)


def cached_tokens(cache: LayerCache, length: int, block: int = 1) -> int:
    """Tokens of a sequence that a layer caches, in whole blocks: all, or those in its window.

    Args:
        cache: Cache of the layer.
        length: Tokens so far.
        block: Tokens of a block, which is reserved as a whole.
    """
    # transformers keeps the last (window - 1) tokens for the next one. With a window of 1, it keeps all, since Python
    # reads [-0:] as all (cache_utils.py, DynamicSlidingWindowLayer.update).
    if cache.window > 1:
        length = min(length, cache.window)
    return -(-length // block) * block


def cache_bytes(architecture: Architecture, *, batch: int, length: int, itemsize: int = 2, block: int = 1) -> int:
    """Bytes of the cache of all layers.

    Args:
        architecture: The model.
        batch: Sequences at once.
        length: Tokens of each, prompt and answer together.
        itemsize: Bytes of a cached value.
        block: See `cached_tokens`.

    Raises:
        BadSetup: If the model does not generate text with one stack.
    """
    _check_generates(architecture)
    kinds = Counter(architecture.attention_kind(layer) for layer in range(architecture.num_layers))
    total = 0
    for kind, layers in kinds.items():
        cache = layer_cache(architecture, kind)
        # Beside keys and values in 8 bits, states stay in 16: vLLM's kv-cache-dtype does not apply to them.
        states = cache.state_values * max(itemsize, 2) + cache.precise_values * 4
        total += layers * (cached_tokens(cache, length, block) * cache.values_per_token * itemsize + states)
    return batch * total


def inference_memory(
    architecture: Architecture,
    *,
    batch: int = 1,
    length: int,
    weights: str = "bf16",
    cache: str = "bf16",
    block: int = 1,
) -> InferenceMemory:
    """Memory of generating text up to a length; arguments as for `cache_bytes` and `stored_bytes`, with types by name.

    Raises:
        BadSetup: If a number is out of range, or the model does not generate text with one stack.
    """
    _check_generates(architecture)
    longest = most_tokens(architecture)
    for name, value, most in (("batch", batch, MOST_SEQUENCES), ("length", length, longest), ("block", block, 65_536)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadSetup(f"{name} is a whole number from 1 to {most}, not {value!r:.60}.")
    if cache not in ITEMSIZES:
        raise BadSetup(f"cache is one of {', '.join(ITEMSIZES)}, not {cache!r:.60}.")
    return InferenceMemory(
        weights=stored_bytes(architecture, weights),
        cache=cache_bytes(architecture, batch=batch, length=length, itemsize=ITEMSIZES[cache], block=block),
        overhead=CUDA_CONTEXT_BYTES + CUBLAS_WORKSPACE_BYTES,
    )


def _check_generates(architecture: Architecture) -> None:
    if not family_of(architecture).generates:
        raise BadSetup(f"{architecture.name} does not generate text token by token; choose a decoder, such as gpt2.")


def longest_context(architecture: Architecture, device: Device, **options: object) -> int:
    """The most tokens per sequence that fit; 0 if not even one does. Options as for `inference_memory`."""
    return _most(lambda length: _fits(architecture, device, length=length, **options), most_tokens(architecture))


def largest_batch(architecture: Architecture, device: Device, **options: object) -> int:
    """The most sequences at once that fit; 0 if not even one does. Options as for `inference_memory`."""
    return _most(lambda batch: _fits(architecture, device, batch=batch, **options), MOST_SEQUENCES)


def _fits(architecture: Architecture, device: Device, **options: object) -> bool:
    return inference_memory(architecture, **options).total_on(device) <= device.usable_bytes


def _most(fits: Callable[[int], bool], most: int) -> int:
    """Finds the largest number from 1 to `most` that fits, by bisection: a larger number never needs less.
    0 if none fits."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
