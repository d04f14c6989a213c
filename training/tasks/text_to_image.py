"""Text to image: a transformer draws a picture, code by code, from a caption (paper, section 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from training.checkpoints.checkpoint import load_checkpoint
from training.config import TEXT_TO_IMAGE, TextToImageRun
from training.data.store.sets import Shards
from training.data.store.shards import Manifest, TextManifest, check_fit
from training.data.stream.stream import Batch, SampleSet
from training.errors import BadInput
from training.generate.judge import judge
from training.generate.pictures import Sampling, draw_prompts, load_codec_and_tokenizer
from training.model.transformer import TextToImageTransformer, build_model, usual_activation_budget
from training.storage.whole import whole_file
from training.task import CardWords, Shown, Task


class TextToImage(Task):
    """See the module."""

    name = TEXT_TO_IMAGE
    run_config = TextToImageRun
    kind = "pictures"

    def build_model(self) -> TextToImageTransformer:
        """See `Task.build_model`."""
        return build_model(self.run.model, self.run.seed)

    @property
    def computing_parameters(self) -> int:
        """See `Task.computing_parameters`."""
        unshared = self.run.model_copy(update={"model": self.run.model.model_copy(update={"shared_groups": None})})
        return sum(parameter.numel() for parameter in TextToImage(unshared).on_paper().parameters())

    @property
    def num_layers(self) -> int:
        """See `Task.num_layers`."""
        return self.run.model.num_layers

    @property
    def seq_len(self) -> int:
        """See `Task.seq_len`."""
        return self.run.model.seq_len

    def calculator_config(self) -> dict[str, Any]:
        """See `Task.calculator_config`."""
        return self.run.calculator_config

    @property
    def keeps_some(self) -> bool:
        """See `Task.keeps_some`."""
        return self.reversible

    @property
    def reversible(self) -> bool:
        """See `Task.reversible`."""
        return self.run.model.reversible

    @property
    def usual_activation_budget(self) -> int | None:
        """See `Task.usual_activation_budget`."""
        return usual_activation_budget(self.run.model)

    def check_fit(self, manifest: Manifest | TextManifest, *, source: str) -> None:
        """See `Task.check_fit`."""
        check_fit(manifest, self.run.model, source=source)

    def samples(self, shards: Shards) -> SampleSet:
        """See `Task.samples`."""
        return SampleSet(shards, model=self.run.model, shuffle_buffer=self.run.data.shuffle_buffer)

    def example(self, samples: int) -> Batch:
        """See `Task.example`."""
        model, generator = self.run.model, torch.Generator().manual_seed(0)
        return Batch(
            text=torch.randint(1, model.text_vocab_size, (samples, model.text_seq_len), generator=generator),
            codes=torch.randint(0, model.image_vocab_size, (samples, model.image_seq_len), generator=generator),
            captions=[""] * samples,
        )

    def describe(self, batch: Batch, shards: str) -> str:
        """See `Task.describe`."""
        return f"one caption is {batch.captions[0]!r}"

    @property
    def card(self) -> CardWords:
        """See `Task.card`."""
        return CardWords(
            pipeline_tag="text-to-image",
            weights="a text-to-image transformer",
            needs="Pictures also need the run's image codec, which lies beside its prepared shards.",
            knows="the captions and pictures that it was trained on",
            makes="draws",
            loss_unit="nats per token, of pictures and captions with their weights",
        )

    def show(self, checkpoint: Path, shards: str, folder: Path, name: str) -> list[Shown]:
        """See `Task.show`: pictures, always drawn with the same seeds."""
        loaded, monitor = load_checkpoint(checkpoint), self.run.monitor
        codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
        sampling = Sampling.of_recipe(monitor)
        drawn = draw_prompts(loaded.model, codec, tokenizer, monitor.prompts, sampling=sampling, seed=self.run.seed)
        (folder / name).mkdir(parents=True, exist_ok=True)
        shown = []
        for number, picture in enumerate(drawn):
            file = f"{name}/{number}.png"
            with whole_file(folder / file) as draft:
                Image.fromarray(picture.pixels).save(draft, format="PNG")
            shape, colour = _judged(picture.pixels, picture.prompt)
            shown.append(Shown(prompt=picture.prompt, file=file, shape=shape, colour=colour))
        return shown


def _judged(pixels: np.ndarray, prompt: str) -> tuple[bool | None, bool | None]:
    """Whether shape and colour are right; None if the judge does not know the prompt's words."""
    try:
        verdict = judge(pixels, prompt)
    except BadInput:
        return None, None
    return bool(verdict.shape), bool(verdict.colour)
