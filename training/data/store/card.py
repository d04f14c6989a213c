"""Writes the data card of a set: its sources and counts, with some of its pictures or its text."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from training.data.store.blocks import Blocks
from training.data.store.layouts import LARGEST_ASPECT_RATIO, LEAST_CAPTION_CHARACTERS
from training.data.store.shards import TOKENIZER_FILE, AnyManifest, Manifest, TextManifest, read_shard
from training.data.store.text_tokenizer import TextTokenizer
from training.model.codecs.codec import decoded_pixels, load_codec
from training.recipe import RunConfig
from training.storage.remote import Folder

HUB_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]*")
"""Form of the hub's short names of licences, such as cc-by-4.0."""
SAMPLES_FILE = "samples.png"
SHOWN = 16
"""Number of pictures on the card."""
ACROSS = 8
"""Number of pictures in a line."""
SHOWN_BLOCKS = 5
SHOWN_CHARACTERS = 200
"""Most characters shown of a caption or a block."""


def times_smaller(manifest: Manifest | TextManifest) -> float:
    """Ratio of the bytes of the picture files, or of the text, to the bytes of the shards."""
    shards = [name for split in manifest.splits.values() for name in split.shards]
    before = manifest.text_bytes if manifest.kind == "text" else manifest.picture_bytes
    return before / sum(manifest.files[name].bytes for name in shards)


def facts_of(manifest: Manifest | TextManifest) -> dict[str, str]:
    """Sizes of a set in words, by name."""
    facts = {f"Samples, {name}": f"{split.samples:,}" for name, split in manifest.splits.items()}
    if manifest.kind == "text":
        return facts | {
            "Tokens of a block": f"{manifest.block_length:,}, each one of {manifest.vocab_size:,}",
            "Bits of a token": f"{8 * manifest.token_type.itemsize}, little-endian",
            "Tokens": f"{manifest.tokens:,}",
            "Tokens at the end, too few for a block": f"{manifest.left_over_tokens:,}",
            "Text over shards, bytes": f"{times_smaller(manifest):.1f}",
            "Id between two documents": f"{manifest.end_of_text}",
        }
    return facts | {
        "Codes of a picture": f"{manifest.image_seq_len:,}, each one of {manifest.image_vocab_size:,}",
        "Mean squared error of the codec": f"{manifest.reconstruction_error:.5f}",
        "Picture files over shards, bytes": f"{times_smaller(manifest):.1f}",
        "Nearly the same as an earlier picture": f"{manifest.near_duplicates:,}",
        "Shortest caption": f"{LEAST_CAPTION_CHARACTERS} characters",
        "Largest aspect ratio": f"{LARGEST_ASPECT_RATIO:g}",
    }


def write_card(folder: Path, manifest: Manifest, run: RunConfig, *, licence: str | None) -> None:
    """Writes `README.md`, with a YAML header as data hubs read it, and `samples.png`.

    Args:
        folder: Folder of the shards.
        manifest: The set's manifest; its files are in the folder.
        run: The recipe.
        licence: Licence of pictures and captions; None: the card says that it is unknown.
    """
    first = folder / manifest.splits["train"].shards[0]
    samples = list(islice(read_shard(first), SHOWN))
    codes = torch.from_numpy(np.stack([sample.codes for sample in samples]).astype(np.int64))
    _write_grid(folder / SAMPLES_FILE, decoded_pixels(load_codec(folder, run.codec), codes))
    captions = [_plain(sample.caption) for sample in samples]
    (folder / "README.md").write_text(_card(manifest, run, captions, licence), encoding="utf-8")


def _card(manifest: Manifest, run: RunConfig, captions: list[str], licence: str | None) -> str:
    return "\n".join(
        [
            _header("text-to-image", licence, run.run_id),
            f"# Samples of {_plain(run.title)}\n",
            f"Pictures as codes of an image codec, and their captions. {_written(licence)}",
            _table(facts_of(manifest)),
            f"## Left out of {manifest.pictures:,} rows\n",
            _left_out(manifest),
            "`left-out.jsonl` names what was left out.\n",
            "## The first samples, as the codec shows them\n",
            f"![{len(captions)} pictures]({SAMPLES_FILE})\n",
            "".join(f"{number}. {caption}\n" for number, caption in enumerate(captions, start=1)),
        ]
    )


def write_text_card(folder: Path, manifest: TextManifest, *, licence: str | None) -> None:
    """Writes `README.md` for shards of text.

    Args:
        folder: Folder of the tokenizer and the shards.
        manifest: The set's manifest.
        licence: Licence of the text; None: the card says that it is unknown.
    """
    (folder / "README.md").write_text(_text_card(folder, manifest, licence), encoding="utf-8")


def _text_card(folder: Path, manifest: TextManifest, licence: str | None) -> str:
    content = (folder / TOKENIZER_FILE).read_bytes()
    tokenizer = TextTokenizer.parse(content, end_of_text=manifest.end_of_text, source=TOKENIZER_FILE)
    first = Blocks(manifest, manifest.splits["train"].shards, Folder(folder), None).read(0)
    shown = [_plain(tokenizer.decode(block[:SHOWN_CHARACTERS])) for block in first.tokens[:SHOWN_BLOCKS]]
    return "\n".join(
        [
            _header("text-generation", licence),
            "# Text in blocks of tokens\n",
            "Documents one behind the other, with an end of text between them, cut into blocks of one length. `tokens` "
            f"has the ids of a block, `starts` one bit for each: whether a document begins there. {_written(licence)}",
            _table(facts_of(manifest)),
            f"## Left out of {manifest.documents:,} documents\n",
            _left_out(manifest),
            "`left-out.jsonl` names the first of each.\n",
            "## How the first blocks begin\n",
            "".join(f"{number}. {text}\n" for number, text in enumerate(shown, start=1)),
        ]
    )


def _header(task: str, licence: str | None, *tags: str) -> str:
    # The hub accepts only its own short names, all of this form, or `other` with any name.
    if licence is None or HUB_LICENCE.fullmatch(licence):
        licences = {"license": licence or "unknown"}
    else:
        licences = {"license": "other", "license_name": licence}
    fields = {
        **licences,
        "task_categories": [task],
        "tags": ["training-transformers-together", *tags],
    }
    yaml = "".join(f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
    return f"---\n{yaml}---\n"


def _written(licence: str | None) -> str:
    named = f"Licence: {_plain(licence)}.\n" if licence else "Nobody has named a licence.\n"
    return f"This card was written by a program. {named}"


def _left_out(manifest: AnyManifest) -> str:
    return _table({reason: f"{count:,}" for reason, count in manifest.left_out.items()} or {"none": "0"})


def _table(facts: dict[str, str]) -> str:
    return "".join(["| | |\n|---|---|\n", *(f"| {name} | {value} |\n" for name, value in facts.items())])


def _plain(text: str) -> str:
    """Escapes a text for Markdown and HTML."""
    short = " ".join(text.split())[:SHOWN_CHARACTERS]
    return "".join(f"\\{sign}" if sign in "\\`*_[]|#<>!" else sign for sign in short)


def _write_grid(path: Path, pictures: np.ndarray) -> None:
    """Pictures uint8 (n, S, S, 3) side by side in lines."""
    side = pictures.shape[1]
    lines = -(-len(pictures) // ACROSS)
    grid = Image.new("RGB", (ACROSS * side, lines * side), "white")
    for at, picture in enumerate(pictures):
        grid.paste(Image.fromarray(picture), (at % ACROSS * side, at // ACROSS * side))
    grid.save(path)
