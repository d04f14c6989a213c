"""`neighbours`: finds the training samples nearest to a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.commands.options import Shards

if TYPE_CHECKING:
    from training.generate.neighbours import Neighbours


def run(
    pictures: Annotated[list[Path], typer.Argument(help="Pictures, or folders that `generate` wrote.")],
    checkpoint: Annotated[
        Path, typer.Option(help="Checkpoint folder, or a run's folder, whose training samples are searched.")
    ] = Path("runs/demo"),
    count: Annotated[int, typer.Option(min=1, help="How many neighbours of each kind to show.")] = 5,
    samples: Annotated[int, typer.Option(min=1, help="How many training samples to search, from the first.")] = 20_000,
    clip: Annotated[
        str | None, typer.Option(help="CLIP model that compares: a folder or a name. Default: as for `generate`.")
    ] = None,
    shards: Shards = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for neighbours.json and the nearest training pictures.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show the training captions and pictures nearest to a picture: was its concept in the training set?"""
    import json
    from dataclasses import asdict

    from PIL import Image

    from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
    from training.generate.neighbours import find_neighbours, read_queries
    from training.generate.pictures import load_codec_and_tokenizer, shards_of
    from training.generate.small_clip import clip_of_run, decoded_samples
    from training.processes.progress import show_progress
    from training.storage.whole import write_whole

    queries = read_queries(pictures)
    loaded = load_checkpoint(find_checkpoint(checkpoint))
    codec, _ = load_codec_and_tokenizer(loaded, shards)
    with show_progress() as show:
        compared = clip_of_run(loaded, clip, codec=codec, shards=shards, progress=show)
        known, captions = decoded_samples(shards_of(loaded, shards), codec, progress=show, most=samples)
        found = find_neighbours(compared, list(queries.values()), known, captions, count=count)
    facts = {
        "checkpoint": str(loaded.path),
        "clip": compared.name,
        "samples": len(captions),
        "pictures": [{"file": name, **asdict(near)} for name, near in zip(queries, found, strict=True)],
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_whole(out / "neighbours.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
        for near in found:
            for neighbour in near.pictures:
                Image.fromarray(known[neighbour.index]).save(out / f"training-{neighbour.index:06d}.png")
    if as_json:
        print(json.dumps(facts))
    else:
        print(f"Nearest of {len(captions)} training samples by {compared.name} (cosine):")
        _print_neighbours(dict(zip(queries, found, strict=True)))


def _print_neighbours(found: dict[str, Neighbours]) -> None:
    """Prints the neighbours of each picture, by the picture's name."""
    for name, near in found.items():
        print(f"\n{name}")
        for title, neighbours in (("by picture", near.pictures), ("by caption", near.captions)):
            for neighbour in neighbours:
                print(f"  {title}  {neighbour.similarity:.3f}  {neighbour.caption}")
