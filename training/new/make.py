"""Makes a run of data: prepares them, sizes the model for them and for the volunteers, and writes the recipe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.choose.devices import device_named
from calculator.swarm.collaboration import Kind
from calculator.swarm.designed_models import AdaptedModel, DesignedModel, LanguageModel, PictureModel
from calculator.swarm.designer import Design, Wish, memory_of, recipe_tables
from calculator.swarm.recipe_file import Tables, recipe_text
from calculator.units import show_bytes, show_count, show_days, show_time
from training.data.sources.hub import is_hub
from training.data.sources.work import Progress
from training.data.store.shards import Manifest, TextManifest, check_text_fit
from training.errors import BadInput
from training.new.folder import RECIPE, SHARDS, held_out_words
from training.new.found import Found
from training.new.plan import MOST_PASSES, Wanted, adapted_model, choose_model, designed
from training.recipe import parse_recipe
from training.storage.whole import write_whole

if TYPE_CHECKING:
    from training.model.language.folders import Base

TOP_P = 0.5
"""Probability of the likeliest codes among which drawings choose, as in the recipe `demo`: one unlikely code among
the 64 of a picture spoils it."""
TOP_K = 50
"""Likeliest tokens among which continuations choose: the default of `transformers`."""
FEW_STEPS, STEPS, STEPS_PER_PICTURE = 400, 1600, 2
"""Steps of the training of a picture codec: for few pictures, for many, and for each picture in between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRun:
    """A run to make."""

    found: Found
    run_dir: Path
    run_id: str
    title: str
    wanted: Wanted
    base: str | None = None
    """Published model to fine-tune, a folder or an id of the hub; None: a model is trained from the beginning."""
    captions: Path | None = None
    """File of the pictures' captions; None: the folder has them."""
    image_column: str | None = None
    text_column: str | None = None
    """Key or column of text or captions; None: a usual one."""


Shown = Callable[[], AbstractContextManager[Progress]]
"""Context in which progress is shown; see `training.processes.progress.show_progress`."""


def make_run(new: NewRun, say: Callable[[str], None], shown: Shown) -> str:
    """Prepares the data of a run and writes its recipe. Work that was interrupted goes on where it stopped.

    Args:
        new: The run to make.
        say: Called with each line to print.
        shown: Shows the progress while data are prepared.

    Returns:
        Folder of the prepared data.

    Raises:
        BadInput: If the data cannot be used, or no volunteer's device holds even a small model.
    """
    new.run_dir.mkdir(parents=True, exist_ok=True)
    base = None if new.base is None else _base(new, say)
    model = choose_model(new.found, new.wanted) if base is None else adapted_model(base, new.found, new.wanted)
    designed(model, new.wanted)  # refuses volunteers who cannot train it, before the data are read
    shards, manifest = _prepared(new, model, base, say, shown)
    model = _fitted(model, manifest, Path(shards))
    samples = manifest.splits["train"].samples
    wish, made = designed(model, new.wanted, samples)
    text = recipe_text(_head(new), _tables(new, wish, made, shards, manifest))
    parse_recipe(text, source=RECIPE)
    for line in forecast_lines(wish, made, samples):
        say(line)
    # Last: a folder with a recipe is one that is complete.
    write_whole(new.run_dir / RECIPE, text)
    return shards


def _base(new: NewRun, say: Callable[[str], None]) -> Base:
    """Reads the model to fine-tune; first fetches a model of the hub."""
    from training.model.language.folders import read_base

    if new.found.kind != "text":
        raise BadInput(f"--from fine-tunes a language model, and {new.found.place} has pictures.")
    say(f"Reading the weights of {new.base} ...")
    base = read_base(new.base)
    if new.found.manifest is None and base.tokenizer_file is None:
        raise BadInput(
            f"{new.base} has no tokenizer.json, by which its text is prepared.",
            cure="Give a model that has one, or prepare the text by `prepare --tokenizer` and give the shards.",
        )
    return base


def _prepared(
    new: NewRun, model: DesignedModel, base: Base | None, say: Callable[[str], None], shown: Shown
) -> tuple[str, Manifest | TextManifest]:
    """Prepares the data, unless they are shards already. Returns the folder and the manifest.

    Without a recipe beside them, earlier shards in the folder belong to no run, and are replaced.
    """
    found = new.found
    if found.manifest is not None:
        say(held_out_words(found.manifest))
        return found.place, found.manifest
    out = new.run_dir / SHARDS
    if isinstance(model, LanguageModel):
        with shown() as progress:
            manifest = _prepare_text(new, model, base, out, progress)
        say(
            f"Prepared {show_count(manifest.splits['train'].samples)} blocks of {manifest.block_length} tokens, from "
            f"{show_count(manifest.documents)} documents; the tokenizer has {show_count(manifest.vocab_size)} ids."
        )
    else:
        with shown() as progress:
            manifest = _prepare_pictures(new, model, out, progress)
        say(f"Prepared {show_count(manifest.splits['train'].samples)} pictures with captions.")
    say(held_out_words(manifest))
    if manifest.left_out:
        told = ", ".join(f"{reason}: {show_count(count)}" for reason, count in manifest.left_out.items())
        say(f"Left out: {told}. {out}/left-out.jsonl names them.")
    return str(out), manifest


