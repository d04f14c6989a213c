"""`evaluate`: the held-out loss, and how many generated pictures show what their prompt says, or how many stories are
right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from training.commands.options import Checkpoint, Shards, Temperature, TopK, TopP, refuse
from training.errors import BadInput

if TYPE_CHECKING:
    from training.checkpoints.checkpoint import Checkpoint as LoadedCheckpoint
    from training.generate.clip import Clip
    from training.generate.evaluate import ClipEvaluation, Evaluation
    from training.generate.pictures import Picture, Sampling

Captions = Annotated[
    str | None,
    typer.Option(
        help="A split of the shards (held-out, new-pairs or train), or a file with one caption per line. "
        "Default: held-out; train if the shards hold nothing out."
    ),
]
Candidates = Annotated[
    int, typer.Option(min=1, help="Draw this many pictures per caption and judge the one that CLIP ranks best.")
]
Judge = Annotated[
    Literal["rule", "clip"] | None,
    typer.Option(
        help="rule: looks at the pixels; knows coloured shapes only. clip: chooses each picture's caption among ten. "
        "Default: the rule if it can read all captions."
    ),
]
ClipModel = Annotated[
    str | None,
    typer.Option(help="Folder or name of a CLIP model, for the CLIP score of pictures. Default: as for `generate`."),
]
NO_SCORE: dict[str, object] = {"clip_score": None, "clip": None}
Out = Annotated[Path | None, typer.Option(help="Keep the pictures, with their verdicts, in this folder.")]


def run(
    checkpoint: Checkpoint = Path("runs/demo"),
    captions: Captions = None,
    count: Annotated[
        int, typer.Option(min=0, help="Pictures to judge, or stories of each kind; 0: print the held-out loss alone.")
    ] = 200,
    candidates: Candidates = 1,
    judge: Judge = None,
    clip: ClipModel = None,
    seed: Annotated[int, typer.Option(help="Seed for choosing captions and drawing pictures.")] = 0,
    top_k: TopK = None,
    top_p: TopP = None,
    temperature: Temperature = None,
    shards: Shards = None,
    out: Out = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Print the loss on held-out samples, and the share of pictures that show what their prompt says, and by chance; or
    of stories that are right."""
    from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint
    from training.commands.results.evaluate_held_out import measure_held_out
    from training.commands.results.evaluate_texts import judge_texts
    from training.generate.pictures import choose_sampling

    loaded = load_checkpoint(find_checkpoint(checkpoint))
    sampling = choose_sampling(loaded.config.monitor, top_k=top_k, top_p=top_p, temperature=temperature)
    if loaded.config.kind == "text":
        of_pictures = {"--captions": captions, "--judge": judge, "--clip": clip, "--out": out}
        refuse("text", {**of_pictures, "--candidates": candidates if candidates > 1 else None})
        held_out = measure_held_out(loaded, shards)
        judge_texts(loaded, held_out, shards, count=count, seed=seed, sampling=sampling, as_json=as_json)
        return
    asked = {"captions": captions, "count": count, "candidates": candidates, "judge": judge}
    how = {"shards": shards, "clip": clip, "seed": seed, "sampling": sampling, "out": out, "as_json": as_json}
    _judge_pictures(loaded, asked, **how)


