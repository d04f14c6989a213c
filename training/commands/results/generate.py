"""`generate`: draws pictures of prompts, or continues texts, with the latest checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from training.commands.options import Checkpoint, Shards, Temperature, TopK, TopP, refuse

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint as LoadedCheckpoint
    from training.generate.clip import Clip as Ranker
    from training.generate.pictures import Picture, Sampling
    from training.generate.ranking import Ranked

Prompts = Annotated[
    list[str] | None, typer.Argument(help="What to draw, or to continue, each in quotes.", show_default=False)
]
PromptsFile = Annotated[
    Path | None, typer.Option("--prompts", help="Text file with one prompt per line, after the PROMPTS.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the PNGs, pictures.json and index.html, which shows them. Default: runs/pictures.",
        show_default=False,
    ),
]
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
Tokens = Annotated[
    int | None, typer.Option(min=1, help="Most tokens of a text's continuation. Default: as the recipe says.")
]


def run(
    prompts: Prompts = None,
    prompts_file: PromptsFile = None,
    checkpoint: Checkpoint = Path("runs/demo"),
    out: Out = None,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Pictures (4) or texts (1) per prompt; --candidates replaces it.", show_default=False),
    ] = None,
    candidates: Candidates = None,
    keep: Annotated[int, typer.Option(min=1, help="How many of each prompt's candidates to keep, best first.")] = 4,
    clip: Clip = None,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same pictures or texts; number i has seed + i.")
    ] = 0,
    top_k: TopK = None,
    top_p: TopP = None,
    temperature: Temperature = None,
    tokens: Tokens = None,
    shards: Shards = None,
) -> None:
    """Draw pictures of prompts, or continue texts, with a trained checkpoint."""
    from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
    from training.errors import BadInput
    from training.generate.pictures import check_prompts, choose_sampling, read_prompts
    from training.generate.ranking import check_ranking

    wanted = [*(prompts or []), *(read_prompts(prompts_file) if prompts_file is not None else [])]
    if not wanted:
        raise BadInput('Nothing to draw: give a prompt, such as "a red circle", or a file with --prompts.')
    check_prompts(wanted)
    if candidates is not None:
        check_ranking(candidates=candidates, keep=keep)
    loaded = load_checkpoint(find_checkpoint(checkpoint))
    sampling = choose_sampling(loaded.config.monitor, top_k=top_k, top_p=top_p, temperature=temperature)
    asked = {"shards": shards, "sampling": sampling, "seed": seed}
    if loaded.config.kind == "pictures":
        refuse("pictures", {"--tokens": tokens})
        ranking = {"candidates": candidates, "keep": keep, "clip": clip}
        _draw(loaded, wanted, out or Path("runs/pictures"), count=count or 4, **ranking, **asked)
    else:
        refuse("text", {"--out": out, "--candidates": candidates, "--clip": clip})
        _continue(loaded, wanted, count=count or 1, tokens=tokens, **asked)


def _draw(
    loaded: LoadedCheckpoint,
    wanted: list[str],
    out: Path,
    *,
    count: int,
    candidates: int | None,
    keep: int,
    clip: str | None,
    shards: str | None,
    sampling: Sampling,
    seed: int,
) -> None:
    """Draws the prompts into a folder, and prints its path."""
    from training.generate.gallery import write_gallery
    from training.generate.pictures import drawer, load_codec_and_tokenizer, make_folder, save_pictures
    from training.generate.ranking import draw_best
    from training.generate.small_clip import clip_of_run
    from training.processes.progress import show_progress

    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
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


def _continue(
    loaded: LoadedCheckpoint,
    wanted: list[str],
    *,
    count: int,
    tokens: int | None,
    shards: str | None,
    sampling: Sampling,
    seed: int,
) -> None:
    """Prints each prompt and its continuation, piece by piece, with an empty line between two prompts."""
    from training.generate.texts import continued, tokenizer_of

    tokenizer, most = tokenizer_of(loaded, shards), tokens or loaded.config.monitor.continuation_tokens
    for number, prompt in enumerate(prompt for prompt in wanted for _ in range(count)):
        if number:
            print()
        print(prompt, end="", flush=True)
        how = {"sampling": sampling, "most_tokens": most, "seed": seed + number}
        for piece in continued(loaded.model, tokenizer, prompt, **how):
            print(piece, end="", flush=True)
        print()


def _kept(ranked: list[Ranked], ranker: Ranker, candidates: int) -> tuple[list[Picture], dict[str, object]]:
    """The kept pictures of all prompts, and what `save_pictures` notes about them."""
    scores = [{"prompt": one.prompt, "scores": one.scores} for one in ranked]
    return [picture for one in ranked for picture in one.pictures], {
        "notes": [{"score": score} for one in ranked for score in one.kept_scores],
        "facts": {"clip": ranker.name, "candidates": candidates, "scores": scores},
    }
