"""Tokenizer of language models: turns text into ids and back.

A tokenizer is a `tokenizer.json` of the Hugging Face `tokenizers` library: one of a known model, given as a file, or a
byte-level BPE (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2) that is trained
on the text itself. One of its ids ends a document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from training.data.store.tokenizer import read_file, read_inner
from training.errors import BadInput
from training.storage.whole import write_whole

END_OF_TEXT = "<|endoftext|>"
"""End of text of tokenizers that are trained here, and of GPT-2's."""
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<｜end▁of▁sentence｜>")
"""Tokens that end a document in the tokenizers of known models; the first that a tokenizer has is used."""
LONG_RUN = re.compile(r"\S{4096}|\s{4096}")
"""Pattern of a very long run of characters with no blank, or of blanks only."""


def _without_long_runs(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts cut within long runs: the time of tokenizer training grows with the square of a word's length, and
    would be six minutes for a megabyte without a space."""
    for text in texts:
        start = 0
        for run in LONG_RUN.finditer(text):
            yield text[start : run.end()]
            start = run.end()
        if start < len(text) or not text:
            yield text[start:]


class TextTokenizer:
    """Turns texts into ids, and ids into text.

    Args:
        inner: Any tokenizer of the library.
        end_of_text: Id of the token that ends a document.
    """

    def __init__(self, inner: tokenizers.Tokenizer, end_of_text: int):
        # The file may set both; documents are packed as they are.
        inner.no_padding()
        inner.no_truncation()
        # Otherwise a document in which "<|endoftext|>" is written would end there.
        inner.encode_special_tokens = True
        self._inner, self.end_of_text = inner, end_of_text

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> TextTokenizer:
        """Trains a byte-level BPE, which has ids for every text; equal texts give equal tokenizers.

        Args:
            texts: Any number of texts. Each word that differs from all others takes memory.
            vocab_size: The most ids, at least 257: every byte, and the end of text.
        """
        inner = tokenizers.Tokenizer(BPE())
        inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
        trainer = BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(_without_long_runs(texts), trainer)
        return cls(inner, inner.token_to_id(END_OF_TEXT))

    @classmethod
    def from_file(cls, path: Path, *, end_of_text: str | None = None) -> TextTokenizer:
        """Reads a `tokenizer.json`.

        Args:
            path: The file.
            end_of_text: The token that ends a document; None: one of `END_NAMES`.

        Raises:
            BadInput: If the file is not a tokenizer, or has no such token.
        """
        inner = read_inner(read_file(path), source=str(path))
        names = END_NAMES if end_of_text is None else (end_of_text,)
        found = [inner.token_to_id(name) for name in names if inner.token_to_id(name) is not None]
        if not found:
            raise BadInput(
                f"{path} has no token {' or '.join(names)}, which would end a document.",
                cure="Name the token that ends a text with --end-of-text.",
            )
        return cls(inner, found[0])

    @classmethod
    def parse(cls, content: bytes, *, end_of_text: int, source: str) -> TextTokenizer:
        """Reads a tokenizer from the content of a `tokenizer.json`,
        and takes `end_of_text` as the id that ends a document.

        Raises:
            BadInput: If the content is not a tokenizer, or has no such id.
        """
        inner = read_inner(content, source=source)
        if inner.id_to_token(end_of_text) is None:
            raise BadInput(
                f"{source} has no id {end_of_text}, which ends a document by the manifest.",
                cure="Prepare the shards again, with --replace.",
            )
        return cls(inner, end_of_text)

    @property
    def vocab_size(self) -> int:
        """Number of ids for which a model needs room: one more than the largest id."""
        return max(self._inner.get_vocab().values()) + 1

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encodes each text to ids, int64, without special tokens; uses all cores.

        Raises:
            BadInput: If the tokenizer has no ids for a text, and no id for unknown tokens.
        """
        try:
            found = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception
            raise BadInput(
                f"The tokenizer has no ids for a text: {error}.",
                cure="Use one of bytes, or one that has a token for all that it does not know.",
            ) from None
        return [np.array(one.ids, dtype=np.int64) for one in found]

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids to text, special tokens included; an incomplete character becomes U+FFFD."""
        return self._inner.decode([int(one) for one in ids], skip_special_tokens=False)

    def save(self, path: Path) -> None:
        """Writes `tokenizer.json`, whole or not at all."""
        write_whole(path, self._inner.to_str(pretty=True))
