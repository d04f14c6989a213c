"""A small set of text, and its blocks as they are by definition."""

import json
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from training.data.prepare.text import TextInput, prepare_text
from training.data.store.blocks import Blocks
from training.data.store.shards import read_manifest
from training.storage.remote import Folder

LENGTH = 16
END = "</s>"
WORDS = [f"w{number}" for number in range(200)]


def document(number):
    """Between 1 and 30 words; the first ones say which document it is."""
    return " ".join([WORDS[number % 200], WORDS[number // 200], *WORDS[: number * 7 % 29]])


def write_tokenizer(path):
    """A tokenizer of whole words, in which the end of text is neither the first nor the last id."""
    vocabulary = {word: at for at, word in enumerate(["<unk>", END, *WORDS])}
    inner = tokenizers.Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    inner.add_special_tokens([END])
    inner.save(str(path))
    return path


def write_documents(path, count, *, first=0):
    """JSON lines; each tenth document is held out."""
    rows = [
        {"text": document(number), "split": "test" if number % 10 == 0 else "train"}
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def expected_blocks(numbers):
    """(Tokens, starts) of each full block of these documents, packed in this order."""
    ids = {word: at for at, word in enumerate(["<unk>", END, *WORDS])}
    line, begins = [], set()
    for number in numbers:
        line += [ids[END]] if line else []
        begins.add(len(line))
        line += [ids[word] for word in document(number).split()]
    return [
        (tuple(line[at : at + LENGTH]), tuple(place in begins for place in range(at, at + LENGTH)))
        for at in range(0, len(line) - LENGTH + 1, LENGTH)
    ]


def blocks_in(folder: Path, split="train"):
    """(Tokens, starts) of each block of a split, in the order of the shards."""
    manifest = read_manifest(folder)
    blocks = Blocks(manifest, manifest.splits[split].shards, Folder(folder), None)
    found = []
    for number in range(len(blocks.rows)):
        rows = blocks.read(number)
        starts = np.unpackbits(rows.starts, axis=1, count=rows.tokens.shape[1]).astype(bool)
        found += [
            (tuple(one.tolist()), tuple(begins.tolist())) for one, begins in zip(rows.tokens, starts, strict=True)
        ]
    return found


def prepare_documents(folder, source, **settings):
    """Shards of a file or folder with the tokenizer of whole words."""
    tokenizer = write_tokenizer(folder.parent / "words.json")
    keep = {name: settings.pop(name) for name in ("replace", "licence", "progress") if name in settings}
    text = TextInput(path=source, block_length=LENGTH, tokenizer=tokenizer, **settings)
    return prepare_text(text, folder, **keep)
