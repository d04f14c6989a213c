"""Tokenizer of captions: turns captions into text ids.

A tokenizer is a `tokenizer.json` of the Hugging Face `tokenizers` library: either a small word-level one, trained on
the run's own captions, or a large one (T5's in the 2021 run), given as a file. Id 0 is always padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from torch import LongTensor

from training.errors import BadInput, reason_of
from training.storage.whole import write_whole

PADDING, UNKNOWN = "[PAD]", "[UNK]"
PADDING_NAMES = (PADDING, "<pad>", "<PAD>", "<|pad|>")


class Tokenizer:
    """Turns captions into rows of ids.

    Args:
        inner: A tokenizer whose id 0 is its padding token.

    Raises:
        BadInput: If id 0 is another token.
    """

    def __init__(self, inner: tokenizers.Tokenizer):
        if inner.id_to_token(0) not in PADDING_NAMES:
            raise BadInput(
                f"The tokenizer's id 0 is {inner.id_to_token(0)!r}; it must be padding: {', '.join(PADDING_NAMES)}.",
                cure="Give a tokenizer.json whose id 0 is padding, as T5's.",
            )
        # The file may set both; `encode` pads and truncates to the recipe's length.
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner

    @classmethod
    def train(cls, captions: Iterable[str], vocab_size: int) -> Tokenizer:
        """Trains a word-level, lower-case tokenizer of the most frequent words; equal captions give equal tokenizers.

        Args:
            captions: Any number of captions.
            vocab_size: The most ids, including padding (0) and unknown (1).

        Raises:
            BadInput: If there is no room for a word.
        """
        if vocab_size < 3:
            raise BadInput(f"A vocabulary of {vocab_size} ids has no room for a word; give at least 3.")
        inner = tokenizers.Tokenizer(WordLevel({PADDING: 0, UNKNOWN: 1}, unk_token=UNKNOWN))
        inner.normalizer = Lowercase()
        inner.pre_tokenizer = Whitespace()
        trainer = WordLevelTrainer(vocab_size=vocab_size, special_tokens=[PADDING, UNKNOWN], show_progress=False)
        inner.train_from_iterator(captions, trainer)
        return cls(inner)

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Reads a `tokenizer.json`.

        Raises:
            BadInput: If the file is not a tokenizer, or its id 0 is not padding.
        """
        return cls.parse(read_file(Path(path)), source=str(path))

    @classmethod
    def parse(cls, content: bytes, *, source: str) -> Tokenizer:
        """Reads a tokenizer from the content of a `tokenizer.json`; raises BadInput as `from_file` does."""
        return cls(read_inner(content, source=source))

    @property
    def vocab_size(self) -> int:
        """Number of ids in use, including padding."""
        return self._inner.get_vocab_size()

    def encode(self, captions: list[str], text_seq_len: int) -> LongTensor:
        """Encodes captions to ids (B, T_text), truncated to `text_seq_len` or padded with 0, without special tokens."""
        ids = np.zeros((len(captions), text_seq_len), dtype=np.int64)
        # The fast variant leaves out each token's position in the text, which is not needed here.
        for row, encoding in enumerate(self._inner.encode_batch_fast(captions, add_special_tokens=False)):
            kept = encoding.ids[:text_seq_len]
            ids[row, : len(kept)] = kept
        return torch.from_numpy(ids)

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        write_whole(path, self._inner.to_str(pretty=True))


def read_file(path: Path) -> bytes:
    """Reads a file that a flag names; raises BadInput if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {reason_of(error)}.", cure="Give a tokenizer.json with --tokenizer."
        ) from None


def read_inner(content: bytes, *, source: str) -> tokenizers.Tokenizer:
    """Reads the library's tokenizer from the content of a `tokenizer.json`.

    Raises:
        BadInput: If the content is not a tokenizer.
    """
    try:
        return tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception for every fault of a file
        raise BadInput(
            f"{source} is no tokenizer.json of the tokenizers library: {error}.",
            cure="Give a tokenizer.json, or leave it out and one is trained.",
        ) from None
