"""A small CLIP of a run's own, trained on its shards: pictures as the codec decodes them, beside their captions.

The pictures that it ranks come from the same codec. It is trained at its first use, in a minute or two on two cores,
and kept in the run's folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from training.checkpoints.checkpoint import Checkpoint
from training.data.store.sets import Shards
from training.data.store.shards import read_shard
from training.data.store.tokenizer import PADDING, UNKNOWN
from training.errors import BadInput
from training.generate.clip import VIT_B_32, Clip, import_transformers, load_clip, save_clip
from training.generate.pictures import shards_of
from training.model.codecs.codec import ImageCodec, decoded_pixels, rise_and_fall
from training.storage.whole import whole_folder

FOLDER, FACTS_FILE = "clip", "trained-on.json"
STEPS, BATCH_SIZE, LEARNING_RATE = 500, 128, 2e-3
MOST_SAMPLES = 20_000
"""Most samples to train on, from the first shards; all are in memory, 12 kB each at 64 pixels."""
WIDTH, LAYERS, HEADS, EMBEDDING = 96, 3, 4, 64
LONGEST_TEXT = 32
"""Tokens of a caption that are read, including the two that mark its ends."""
BEGIN, END = "[BOS]", "[EOS]"

Progress = Callable[[str, int, int], None]
"""Called with the name of the current work, the amount done, and the total."""


def run_clip(folder: Path, shards: Shards, codec: ImageCodec, *, steps: int, progress: Progress) -> Clip:
    """Loads the small CLIP of a run's folder; trains and stores it if it is missing or belongs to other shards.

    Args:
        folder: The run's folder; the model is in `clip/` in it.
        shards: Shards of the split to train on.
        codec: The codec of these shards.
        steps: Training steps.
        progress: Called with the progress of training.
    """
    target = folder / FOLDER
    if target.exists() and not (target / FACTS_FILE).is_file():
        raise BadInput(f"{target} holds no small CLIP of a run; move it, or name a CLIP model with --clip.")
    manifest = shards.manifest
    facts = {"shards": manifest.input_digest, "codec": manifest.codec_digest, "steps": steps}
    if (target / FACTS_FILE).is_file() and json.loads((target / FACTS_FILE).read_text()) == facts:
        return load_clip(target)
    clip = train_small_clip(*decoded_samples(shards, codec, progress=progress), steps=steps, progress=progress)
    with whole_folder(target) as draft:
        save_clip(clip, draft)
        (draft / FACTS_FILE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    # Read back, so that the first use ranks with the same weights as later ones.
    return load_clip(target)


def clip_of_run(
    checkpoint: Checkpoint, source: str | None, *, codec: ImageCodec, shards: str | None, progress: Progress
) -> Clip:
    """Loads the CLIP model that ranks a checkpoint's pictures.

    Args:
        checkpoint: A checkpoint of the run.
        source: Folder or name of a CLIP model; None: ViT-B/32 if the codec is VQ-GAN, else the run's own small CLIP.
        codec: The run's codec.
        shards: Location of the run's shards, if they have been moved.
        progress: Called with the progress of training, if that is needed.

    Raises:
        BadInput: If the model or the shards are not found.
    """
    if source is not None or checkpoint.config.codec.kind == "vqgan":
        return load_clip(source or VIT_B_32)
    return run_clip(run_folder(checkpoint), shards_of(checkpoint, shards), codec, steps=STEPS, progress=progress)


def run_folder(checkpoint: Checkpoint) -> Path:
    """The run's folder if the checkpoint is in its `checkpoints/`; otherwise the folder that has the checkpoint."""
    holding = checkpoint.path.absolute().parent
    return holding.parent if holding.name == "checkpoints" else holding


def decoded_samples(
    shards: Shards, codec: ImageCodec, *, progress: Progress, most: int = MOST_SAMPLES
) -> tuple[np.ndarray, list[str]]:
    """Pictures uint8 (n, S, S, 3) as the codec decodes them, and their captions, in the shards' order."""
    codes, captions = [], []
    # Shards behind the last one that is needed are not even fetched.
    samples = (sample for name in shards.names for sample in read_shard(shards.file(name)))
    for sample in islice(samples, most):
        codes.append(sample.codes)
        captions.append(sample.caption)
    pictures = []
    for start in range(0, len(codes), 256):
        part = torch.from_numpy(np.stack(codes[start : start + 256]).astype(np.int64))
        pictures.append(decoded_pixels(codec, part))
        progress("Decoding pictures for CLIP", start + len(part), len(codes))
    return np.concatenate(pictures), captions


def train_small_clip(
    pictures: np.ndarray,
    captions: list[str],
    *,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    progress: Progress,
) -> Clip:
    """Trains a small CLIP with the contrastive loss (Radford et al. 2021, section 2.3); equal seeds give equal models.

    Args:
        pictures: uint8 (n, S, S, 3).
        captions: One per picture.
        steps: Training steps.
        batch_size: Pairs per step.
        seed: Seed of initial weights and batches.
        progress: Called with the progress of training.
    """
    transformers = import_transformers()
    tokenizer = _tokenizer(captions)
    generator = torch.Generator().manual_seed(seed)
    # transformers draws initial weights from the global generator; the fork leaves the caller's random state as it is.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.CLIPModel(_config(transformers, tokenizer, pictures.shape[1]))
    clip = Clip(model, tokenizer, mean=(0.5,) * 3, deviation=(0.25,) * 3, name="small CLIP of the run")
    tokens = tokenizer(captions, padding=True, truncation=True, max_length=LONGEST_TEXT, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rise_and_fall(step, steps)
        chosen = torch.randperm(len(captions), generator=generator)[:batch_size]
        scores = model(
            pixel_values=clip.pixels(list(pictures[chosen.numpy()])),
            input_ids=tokens["input_ids"][chosen],
            attention_mask=tokens["attention_mask"][chosen],
        ).logits_per_text
        right = torch.arange(len(chosen))
        loss = (functional.cross_entropy(scores, right) + functional.cross_entropy(scores.t(), right)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            # As in CLIP (Radford et al. 2021, section 2.5): beyond a factor of 100, training becomes unstable.
            model.logit_scale.clamp_(max=np.log(100))
        progress("Training the run's small CLIP", step + 1, steps)
    model.eval().requires_grad_(False)
    return clip


def _config(transformers, tokenizer, side: int):
    shared = {
        "hidden_size": WIDTH,
        "intermediate_size": 4 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "projection_dim": EMBEDDING,
    }
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    return transformers.CLIPConfig(
        text_config={**shared, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": LONGEST_TEXT},
        vision_config={**shared, "image_size": side, "patch_size": max(1, side // 8)},
        projection_dim=EMBEDDING,
    )


def _tokenizer(captions: list[str]):
    """Trains a word-level tokenizer of the captions, which marks the beginning and end of a sentence."""
    import tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import WordLevelTrainer

    # With an end token of id 2, transformers' CLIP finds the end by another, older rule; here END has id 4.
    special = [PADDING, UNKNOWN, "[MASK]", BEGIN, END]
    inner = tokenizers.Tokenizer(WordLevel({name: at for at, name in enumerate(special)}, unk_token=UNKNOWN))
    inner.normalizer, inner.pre_tokenizer = Lowercase(), Whitespace()
    inner.train_from_iterator(captions, WordLevelTrainer(vocab_size=4096, special_tokens=special, show_progress=False))
    inner.post_processor = TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, special.index(BEGIN)), (END, special.index(END))]
    )
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PADDING, unk_token=UNKNOWN, bos_token=BEGIN, eos_token=END
    )
