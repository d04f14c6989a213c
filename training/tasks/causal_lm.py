"""A language model: a decoder of the library `transformers` that continues text."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from training.data.store.sets import Shards, open_shards
from training.data.store.shards import Manifest, TextManifest, check_text_fit
from training.data.stream.stream import TextBatch, TextSet
from training.model.language.adapters import allocate_adapters, draw_adapters
from training.model.language.folders import build_language_model
from training.model.language.model import LanguageModel
from training.recipe import CAUSAL_LM, LanguageRun
from training.tasks.task import Task

SHOWN_CHARACTERS = 60
"""Most characters of a sample in one line."""


class CausalLanguageModel(Task):
    """Continues text; its samples are blocks of tokens."""

    name = CAUSAL_LM
    run_config = LanguageRun

    def build_model(self) -> LanguageModel:
        return build_language_model(self.run.model, self.run.seed, self.run.adapter)

    def build_trained_part(self) -> LanguageModel:
        if self.run.adapter is None:
            return self.build_model()
        model = self.on_paper()
        allocate_adapters(model.network)
        draw_adapters(model.network, self.run.seed)
        return model

    def describes(self, model: LanguageModel) -> bool:
        return super().describes(model) and self.run.adapter == model.adapter

    @cached_property
    def _paper(self) -> LanguageModel:
        return self.on_paper()

    @property
    def num_layers(self) -> int:
        return self._paper.num_layers

    @property
    def seq_len(self) -> int:
        return self.run.model.block_length

    @property
    def vocab_size(self) -> int:
        """Number of ids for which the model has room."""
        return self._paper.vocab_size

    def calculator_config(self) -> dict[str, Any]:
        return self._paper.network.config.to_dict()

    @property
    def fetches_weights(self) -> bool:
        return self.run.model.pretrained is not None

    @property
    def computes_in_16_bits(self) -> bool:
        return self.run.adapter is not None and self.run.adapter.frozen_bits < 32

    @property
    def keeps_some(self) -> bool:
        return True

    def check_fit(self, manifest: Manifest | TextManifest, *, source: str) -> None:
        sizes = {"block_length": self.seq_len, "vocab_size": self.vocab_size}
        check_text_fit(manifest, **sizes, source=source)

    def samples(self, shards: Shards) -> TextSet:
        return TextSet(shards, block_length=self.seq_len, vocab_size=self.vocab_size)

    def example(self, samples: int) -> TextBatch:
        generator = torch.Generator().manual_seed(0)
        shape = samples, self.seq_len
        tokens = torch.randint(0, self.vocab_size, shape, generator=generator)
        # A document begins at about every hundredth token, as in short texts.
        return TextBatch(tokens=tokens, starts=torch.rand(shape, generator=generator) < 0.01)

    def describe(self, batch: TextBatch, shards: str) -> str:
        text = open_shards(shards, kind="text").tokenizer.decode(batch.tokens[0].tolist())
        return f"one block begins with {text[:SHOWN_CHARACTERS]!r}"
