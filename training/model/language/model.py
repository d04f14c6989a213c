"""Causal language model of `transformers` in the form that the swarm trains: it predicts each next token of a block.

B: micro-batch, T: tokens of a block, D: hidden size, V: vocabulary, L: layers.

A block holds pieces of several documents. The model computes for each piece what it would compute for that document
alone: attention stays within the document, positions begin at 0 with it, and its last token predicts nothing, because
the next token belongs to another document. The beginning of a block counts as the beginning of a document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from training.errors import BadInput
from training.model.kernels.kernel_choice import KernelChoice
from training.model.kernels.live_bytes import LiveBytes, fake_tensors
from training.model.language.adapters import quantize
from training.model.language.config import AdapterConfig, LanguageModelConfig
from training.model.language.loss import Head, next_token_loss
from training.model.sampling import check_sampling, check_seed, draw_codes

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageLosses:
    """Mean losses of a micro-batch; differentiable scalars."""

    loss: Tensor
    """Cross entropy in nats per predicted token."""


class LanguageModel(nn.Module):
    """Predicts each next token of a text. Build it with `training.model.language.folders.build_language_model`.

    A weight that is used twice (tied embeddings) is one parameter, so that `parameters()` has no duplicates.
    """

    def __init__(
        self,
        config: LanguageModelConfig,
        network: PreTrainedModel,
        *,
        adapter: AdapterConfig | None = None,
        adapted: PeftModel | None = None,
    ):
        """Wraps a model of `transformers` with float32 weights, or with adapters beside frozen weights.

        Args:
            config: Model section of the recipe.
            network: Model of `transformers`.
            adapter: Adapter section of the recipe; None: all weights are trained.
            adapted: peft's view of the network; None: all weights are trained.
        """
        super().__init__()
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.config, self.adapter = config, adapter
        # In a tuple: as a submodule, it would give each weight a second name.
        self._adapted = (adapted,)
        self.network = network.train()
        self._kept_bytes: dict[torch.dtype, tuple[int, int]] = {}
        """Bytes that the layers keep for one sample, and for each further sample, by type."""
        self._layers = tuple(one for one in network.modules() if isinstance(one, GradientCheckpointingLayer))
        for layer in self._layers:
            # Reentrant checkpoints would give the first layer no gradient: its input needs none.
            layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    @property
    def adapted(self) -> PeftModel | None:
        """The network as peft wraps it; None if all weights are trained."""
        return self._adapted[0]

    @property
    def num_layers(self) -> int:
        """L, number of layers."""
        return len(self._layers)

    @property
    def seq_len(self) -> int:
        """T, number of tokens of a block."""
        return self.config.block_length

    @property
    def vocab_size(self) -> int:
        """V, number of rows of the output matrix; may be more than the tokenizer has ids."""
        return self._head().weight.shape[0]

    def forward(self, tokens: Tensor, starts: Tensor, *, stored_layers: int | None = None) -> LanguageLosses:
        """Computes the losses of a micro-batch.

        Args:
            tokens: Ids (B, T).
            starts: True where a document begins at a token, bool (B, T).
            stored_layers: Number of layers, counted from the last, that keep their activations for backward; the others
                are computed again from their inputs. None: all keep them.

        Raises:
            BadInput: If a shape does not fit the recipe.
        """
        self._check_input(tokens, starts)
        hidden = self._hidden_states(tokens, starts, stored_layers=stored_layers)
        labels, counted = tokens.roll(-1, 1), ~starts.roll(-1, 1)
        # The block's last token predicts nothing; `roll` has put the first token after it.
        counted[:, -1] = False
        loss = next_token_loss(
            hidden.flatten(0, 1), self._head(), labels.flatten(), counted.flatten(), dtype=self._compute_dtype()
        )
        return LanguageLosses(loss=loss)

    def logits(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Computes the logits (B, t, V) of each next token.

        Args:
            tokens: Ids (B, t); t is at most T or the number of positions of the architecture.
            starts: True where a document begins, as for `forward`; None: each row is one document.
        """
        return self._logits_of(self._hidden_states(tokens, starts))

    def continue_text(
        self,
        ids: Sequence[int],
        *,
        new_tokens: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop_id: int | None = None,
    ) -> Iterator[int]:
        """Draws the ids that continue a text, and yields each as soon as it is known.

        Args:
            ids: Ids of the text; at least one.
            new_tokens: Most ids to draw.
            temperature: Number by which logits are divided.
            top_k: Number of the likeliest ids among which to draw; None: all. 1 always takes the likeliest.
            top_p: Least joint probability of the likeliest ids among which to draw; None: all.
            seed: Seed of all draws.
            stop_id: Id that ends the text; it is not yielded. None: no such id.

        Raises:
            BadInput: If a setting is out of range, or the text with its continuation is longer than the model's
                positions.
        """
        check_seed(seed)
        check_sampling(top_k=top_k, top_p=top_p, temperature=temperature)
        self._check_text(ids, new_tokens)
        # All random numbers beforehand, on the CPU, so that they do not depend on the device.
        uniform = torch.rand(new_tokens, generator=torch.Generator().manual_seed(seed))
        draw = partial(draw_codes, top_k=top_k, top_p=top_p, temperature=temperature)
        return self._continue(list(ids), uniform, draw, stop_id)

    def _continue(self, ids: list[int], uniform: Tensor, draw, stop_id: int | None) -> Iterator[int]:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.network.config)
        device = self._head().weight.device
        for number in uniform:
            logits = self._next_logits(torch.tensor([ids], device=device), cache)
            drawn = int(draw(logits, number[None].to(device)))
            if drawn == stop_id:
                return
            yield drawn
            ids = [drawn]

    @torch.no_grad()
    def _next_logits(self, tokens: Tensor, cache) -> Tensor:
        """Computes the logits (1, V) after these ids and those in the cache; adds the ids to the cache."""
        if self.adapter is not None and self.adapter.frozen_bits == 4:
            quantize(self.network)
        # Not around the whole loop: a generator's context would also hold for its caller.
        was_training = self.network.training
        self.network.eval()
        try:
            with torch.autocast(tokens.device.type, enabled=False):
                found = self.network.base_model(input_ids=tokens, past_key_values=cache, use_cache=True)
                return self._logits_of(found.last_hidden_state[:, -1])
        finally:
            self.network.train(was_training)

    def stored_layers(
        self, micro_batch_size: int, activation_budget_bytes: int | None, dtype: torch.dtype | None = None
    ) -> int:
        """Counts the layers, from the last, that can keep their activations within a budget; see `activation_bytes`.

        Args:
            micro_batch_size: B, samples per forward pass.
            activation_budget_bytes: Bytes that may be kept; None keeps all activations, 0 none.
            dtype: Type in which layers compute; None: that of the current autocast.
        """
        if activation_budget_bytes is None:
            return self.num_layers
        if not activation_budget_bytes:  # without tracing
            return 0
        totals = accumulate(self.activation_bytes(micro_batch_size, dtype))
        return sum(total <= activation_budget_bytes for total in totals)

    def activation_bytes(self, micro_batch_size: int, dtype: torch.dtype | None = None) -> list[int]:
        """Bytes that each layer keeps for backward in addition to its input if its activations are kept; the layers'
        mean.

        The first call for a type runs the forward pass four times, without computing.

        Args:
            micro_batch_size: B, samples per forward pass.
            dtype: Type in which layers compute; None: that of the current autocast.
        """
        dtype = dtype or self._compute_dtype()
        if dtype not in self._kept_bytes:
            one, two = (self._kept_after_forward(samples, dtype) for samples in (1, 2))
            self._kept_bytes[dtype] = one, two - one
        # Autocast's copies of weights do not grow with the number of samples.
        first, another = self._kept_bytes[dtype]
        return [(first + (micro_batch_size - 1) * another) // self.num_layers] * self.num_layers

    def _kept_after_forward(self, samples: int, dtype: torch.dtype) -> int:
        """Bytes that all layers together keep for backward, in addition to their inputs."""
        kept = []
        for stored_layers in (self.num_layers, 0):
            with fake_tensors(self) as weights, torch.enable_grad(), LiveBytes() as live:
                tokens = torch.empty(samples, self.seq_len, dtype=torch.long)
                with torch.autocast("cpu", dtype=dtype, enabled=dtype != self._head().weight.dtype):
                    inputs = tokens, torch.empty_like(tokens, dtype=torch.bool)
                    losses = torch.func.functional_call(self, weights, inputs, {"stored_layers": stored_layers})
                # An outer autocast would keep the copies of all weights.
                torch.clear_autocast_cache()
                kept.append(live.bytes_now())
                del losses
        return kept[0] - kept[1]

    def kernel_choice(self, dtype: torch.dtype) -> KernelChoice:
        """Kernels of attention in this type, which `transformers` offers for the architecture."""
        if self.network.config._attn_implementation == "sdpa":
            return KernelChoice(kernels="fused", reason="PyTorch's scaled_dot_product_attention chooses among its own")
        reason = f"transformers has no fused attention for {self.network.config.model_type}"
        return KernelChoice(kernels="products", reason=reason)

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        """Makes synthetic tokens and starts (samples, T) on the weights' device, with two documents in each block."""
        generator, shape = torch.Generator().manual_seed(0), (samples, self.seq_len)
        tokens = torch.randint(self.vocab_size, shape, generator=generator)
        starts = torch.zeros(shape, dtype=torch.bool)
        starts[:, 0] = starts[:, self.seq_len // 2] = True
        device = self._head().weight.device
        return tokens.to(device), starts.to(device)

    def _hidden_states(self, tokens: Tensor, starts: Tensor | None, *, stored_layers: int | None = None) -> Tensor:
        """Computes the output (B, t, D) of the last norm; arguments as for `forward` and `logits`."""
        if self.adapter is not None and self.adapter.frozen_bits == 4:
            quantize(self.network)
        recomputed = 0 if stored_layers is None else max(0, self.num_layers - stored_layers)
        for number, layer in enumerate(self._layers):
            layer.gradient_checkpointing = number < recomputed and torch.is_grad_enabled()
        # `transformers` recognizes documents by positions that do not rise by one, and makes the mask that the
        # architecture and its kernels need, sliding windows included (transformers.masking_utils).
        positions = document_positions(starts) if starts is not None else None
        return self.network.base_model(input_ids=tokens, position_ids=positions, use_cache=False).last_hidden_state

    def _logits_of(self, hidden: Tensor) -> Tensor:
        head = self._head()
        logits = nn.functional.linear(hidden, head.weight, head.bias)
        return logits if head.softcap is None else torch.tanh(logits / head.softcap) * head.softcap

    def _head(self) -> Head:
        output = self.network.get_output_embeddings()
        softcap = getattr(self.network.config, "final_logit_softcapping", None)
        return Head(weight=output.weight, bias=output.bias, softcap=softcap)

    def _compute_dtype(self) -> torch.dtype:
        """Type of the weights, or a lower one under autocast."""
        weight = self._head().weight
        if weight.device.type != "meta" and torch.is_autocast_enabled(weight.device.type):
            return torch.get_autocast_dtype(weight.device.type)
        return weight.dtype

    def _check_input(self, tokens: Tensor, starts: Tensor) -> None:
        if tokens.dim() != 2 or tokens.shape[1] != self.seq_len or starts.shape != tokens.shape:
            raise BadInput(
                f"Tokens of shape {tuple(tokens.shape)} and starts of {tuple(starts.shape)}; the model takes "
                f"(B, {self.seq_len}) for both.",
                cure="Prepare the shards again with the run's recipe.",
            )

    def _check_text(self, ids: Sequence[int], new_tokens: int) -> None:
        most = most_positions(self.network.config)
        if not ids or new_tokens < 1:
            raise BadInput(f"A text of {len(ids)} ids and {new_tokens} to draw; give at least one of each.")
        if most is not None and len(ids) + new_tokens > most:
            raise BadInput(
                f"A text of {len(ids)} ids and {new_tokens} more is longer than the model's {most} positions; give a "
                "shorter text or draw less."
            )
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise BadInput(
                f"The text has ids from {min(ids)} to {max(ids)}; the model knows 0 to {self.vocab_size - 1}.",
                cure="Use the run's tokenizer.",
            )


def document_positions(starts: Tensor) -> Tensor:
    """Position of each token within its document, int64 (B, T).

    >>> document_positions(torch.tensor([[False, False, True, True, False]])).tolist()
    [[0, 1, 0, 0, 1]]
    """
    places = torch.arange(starts.shape[1], device=starts.device).expand(starts.shape)
    return places - torch.where(starts, places, 0).cummax(1).values


def most_positions(network_config) -> int | None:
    """Longest text for which an architecture has positions; None: no limit."""
    return getattr(network_config, "max_position_embeddings", None)
