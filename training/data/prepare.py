"""Makes shards of pictures and captions: filter, crop, encode, write (paper, section 3.2).

The work is done in a hidden folder beside the target, one shard after the other; the folder is renamed when it is
complete. If the work is interrupted, the next call with the same input continues after the last finished shard.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

import numpy as np
import torch
from PIL import Image, ImageOps

from training.config import DataConfig, RunConfig
from training.data.captions import SPLITS, Split
from training.data.shards import (
    MANIFEST_FILE,
    TOKENIZER_FILE,
    FileEntry,
    Manifest,
    SplitEntry,
    describe_file,
    read_manifest,
    write_shard,
)
from training.data.tokenizer import Tokenizer
from training.errors import BadInput, reason_of
from training.model.codec import CONFIG_FILE, WEIGHTS_FILE, ImageCodec, load_codec, save_codec, train_small_codec
from training.storage.whole import replace_folder, write_whole

Progress = Callable[[str, int, int], None]
"""Called with the name of the current work, the amount done, and the total."""
ROWS_PER_SHARD = 4096
"""Rows of captions.jsonl per shard, including those that are left out."""
ENCODED_TOGETHER = 256
"""Pictures in memory at a time."""
CODEC_PICTURES = 8192
"""The number of random pictures on which a codec is trained."""
LARGEST_WORD_VOCABULARY = 4096
"""The most text ids for which a word-level tokenizer is trained; recipes with more need a tokenizer file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of captions.jsonl."""

    file: str
    caption: str
    split: Split
    unsafe: bool
    """Marked as not safe for work (`"nsfw": true`, or LAION's `"NSFW"`)."""


def prepare(
    images: Path,
    captions: Path,
    out: Path,
    run: RunConfig,
    *,
    codec_file: Path | None = None,
    tokenizer_file: Path | None = None,
    codec_steps: int = 1600,
    replace: bool = False,
    seed: int = 0,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[Manifest, bool]:
    """Makes a folder of shards.

    Args:
        images: Folder of the pictures.
        captions: JSON lines with `file` (within `images`), `caption`, and optionally `split` and `nsfw`.
        out: Folder to make.
        run: Recipe with the model, codec and data sections to use.
        codec_file: A trained codec. Default: `run.codec.weights`, or a small codec trained on the pictures.
        tokenizer_file: A `tokenizer.json`. Default: a word-level one trained on the training captions.
        codec_steps: Gradient steps for training a codec.
        replace: Whether an `out` made from other input may be replaced.
        seed: Seed of the samples' order and the codec's training.
        progress: See `Progress`.

    Returns:
        The manifest, and whether anything had to be done.

    Raises:
        BadInput: If an input cannot be used. Single broken pictures are only counted.
    """
    rows, left_out = read_rows(captions)
    digest = _input_digest(images, captions, rows, run, [codec_file, tokenizer_file], [codec_steps, seed], progress)
    if (finished := _finished(out, digest, replace=replace)) is not None:
        return finished, False
    work = out.with_name(f".{out.name}.part-{digest[:12]}")
    work.mkdir(parents=True, exist_ok=True)
    kept = _filtered(rows, run.data, left_out, seed)
    tokenizer = _tokenizer(kept, run, tokenizer_file)
    tokenizer.save(work / TOKENIZER_FILE)
    codec = _codec(images, kept, run, codec_file, work, codec_steps, seed, progress)
    splits, squared_error = _encode(images, kept, work, run, codec, left_out, progress)

    manifest = Manifest(
        run_id=run.run_id,
        input_digest=digest,
        image_seq_len=run.model.image_seq_len,
        image_vocab_size=run.model.image_vocab_size,
        text_vocab_size=tokenizer.vocab_size,
        codec_digest=json.loads((work / CONFIG_FILE).read_text())["digest"],
        reconstruction_error=squared_error / sum(split.samples for split in splits.values()),
        pictures=len(rows) + left_out["broken line"],
        left_out=dict(sorted(left_out.items())),
        splits=splits,
        files=_files(work, splits),
    )
    _finish(work, out, manifest)
    return manifest, True


def _finished(out: Path, digest: str, *, replace: bool) -> Manifest | None:
    """The manifest of existing shards made from the same input; None if there is work to do.

    Raises:
        BadInput: If something else is there that may not be replaced.
    """
    if (out / MANIFEST_FILE).exists():
        manifest = read_manifest(out)
        if manifest.input_digest == digest:
            return manifest
        if not replace:
            raise BadInput(f"{out} holds shards of other input. Give another --out, or --replace.")
    elif out.exists() and any(out.iterdir()):
        raise BadInput(f"{out} is not empty and holds no prepared shards. Give another --out.")
    return None


def _encode(
    images: Path,
    kept: list[Row],
    work: Path,
    run: RunConfig,
    codec: ImageCodec,
    left_out: Counter[str],
    progress: Progress,
) -> tuple[dict[Split, SplitEntry], float]:
    """Encodes all rows into shards; returns the splits and the sum of the pictures' mean squared errors.

    Raises:
        BadInput: If no picture can be trained on.
    """
    splits: dict[Split, SplitEntry] = {}
    done, squared_error = 0, 0.0
    for split in SPLITS:
        chosen = [row for row in kept if row.split == split]
        names, count = [], 0
        for start in range(0, len(chosen), ROWS_PER_SHARD):
            part = chosen[start : start + ROWS_PER_SHARD]
            # By the place of its rows: a shard without a usable picture is not among `names`. If the next shard had the
            # same number, the note of the former would be found, and the rows would count as finished.
            name = f"{split}-{start // ROWS_PER_SHARD:05d}.parquet"
            note = _shard(
                images, part, work / name, run, codec, lambda n, at=done: progress("Encoding", at + n, len(kept))
            )
            done += len(part)
            left_out.update(note["left_out"])
            if note["samples"]:
                names.append(name)
            count += note["samples"]
            squared_error += note["squared_error"]
        splits[split] = SplitEntry(samples=count, shards=tuple(names))
    if not splits["train"].samples:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "captions.jsonl is empty"
        raise BadInput(f"No picture is left to train on ({reasons}). Check --images and --captions.")
    return splits, squared_error


def read_rows(captions: Path) -> tuple[list[Row], Counter[str]]:
    """The rows of captions.jsonl, and the number of invalid lines, which are left out.

    Raises:
        BadInput: If the file cannot be read.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    try:
        with captions.open(encoding="utf-8-sig", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    file, caption, split = row["file"], row["caption"], row.get("split", "train")
                    if not (isinstance(file, str) and isinstance(caption, str) and split in SPLITS):
                        raise ValueError("file and caption are text, split is " + " or ".join(SPLITS))
                    if b"\0" in file.encode() + caption.encode():  # encode: half of a surrogate pair is not valid text
                        raise ValueError("no file name has a null character, and no text needs one")
                except (ValueError, KeyError, TypeError, AttributeError):
                    left_out["broken line"] += 1
                    continue
                unsafe = row.get("nsfw") in (True, "NSFW")
                rows.append(Row(file=file, caption=caption.strip(), split=split, unsafe=unsafe))
    except OSError as error:
        raise BadInput(
            f"The captions in {captions} cannot be read: {reason_of(error)}. Give a file of JSON lines with --captions."
        ) from None
    return rows, left_out


def square_picture(path: Path, *, image_size: int, max_aspect_ratio: float) -> np.ndarray | str:
    """A picture cropped to its central square and resized.

    Returns:
        uint8 (3, image_size, image_size), or the reason for leaving it out.
    """
    try:
        with Image.open(path) as opened:
            width, height = opened.size
            if max(width, height) > max_aspect_ratio * min(width, height):
                return "extreme aspect ratio"
            if opened.format == "JPEG":
                # The JPEG decoder then skips detail by a factor of 2, 4 or 8, and still gives at least twice the final
                # size.
                opened.draft("RGB", (2 * image_size, 2 * image_size))
            # Phones store a turned picture with a note about how it is turned.
            picture = ImageOps.exif_transpose(opened)
            if picture.mode.startswith("I;16"):  # Pillow's own conversion clips everything above 255
                picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
            elif picture.mode in ("I", "F"):
                return "unreadable file"  # such files do not say which value is white
            if picture.has_transparency_data:
                # Transparent pixels may have any colour; on a page, readers see white behind them.
                picture = picture.convert("RGBA")
                picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
            picture = picture.convert("RGB")
    except FileNotFoundError:
        return "missing file"
    except Exception:  # Pillow raises many kinds of errors for broken files; each means that the file is unreadable
        return "unreadable file"
    if picture.size != (image_size, image_size):
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.LANCZOS)
    return np.asarray(picture).transpose(2, 0, 1)


def _filtered(rows: list[Row], data: DataConfig, left_out: Counter[str], seed: int) -> list[Row]:
    """The rows that the recipe accepts, shuffled."""
    kept = []
    for row in rows:
        if len(row.caption) < data.min_caption_characters:
            left_out["short caption"] += 1
        elif row.unsafe:
            left_out["marked unsafe"] += 1
        else:
            kept.append(row)
    # Shuffled here, so that each shard, which a peer reads as a whole, is a random sample of all pictures.
    random.Random(seed).shuffle(kept)
    return kept


def _path(images: Path, row: Row) -> Path:
    """The path of the picture; for a name that leads out of the folder, a path that does not exist."""
    name = PurePath(row.file)
    return images / (".outside" if name.is_absolute() or ".." in name.parts else name)


def _input_digest(
    images: Path,
    captions: Path,
    rows: list[Row],
    run: RunConfig,
    files: list[Path | None],
    settings: list[int],
    progress: Progress,
) -> str:
    digest = hashlib.sha256(captions.read_bytes())
    shaping = run.data.model_dump(include={"min_caption_characters", "max_aspect_ratio"})
    sizes = {"text_vocab_size": run.model.text_vocab_size, "rows_per_shard": ROWS_PER_SHARD}
    digest.update(json.dumps([run.codec.model_dump(), shaping, sizes, settings], sort_keys=True).encode())
    for file in files:
        try:
            digest.update(b"-" if file is None else hashlib.sha256(file.read_bytes()).digest())
        except OSError as error:
            raise BadInput(
                f"{file} cannot be read: {reason_of(error)}.",
                cure="Check that the file is there, whole, and readable for you.",
            ) from None
    for done, row in enumerate(rows):
        try:
            digest.update(hashlib.sha256(_path(images, row).read_bytes()).digest())
        except OSError:
            # If the picture is there at the next start, the digest differs, and the shards are made again.
            digest.update(b"missing")
        progress("Reading the pictures", done + 1, len(rows))
    return digest.hexdigest()


def _tokenizer(kept: list[Row], run: RunConfig, tokenizer_file: Path | None) -> Tokenizer:
    room = run.model.text_vocab_size
    if tokenizer_file is not None:
        tokenizer = Tokenizer.from_file(tokenizer_file)
    elif room > LARGEST_WORD_VOCABULARY:
        raise BadInput(
            f"The recipe has {room} text ids; a tokenizer is trained for at most {LARGEST_WORD_VOCABULARY}. Give one "
            "with --tokenizer FILE, such as the tokenizer.json of T5."
        )
    else:
        tokenizer = Tokenizer.train((row.caption for row in kept if row.split == "train"), room)
    if tokenizer.vocab_size > room:
        raise BadInput(
            f"The tokenizer has {tokenizer.vocab_size} ids, the recipe's model.text_vocab_size is {room}. Use a "
            "smaller tokenizer or a larger vocabulary."
        )
    return tokenizer


def _codec(
    images: Path,
    kept: list[Row],
    run: RunConfig,
    codec_file: Path | None,
    work: Path,
    steps: int,
    seed: int,
    progress: Progress,
) -> ImageCodec:
    """The codec to encode with; its files are in `work` afterwards."""
    # Work on this input was interrupted. A codec trained again may differ from the one that made the finished shards.
    if (work / CONFIG_FILE).exists():
        return load_codec(work, run.codec)
    source = codec_file or (Path(run.codec.weights) if run.codec.weights else None)
    if source is not None:
        codec = load_codec(source, run.codec)
    elif run.codec.kind != "small":
        raise BadInput(
            f"`prepare` cannot train a codec of the kind {run.codec.kind!r}. Give its weights with --codec FILE."
        )
    else:
        training = [row for row in kept if row.split == "train"]
        chosen = random.Random(seed).sample(training, min(CODEC_PICTURES, len(training)))
        pictures = []
        for found in _pictures(images, chosen, run):
            pictures += [picture for picture in found if not isinstance(picture, str)]
            progress("Opening pictures for the codec", len(pictures), len(chosen))
        if not pictures:
            raise BadInput(f"None of {len(chosen)} pictures in {images} can be opened. Check --images.")
        codec = train_small_codec(
            torch.from_numpy(np.stack(pictures)),
            run.codec,
            steps=steps,
            seed=seed,
            progress=lambda done, total, loss: progress("Training the image codec", done, total),
        )
    save_codec(codec, work)
    return codec


def _pictures(images: Path, rows: list[Row], run: RunConfig) -> Iterator[list[np.ndarray | str]]:
    """The rows' pictures, or the reasons for leaving them out, in order, `ENCODED_TOGETHER` at a time."""

    def read(row: Row) -> np.ndarray | str:
        return square_picture(
            _path(images, row), image_size=run.codec.image_size, max_aspect_ratio=run.data.max_aspect_ratio
        )

    # Threads are enough: Pillow decodes without holding Python's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(rows), ENCODED_TOGETHER):
            yield list(pool.map(read, rows[start : start + ENCODED_TOGETHER]))


def _shard(
    images: Path, rows: list[Row], path: Path, run: RunConfig, codec: ImageCodec, progress: Callable[[int], None]
) -> dict:
    """Encodes rows into one shard, unless it is already finished; notes the result in a file beside it."""
    note_path = path.with_suffix(".note.json")
    if note_path.exists():
        progress(len(rows))
        return json.loads(note_path.read_text())
    left_out: Counter[str] = Counter()
    ids, captions, codes = [], [], []
    squared_error = 0.0
    done = 0
    for found in _pictures(images, rows, run):
        batch = rows[done : done + len(found)]
        done += len(found)
        left_out.update(picture for picture in found if isinstance(picture, str))
        usable = [(row, picture) for row, picture in zip(batch, found, strict=True) if not isinstance(picture, str)]
        if usable:
            pictures = torch.from_numpy(np.stack([picture for _, picture in usable])).float() / 255
            encoded = codec.encode(pictures)
            squared_error += float((codec.decode(encoded) - pictures).square().mean(dim=(1, 2, 3)).sum())
            ids += [row.file for row, _ in usable]
            captions += [row.caption for row, _ in usable]
            codes.append(encoded.numpy().astype(np.uint16))
        progress(done)
    if ids:
        write_shard(path, ids=ids, captions=captions, codes=np.concatenate(codes))
    note = {"samples": len(ids), "left_out": dict(left_out), "squared_error": squared_error}
    # Only after the shard: a note without a shard would make the next start skip these rows.
    write_whole(note_path, json.dumps(note))
    return note


def _files(work: Path, splits: dict[Split, SplitEntry]) -> dict[str, FileEntry]:
    shards = sorted(name for split in splits.values() for name in split.shards)
    return {name: describe_file(work / name) for name in [WEIGHTS_FILE, CONFIG_FILE, TOKENIZER_FILE, *shards]}


def _finish(work: Path, out: Path, manifest: Manifest) -> None:
    """Adds the manifest and renames the folder; only then removes an older one, and unfinished work on other input."""
    for note in work.glob("*.note.json"):
        note.unlink()
    # Last, since a folder with a manifest counts as complete.
    (work / MANIFEST_FILE).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    replace_folder(work, out)
    for unfinished in out.parent.glob(f".{out.name}.part-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
