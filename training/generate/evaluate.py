"""A run's quality figures: the loss on held-out samples, and the share of generated pictures that match their prompt.

Pictures have two judges: a fixed rule that looks at the pixels, for captions of coloured shapes, and CLIP, for all
others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training.checkpoints.checkpoint import Checkpoint
from training.data.demo.captions import parse_caption
from training.errors import BadInput
from training.generate.judge import Judgement, judge
from training.generate.pictures import Picture, shards_of
from training.tasks.held_out import HeldOut, held_out_part, measure
from training.tasks.known import task_of

if TYPE_CHECKING:
    from training.data.store.sets import Shards
    from training.generate.clip import Clip

QUALITIES = ("shape", "colour", "matched", "exact")
"""Qualities that are counted. `matched`, the run's figure, is shape and colour; `exact` is everything that the prompt
says."""
CLIP_CHOICES = 10
"""Prompts from which CLIP chooses a picture's own, so chance is one in ten."""
CHANCE_ROUNDS = 5
"""Number of other prompts by which each picture is judged to measure chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Shares of pictures that are right, between 0 and 1."""

    count: int
    """Pictures judged."""
    shares: dict[str, float]
    """Quality -> share of pictures that match their own prompt."""
    chance: dict[str, float] | None
    """Quality -> share if the same pictures are judged by other pictures' prompts: what a model reaches without reading
    the prompt. None if all prompts are equal."""
    matched_interval: tuple[float, float]
    """95 % interval of the share `matched`."""
    verdicts: tuple[Judgement, ...]
    """The verdict on each picture by its own prompt."""


