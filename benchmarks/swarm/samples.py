"""Synthetic samples of captions, each with its own picture, to which random codes are added every time."""

from __future__ import annotations

from collections.abc import Iterator

CAPTIONS, NOISE = 64, 0.2
"""Number of captions, and the share of random codes in a picture."""


def samples(shape: object, seed: int, size: int, *, captions: int = CAPTIONS) -> Iterator[tuple]:
    """Yields endless batches of texts and codes; seeds share captions and pictures, but not noise and order."""
    import torch

    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    texts = torch.randint(1, shape.text_vocab_size, (captions, shape.text_seq_len), generator=fixed)
    patterns = torch.randint(0, shape.image_vocab_size, (captions, shape.image_seq_len), generator=fixed)
    while True:
        which = torch.randint(0, captions, (size,), generator=own)
        noise = torch.randint(0, shape.image_vocab_size, (size, shape.image_seq_len), generator=own)
        keep = torch.rand(noise.shape, generator=own) >= NOISE
        yield texts[which], torch.where(keep, patterns[which], noise)


def held_out_loss(model: object, shape: object, size: int, *, captions: int = CAPTIONS) -> float:
    """Computes the loss on held-out samples."""
    import torch

    with torch.no_grad():
        text, codes = next(samples(shape, seed=1_000_000, size=size, captions=captions))
        return float(model(text, codes).loss)