def _prepare_text(new: NewRun, model: LanguageModel, base: Base | None, out: Path, progress: Progress) -> TextManifest:
    from training.data.prepare.text import TextInput, prepare_text

    place = new.found.place
    columns = {} if new.text_column is None else {"text_column": new.text_column}
    if base is None:
        tokenizer = {"vocabulary": model.vocabulary}
    else:
        tokenizer = {"tokenizer": base.tokenizer_file, "end_of_text": _end_of_text(base)}
    path = place if is_hub(place) else Path(place)
    source = TextInput(path=path, block_length=model.block_length, holds_out=True, **tokenizer, **columns)
    return prepare_text(source, out, replace=True, progress=progress)[0]


def _end_of_text(base: Base) -> str | None:
    """Token that ends a text, from a model's config.json; None if the file names none."""
    from tokenizers import Tokenizer

    ends = base.architecture.get("eos_token_id")
    first = ends[0] if isinstance(ends, list) and ends else ends
    return Tokenizer.from_file(str(base.tokenizer_file)).id_to_token(first) if isinstance(first, int) else None


def _prepare_pictures(new: NewRun, model: PictureModel, out: Path, progress: Progress) -> Manifest:
    from training.compute.machine import torch_device
    from training.data.prepare.pictures import Input, prepare

    place = new.found.place
    where = {"hub": place} if is_hub(place) else {"images": Path(place)}
    columns = {"image_column": new.image_column, "caption_column": new.text_column}
    source = Input(captions=new.captions or new.found.captions, holds_out=True, **where, **columns)
    wish, made = designed(model, new.wanted)
    draft = recipe_text([], recipe_tables(wish, made, {"run_id": new.run_id, "title": new.title}))
    count = new.found.samples
    steps = STEPS if count is None else min(STEPS, max(FEW_STEPS, STEPS_PER_PICTURE * count))
    settings = {"codec_steps": steps, "device": torch_device(None), "replace": True, "progress": progress}
    return prepare(source, out, parse_recipe(draft, source=RECIPE), **settings)[0]


def _fitted(model: DesignedModel, manifest: Manifest | TextManifest, shards: Path) -> DesignedModel:
    """The model with the sizes that the prepared data decide."""
    from training.new.samples import caption_length

    if isinstance(model, AdaptedModel):
        sizes = {"block_length": model.block_length, "vocab_size": model.config["vocab_size"]}
        check_text_fit(manifest, **sizes, source=str(shards))
        return model
    if isinstance(model, LanguageModel):
        return replace(model, vocabulary=manifest.vocab_size, block_length=manifest.block_length)
    return replace(model, captions=(manifest.text_vocab_size, caption_length(shards)))


def _tables(new: NewRun, wish: Wish, made: Design, shards: str, manifest: Manifest | TextManifest) -> Tables:
    """The recipe's tables, with what the data decide."""
    from training.new.samples import prompts_of

    tables = recipe_tables(wish, made, {"run_id": new.run_id, "title": new.title})
    tables["data"]["shards"] = shards
    tables["monitor"]["prompts"] = prompts_of(shards, manifest)
    if manifest.kind == "pictures":
        tables["monitor"]["top_p"] = TOP_P
    else:
        if new.base is None:
            tables["model.architecture"]["eos_token_id"] = manifest.end_of_text
        tables["monitor"]["top_k"] = TOP_K
    return tables


def _head(new: NewRun) -> list[str]:
    return [
        f"Written by `python -m training new`, of {new.found.words}.",
        "All peers of a run use the same recipe: change it before the servers start, or begin another run. Afterwards",
        "change only what a comment says may change at any time.",
    ]


def forecast_lines(wish: Wish, made: Design, samples: int) -> list[str]:
    """Lines of the designer's forecast, for data of this many samples."""
    reached, chosen, model = made.forecast, made.collaboration, wish.model
    kinds = [Kind(**asdict(people)).in_words(wish.utilisation) for people in wish.people]
    passes = made.epochs * chosen.target_batch_size / samples
    sample = "samples" if model.sequence_length is None else f"blocks of {model.sequence_length} tokens"
    late = "" if made.days <= wish.days else f", more than the {show_days(wish.days)} that you gave"
    trained = chosen.exchange().parameters
    beside = f" of adapters, beside {show_count(model.parameters)} frozen ones" if model.adapters else ""
    lines = [
        "",
        "Forecast for these volunteers:",
        *[f"  {kind}" for kind in kinds],
        f"  model    {show_count(trained)} weights{beside}",
        f"  epoch    {show_count(chosen.target_batch_size)} {sample} of all together, in "
        f"{show_time(reached.epoch_seconds)}; each volunteer sends {show_bytes(reached.sent_bytes)} an epoch",
        f"  mode     {chosen.mode}{', delay_outer_step' * chosen.delay_outer_step}: {made.why_batch}",
        f"  whole    {show_count(made.epochs)} epochs, {show_days(made.days)}{late}",
    ]
    for gpu, size in made.micro_batches.items():
        title = device_named(gpu).title
        if not size:
            lines.append(f"  memory   not even one sample fits {title}: leave it out, or name a larger one")
            continue
        memory = memory_of(wish, made, gpu)
        lines.append(f"  memory   {show_bytes(memory.device_bytes)} of a {title}, {size} samples at once")
    if passes > MOST_PASSES:
        lines.append(
            f"  data     each sample is trained on about {show_count(round(passes))} times; once the held-out loss "
            "rises on the dashboard, more training only learns them by heart"
        )
    lines += [f"  stops    {limit.sentence}" for limit in reached.limits if limit.stops]
    return [*lines, ""]
