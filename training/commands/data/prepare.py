"""`prepare`: turns pictures and captions, or text, into shards that peers stream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from training.errors import BadInput

if TYPE_CHECKING:
    from training.data.store.shards import Manifest, TextManifest

MOST_SHOWN = 3
"""Most files and lines that are named for one reason to leave them out."""
Out = Annotated[Path, typer.Option(help="Folder for the shards; appears only once it is complete.")]
Images = Annotated[
    str | None,
    typer.Option(
        help="Folder of the pictures, with a metadata.jsonl as `imagefolder` reads it, texts beside them, of "
        "webdataset tars or zips, or of Parquet files with the pictures inside; or one tar or zip; or a data set "
        "of the Hugging Face Hub, hf://OWNER/NAME[/config][@revision]."
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        help="Column that has the pictures of a data set of the hub (default: the only one), or key or column of their "
        "names or addresses (default: file, file_name or another usual one)."
    ),
]
Captions = Annotated[
    Path | None,
    typer.Option(
        help='JSON lines such as {"file": "1.png", "caption": "...", "split": "train"}, an array of such, or a .csv or '
        ".parquet with these columns. Of a list of captions, the first is used. Default: captions are beside the "
        "pictures, 1.txt for 1.png."
    ),
]
Urls = Annotated[
    Path | None,
    typer.Option(
        help="Parquet file, or a folder of such, with columns URL and TEXT (and NSFW, WIDTH, HEIGHT): the pictures are "
        "fetched. Instead of --images."
    ),
]
Text = Annotated[
    str | None,
    typer.Option(
        help='Text instead of pictures: a file, or a folder of files. JSON lines such as {"text": "..."}, an array of '
        "such, .csv, .parquet, .arrow, .txt or .md; all but tables also as .gz, .zst, .bz2 or .xz. Or a data set of "
        "the Hugging Face Hub, hf://OWNER/NAME[/config][@revision]."
    ),
]
BlockLength = Annotated[int | None, typer.Option(min=2, max=1 << 17, help="Tokens of a block of text. Default: 1024.")]
Vocabulary = Annotated[
    int | None,
    typer.Option(
        min=257,  # an id for every byte, and the end of text
        max=1 << 24,  # the library ends the program where there is no memory for all ids
        help="Train a tokenizer with this many ids on the text, instead of --tokenizer.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        help="Key or column that has the text, or the captions of pictures. Default: text; of captions, caption, text "
        "or captions."
    ),
]
EndOfText = Annotated[
    str | None, typer.Option(help="Token of --tokenizer that ends a text. Default: one that is known.")
]
MinCharacters = Annotated[int | None, typer.Option(min=1, max=1 << 20, help="Shorter texts are left out. Default: 1.")]
Recipe = Annotated[str | None, typer.Option(help="Name, file or URL of the recipe of pictures. Default: demo.")]
Codec = Annotated[Path | None, typer.Option(help="Trained image codec. Default: a small one is trained.")]
CodecSteps = Annotated[int | None, typer.Option(min=1, help="Steps of the codec's training. Default: 1600.")]
TokenizerFile = Annotated[
    Path | None, typer.Option(help="tokenizer.json. Default for pictures: one is trained on the captions' words.")
]
Replace = Annotated[bool, typer.Option(help="Replace shards made from other input.")]
Seed = Annotated[int, typer.Option(help="Seed of the samples' order and the codec's training.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Pictures that are decoded at the same time. Default: one per core.")
]
Device = Annotated[
    str | None, typer.Option(help="Where pictures are encoded: cpu, cuda, cuda:1 and so on. Default: a GPU, else cpu.")
]
NearDuplicatesChoice = Annotated[
    Literal["keep", "drop"] | None,
    typer.Option(
        help="Pictures that are nearly the same as an earlier one: they are counted, and kept or left out. Default: "
        "keep."
    ),
]
Push = Annotated[
    str | None,
    typer.Option(
        help="Copy the finished shards there: a folder, hf://OWNER/NAME for a data set of the Hugging Face Hub, "
        "s3://BUCKET/PATH, or another address that fsspec knows. "
        "The same command goes on with what was interrupted."
    ),
]
Licence = Annotated[str | None, typer.Option(help="Licence of pictures and captions, or text, for the data card.")]


def run(
    out: Out,
    images: Images = None,
    captions: Captions = None,
    urls: Urls = None,
    text: Text = None,
    recipe: Recipe = None,
    codec: Codec = None,
    tokenizer: TokenizerFile = None,
    codec_steps: CodecSteps = None,
    vocabulary: Vocabulary = None,
    block_length: BlockLength = None,
    text_column: TextColumn = None,
    end_of_text: EndOfText = None,
    min_characters: MinCharacters = None,
    replace: Replace = False,
    seed: Seed = 0,
    workers: Workers = None,
    device: Device = None,
    image_column: ImageColumn = None,
    near_duplicates: NearDuplicatesChoice = None,
    licence: Licence = None,
    push: Push = None,
) -> None:
    """Turn pictures with captions into compressed shards of image codes, or text into shards of blocks of tokens."""
    from training.processes.progress import show_progress

    of_pictures = {
        "images": images,
        "captions": captions,
        "urls": urls,
        "recipe": recipe,
        "codec": codec,
        "codec_steps": codec_steps,
        "workers": workers,
        "device": device,
        "image_column": image_column,
        "near_duplicates": near_duplicates,
    }
    of_text = {
        "vocabulary": vocabulary,
        "block_length": block_length,
        "end_of_text": end_of_text,
        "min_characters": min_characters,
    }
    _check_alone(text, of_pictures, of_text)
    with show_progress(sys.stdout) as show:
        settings = {"replace": replace, "licence": licence, "progress": show}
        if text is None:
            flags = {**of_pictures, "text_column": text_column}
            manifest, made = _prepare_pictures(out, flags, tokenizer_file=tokenizer, seed=seed, **settings)
        else:
            flags = {**of_text, "path": text, "text_column": text_column, "tokenizer": tokenizer, "seed": seed}
            manifest, made = _prepare_text(out, flags, settings)
    (_tell if text is None else _tell_text)(manifest, out, made=made)
    if push is not None:
        _push(out, push, replace=replace)


def _push(out: Path, address: str, *, replace: bool) -> None:
    from training.processes.progress import show_progress
    from training.publish.copies.sets import push_set
    from training.storage.remote import data_set_address

    address = data_set_address(address)  # with which peers read what is sent
    with show_progress(sys.stdout) as show:
        sent = push_set(out, address, replace=replace, progress=show)
    print(f"Sent {sent} files to {address}." if sent else f"Nothing to send: all files are at {address}.")


def _check_alone(text: str | None, of_pictures: dict[str, object], of_text: dict[str, object]) -> None:
    """Raises BadInput if a flag of pictures is given with text, or the other way round."""
    others = of_text if text is None else of_pictures
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]
    if given:
        kind = "text, and there is no --text" if text is None else "pictures, and --text was given"
        raise BadInput(f"{', '.join(given)}: this is for {kind}. Omit one of the two.")


def _prepare_pictures(out: Path, flags: dict[str, Any], **settings: object) -> tuple[Manifest, bool]:
    from training.compute.machine import torch_device
    from training.data.prepare.pictures import Input, prepare
    from training.data.sources.hub import is_hub
    from training.recipe import load_recipe

    images = flags["images"]
    place = {"hub": images} if is_hub(images) else {"images": None if images is None else Path(images)}
    columns = {"image_column": flags["image_column"], "caption_column": flags["text_column"]}
    source = Input(captions=flags["captions"], urls=flags["urls"], **place, **columns)
    if flags["codec_steps"] is not None:
        settings["codec_steps"] = flags["codec_steps"]
    recipe = load_recipe(flags["recipe"] or "demo")
    settings["drops_near_duplicates"] = flags["near_duplicates"] == "drop"
    settings |= {"workers": flags["workers"], "device": torch_device(flags["device"])}
    return prepare(source, out, recipe, codec_file=flags["codec"], **settings)


def _prepare_text(out: Path, flags: dict[str, Any], settings: dict[str, Any]) -> tuple[TextManifest, bool]:
    from training.data.prepare.text import TextInput, prepare_text

    given = {name: value for name, value in flags.items() if value is not None}
    return prepare_text(TextInput(**given), out, **settings)


def _tell(manifest: Manifest, out: Path, *, made: bool) -> None:
    """Prints the counts of a prepared set of pictures."""
    from training.data.prepare.pictures import NEAR_DUPLICATE
    from training.data.store.card import times_smaller

    print(f"{_made(manifest, made=made)} samples in {out}.")
    _tell_left_out(manifest, out, f"{manifest.pictures} pictures")
    if manifest.near_duplicates:
        what = (
            "They were left out"
            if NEAR_DUPLICATE in manifest.left_out
            else "Leave them out with --near-duplicates drop"
        )
        print(f"Nearly the same as an earlier picture: {manifest.near_duplicates}. {what}.")
    print(f"The picture files have {times_smaller(manifest):.1f} times as many bytes as the shards.")
    print(f"Mean squared error of the codec: {manifest.reconstruction_error:.5f}.")
    print(f"Tokens {manifest.tokens_digest}: every peer of the run needs shards of this codec and tokenizer.")


def _tell_text(manifest: TextManifest, out: Path, *, made: bool) -> None:
    """Prints the counts of a prepared set of text."""
    from training.data.store.card import times_smaller

    print(f"{_made(manifest, made=made)} blocks of {manifest.block_length} tokens in {out}.")
    bits = 8 * manifest.token_type.itemsize
    print(f"Tokens: {manifest.tokens}, each one of {manifest.vocab_size}, in {bits} bit.")
    _tell_left_out(manifest, out, f"{manifest.documents} documents")
    print(f"Left over at the end, too few for a block: {manifest.left_over_tokens} tokens.")
    print(f"The text has {times_smaller(manifest):.1f} times as many bytes as the shards.")
    print(f"Tokens {manifest.tokens_digest}: every peer of the run needs shards of this tokenizer.")


def _tell_left_out(manifest: Manifest | TextManifest, out: Path, of: str) -> None:
    """Prints the counts of left-out input by reason, and the first names of each reason."""
    from training.data.sources.unused import LEFT_OUT_FILE, first_left_out, told_reasons

    print(f"Left out of {of}: {told_reasons(manifest.left_out) or 'none'}.")
    found = first_left_out(out, MOST_SHOWN)
    for reason, (count, names) in sorted(found.items()):
        # A text's list has only the first names; what is used in part, such as a list of captions, has no count.
        more = manifest.left_out.get(reason, count) - len(names)
        print(f"  {reason}: {'; '.join(names)}{f' and {more} more' if more else ''}")
    if found:
        print(f"  {out / LEFT_OUT_FILE} names them.")


def _made(manifest: Manifest | TextManifest, *, made: bool) -> str:
    counts = ", ".join(f"{entry.samples} {split}" for split, entry in manifest.splits.items())
    return f"{'Prepared' if made else 'Nothing to do, this input is already prepared:'} {counts}"
