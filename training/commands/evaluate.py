"""`evaluate`: how many generated pictures show what their prompt says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.commands.options import Checkpoint, Shards, Temperature, TopK, TopP

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint as LoadedCheckpoint
    from training.generate.evaluate import Evaluation

Captions = Annotated[
    str,
    typer.Option(help="A split of the shards (held-out, new-pairs or train), or a file with one caption per line."),
]
Candidates = Annotated[
    int, typer.Option(min=1, help="Draw this many pictures per caption and judge the one that CLIP ranks best.")
]
Clip = Annotated[str | None, typer.Option(help="Folder or name of a CLIP model. Default: as for `generate`.")]
Out = Annotated[Path | None, typer.Option(help="Keep the pictures, with their verdicts, in this folder.")]


def run(
    checkpoint: Checkpoint = Path("runs/demo"),
    captions: Captions = "held-out",
    count: Annotated[int, typer.Option(min=1, help="Pictures to judge.")] = 200,
    candidates: Candidates = 1,
    clip: Clip = None,
    seed: Annotated[int, typer.Option(help="Seed for choosing captions and drawing pictures.")] = 0,
    top_k: TopK = None,
    top_p: TopP = None,
    temperature: Temperature = None,
    shards: Shards = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Print the share of generated pictures whose shape and colour match the prompt, and the share by chance."""
    from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
    from training.data.captions import SPLITS
    from training.generate.evaluate import QUALITIES, captions_of, check_captions, choose_captions, evaluate_pictures
    from training.generate.pictures import (
        choose_sampling,
        drawer,
        load_codec_and_tokenizer,
        make_folder,
        read_prompts,
        save_pictures,
        shards_of,
    )
    from training.generate.ranking import draw_best
    from training.generate.small_clip import clip_of_run
    from training.processes.progress import show_progress

    loaded = load_checkpoint(find_checkpoint(checkpoint))
    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
    sampling = choose_sampling(loaded.config.monitor, top_k=top_k, top_p=top_p, temperature=temperature)
    known = captions_of(shards_of(loaded, shards, captions)) if captions in SPLITS else None
    prompts = choose_captions(known or read_prompts(Path(captions)), count=count, seed=seed)
    check_captions(prompts)
    if out is not None:
        make_folder(out)
    with show_progress() as show:
        total = len(prompts) * candidates
        draw = drawer(loaded, codec, tokenizer, sampling=sampling, seed=seed, total=total, show=show)
        if candidates == 1:
            pictures = draw(prompts, seed)
        else:
            ranker = clip_of_run(loaded, clip, codec=codec, shards=shards, progress=show)
            ranked = draw_best(draw, ranker, prompts, candidates=candidates, keep=1, seed=seed)
            pictures = [one.pictures[0] for one in ranked]
    result = evaluate_pictures(pictures)
    if out is not None:
        notes = [{quality: getattr(verdict, quality) for quality in QUALITIES} for verdict in result.verdicts]
        save_pictures(pictures, out, checkpoint=loaded, sampling=sampling, notes=notes)
    if as_json:
        asked = {"captions": captions, "count": result.count, "candidates": candidates}
        print(json.dumps(_facts(loaded, asked, result) | {"seed": seed, "sampling": asdict(sampling)}))
    else:
        best = f", the best of {candidates} each by CLIP" if candidates > 1 else ""
        _print_table(result, f"{result.count} pictures of {captions} captions, epoch {loaded.epoch}{best}")


def _facts(loaded: LoadedCheckpoint, asked: dict[str, object], result: Evaluation) -> dict[str, object]:
    return {
        "checkpoint": str(loaded.path),
        "run_id": loaded.config.run_id,
        "epoch": loaded.epoch,
        **asked,
        **result.shares,
        "matched_interval": list(result.matched_interval),
        "chance": result.chance,
    }


def _print_table(result: Evaluation, title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    table.add_column("right")
    table.add_column("share", justify="right")
    table.add_column("by chance", justify="right")
    names = {
        "shape": "shape",
        "colour": "colour",
        "matched": "shape and colour",
        "exact": "all that the caption says",
    }
    for quality, words in names.items():
        by_chance = f"{result.chance[quality]:.1%}" if result.chance else "–"
        table.add_row(words, f"{result.shares[quality]:.1%}", by_chance)
    Console().print(table)
    low, high = result.matched_interval
    print(f"Shape and colour: between {low:.1%} and {high:.1%} with 95 % confidence.")
    if result.chance:
        print("Chance: the same pictures, judged by other pictures' captions.")
    else:
        print("Chance was not measured: it needs at least two different captions.")
