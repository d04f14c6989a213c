"""Draws prompts: the model turns text into codes, the codec turns codes into pixels; and writes the resulting files."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from training.checkpoints.checkpoint import Checkpoint, check_codec
from training.errors import BadInput, reason_of
from training.generate.config import PromptsConfig
from training.model.sampling import Progress, check_sampling, sample_codes
from training.storage.whole import write_whole

if TYPE_CHECKING:
    from training.data.demo.captions import Split
    from training.data.store.sets import Shards
    from training.data.store.tokenizer import Tokenizer
    from training.model.codecs.codec import ImageCodec
    from training.model.transformer import TextToImageTransformer

BATCH_SIZE = 32
"""Pictures drawn at once."""
MAX_NAME_CHARACTERS = 60
"""The most characters of a prompt in a file name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Settings by which codes are drawn; see `training.model.sampling.sample_codes`."""

    top_k: int | None = 256
    top_p: float | None = None
    temperature: float = 1.0

    def __post_init__(self):
        check_sampling(top_k=self.top_k, top_p=self.top_p, temperature=self.temperature)

    @classmethod
    def of_recipe(cls, monitor: PromptsConfig) -> Sampling:
        """The sampling of the recipe's monitor."""
        return cls(top_k=monitor.top_k, top_p=monitor.top_p)


def choose_sampling(
    monitor: PromptsConfig, *, top_k: int | None, top_p: float | None, temperature: float | None
) -> Sampling:
    """The recipe's sampling with a user's changes; top_k 0 removes the limit, as top_p 1 does."""
    recipe = Sampling.of_recipe(monitor)
    return Sampling(
        top_k=recipe.top_k if top_k is None else top_k or None,
        top_p=recipe.top_p if top_p is None else top_p,
        temperature=recipe.temperature if temperature is None else temperature,
    )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Picture:
    """A drawn picture."""

    prompt: str
    """The caption that the picture should show."""
    seed: int
    """Seed of the picture; with equal weights and sampling it gives an equal picture."""
    codes: np.ndarray
    """uint16 (G * G), row by row."""
    pixels: np.ndarray
    """uint8 (S, S, 3), sRGB."""


