"""Values of a recipe that come from prepared samples: its prompts, and the length of captions."""

from __future__ import annotations

from pathlib import Path

from training.data.store.sets import open_shards
from training.data.store.shards import Manifest, TextManifest, read_shard
from training.data.store.show import look

PROMPTS, WORDS, LEAST_WORDS = 4, 8, 3
"""Number of prompts; words of a text's beginning that make one; and the fewest words of a text that is taken."""
LONGEST_PROMPT = 100
CAPTION_STEP, LONGEST_CAPTION = 8, 64
"""Lengths of captions, in tokens, are rounded up to multiples of the first, and are at most the second."""


def prompts_of(shards: str, manifest: Manifest | TextManifest, *, seed: int = 0) -> list[str]:
    """Draws captions, or beginnings of texts, if possible from what is held out of training."""
    held_out = manifest.splits.get("held-out")
    split = "held-out" if held_out is not None and held_out.samples else "train"
    shown = look(shards, split=split, count=4 * PROMPTS, seed=seed).samples
    if manifest.kind == "pictures":
        texts = [sample.caption for sample in shown]
    else:
        begun = (part.text.split() for sample in shown for part in sample.parts if part.begins)
        texts = [" ".join(words[:WORDS]) for words in begun if len(words) >= LEAST_WORDS]
    # A recipe has no control characters, which terminals would obey.
    clean = ("".join(filter(str.isprintable, text))[:LONGEST_PROMPT].strip() for text in texts)
    return list(dict.fromkeys(filter(None, clean)))[:PROMPTS]


def caption_length(shards: Path) -> int:
    """Tokens of the longest caption in a set's first file, rounded up."""
    found = open_shards(shards)
    captions = [sample.caption for sample in read_shard(found.file(found.names[0]))]
    used = (found.tokenizer.encode(captions, LONGEST_CAPTION) != 0).sum(dim=1).max().item()
    return -(-used // CAPTION_STEP) * CAPTION_STEP
