"""`evaluate` for a language model: prints its held-out loss, and judges stories that continue prompts seen, unseen, and
never combined in training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.table import Table

from training.commands.results.evaluate_held_out import HOW_TO_HOLD_OUT, NOTHING_HELD_OUT, facts_of, show_held_out
from training.data.demo.stories import Kind, prompts
from training.errors import BadInput
from training.generate.story_judge import StoryShare, evaluate_stories, judge_story
from training.generate.texts import continued, tokenizer_of
from training.processes.progress import show_progress

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint
    from training.generate.pictures import Sampling
    from training.tasks.held_out import HeldOut

ONLY_STORIES = "Only stories of the command `stories` can be judged as right or wrong; read what `generate` writes."
SHOWN_FAULTS = 3
"""Number of the most frequent faults that the table shows for a kind of prompt."""


def judge_texts(
    loaded: Checkpoint,
    held_out: HeldOut | None,
    shards: str | None,
    *,
    count: int,
    seed: int,
    sampling: Sampling,
    as_json: bool,
) -> None:
    """Prints the held-out loss and, of a run that writes stories, the share of right continuations, by kind of prompt.

    Args:
        loaded: Checkpoint of a language model.
        held_out: Its held-out loss; None if nothing is held out.
        shards: Folder or address of its shards, if they have been moved.
        count: Prompts of each kind; 0: none.
        seed: Seed of the choice of prompts and of sampling.
        sampling: How tokens are drawn.
        as_json: Whether to print one JSON object instead of a table.

    Raises:
        BadInput: If nothing is held out, and the run's prompts are not beginnings of this project's stories.
    """
    writes_stories = _writes_stories(loaded)
    if held_out is None and not writes_stories:
        raise BadInput(f"{NOTHING_HELD_OUT} {ONLY_STORIES}", cure=HOW_TO_HOLD_OUT["text"])
    if not as_json:
        show_held_out(loaded, held_out)
        if not writes_stories:
            print(ONLY_STORIES)
    judged = {}
    if count and writes_stories:
        judged = _judged(loaded, shards, count=count, seed=seed, sampling=sampling)
    if as_json:
        kinds = {kind: _facts(one) for kind, one in judged.items()}
        print(json.dumps(facts_of(loaded, held_out) | {"kinds": kinds, "seed": seed, "sampling": asdict(sampling)}))
    elif judged:
        _show(loaded, judged)


def _judged(
    loaded: Checkpoint, shards: str | None, *, count: int, seed: int, sampling: Sampling
) -> dict[str, StoryShare]:
    """Lets the model continue prompts, and judges the stories, by kind of prompt."""
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

        return evaluate_stories(wanted, write)


def _writes_stories(loaded: Checkpoint) -> bool:
    """Returns whether this run writes stories of the project's grammar, by its prompts."""
    told = loaded.config.monitor.prompts
    try:
        judge_story(told[0] if told else "-", "")
    except BadInput:
        return False
    return True


def _facts(found: StoryShare) -> dict[str, object]:
    return {"count": found.count, "right": found.share, "interval": list(found.interval), "faults": found.reasons}


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
