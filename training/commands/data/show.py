"""`data`: makes a page that shows the contents of prepared shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    shards: Annotated[str, typer.Argument(help="Folder or address of prepared shards, of pictures or of text.")],
    out: Annotated[Path, typer.Option(help="File for the page; an older one is replaced.")] = Path("data.html"),
    split: Annotated[str, typer.Option(help="The part to show: train, held-out or new-pairs.")] = "train",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many samples to show, drawn at random.")] = 24,
    seed: Annotated[int, typer.Option(help="Another number shows other samples.")] = 0,
) -> None:
    """Write a page of samples of prepared shards: pictures or text, lengths, and what was left out."""
    from training.data.demo.captions import SPLITS
    from training.data.store.show import look, page
    from training.errors import BadInput
    from training.storage.whole import write_whole

    if split not in SPLITS:
        raise BadInput(f"There is no part {split!r}; there are {', '.join(SPLITS)}. Give one of them with --split.")
    found = look(shards, split=split, count=count, seed=seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, page(found))
    print(f"Wrote {len(found.samples)} samples of {shards} to {out}. Open it in a browser.")
