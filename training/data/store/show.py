"""Makes a page that shows a set of shards: samples, how long captions or documents are, and what was left out.

Row groups are drawn at random and read as the trainer reads them, so that a page about a set of terabytes fetches a few
megabytes. Captions, texts and names come from strangers: the template escapes all values, and characters that would
change the display of others are replaced by their names.
"""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import jinja2
import numpy as np
import torch
from PIL import Image

from training.data.demo.captions import Split
from training.data.store.blocks import Blocks, DamagedError
from training.data.store.card import facts_of
from training.data.store.layouts import Rows, TextRows
from training.data.store.sets import Shards, open_shards
from training.data.store.shards import KINDS
from training.data.stream.order import permuted
from training.errors import BadInput
from training.model.codecs.codec import ImageCodec, codec_config, decoded_pixels, load_codec
from training.storage.remote import MissingError, UnreachableError

TEMPLATE = "show.html"
LOOKED_AT = 16
"""Most row groups that are read, with 4096 captions together."""
MOST_BARS = 16
"""Most bars of a chart of captions."""
DECODED_TOGETHER = 64
MOST_CODES, LARGEST_DOWNSAMPLING = 1 << 16, 64
"""Most codes and largest downsampling of a codec: shards have no room for more codes, and the first layer of a larger
one would fill the memory."""
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Pattern of characters that are invisible, or change the direction of others;
without joiners, which many scripts need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A line of a chart."""

    name: str
    count: int
    share: float
    """Length relative to the longest bar, in percent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A document, or the part of it in a block."""

    text: str
    begins: bool
    tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One sample."""

    caption: str = ""
    picture: str = ""
    """PNG as a `data:` address."""
    parts: list[Part] = field(default_factory=list)
    """Documents in a block of text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Contents of the page."""

    source: str
    kind: str
    split: Split
    facts: dict[str, str]
    samples: list[Shown]
    lengths: list[Bar]
    length_of: str
    """Name of the lengths in the chart."""
    left_out: list[Bar]
    read: int
    """Pictures or documents that `prepare` has read."""
    damaged: list[str]
    """Row groups that could not be shown, with the reasons."""


def look(source: str, *, split: Split = "train", count: int = 24, seed: int = 0) -> Found:
    """Reads a random part of a set of shards for the page.

    Args:
        source: Folder or address, as for `open_shards`.
        split: Split to show.
        count: Samples to show.
        seed: Seed of the choice of samples.

    Raises:
        BadInput: If the set cannot be read, or none of the drawn row groups.
    """
    shards = open_shards(source, split, kind=None)
    blocks = Blocks(shards.manifest, shards.names, shards.files, shards.cache)
    rows, damaged = _some(blocks, seed)
    if not rows:
        raise BadInput(
            f"Nothing of the shards at {shards.source} can be read: {damaged[0]}. Prepare or fetch them again."
        )
    everything = [(at, row) for at, part in enumerate(rows) for row in range(len(part))]
    drawn = permuted(np.arange(min(count, len(everything))), len(everything), f"{seed}/shown")
    places = [everything[one] for one in drawn.tolist()]
    is_text = shards.manifest.kind == "text"
    captions = [] if is_text else [len(caption) for part in rows for caption in part.captions]
    counted = "tokens of all documents" if is_text else f"characters of {len(captions):,} captions, drawn at random"
    manifest = shards.manifest
    return Found(
        source=shards.source,
        kind=KINDS[manifest.kind],
        split=split,
        facts=facts_of(manifest) | {"Digest of the tokens": manifest.tokens_digest},
        samples=(_texts if is_text else _pictures)(shards, rows, places),
        lengths=_doubling(manifest.document_lengths) if is_text else _even(captions),
        length_of=counted,
        left_out=_bars(manifest.left_out),
        read=manifest.documents if is_text else manifest.pictures,
        damaged=damaged,
    )


