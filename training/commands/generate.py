"""`generate`: pictures from prompts, by the latest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="What to draw, each in quotes.", show_default=False)
    ] = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", help="Text file with one prompt a line, drawn after those named.")
    ] = None,
    checkpoint: Annotated[
        Path, typer.Option(help="Checkpoint folder, or a run's folder: its latest checkpoint is taken.")
    ] = Path("runs/demo"),
    out: Annotated[Path, typer.Option(help="Folder for the PNGs and pictures.json.")] = Path("runs/pictures"),
    count: Annotated[int, typer.Option(min=1, help="Pictures of each prompt.")] = 4,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures; picture i has seed + i.")] = 0,
    top_k: Annotated[
        int | None,
        typer.Option(min=0, help="Draw from the likeliest so many codes; 0: from all. Default: the recipe's."),
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest codes up to this probability. Default: the recipe's.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Above 1 is bolder, below 1 safer. Default: the recipe's.")
    ] = None,
    shards: Annotated[
        str | None, typer.Option(help="Folder or URL of the shards, if they no longer lie where the run had them.")
    ] = None,
) -> None:
    """Draw pictures of prompts with a trained checkpoint."""
    from training.errors import BadInput
    from training.generate.pictures import (
        choose_sampling,
        draw_prompts,
        load_codec_and_tokenizer,
        read_prompts,
        save_pictures,
    )
    from training.progress import show_progress
    from training.publish.checkpoints import find_checkpoint, load_checkpoint

    wanted = [*(prompts or []), *(read_prompts(prompts_file) if prompts_file is not None else [])]
    if not wanted:
        raise BadInput('Nothing to draw: give a prompt, such as "a red circle", or a file with --prompts.')
    loaded = load_checkpoint(find_checkpoint(checkpoint))
    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
    sampling = choose_sampling(loaded.config.monitor, top_k=top_k, top_p=top_p, temperature=temperature)
    with show_progress() as show:
        pictures = draw_prompts(
            loaded.model,
            codec,
            tokenizer,
            [prompt for prompt in wanted for _ in range(count)],
            sampling=sampling,
            seed=seed,
            progress=lambda done, total: show(f"Drawing with epoch {loaded.epoch}", done, total),
        )
    for path in save_pictures(pictures, out, checkpoint=loaded, sampling=sampling):
        print(path)
