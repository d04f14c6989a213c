"""`evaluate` for a language model: judges stories that continue prompts seen, unseen,
and never combined in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.table import Table

from training.data.demo.stories import Kind, prompts
from training.errors import BadInput
from training.generate.story_judge import StoryShare, evaluate_stories, judge_story
from training.generate.texts import continued, tokenizer_of
from training.processes.progress import show_progress

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint
    from training.generate.pictures import Sampling

SHOWN_FAULTS = 3
"""Number of the most frequent faults that the table shows for a kind of prompt."""


def judge_texts(
    loaded: Checkpoint, shards: str | None, *, count: int, seed: int, sampling: Sampling, as_json: bool
) -> None:
    """Prints the share of right continuations, by kind of prompt.

    Args:
        loaded: Checkpoint of a language model.
        shards: Folder or address of its shards, if they have been moved.
        count: Prompts of each kind.
        seed: Seed of the choice of prompts and of sampling.
        sampling: How tokens are drawn.
        as_json: Whether to print one JSON object instead of a table.

    Raises:
        BadInput: If the run's own prompts are not beginnings of this project's stories.
    """
    _check_stories(loaded)
    tokenizer, most = tokenizer_of(loaded, shards), loaded.config.monitor.continuation_tokens
    wanted = {kind: prompts(kind, count, seed) for kind in get_args(Kind)}
    done, total = 0, sum(map(len, wanted.values()))
    with show_progress() as show:

        def write(beginnings: Sequence[str]) -> list[str]:
            nonlocal done
            texts = []
            for beginning in beginnings:
                how = {"sampling": sampling, "most_tokens": most, "seed": seed + done}
                texts.append("".join(continued(loaded.model, tokenizer, beginning, **how)))
                done += 1
                show(f"Writing with epoch {loaded.epoch}", done, total)
            return texts

        found = evaluate_stories(wanted, write)
    if as_json:
        print(json.dumps(_facts(loaded, found) | {"seed": seed, "sampling": asdict(sampling)}))
    else:
        _show(loaded, found)


def _check_stories(loaded: Checkpoint) -> None:
    """Raises BadInput if this run does not write stories of the project's grammar."""
    told = loaded.config.monitor.prompts
    try:
        judge_story(told[0] if told else "-", "")
    except BadInput:
        raise BadInput(
            f"Only stories of the command `stories` can be judged, and the prompts of {loaded.config.run_id} are none.",
            cure="Read what `generate` writes instead.",
        ) from None


def _facts(loaded: Checkpoint, found: dict[str, StoryShare]) -> dict[str, object]:
    return {
        "checkpoint": str(loaded.path),
        "run_id": loaded.config.run_id,
        "epoch": loaded.epoch,
        "kinds": {
            kind: {"count": one.count, "right": one.share, "interval": list(one.interval), "faults": one.reasons}
            for kind, one in found.items()
        },
    }


def _show(loaded: Checkpoint, found: dict[str, StoryShare]) -> None:
    table = Table(title=f"Stories of {loaded.config.run_id}, epoch {loaded.epoch}")
    for heading in ("prompts", "judged", "right", "95 % confidence", "most frequent faults"):
        table.add_column(heading)
    for kind, one in found.items():
        low, high = one.interval
        faults = "; ".join(f"{reason} ({times})" for reason, times in list(one.reasons.items())[:SHOWN_FAULTS])
        table.add_row(kind, str(one.count), f"{one.share:.1%}", f"{low:.1%} to {high:.1%}", faults)
    Console().print(table)
    print("Right: each sentence is one of the grammar, all follow from those before, and the story ends.")