def page(found: Found) -> str:
    """Renders the page as HTML in one file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["plain"] = plain
    environment.filters["thousands"] = "{:,}".format
    return environment.get_template(TEMPLATE).render(found=found)


def plain(text: str) -> str:
    """Replaces characters that are invisible, or that reverse the text around them, by their code points.

    >>> plain("cat\\u202egnp")
    'cat[U+202E]gnp'
    """
    return UNSHOWN.sub(lambda sign: f"[U+{ord(sign[0]):04X}]", text)


def _some(blocks: Blocks, seed: int) -> tuple[list[Rows | TextRows], list[str]]:
    """Reads row groups drawn at random; returns them, and messages about those that cannot be read."""
    total = len(blocks.rows)
    found, damaged = [], []
    for block in permuted(np.arange(min(LOOKED_AT, total)), total, f"{seed}/read").tolist():
        try:
            found.append(blocks.read(block))
        except (DamagedError, MissingError, UnreachableError) as error:
            damaged.append(f"{blocks.name(block)}: {error}")
    return found, damaged


def _pictures(shards: Shards, rows: Sequence[Rows], places: list[tuple[int, int]]) -> list[Shown]:
    shown, codec = [], _codec(shards)
    for start in range(0, len(places), DECODED_TOGETHER):
        part = places[start : start + DECODED_TOGETHER]
        codes = torch.from_numpy(np.stack([rows[at].codes[row] for at, row in part]).astype(np.int64))
        shown += [
            Shown(caption=rows[at].captions[row], picture=_png(picture))
            for (at, row), picture in zip(part, decoded_pixels(codec, codes), strict=True)
        ]
    return shown


def _codec(shards: Shards) -> ImageCodec:
    """Loads the set's codec; raises BadInput before it is built if its sizes do not match the codes."""
    manifest, config = shards.manifest, codec_config(shards.codec_folder)
    found = config.codebook_size, (config.image_size // config.downsampling) ** 2
    is_possible = found[0] <= MOST_CODES and config.downsampling <= LARGEST_DOWNSAMPLING
    if found != (manifest.image_vocab_size, manifest.image_seq_len) or not is_possible:
        raise BadInput(
            f"The codec of the shards at {shards.source} draws {found[1]} codes out of {found[0]}, "
            f"{config.downsampling} pixels wide; the manifest says {manifest.image_seq_len} out of "
            f"{manifest.image_vocab_size}.",
            cure="Fetch or prepare the shards again.",
        )
    return load_codec(shards.codec_folder, config)


def _png(picture: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _texts(shards: Shards, rows: Sequence[TextRows], places: list[tuple[int, int]]) -> list[Shown]:
    shown = []
    for at, row in places:
        tokens = rows[at].tokens[row].astype(np.int64)
        starts = np.unpackbits(rows[at].starts[row], count=len(tokens)).astype(bool)
        borders = [0, *(place for place in np.flatnonzero(starts).tolist() if place), len(tokens)]
        parts = []
        for first, last in pairwise(borders):
            ids = tokens[first:last]
            text = shards.tokenizer.decode(ids[:-1] if ids[-1] == shards.tokenizer.end_of_text else ids)
            parts.append(Part(text=text, begins=bool(starts[first]), tokens=last - first))
        shown.append(Shown(parts=parts))
    return shown


def _bars(counts: dict[str, int]) -> list[Bar]:
    longest = max(counts.values(), default=0)
    return [Bar(name=name, count=count, share=100 * count / max(longest, 1)) for name, count in counts.items()]


def _doubling(counts: Sequence[int]) -> list[Bar]:
    """Makes a chart of lengths that were counted as 1, 2 to 3, 4 to 7, and so on."""
    first = next((at for at, count in enumerate(counts) if count), 0)
    ranges = [(1 << at, (2 << at) - 1) for at in range(len(counts))]
    return _bars({_range(*ranges[at]): counts[at] for at in range(first, len(counts))})


def _even(lengths: Sequence[int]) -> list[Bar]:
    """Makes a chart of lengths in equal steps of a round number."""
    longest = max(lengths, default=0)
    width = next(
        width
        for width in (factor * 10**power for power in range(9) for factor in (1, 2, 5))
        if longest < width * MOST_BARS
    )
    counts = Counter(length // width for length in lengths)
    steps = range(min(counts, default=0), max(counts, default=0) + 1)
    return _bars({_range(step * width, step * width + width - 1): counts[step] for step in steps})


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
