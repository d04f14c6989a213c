"""Loss of a model on samples of the run's data that were held out of training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from training.data.store.blocks import DamagedError
from training.data.store.sets import Shards, open_shards
from training.data.stream.order import permuted
from training.errors import BadInput, TrainingError
from training.storage.remote import MissingError, UnreachableError
from training.tasks.task import Task, TrainedModel

MOST_SAMPLES = 256
"""Most samples of a measurement."""
MOST_OPERATIONS = 10**13
"""Most floating-point operations of a measurement, counted as 2 for each weight and token: five minutes on one core
that does 33 GFLOP/s. A large model is measured on fewer samples, at least one."""
TOGETHER = 4
"""Samples in one forward pass."""
LARGEST_LOSS = 700.0
"""Largest loss that is believed, in nats; exp of it is still a number."""
CHOICE = "held-out"
"""Key of the choice of samples: every checkpoint is measured on the same ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Loss of a model on samples that were held out of training."""

    loss: float
    """Mean in nats, of the same loss as in training: per predicted token of text; of pictures, per token of captions
    and pictures with their weights."""
    samples: int
    """Samples on which the loss was computed."""
    tokens: int
    """Tokens of text that the model predicted, or image tokens."""
    image_loss: float | None = None
    """Mean in nats per image token alone; None for text."""

    @property
    def perplexity(self) -> float | None:
        """exp(loss) of text; None for pictures."""
        return math.exp(self.loss) if self.image_loss is None else None


def held_out_part(shards: Shards) -> Shards | None:
    """Opens the part of a set that is held out of training; None if nothing is held out."""
    held_out = shards.manifest.splits.get("held-out")
    if held_out is None or not held_out.samples:
        return None
    return open_shards(shards.source, "held-out", kind=shards.manifest.kind)


def measure(
    model: TrainedModel, task: Task, shards: Shards, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> HeldOut:
    """Computes a model's mean loss on samples of a part of a set, the same ones at each call.

    Memory holds one row group of the shards, and a forward pass of `TOGETHER` samples.

    Args:
        model: The model, in evaluation mode.
        task: Its task.
        shards: The part of the set.
        progress: Called with the number of samples done and the total.

    Raises:
        BadInput: If the samples cannot be read, or are not of the model's sizes.
        TrainingError: If the loss is not a number.
    """
    samples = task.samples(shards)
    ends = np.cumsum(samples.blocks.rows)
    chosen = np.sort(permuted(np.arange(_count(task, shards.samples)), shards.samples, CHOICE))
    blocks = np.searchsorted(ends, chosen, side="right")
    loss, image_loss, tokens, done = 0.0, 0.0, 0, 0
    for block in np.unique(blocks):
        rows = chosen[blocks == block] - (ends - samples.blocks.rows)[block]
        try:
            read = samples.read(int(block))
        except (DamagedError, MissingError, UnreachableError) as error:
            raise BadInput(
                f"The held-out samples of {shards.source} cannot be read: {samples.blocks.name(int(block))}, {error}.",
                cure="Look whether they are still there, or prepare them again.",
            ) from None
        for start in range(0, len(rows), TOGETHER):
            batch = samples.batch([(read, int(row)) for row in rows[start : start + TOGETHER]])
            with torch.inference_mode():
                found = model(*batch.inputs)
            loss += float(found.loss) * batch.predicted_tokens
            image_loss += float(getattr(found, "image_loss", math.nan)) * batch.predicted_tokens
            tokens += batch.predicted_tokens
            done += len(batch)
            progress(done, len(chosen))
    mean = loss / tokens if tokens else math.nan
    if not mean < LARGEST_LOSS:
        raise TrainingError(
            f"The loss on the held-out samples of {shards.source} is {mean:g}: the weights are spoiled.",
            cure="Look at the loss on the dashboard, and go back to an earlier checkpoint.",
        )
    of_images = image_loss / tokens
    return HeldOut(loss=mean, samples=done, tokens=tokens, image_loss=None if math.isnan(of_images) else of_images)


def _count(task: Task, samples: int) -> int:
    """Number of samples to measure of a part with `samples`."""
    return min(samples, MOST_SAMPLES, affordable_samples(task))


def affordable_samples(task: Task) -> int:
    """Number of samples with `MOST_OPERATIONS`, at least 1."""
    return max(1, MOST_OPERATIONS // (2 * task.computing_parameters * task.seq_len))