def evaluate_held_out(
    checkpoint: Checkpoint,
    shards: str | None = None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HeldOut | None:
    """Computes a checkpoint's loss on the samples that are held out of its training; None if nothing is held out.

    Args:
        checkpoint: Result of `load_checkpoint`.
        shards: Folder or address of the shards, if they have been moved.
        progress: Called with the number of samples done and the total.

    Raises:
        BadInput: If the shards are not found, cannot be read, or are not those of the checkpoint.
        TrainingError: If the loss is not a number.
    """
    held_out = held_out_part(shards_of(checkpoint, shards))
    if held_out is None:
        return None
    return measure(checkpoint.model, task_of(checkpoint.config), held_out, progress=progress)


def evaluate_pictures(pictures: Sequence[Picture]) -> Evaluation:
    """Judges pictures by their prompts, and by the prompts of other pictures for the chance level.

    Raises:
        BadInput: If there is no picture, or the judge cannot read a prompt.
    """
    if not pictures:
        raise BadInput("There is no picture to judge; give at least one caption.")
    verdicts = tuple(judge(picture.pixels, picture.prompt) for picture in pictures)
    by_other_prompts = [
        judge(picture.pixels, pictures[(at + offset) % len(pictures)].prompt)
        for offset in _offsets(len(pictures))
        for at, picture in enumerate(pictures)
        # An equal prompt says nothing about chance.
        if pictures[(at + offset) % len(pictures)].prompt != picture.prompt
    ]
    shares = {quality: _share(verdicts, quality) for quality in QUALITIES}
    return Evaluation(
        count=len(pictures),
        shares=shares,
        chance={quality: _share(by_other_prompts, quality) for quality in QUALITIES} if by_other_prompts else None,
        matched_interval=wilson_interval(round(shares["matched"] * len(pictures)), len(pictures)),
        verdicts=verdicts,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipEvaluation:
    """Result of a test in which CLIP finds each picture's own prompt among other pictures' prompts."""

    count: int
    """Pictures judged."""
    choices: int
    """Prompts to choose from, the picture's own among them; chance is 1 / choices."""
    right: tuple[bool, ...]
    """For each picture, whether CLIP found its own prompt nearest."""
    interval: tuple[float, float]
    """95 % interval of the share that is right."""
    score: float
    """CLIP score; see `clip_score`."""

    @property
    def share(self) -> float:
        """Share of pictures whose own prompt was the nearest."""
        return sum(self.right) / self.count


def evaluate_by_clip(pictures: Sequence[Picture], clip: Clip, *, seed: int) -> ClipEvaluation:
    """Lets CLIP choose each picture's prompt among those of other pictures.

    A picture that CLIP finds as near to another prompt as to its own is not counted as right.

    Args:
        pictures: Pictures that the model drew.
        clip: The judge. It knows what it was trained on; where it ranked the pictures before, the share is too high.
        seed: Chooses the other prompts.

    Raises:
        BadInput: If there are fewer than two different prompts to choose from.
    """
    places = {prompt: at for at, prompt in enumerate(dict.fromkeys(picture.prompt for picture in pictures))}
    prompts = list(places)
    if len(prompts) < 2:
        raise BadInput(
            f"CLIP needs at least two different captions to choose from, and got {len(prompts)}; "
            "give a file with more --captions, or a larger --count."
        )
    choices = min(CLIP_CHOICES, len(prompts))
    rows = (clip.embed_pictures([picture.pixels for picture in pictures]) @ clip.embed_texts(prompts).T).tolist()
    numbers = random.Random(seed)
    own = [places[picture.prompt] for picture in pictures]
    right = tuple(
        all(
            row[mine] > row[other]
            for other in numbers.sample([at for at in range(len(prompts)) if at != mine], choices - 1)
        )
        for row, mine in zip(rows, own, strict=True)
    )
    return ClipEvaluation(
        count=len(pictures),
        choices=choices,
        right=right,
        interval=wilson_interval(sum(right), len(pictures)),
        score=sum(row[mine] for row, mine in zip(rows, own, strict=True)) / len(pictures),
    )


def clip_score(pictures: Sequence[Picture], clip: Clip) -> float:
    """Mean cosine of a picture and its prompt, -1 to 1; comparable only between pictures judged by one CLIP."""
    embedded = clip.embed_texts([picture.prompt for picture in pictures])
    return float((clip.embed_pictures([picture.pixels for picture in pictures]) * embedded).sum(dim=1).mean())


def wilson_interval(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Confidence interval of a share if `right` of `count` are right (Wilson 1927); z = 1.96 gives 95 %.

    >>> [round(end, 3) for end in wilson_interval(80, 100)]
    [0.711, 0.867]
    """
    share, square = right / count, z * z / count
    middle = (share + square / 2) / (1 + square)
    half = z * (share * (1 - share) / count + square / (4 * count)) ** 0.5 / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def choose_captions(captions: Sequence[str], *, count: int, seed: int) -> list[str]:
    """Chooses `count` captions at random; a caption is repeated only after all have been chosen."""
    # Not a set, whose order Python salts in each process: the same seed would choose other captions.
    different = list(dict.fromkeys(captions))
    random_numbers = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < count:
        chosen += random_numbers.sample(different, min(len(different), count - len(chosen)))
    return chosen


def check_captions(captions: Sequence[str]) -> None:
    """Raises BadInput if the rule cannot read a caption, before anything is drawn."""
    for caption in captions:
        parse_caption(caption)


def rule_reads(captions: Sequence[str]) -> bool:
    """Returns whether the rule can judge pictures of all these captions."""
    try:
        check_captions(captions)
    except BadInput:
        return False
    return True


def captions_of(shards: Shards) -> list[str]:
    """All captions of a split, in the shards' order."""
    import pyarrow.parquet as parquet

    files = [shards.file(name) for name in shards.names]
    return [caption for file in files for caption in parquet.read_table(file, columns=["caption"])[0].to_pylist()]


def _offsets(count: int) -> list[int]:
    """Returns offsets by which prompts are shifted against pictures; evenly spread, never 0."""
    rounds = min(CHANCE_ROUNDS, count - 1)
    return sorted({1 + turn * (count - 1) // rounds for turn in range(rounds)})


def _share(verdicts: Sequence[Judgement], quality: str) -> float:
    """Share of the verdicts that are right."""
    return sum(getattr(verdict, quality) for verdict in verdicts) / len(verdicts)
