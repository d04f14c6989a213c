"""`stories`: the language demo's own stories."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    out: Annotated[Path, typer.Option(help="Folder for stories.jsonl; an older set is replaced.")],
    count: Annotated[int, typer.Option(min=1, help="Number of stories.")] = 100_000,
    seed: Annotated[int, typer.Option(help="The same seed makes the same stories.")] = 0,
) -> None:
    """Make short stories by a grammar: a training set of text whose continuations can be judged by rules."""
    from training.data.demo.stories import write_stories
    from training.processes.progress import show_progress

    with show_progress(sys.stdout) as show:
        splits = write_stories(
            out, count=count, seed=seed, progress=lambda done, total: show("Making stories", done, total)
        )
    counts = ", ".join(f"{count} {split}" for split, count in splits.items())
    print(f"Made {sum(splits.values())} stories in {out}: {counts}.")
