"""Keeps the pictures of a prompt that match it best by CLIP (paper, section 3.1: the best 4 of 128)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.errors import BadInput
from training.generate.clip import Clip, rank
from training.generate.pictures import Picture

Draw = Callable[[Sequence[str], int], list[Picture]]
"""Draws one picture for each prompt, the i-th with the given seed + i."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """Pictures that were kept of one prompt's candidates."""

    prompt: str
    pictures: tuple[Picture, ...]
    """Kept pictures, the best first."""
    kept_scores: tuple[float, ...]
    """Scores of `pictures`."""
    scores: tuple[float, ...]
    """Scores of all candidates, in the order of their seeds: cosines, -1 to 1."""


def draw_best(
    draw: Draw, clip: Clip, prompts: Sequence[str], *, candidates: int, keep: int, seed: int = 0
) -> list[Ranked]:
    """Draws candidates of each prompt, scores them, and keeps the best. Memory holds the candidates of one prompt.

    Args:
        draw: Function that draws the candidates.
        clip: Model that scores the candidates.
        prompts: Captions to draw.
        candidates: Pictures per prompt.
        keep: Pictures to keep per prompt.
        seed: Candidate c of prompt p is drawn with seed + p * candidates + c.

    Raises:
        BadInput: If `keep` exceeds `candidates`.
    """
    check_ranking(candidates=candidates, keep=keep)
    results = []
    for index, prompt in enumerate(prompts):
        drawn = draw([prompt] * candidates, seed + index * candidates)
        embedded = clip.embed_pictures([picture.pixels for picture in drawn])
        scores = (embedded @ clip.embed_texts([prompt])[0]).tolist()
        best = rank(scores, keep)
        results.append(
            Ranked(
                prompt=prompt,
                pictures=tuple(drawn[at] for at in best),
                kept_scores=tuple(scores[at] for at in best),
                scores=tuple(scores),
            )
        )
    return results


def check_ranking(*, candidates: int, keep: int) -> None:
    """Raises BadInput if more pictures are to be kept than drawn."""
    if keep > candidates:
        raise BadInput(f"{keep} of {candidates} candidates cannot be kept; give more --candidates or a smaller --keep.")
