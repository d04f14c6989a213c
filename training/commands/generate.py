"""`generate`: draws pictures of prompts with the latest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.commands.options import Checkpoint, Shards, Temperature, TopK, TopP

if TYPE_CHECKING:
    from training.generate.clip import Clip as Ranker
    from training.generate.pictures import Picture
    from training.generate.ranking import Ranked

Prompts = Annotated[list[str] | None, typer.Argument(help="What to draw, each in quotes.", show_default=False)]
PromptsFile = Annotated[
    Path | None, typer.Option("--prompts", help="Text file with one prompt per line, drawn after the PROMPTS.")
]
Out = Annotated[Path, typer.Option(help="Folder for the PNGs, pictures.json and index.html, which shows them.")]
Candidates = Annotated[
    int | None,
    typer.Option(
        min=1, help="Draw this many pictures per prompt and keep those CLIP ranks best; the 2021 run used 128."
    ),
]
Clip = Annotated[
    str | None,
    typer.Option(
        help="CLIP model that ranks: a folder or a name on the Hugging Face Hub. Default: ViT-B/32 for a VQ-GAN run, "
        "else the run's own small model, which is trained at its first use (a minute or two)."
    ),
]
Guidance = Annotated[
    float, typer.Option(help="Classifier-free guidance; above 1 only for models trained with caption dropout.")
]


def run(
    prompts: Prompts = None,
    prompts_file: PromptsFile = None,
    checkpoint: Checkpoint = Path("runs/demo"),
    out: Out = Path("runs/pictures"),
    count: Annotated[int, typer.Option(min=1, help="Pictures per prompt; --candidates replaces it.")] = 4,
    candidates: Candidates = None,
    keep: Annotated[int, typer.Option(min=1, help="How many of each prompt's candidates to keep, best first.")] = 4,
    clip: Clip = None,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures; picture i has seed + i.")] = 0,
    top_k: TopK = None,
    top_p: TopP = None,
    temperature: Temperature = None,
    guidance: Guidance = 1.0,
    shards: Shards = None,
) -> None:
    """Draw pictures of prompts with a trained checkpoint."""
    from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
    from training.errors import BadInput
    from training.generate.gallery import write_gallery
    from training.generate.pictures import (
        check_prompts,
        choose_sampling,
        drawer,
        load_codec_and_tokenizer,
        make_folder,
        read_prompts,
        save_pictures,
    )
    from training.generate.ranking import check_ranking, draw_best
    from training.generate.small_clip import clip_of_run
    from training.processes.progress import show_progress

    wanted = [*(prompts or []), *(read_prompts(prompts_file) if prompts_file is not None else [])]
    if not wanted:
        raise BadInput('Nothing to draw: give a prompt, such as "a red circle", or a file with --prompts.')
    check_prompts(wanted)
    if candidates is not None:
        check_ranking(candidates=candidates, keep=keep)
    loaded = load_checkpoint(find_checkpoint(checkpoint))
    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
    how = {"top_k": top_k, "top_p": top_p, "temperature": temperature, "guidance": guidance}
    sampling = choose_sampling(loaded.config.monitor, **how)
    make_folder(out)
    noted = {}
    with show_progress() as show:
        total = len(wanted) * (count if candidates is None else candidates)
        draw = drawer(loaded, codec, tokenizer, sampling=sampling, seed=seed, total=total, show=show)
        if candidates is None:
            pictures = draw([prompt for prompt in wanted for _ in range(count)], seed)
        else:
            ranker = clip_of_run(loaded, clip, codec=codec, shards=shards, progress=show)
            ranked = draw_best(draw, ranker, wanted, candidates=candidates, keep=keep, seed=seed)
            pictures, noted = _kept(ranked, ranker, candidates)
    for path in save_pictures(pictures, out, checkpoint=loaded, sampling=sampling, **noted):
        print(path)
    print(f"All on one page: {write_gallery(out)}")


def _kept(ranked: list[Ranked], ranker: Ranker, candidates: int) -> tuple[list[Picture], dict[str, object]]:
    """The kept pictures of all prompts, and what `save_pictures` notes about them."""
    scores = [{"prompt": one.prompt, "scores": one.scores} for one in ranked]
    return [picture for one in ranked for picture in one.pictures], {
        "notes": [{"score": score} for one in ranked for score in one.kept_scores],
        "facts": {"clip": ranker.name, "candidates": candidates, "scores": scores},
    }
