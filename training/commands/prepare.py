"""`prepare`: turns pictures and captions into shards that peers stream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    images: Annotated[Path, typer.Option(help="Folder of the pictures.")],
    captions: Annotated[Path, typer.Option(help='JSON lines: {"file": "1.png", "caption": "...", "split": "train"}.')],
    out: Annotated[Path, typer.Option(help="Folder for the shards; appears only once it is complete.")],
    recipe: Annotated[str, typer.Option(help="Name, file or URL of the recipe.")] = "demo",
    codec: Annotated[Path | None, typer.Option(help="Trained image codec. Default: a small one is trained.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json. Default: one is trained on the captions' words.")
    ] = None,
    codec_steps: Annotated[int, typer.Option(min=1, help="Steps of the codec's training.")] = 1600,
    replace: Annotated[bool, typer.Option(help="Replace shards made from other input.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the samples' order and the codec's training.")] = 0,
) -> None:
    """Turn pictures with captions into compressed shards of image codes."""
    from training.config import load_recipe
    from training.data.prepare import prepare
    from training.processes.progress import show_progress

    run_config = load_recipe(recipe)
    with show_progress(sys.stdout) as show:
        manifest, made = prepare(
            images,
            captions,
            out,
            run_config,
            codec_file=codec,
            tokenizer_file=tokenizer,
            codec_steps=codec_steps,
            replace=replace,
            seed=seed,
            progress=show,
        )
    counts = ", ".join(f"{entry.samples} {split}" for split, entry in manifest.splits.items())
    print(f"{'Prepared' if made else 'Nothing to do, this input is already prepared:'} {counts} samples in {out}.")
    left_out = ", ".join(f"{count} {reason}" for reason, count in manifest.left_out.items())
    print(f"Left out of {manifest.pictures} pictures: {left_out or 'none'}.")
    print(f"Mean squared error of the codec: {manifest.reconstruction_error:.5f}.")
    print(f"Tokens {manifest.tokens_digest}: every peer of the run needs shards of this codec and tokenizer.")
