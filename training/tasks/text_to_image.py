"""Text to image: a transformer draws a picture, code by code, from a caption (paper, section 3.1)."""

from __future__ import annotations

from typing import Any

import torch

from training.data.store.sets import Shards
from training.data.store.shards import Manifest, TextManifest, check_fit
from training.data.stream.stream import Batch, SampleSet
from training.model.transformer import TextToImageTransformer, build_model, usual_activation_budget
from training.recipe import TEXT_TO_IMAGE, TextToImageRun
from training.tasks.task import Task


class TextToImage(Task):
    """Task of a model that draws pictures; its samples are captions and codes."""

    name = TEXT_TO_IMAGE
    run_config = TextToImageRun

    def build_model(self) -> TextToImageTransformer:
        return build_model(self.run.model, self.run.seed)

    @property
    def computing_parameters(self) -> int:
        unshared = self.run.model_copy(update={"model": self.run.model.model_copy(update={"shared_groups": None})})
        return sum(parameter.numel() for parameter in TextToImage(unshared).on_paper().parameters())

    @property
    def num_layers(self) -> int:
        return self.run.model.num_layers

    @property
    def seq_len(self) -> int:
        return self.run.model.seq_len

    def calculator_config(self) -> dict[str, Any]:
        return self.run.calculator_config

    @property
    def keeps_some(self) -> bool:
        return self.reversible

    @property
    def reversible(self) -> bool:
        return self.run.model.reversible

    @property
    def usual_activation_budget(self) -> int | None:
        return usual_activation_budget(self.run.model)

    def check_fit(self, manifest: Manifest | TextManifest, *, source: str) -> None:
        check_fit(manifest, self.run.model, source=source)

    def samples(self, shards: Shards) -> SampleSet:
        return SampleSet(shards, model=self.run.model)

    def example(self, samples: int) -> Batch:
        model, generator = self.run.model, torch.Generator().manual_seed(0)
        return Batch(
            text=torch.randint(1, model.text_vocab_size, (samples, model.text_seq_len), generator=generator),
            codes=torch.randint(0, model.image_vocab_size, (samples, model.image_seq_len), generator=generator),
            captions=[""] * samples,
        )

    def describe(self, batch: Batch, shards: str) -> str:
        return f"one caption is {batch.captions[0]!r}"