def draw_prompts(
    model: TextToImageTransformer,
    codec: ImageCodec,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    sampling: Sampling,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> list[Picture]:
    """Draws one picture for each prompt; repeat a prompt for more pictures of it.

    Args:
        model: The transformer.
        codec: The codec of its recipe.
        tokenizer: The tokenizer of its shards.
        prompts: Captions to draw.
        sampling: Settings by which codes are drawn.
        seed: Picture i is drawn with seed + i, regardless of the batch size.
        batch_size: Pictures at once; a larger batch is faster and takes more memory.
        progress: Called with the number of tokens drawn and the total.
    """
    from training.model.codecs.codec import decoded_pixels

    tokens = model.config.image_seq_len
    pictures: list[Picture] = []
    for start in range(0, len(prompts), batch_size):
        batch = list(prompts[start : start + batch_size])
        seeds = range(seed + start, seed + start + len(batch))

        def report(done: int, _: int, start: int = start, size: int = len(batch)) -> None:
            if progress is not None:
                progress(start * tokens + done * size, len(prompts) * tokens)

        codes = sample_codes(
            model,
            tokenizer.encode(batch, model.config.text_seq_len),
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            temperature=sampling.temperature,
            seed=list(seeds),
            progress=report,
        )
        pixels = decoded_pixels(codec, codes)
        for prompt, one, drawn, shown in zip(batch, seeds, codes.cpu().numpy(), pixels, strict=True):
            pictures.append(Picture(prompt=prompt, seed=one, codes=drawn.astype(np.uint16), pixels=shown))
    return pictures


def drawer(
    loaded: Checkpoint,
    codec: ImageCodec,
    tokenizer: Tokenizer,
    *,
    sampling: Sampling,
    seed: int,
    total: int,
    show: Callable[[str, int, int], None],
) -> Callable[[Sequence[str], int], list[Picture]]:
    """Makes a function that draws prompts with a checkpoint, from a given seed on, and shows its progress.

    Args:
        loaded: The checkpoint.
        codec: The codec of its recipe.
        tokenizer: The tokenizer of its shards.
        sampling: Settings by which codes are drawn.
        seed: Seed of the first picture.
        total: Pictures of all calls together.
        show: Called with the current work, the number of tokens drawn and the total.
    """
    tokens = loaded.config.model.image_seq_len

    def draw(prompts: Sequence[str], first_seed: int) -> list[Picture]:
        before = (first_seed - seed) * tokens
        return draw_prompts(
            loaded.model,
            codec,
            tokenizer,
            prompts,
            sampling=sampling,
            seed=first_seed,
            progress=lambda drawn, _: show(f"Drawing with epoch {loaded.epoch}", before + drawn, total * tokens),
        )

    return draw


def load_codec_and_tokenizer(checkpoint: Checkpoint, shards: str | None = None) -> tuple[ImageCodec, Tokenizer]:
    """Loads the codec and tokenizer of a checkpoint from the shards on which it was trained.

    Args:
        checkpoint: Result of `load_checkpoint`.
        shards: Folder or URL of the shards, if they have been moved.

    Raises:
        BadInput: If the shards are not found or have another codec, or the tokenizer has more ids than the recipe.
    """
    from training.model.codecs.codec import load_codec

    opened = shards_of(checkpoint, shards)
    if shards is not None and checkpoint.codec_digest is None:
        print(
            f"Note: {checkpoint.path} does not say which codec it was trained with; unless it was that of {shards}, "
            "these pictures are wrong.",
            file=sys.stderr,
        )
    ids, room = opened.tokenizer.vocab_size, checkpoint.config.model.text_vocab_size
    if ids > room:
        raise BadInput(f"The tokenizer of {opened.source} has {ids} ids, the checkpoint's model {room}; give its own.")
    return load_codec(opened.codec_folder, checkpoint.config.codec), opened.tokenizer


def shards_of(checkpoint: Checkpoint, shards: str | None = None, split: Split = "train") -> Shards:
    """Opens the shards on which a checkpoint was trained, at their present location.

    Raises:
        BadInput: If the shards are not found, have no such split, or have the codes of another codec.
    """
    from training.data.store.sets import open_shards

    source = shards or checkpoint.shards
    # A run's folder that was moved or copied as a whole has its shards beside the checkpoints.
    beside = checkpoint.path.parent.parent / "shards"
    if "://" not in source and not Path(source).is_dir():
        if shards is not None or not beside.is_dir():
            raise BadInput(f"The checkpoint's shards are not at {source}; say with --shards where they lie now.")
        source = str(beside)
    opened = open_shards(source, split, kind=checkpoint.config.kind)
    found = opened.manifest.codec_digest
    check_codec(checkpoint.path, checkpoint.codec_digest, shards=opened.source, found=found)
    return opened


def save_pictures(
    pictures: Sequence[Picture],
    folder: Path,
    *,
    checkpoint: Checkpoint,
    sampling: Sampling,
    notes: Sequence[dict[str, object]] | None = None,
    facts: dict[str, object] | None = None,
) -> list[Path]:
    """Writes each picture as `NUMBER-PROMPT.png`, and `pictures.json` with prompt, seed and settings of each.

    Args:
        pictures: Result of `draw_prompts`.
        folder: Created if necessary; files of the same names are replaced, each whole or not at all.
        checkpoint: The checkpoint that drew them.
        sampling: Settings by which they were drawn.
        notes: Additional facts for the JSON, one dictionary per picture.
        facts: Additional facts about all pictures.

    Returns:
        Paths of the PNGs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digits = max(3, len(str(len(pictures) - 1)))
    paths, entries = [], []
    for number, picture in enumerate(pictures):
        path = folder / f"{number:0{digits}d}-{safe_name(picture.prompt)}.png"
        buffer = io.BytesIO()
        Image.fromarray(picture.pixels).save(buffer, format="PNG")
        write_whole(path, buffer.getvalue())
        paths.append(path)
        more = notes[number] if notes is not None else {}
        entries.append({"file": path.name, "prompt": picture.prompt, "seed": picture.seed, **more})
    about = {
        "checkpoint": str(checkpoint.path),
        "run_id": checkpoint.config.run_id,
        "recipe_digest": checkpoint.config.digest,
        "epoch": checkpoint.epoch,
        "sampling": asdict(sampling),
        **(facts or {}),
        "pictures": entries,
    }
    write_whole(folder / "pictures.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return paths


def make_folder(folder: Path) -> None:
    """Creates the folder for pictures before they are drawn, so that a failure does not waste the drawing.

    Raises:
        BadInput: If the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ".writable", b"")
        (folder / ".writable").unlink()
    except OSError as error:
        raise BadInput(f"Pictures cannot be written to {folder}: {reason_of(error)}. Give another --out.") from None


def check_prompts(prompts: Sequence[str]) -> None:
    """Raises BadInput if a prompt is not valid text, such as bytes on a command line that are not UTF-8."""
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise BadInput(f"The prompt {prompt!r:.80} is no text; give it as UTF-8.") from None


def safe_name(prompt: str) -> str:
    """Part of a file name from any prompt: lower-case ASCII letters, digits and single dashes; never empty."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:MAX_NAME_CHARACTERS].strip("-") or "picture"


def read_prompts(path: Path) -> list[str]:
    """Prompts from a text file, one per line; empty lines and the byte order mark of Windows' editors are skipped.

    Raises:
        BadInput: If the file cannot be read or is empty.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"The prompts in {path} cannot be read: {reason_of(error)}.",
            cure="Check that the file is there, whole, and readable for you.",
        ) from None
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise BadInput(f"{path} has no prompts; give one a line.")
    return prompts
