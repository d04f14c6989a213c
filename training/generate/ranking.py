"""Of many pictures of a prompt, those that CLIP finds nearest to it (paper, section 3.1: the best 4 of 128)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.errors import BadInput
from training.generate.clip import Clip, rank
from training.generate.pictures import Picture

Draw = Callable[[Sequence[str], int], list[Picture]]
"""Draws one picture for each prompt given; the i-th with the seed given + i."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """What was kept of one prompt's candidates."""

    prompt: str
    pictures: tuple[Picture, ...]
    """The best first."""
    kept_scores: tuple[float, ...]
    """Of `pictures`."""
    scores: tuple[float, ...]
    """Of all candidates, in the order of their seeds: cosines, -1 to 1."""


def draw_best(
    draw: Draw, clip: Clip, prompts: Sequence[str], *, candidates: int, keep: int, seed: int = 0
) -> list[Ranked]:
    """Draws candidates of each prompt, scores them, and keeps the best; one prompt's candidates are in memory.

    Args:
        draw: What draws them.
        clip: What scores them.
        prompts: What to draw.
        candidates: Pictures of each prompt.
        keep: Kept of each.
        seed: Candidate c of prompt p is drawn with seed + p * candidates + c.

    Raises:
        BadInput: If more are to be kept than drawn.
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
