"""`evaluate`: the loss of a checkpoint on samples that are held out of its training."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from training.generate.evaluate import evaluate_held_out
from training.processes.progress import show_progress

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint
    from training.tasks.held_out import HeldOut

NOTHING_HELD_OUT = "Nothing is held out of training, so there is no held-out loss."
HOW_TO_HOLD_OUT = {
    "text": "Put some files of text into a folder `validation` beside the others, or give documents the key `split` "
    "with the value `validation`, and prepare the data again.",
    "pictures": "Put some pictures, with their captions, into a folder `validation` beside the others, and prepare the "
    "data again.",
}
"""Advice by the kind of samples."""


def measure_held_out(loaded: Checkpoint, shards: str | None) -> HeldOut | None:
    """Computes the held-out loss and shows the progress; arguments and result as for `evaluate_held_out`."""
    with show_progress() as show:

        def progress(done: int, total: int) -> None:
            show("Measuring held-out samples", done, total)

        return evaluate_held_out(loaded, shards, progress=progress)


def facts_of(loaded: Checkpoint, found: HeldOut | None) -> dict[str, object]:
    """The checkpoint and its held-out loss for `--json`; the loss is None if nothing is held out."""
    return {
        "checkpoint": str(loaded.path),
        "run_id": loaded.config.run_id,
        "epoch": loaded.epoch,
        "held_out": asdict(found) | {"perplexity": found.perplexity} if found is not None else None,
    }


def show_held_out(loaded: Checkpoint, found: HeldOut | None) -> None:
    """Prints the held-out loss, or how to hold samples out."""
    if found is None:
        print(f"{NOTHING_HELD_OUT} {HOW_TO_HOLD_OUT[loaded.config.kind]}")
        return
    print(f"Held-out loss of epoch {loaded.epoch}: {_words(found)} in {found.samples} samples that nobody trains on.")


def _words(found: HeldOut) -> str:
    if found.image_loss is None:
        return f"{found.loss:.4f} nats per token, perplexity {found.perplexity:.2f}, over {found.tokens:,} tokens"
    told = f"{found.loss:.4f} nats as in training, {found.image_loss:.4f} per image token"
    return f"{told}, over {found.tokens:,} image tokens"
