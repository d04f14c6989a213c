"""The small model of the site's page Train together: it draws coloured shapes. In PyTorch, for peers of our own stack.

A caption is a colour and a shape. Three layers of weights with max(0, x) between them make a picture of it, as ink on
white paper: red, green and blue of each pixel, minus those of the paper. The loss is the mean squared difference to the
drawn picture. site/javascripts/together/ computes the same from the same first weights; a test compares both.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from training.data.demo.captions import BACKGROUNDS, COLOURS, NEW_PAIRS, SHAPES
from training.data.demo.draw import shape_mask

SIDE, HIDDEN = 24, 64
RADIUS = 0.45
"""Half the extent of a shape, as a share of the picture's side."""
SEED = 7
_WORDS = 2
"""Words of a caption."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Training of the model, on the page and in recorded runs."""

    batch: int = 96
    """Samples of all peers together for one update."""
    micro_batch: int = 16
    updates: int = 160
    every: int = 4
    """Updates between two looks at what the model has learned."""
    rate: float = 0.005
    warmup: int = 10
    betas: tuple[float, float] = (0.9, 0.96)
    eps: float = 1e-8
    max_norm: float = 4.0
    inner: int = 10
    """Updates of a peer's own weights between two exchanges, with local updates."""


SETTINGS = Settings()


def dice(seed: int) -> Iterator[float]:
    """Numbers in [0, 1): Tommy Ettinger's mulberry32, which is the page's.

    >>> [round(value, 6) for value, _ in zip(dice(1), range(2))]
    [0.627074, 0.002736]
    """
    low = 2**32 - 1
    state = seed & low
    while True:
        state = (state + 0x6D2B79F5) & low
        mixed = ((state ^ (state >> 15)) * (1 | state)) & low
        mixed ^= (mixed + (((mixed ^ (mixed >> 7)) * (61 | mixed)) & low)) & low
        yield (mixed ^ (mixed >> 14)) / 2**32


def captions() -> list[tuple[int, int]]:
    """All pairs of a colour and a shape, by their places."""
    return [(colour, shape) for colour in range(len(COLOURS)) for shape in range(len(SHAPES))]


def unseen() -> list[tuple[int, int]]:
    """Pairs that never occur in training."""
    colours, shapes = list(COLOURS), list(SHAPES)
    return sorted((colours.index(colour), shapes.index(shape)) for colour, shape in NEW_PAIRS)


def seen() -> list[tuple[int, int]]:
    """Pairs to train on."""
    return [pair for pair in captions() if pair not in unseen()]


def masks() -> list[bytes]:
    """Shares of each pixel that each shape covers: 0 to 255."""
    return [shape_mask(shape, size=SIDE, radius=RADIUS).tobytes() for shape in SHAPES]


def drawings() -> dict:
    """The data as the page reads it."""
    return {
        "colours": list(COLOURS.values()),
        "paper": BACKGROUNDS["white"],
        "masks": [base64.b64encode(mask).decode() for mask in masks()],
        "unseen": unseen(),
        "names": {"colours": list(COLOURS), "shapes": list(SHAPES)},
    }


class Shapes(nn.Module):
    """The model, with the page's first weights; and the pictures of all captions, in their order."""

    def __init__(self, seed: int = SEED):
        super().__init__()
        self.sizes = (len(COLOURS) + len(SHAPES), HIDDEN, HIDDEN, 3 * SIDE**2)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(self.sizes, self.sizes[1:], strict=False))
        ink = (torch.tensor(list(COLOURS.values())) - torch.tensor(BACKGROUNDS["white"])) / 255
        cover = torch.from_numpy(np.frombuffer(b"".join(masks()), dtype=np.uint8).copy()).view(len(SHAPES), -1) / 255
        self.register_buffer("pictures", torch.einsum("cp,sx->csxp", ink, cover).reshape(len(captions()), -1))
        self._draw_weights(dice(seed))

    @torch.no_grad()
    def _draw_weights(self, random_numbers: Iterator[float]) -> None:
        for place, layer in enumerate(self.layers):
            # The last layer begins with small weights: with large ones, the first pictures are noise for long.
            bound = math.sqrt((0.1 if place == 2 else 6) / (self.sizes[place] if place else _WORDS))
            values = [bound * (2 * next(random_numbers) - 1) for _ in range(layer.weight.numel())]
            layer.weight.copy_(torch.tensor(values).view_as(layer.weight))
            layer.bias.zero_()

    def draw(self, pairs: list[tuple[int, int]]) -> Tensor:
        """Pictures of captions, a row each."""
        words = torch.zeros(len(pairs), self.sizes[0])
        for row, (colour, shape) in zip(words, pairs, strict=True):
            row[colour] = row[len(COLOURS) + shape] = 1
        first, second, last = self.layers
        return last(torch.relu(second(torch.relu(first(words)))))

    def forward(self, pairs: list[tuple[int, int]]) -> Tensor:
        """Mean loss of captions."""
        wanted = self.pictures[[colour * len(SHAPES) + shape for colour, shape in pairs]]
        return nn.functional.mse_loss(self.draw(pairs), wanted)

    def vector(self, gradients: bool = False) -> Tensor:
        """All parameters, or their gradients, in the page's order: first the matrices, then the biases."""
        tensors = [*(layer.weight for layer in self.layers), *(layer.bias for layer in self.layers)]
        return torch.cat([(tensor.grad if gradients else tensor.detach()).reshape(-1) for tensor in tensors])

    @torch.no_grad()
    def look(self) -> dict[str, float]:
        """What the model has learned: the loss of the captions to train on, and how many pictures are right.

        A picture is right if no other caption's true picture is as near to it.
        """
        drawn, pairs = self.draw(captions()), captions()
        nearest = torch.cdist(drawn, self.pictures).argmin(dim=1).tolist()
        right = {pair for pair, place, found in zip(pairs, range(len(pairs)), nearest, strict=True) if place == found}
        unknown = right & set(unseen())
        return {"loss": float(self(seen())), "right": len(right - unknown), "right_unseen": len(unknown)}

    @torch.no_grad()
    def mosaic(self) -> Image.Image:
        """Pictures of all captions as one: a row for each colour, a column for each shape."""
        paper = torch.tensor(BACKGROUNDS["white"])
        values = (self.draw(captions()).view(len(COLOURS), len(SHAPES), SIDE, SIDE, 3) * 255 + paper).round()
        rows = values.clamp(0, 255).byte().permute(0, 2, 1, 3, 4).reshape(len(COLOURS) * SIDE, -1, 3)
        return Image.fromarray(rows.numpy())
