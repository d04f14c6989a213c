"""Continues prompts with a language model, piece by piece, so that a program can show the text as it comes."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from training.checkpoints.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from training.data.store.shards import TOKENIZER_FILE
from training.errors import BadInput
from training.generate.pictures import Sampling, shards_of

if TYPE_CHECKING:
    from training.data.store.text_tokenizer import TextTokenizer
    from training.model.language.model import LanguageModel

HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Character by which a tokenizer shows the first bytes of a character whose last ones have not come yet."""
KEPT = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Characters that are not printable, but belong to texts; Persian, Hindi and emoji use the last two."""


def tokenizer_of(checkpoint: Checkpoint, shards: str | None = None) -> TextTokenizer:
    """Loads the tokenizer of a language model from the shards on which it was trained.

    Args:
        checkpoint: Result of `load_checkpoint`.
        shards: Folder or address of the shards, if they have been moved.

    Raises:
        BadInput: If the shards are not found or have another tokenizer.
    """
    if shards is not None and checkpoint.codec_digest is None:
        print(
            f"Note: {checkpoint.path} does not say which tokenizer it was trained with; unless it was that of "
            f"{shards}, these texts are wrong.",
            file=sys.stderr,
        )
    return shards_of(checkpoint, shards).tokenizer


def export_texts(source: Path, folder: Path, shards: str | None = None) -> None:
    """Writes a checkpoint and its tokenizer as a folder that `transformers` reads, whole or not at all.

    Adapters are merged into the weights beside which they were trained.

    Args:
        source: Folder of a checkpoint, or a folder of checkpoints, of which the latest is written.
        folder: Folder to write; an older one is replaced.
        shards: Folder or address of the shards, if they have been moved.

    Raises:
        BadInput: If there is no checkpoint, or its shards are not found.
    """
    from training.model.language.folders import export_folder, merged

    loaded = load_checkpoint(find_checkpoint(source))
    with TemporaryDirectory() as made:
        tokenizer, file = tokenizer_of(loaded, shards), Path(made, TOKENIZER_FILE)
        tokenizer.save(file)
        model = loaded.model if loaded.model.adapter is None else merged(loaded.model, loaded.config.seed)
        export_folder(model, folder, tokenizer_file=file, end_of_text=tokenizer.end_of_text)


def continued(
    model: LanguageModel, tokenizer: TextTokenizer, prompt: str, *, sampling: Sampling, most_tokens: int, seed: int
) -> Iterator[str]:
    """Yields the text that follows a prompt, in pieces, up to the end of the document or `most_tokens`.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Tokenizer of its shards.
        prompt: Beginning of the text.
        sampling: Settings by which tokens are drawn.
        most_tokens: Most tokens to add; prompt and continuation together have at most a block's.
        seed: The same seed gives the same text.

    Raises:
        BadInput: If the prompt has no token, or leaves no room in a block.
    """
    begun = tokenizer.encode([prompt])[0].tolist()
    room = model.config.block_length - len(begun)
    if not begun or room < 1:
        raise BadInput(
            f"The prompt {prompt!r:.80} has {len(begun)} tokens; the model takes 1 to {model.config.block_length - 1}.",
            cure="Give a prompt of that length.",
        )
    drawn = model.continue_text(
        begun,
        new_tokens=min(most_tokens, room),
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=seed,
        stop_id=tokenizer.end_of_text,
    )
    before, ids, told = tokenizer.decode(begun), [], ""

    def added() -> str:
        # Behind the prompt: many tokenizers leave the space out with which a text's first word begins.
        whole = tokenizer.decode([*begun, *ids])
        return harmless(whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(ids))

    for one in drawn:
        if one == tokenizer.end_of_text:
            break
        ids.append(one)
        text = added()
        if not text.endswith(HALF_CHARACTER):
            yield text[len(told) :]
            told = text
    if ids and len(whole := added()) > len(told):
        yield whole[len(told) :]


def harmless(text: str) -> str:
    """Replaces characters that would command a terminal, or reverse the text around them.

    >>> harmless(f"one{chr(27)}[2J {chr(0x202E)}two") == f"one{HALF_CHARACTER}[2J {HALF_CHARACTER}two"
    True
    >>> harmless(f"42{chr(0xA0)}%{chr(0x3000)}") == f"42{chr(0xA0)}%{chr(0x3000)}"
    True
    """
    return "".join(sign if sign.isprintable() or _is_kept(sign) else HALF_CHARACTER for sign in text)


def _is_kept(sign: str) -> bool:
    # `str.isprintable` is False for every space but U+0020; French, Chinese and Japanese texts use others.
    return sign in KEPT or unicodedata.category(sign) == "Zs"