def _judge_pictures(
    loaded: LoadedCheckpoint,
    asked: dict[str, Any],
    *,
    shards: str | None,
    clip: str | None,
    seed: int,
    sampling: Sampling,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measures the held-out loss, draws pictures of captions, judges them, and prints the verdict."""
    from training.generate.evaluate import check_captions, choose_captions, clip_score, rule_reads
    from training.generate.pictures import drawer, load_codec_and_tokenizer, make_folder, save_pictures
    from training.generate.ranking import draw_best
    from training.generate.small_clip import clip_of_run
    from training.processes.progress import show_progress

    codec, tokenizer = load_codec_and_tokenizer(loaded, shards)
    captions, known = _captions(loaded, shards, asked["captions"])
    prompts = choose_captions(known, count=asked["count"], seed=seed)
    judge, candidates = asked["judge"], asked["candidates"]
    if judge == "rule":
        check_captions(prompts)
    judge = judge or ("rule" if rule_reads(prompts) else "clip")
    if out is not None:
        make_folder(out)
    facts = _measured(loaded, shards, as_json=as_json)
    if not prompts:
        if as_json:
            print(json.dumps(facts))
        return
    with show_progress() as show:
        ranker = None
        if candidates > 1 or judge == "clip" or clip is not None:
            ranker = clip_of_run(loaded, clip, codec=codec, shards=shards, progress=show)
        total = len(prompts) * candidates
        draw = drawer(loaded, codec, tokenizer, sampling=sampling, seed=seed, total=total, show=show)
        if candidates == 1:
            pictures = draw(prompts, seed)
        else:
            ranked = draw_best(draw, ranker, prompts, candidates=candidates, keep=1, seed=seed)
            pictures = [one.pictures[0] for one in ranked]
    verdict = _verdict(pictures, ranker if judge == "clip" else None, seed)
    if out is not None:
        save_pictures(pictures, out, checkpoint=loaded, sampling=sampling, notes=verdict.notes)
    asked = {"captions": captions, "count": len(pictures), "candidates": candidates, "judge": judge}
    score = NO_SCORE
    if ranker is not None:
        found = verdict.found.score if judge == "clip" else clip_score(pictures, ranker)
        score = {"clip_score": found, "clip": ranker.name}
    if as_json:
        facts |= {**asked, **verdict.facts, **score, "seed": seed, "sampling": asdict(sampling)}
        print(json.dumps(facts))
    else:
        _show(loaded, asked, verdict, score)


def _measured(loaded: LoadedCheckpoint, shards: str | None, *, as_json: bool) -> dict[str, object]:
    """Measures a checkpoint without drawing, and prints the result for people. Returns the facts for `--json`."""
    from training.commands.results.evaluate_held_out import facts_of, measure_held_out, show_held_out
    from training.generate.pictures import shards_of

    held_out, error = measure_held_out(loaded, shards), shards_of(loaded, shards).manifest.reconstruction_error
    if not as_json:
        show_held_out(loaded, held_out)
        print(f"Reconstruction error of the codec: {error:.5f} (mean square, colours from 0 to 1), as `prepare` found.")
    return facts_of(loaded, held_out) | {"reconstruction_error": error}


def _show(
    loaded: LoadedCheckpoint,
    asked: dict[str, object],
    verdict: RuleVerdict | ClipVerdict,
    score: dict[str, object],
) -> None:
    """Prints the verdict for people."""
    ranked = asked["candidates"] > 1
    best = f", the best of {asked['candidates']} each by CLIP" if ranked else ""
    verdict.show(f"{asked['count']} pictures of {asked['captions']} captions, epoch {loaded.epoch}{best}")
    if ranked and asked["judge"] == "clip":
        print("CLIP has chosen the pictures that it judges here, so this share is too high; use --candidates 1.")
    if score == NO_SCORE:
        print("No CLIP model is given, so there is no CLIP score: name one with --clip.")
    else:
        print(f"CLIP score, the mean cosine of picture and caption by {score['clip']}: {score['clip_score']:.3f}.")


def _captions(loaded: LoadedCheckpoint, shards: str | None, named: str | None) -> tuple[str, list[str]]:
    """Reads captions: returns the name of the split or file, and its captions.

    Raises:
        BadInput: If the shards have no such split, or the file cannot be read.
    """
    from training.data.demo.captions import SPLITS
    from training.generate.evaluate import captions_of
    from training.generate.pictures import read_prompts, shards_of

    if named is not None and named not in SPLITS:
        return named, read_prompts(Path(named))
    if named is None:
        with suppress(BadInput):  # shards of one's own pictures often hold nothing out
            return "held-out", captions_of(shards_of(loaded, shards, "held-out"))
    split = named or "train"
    return split, captions_of(shards_of(loaded, shards, split))


def _verdict(pictures: Sequence[Picture], clip: Clip | None, seed: int) -> RuleVerdict | ClipVerdict:
    """Judges the pictures, by CLIP if one is given, otherwise by the rule."""
    from training.generate.evaluate import evaluate_by_clip, evaluate_pictures

    if clip is None:
        return RuleVerdict(evaluate_pictures(pictures))
    return ClipVerdict(evaluate_by_clip(pictures, clip, seed=seed), clip.name)


@dataclass(frozen=True)
class RuleVerdict:
    """Verdict of the rule, in the forms that the command shows."""

    found: Evaluation

    @property
    def notes(self) -> list[dict[str, bool]]:
        """For each picture, the qualities that it has."""
        from training.generate.evaluate import QUALITIES

        return [{quality: getattr(one, quality) for quality in QUALITIES} for one in self.found.verdicts]

    @property
    def facts(self) -> dict[str, object]:
        """For `--json`."""
        found = self.found
        return {**found.shares, "matched_interval": list(found.matched_interval), "chance": found.chance}

    def show(self, title: str) -> None:
        """Prints the verdict as a table."""
        _print_table(self.found, title)


@dataclass(frozen=True)
class ClipVerdict:
    """Verdict of CLIP, in the forms that the command shows."""

    found: ClipEvaluation
    clip: str

    @property
    def notes(self) -> list[dict[str, bool]]:
        """For each picture, whether CLIP found its caption."""
        return [{"found": right} for right in self.found.right]

    @property
    def facts(self) -> dict[str, object]:
        """For `--json`."""
        found = self.found
        return {
            "found": found.share,
            "found_interval": list(found.interval),
            "chance": 1 / found.choices,
        }

    def show(self, title: str) -> None:
        """Prints the verdict in two lines."""
        found = self.found
        low, high = found.interval
        print(f"{title}, judged by CLIP ({self.clip}), not by the rule for coloured shapes")
        print(
            f"CLIP finds a picture's own caption among {found.choices} in {found.share:.1%} of the cases "
            f"(95 % confidence: {low:.1%} to {high:.1%}); by chance {1 / found.choices:.1%}. CLIP judges only what it "
            "knows itself."
        )


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
