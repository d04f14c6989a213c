"""What the monitor shows of a checkpoint: the recipe's fixed prompts, drawn or continued and judged, and its loss on
held-out samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from training.checkpoints.branches import folder_name
from training.checkpoints.checkpoint import Checkpoint, load_checkpoint
from training.errors import BadInput
from training.generate.clip import load_clip
from training.generate.evaluate import captions_of, choose_captions, clip_score, evaluate_held_out
from training.generate.judge import judge
from training.generate.pictures import Picture, Sampling, draw_prompts, load_codec_and_tokenizer, shards_of
from training.generate.story_judge import judge_story
from training.generate.texts import continued, tokenizer_of
from training.publish.showcase import Shown
from training.storage.whole import whole_file
from training.tasks.held_out import HeldOut, affordable_samples
from training.tasks.known import task_of

CLIP_PICTURES = 16
"""Most pictures that a checkpoint draws for its CLIP score; a large model draws fewer."""


def show(checkpoint: Path, shards: str, folder: Path) -> list[Shown]:
    """Draws or continues each prompt of the recipe, always with the same seeds, and judges the results.

    Args:
        checkpoint: Folder of the checkpoint.
        shards: Folder or address of the run's shards.
        folder: Folder in which the pictures go into a new folder named after the checkpoint.
    """
    loaded = load_checkpoint(checkpoint)
    if loaded.config.kind == "text":
        return _continue(loaded, shards)
    return _draw(loaded, shards, folder, folder_name(checkpoint))


def measure(checkpoint: Path, shards: str) -> HeldOut | None:
    """Computes a checkpoint's loss on the samples that are held out of training; None if nothing is held out.

    Args:
        checkpoint: Folder of the checkpoint.
        shards: Folder or address of the run's shards.
    """
    return evaluate_held_out(load_checkpoint(checkpoint), shards)


def score(checkpoint: Path, shards: str, clip: str) -> float:
    """Computes a checkpoint's CLIP score of pictures of held-out captions, always of the same ones.

    Args:
        checkpoint: Folder of the checkpoint of a run that draws pictures.
        shards: Folder or address of the run's shards, which hold samples out.
        clip: Folder or name of the CLIP model.
    """
    scorer = load_clip(clip)  # first: a wrong name is told before all pictures are drawn
    loaded = load_checkpoint(checkpoint)
    known = captions_of(shards_of(loaded, shards, "held-out"))
    count = min(len(set(known)), CLIP_PICTURES, affordable_samples(task_of(loaded.config)))
    captions = choose_captions(known, count=count, seed=loaded.config.seed)
    return clip_score(_drawn(loaded, shards, captions), scorer)


def _drawn(loaded: Checkpoint, shards: str, captions: Sequence[str]) -> list[Picture]:
    """Draws a picture of each caption as the recipe says."""
    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
    how = {"sampling": Sampling.of_recipe(loaded.config.monitor), "seed": loaded.config.seed}
    return draw_prompts(loaded.model, codec, tokenizer, captions, **how)


def _draw(loaded: Checkpoint, shards: str, folder: Path, name: str) -> list[Shown]:
    drawn = _drawn(loaded, shards, loaded.config.monitor.prompts)
    (folder / name).mkdir(parents=True, exist_ok=True)
    shown = []
    for number, picture in enumerate(drawn):
        file = f"{name}/{number}.png"
        with whole_file(folder / file) as draft:
            Image.fromarray(picture.pixels).save(draft, format="PNG")
        shape, colour = _judged_picture(picture.pixels, picture.prompt)
        shown.append(Shown(prompt=picture.prompt, file=file, shape=shape, colour=colour))
    return shown


def _judged_picture(pixels: np.ndarray, prompt: str) -> tuple[bool | None, bool | None]:
    """Judges whether (shape, colour) are right; each is None if the judge does not know the prompt's words."""
    try:
        verdict = judge(pixels, prompt)
    except BadInput:
        return None, None
    return bool(verdict.shape), bool(verdict.colour)


def _continue(loaded: Checkpoint, shards: str) -> list[Shown]:
    run = loaded.config
    how = {"sampling": Sampling.of_recipe(run.monitor), "most_tokens": run.monitor.continuation_tokens}
    tokenizer, shown = tokenizer_of(loaded, shards), []
    for number, prompt in enumerate(run.monitor.prompts):
        text = "".join(continued(loaded.model, tokenizer, prompt, **how, seed=run.seed + number))
        shown.append(Shown(prompt=prompt, text=text, good=_judged_text(prompt, text)))
    return shown


def _judged_text(prompt: str, text: str) -> bool | None:
    """Judges whether a text is right; None if the judge does not know the prompt's words."""
    try:
        return judge_story(prompt, text).good
    except BadInput:
        return None
