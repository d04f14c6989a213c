"""Image codecs: they encode a picture as a grid of codebook entries and decode it again.

`SmallCodec` is the project's own VQ model (van den Oord et al. 2017, arXiv:1711.00937), small enough to be trained
while pictures are prepared; the demo's is in `training/data/demo/codec`. VQ-GAN, the codec of the 2021 run, has the
same interface in `training.model.codecs.vqgan`.

Letters: B pictures, S side in pixels, f pixels per token along a side, G = S / f side of the grid, W width, C width of
a code, K codebook entries.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from training.errors import BadInput, reason_of
from training.model.codecs.config import CodecConfig
from training.storage.whole import write_whole

WEIGHTS_FILE, CONFIG_FILE = "codec.safetensors", "codec.json"


class ImageCodec(Protocol):
    """Interface of all codecs. Encoding and decoding run without gradients and do not change the codec."""

    config: CodecConfig

    def encode(self, pictures: Tensor) -> Tensor:
        """Encodes pictures (B, 3, S, S), float in [0, 1], as codes (B, G * G), int64 in [0, K), row by row."""

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes codes (B, G * G) to pictures (B, 3, S, S), float in [0, 1]."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns all weights, by the names under which they are stored."""

    def to(self, device: torch.device) -> ImageCodec:
        """Moves the codec's weights to a device, and returns the codec."""


def decoded_pixels(codec: ImageCodec, codes: Tensor) -> np.ndarray:
    """Decodes codes (B, G * G) to pixels, uint8 (B, S, S, 3)."""
    return (codec.decode(codes).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


class _Residual(nn.Module):
    """Residual block x + 1x1(GELU(3x3(norm(x)))) of (B, W, G, G); initially it adds a constant."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.look_around = nn.Conv2d(width, width, 3, padding=1)
        self.mix = nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.mix.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(F.gelu(self.look_around(self.norm(x))))


class SmallCodec(nn.Module):
    """Convolutional VQ model that computes only on the token grid.

    The decoder draws each patch of f x f pixels as a soft stencil between two colours (as block truncation coding does;
    Delp and Mitchell 1979), so that an outline learned in one colour is used for all colours.
    """

    WIDTH, CODE_WIDTH, ENCODER_BLOCKS, DECODER_BLOCKS = 64, 8, 2, 3

    def __init__(self, config: CodecConfig):
        super().__init__()
        if config.image_size % config.downsampling:
            raise BadInput(
                f"codec.image_size is {config.image_size}; it must be a multiple of codec.downsampling, "
                f"{config.downsampling}.",
                cure="Change one of the two in the recipe.",
            )
        self.config = config
        f, width = config.downsampling, self.WIDTH
        self.encoder = nn.Sequential(
            nn.Conv2d(3 * f * f, width, 1),
            *(_Residual(width) for _ in range(self.ENCODER_BLOCKS)),
            nn.GroupNorm(1, width),
            nn.Conv2d(width, self.CODE_WIDTH, 1),
        )
        self.register_buffer("codebook", torch.randn(config.codebook_size, self.CODE_WIDTH))
        self.decoder = nn.Sequential(
            nn.Conv2d(self.CODE_WIDTH, width, 1),
            *(_Residual(width) for _ in range(self.DECODER_BLOCKS)),
            nn.GroupNorm(1, width),
            nn.Conv2d(width, f * f + 6, 1),
        )

    @property
    def grid(self) -> int:
        """G, the number of tokens along a side."""
        return self.config.image_size // self.config.downsampling

    @torch.inference_mode()
    def encode(self, pictures: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(2 * pictures - 1, self.config.downsampling)
        vectors = self.encoder(patches).permute(0, 2, 3, 1)
        return self.nearest(vectors.reshape(-1, self.CODE_WIDTH)).view(len(pictures), -1)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        vectors = self.codebook[codes].view(len(codes), self.grid, self.grid, self.CODE_WIDTH)
        return F.pixel_shuffle(self.paint(vectors.permute(0, 3, 1, 2)).flatten(1, 2), self.config.downsampling)

    def tensors(self) -> dict[str, Tensor]:
        """All weights; in 16 bits if that loses nothing, as in every codec that `train_small_codec` has made."""
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        halves = {name: tensor.half() for name, tensor in weights.items()}
        return halves if all(torch.equal(halves[name].float(), weights[name]) for name in weights) else weights

    def nearest(self, vectors: Tensor) -> Tensor:
        """Finds the nearest codebook entries (n,) of vectors (n, C)."""
        return torch.cdist(vectors, self.codebook).argmin(dim=1)

    def paint(self, vectors: Tensor) -> Tensor:
        """Draws patches (B, 3, f * f, G, G) in [0, 1] from code vectors (B, C, G, G)."""
        pixels = self.config.downsampling**2
        features = torch.sigmoid(2 * self.decoder(vectors))
        stencil = features[:, None, :pixels]
        colours = features[:, pixels:, None]
        return torch.lerp(colours[:, :3], colours[:, 3:], stencil)


class _CodebookTrainer:
    """Keeps each codebook entry at the running mean of the vectors assigned to it, and moves unused entries.

    Args:
        codec: Codec whose codebook is changed in place.
        generator: Random generator for the choice of initial and moved entries.
        free_steps: Number of initial steps in which vectors are not quantized.
    """

    DECAY, DEAD_AFTER_STEPS = 0.97, 20

    def __init__(self, codec: SmallCodec, generator: torch.Generator, free_steps: int):
        self.codec = codec
        self.generator = generator
        self.free_steps = free_steps
        self.recent: list[Tensor] = []
        self.counts = torch.ones(len(codec.codebook))
        self.sums = codec.codebook.clone()
        self.idle_steps = torch.zeros(len(codec.codebook))

    def quantize(self, encoded: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Returns the decoder's input in this step for encoded patches (B, C, G, G), and the loss of their distance to
        codes.

        The gradient skips the quantization (straight-through estimator).
        """
        vectors = encoded.permute(0, 2, 3, 1).reshape(-1, self.codec.CODE_WIDTH)
        if step < self.free_steps:
            # The last four batches: k-means needs more vectors than one batch contains.
            self.recent = [*self.recent[-3:], vectors.detach()]
            return encoded, torch.zeros(())
        if step == self.free_steps:
            self.start(torch.cat([*self.recent, vectors.detach()]))
        with torch.no_grad():
            codes = self.codec.nearest(vectors)
            quantized = self.codec.codebook[codes]
            self.update(vectors.detach(), codes)
        straight_through = vectors + (quantized - vectors).detach()
        shape = (len(encoded), self.codec.grid, self.codec.grid, -1)
        return straight_through.view(shape).permute(0, 3, 1, 2), F.mse_loss(vectors, quantized)

    def start(self, vectors: Tensor) -> None:
        """Initializes the entries by k-means++ and ten rounds of k-means over vectors (n, C)."""
        entries = len(self.codec.codebook)
        centres = vectors[torch.randint(len(vectors), (1,), generator=self.generator)]
        distances = (vectors - centres).square().sum(1)
        for _ in range(entries - 1):
            # 1e-9, since multinomial refuses weights that are all 0, as when every vector is a centre already.
            chosen = vectors[torch.multinomial(distances + 1e-9, 1, generator=self.generator)]
            centres = torch.cat([centres, chosen])
            distances = torch.minimum(distances, (vectors - chosen).square().sum(1))
        for _ in range(10):
            owners = torch.cdist(vectors, centres).argmin(1)
            counts = torch.bincount(owners, minlength=entries)[:, None]
            means = torch.zeros_like(centres).index_add_(0, owners, vectors) / counts.clamp(min=1)
            centres = torch.where(counts > 0, means, centres)
        self._move(slice(None), centres)

    def update(self, vectors: Tensor, codes: Tensor) -> None:
        """Makes one step with vectors (n, C) that were assigned to codes (n,)."""
        used = torch.bincount(codes, minlength=len(self.counts)).float()
        self.counts.lerp_(used, 1 - self.DECAY)
        self.sums.lerp_(torch.zeros_like(self.sums).index_add_(0, codes, vectors), 1 - self.DECAY)
        # The count of an unused entry decays towards 0, and the division would give NaN.
        self.codec.codebook.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
        self.idle_steps = torch.where(used > 0, 0, self.idle_steps + 1)
        dead = self.idle_steps > self.DEAD_AFTER_STEPS
        if dead.any():
            errors = (vectors - self.codec.codebook[codes]).square().sum(1)
            self._move(dead, vectors[torch.multinomial(errors + 1e-9, int(dead.sum()), generator=self.generator)])

    def _move(self, which: Tensor | slice, places: Tensor) -> None:
        self.codec.codebook[which] = places
        self.sums[which] = places
        self.counts[which] = 1.0
        self.idle_steps[which] = 0


def train_small_codec(
    pictures: Tensor,
    config: CodecConfig,
    *,
    steps: int = 1600,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    seed: int = 0,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> SmallCodec:
    """Trains a small codec; equal arguments and numbers of threads give equal codecs.

    The first eighth of the steps trains without quantization; then k-means places the codebook among the current
    vectors, and running means keep it there. A picture is chosen more often if its last reconstruction was poor.

    Args:
        pictures: Pictures to train on, uint8, (n, 3, S, S).
        config: Sizes of the codec.
        steps: Gradient steps. 1600 of 32 pictures take about a minute on two cores at S = 64.
        batch_size: Pictures per step.
        learning_rate: The highest learning rate of AdamW.
        seed: Seed of the initial weights, the batches and the codebook.
        progress: Called with (steps done, steps, loss).

    Raises:
        BadInput: If the pictures have another type or shape.
    """
    side = config.image_size
    if pictures.dtype != torch.uint8 or pictures.shape[1:] != (3, side, side) or len(pictures) == 0:
        raise BadInput(
            f"Pictures to train a codec have dtype {pictures.dtype} and shape {tuple(pictures.shape)}; "
            f"give uint8 and (n, 3, {side}, {side}), n at least 1."
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        codec = SmallCodec(config)
    codebook = _CodebookTrainer(codec, generator, free_steps=steps // 8)
    optimizer = torch.optim.AdamW(
        codec.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=1e-4, fused=True
    )
    patches = F.pixel_unshuffle(pictures, config.downsampling)
    contrasts = F.pixel_unshuffle(_edge_contrasts(pictures), config.downsampling)
    difficulty = torch.ones(len(pictures))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * rise_and_fall(step, steps)
        chosen = torch.multinomial(difficulty, batch_size, replacement=True, generator=generator)
        batch = patches[chosen].float() / 255
        encoded, commitment = codebook.quantize(codec.encoder(2 * batch - 1), step)
        losses = _distance(codec.paint(encoded).flatten(1, 2), batch, contrasts[chosen])
        # Squared, so that pictures which the codec still draws badly come much more often.
        difficulty[chosen] = losses.detach().square().clamp(min=1e-8)
        loss = losses.mean() + commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress(step + 1, steps, loss.item())
    # Rounded to 16 bits, so that the file has half the bytes and the codec encodes the same before and after it.
    return codec.half().float().eval().requires_grad_(False)


def rise_and_fall(step: int, steps: int) -> float:
    """Factor of the learning rate: it rises for 50 steps, then falls in a straight line to 1 %.

    >>> rise_and_fall(0, 1000), rise_and_fall(400, 800), round(rise_and_fall(999, 1000), 3)
    (0.02, 0.51, 0.011)
    """
    return min((step + 1) / 50, 1 - step / steps + 0.01, 1)


def _distance(painted: Tensor, patches: Tensor, contrasts: Tensor) -> Tensor:
    """Errors (B,) of painted patches (B, 3 * f * f, G, G); edges have up to 7 times the weight."""
    difference = (painted - patches).unflatten(1, (3, -1))
    weights = 1 + 6 / 255 * contrasts.float()
    return ((0.5 * difference.abs() + 2 * difference.square()).mean(1) * weights).mean((1, 2, 3))


def _edge_contrasts(pictures: Tensor) -> Tensor:
    """The largest difference between each pixel and its four neighbours in any channel, uint8 (n, 1, S, S)."""
    contrasts = torch.zeros_like(pictures[:, :1])
    # 64 pictures at a time: the differences take several times the memory of their pictures.
    for contrast, part in zip(contrasts.split(64), pictures.split(64), strict=True):
        # Differences of unsigned bytes would wrap around below 0.
        wide = part.short()
        for axis in (2, 3):
            size = part.shape[axis] - 1
            steps = (wide.narrow(axis, 1, size) - wide.narrow(axis, 0, size)).abs().amax(1, keepdim=True).byte()
            for start in (0, 1):
                beside = contrast.narrow(axis, start, size)
                torch.maximum(beside, steps, out=beside)
    return contrasts


def save_codec(codec: ImageCodec, folder: Path) -> str:
    """Writes `codec.safetensors` and `codec.json` (kind, config, digest) into a folder, each file atomically.

    Returns:
        Digest of the codec; see `digest_of`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = safetensors.torch.save(codec.tensors())
    digest = digest_of(weights)
    described = {"kind": codec.config.kind, "config": codec.config.model_dump(exclude={"weights"}), "digest": digest}
    # The weights first: a killed program leaves no description without its weights.
    write_whole(folder / WEIGHTS_FILE, weights)
    write_whole(folder / CONFIG_FILE, json.dumps(described, indent=2) + "\n")
    return digest


def codec_config(folder: Path) -> CodecConfig:
    """Reads the description of the codec in a folder that `save_codec` wrote.

    Raises:
        BadInput: If the folder has no valid description.
    """
    try:
        return CodecConfig(**json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder / CONFIG_FILE} does not describe a codec: {reason_of(error)}.",
            cure="Fetch or prepare the shards again.",
        ) from None


def digest_of(weights: bytes) -> str:
    """Digest that identifies the codec, and thus the meaning of its codes: SHA-256 of the weights file, in hex."""
    return hashlib.sha256(weights).hexdigest()


def load_codec(source: Path | str, config: CodecConfig) -> ImageCodec:
    """Loads the codec in a folder, or a published VQ-GAN.

    Args:
        source: A folder that `save_codec` wrote, or the path of a file in it; for VQ-GAN also a checkpoint of
            taming-transformers (`.safetensors`, `.pt` or `.ckpt`).
        config: Codec section of the recipe; its sizes must be the codec's.

    Raises:
        BadInput: If files are missing, broken or of a codec other than the recipe's.
    """
    source = Path(source)
    folder = source.parent if source.name in (WEIGHTS_FILE, CONFIG_FILE) else source
    if config.kind == "vqgan" and source.is_file() and not (folder / CONFIG_FILE).is_file():
        return _vqgan().load_vqgan(source, config)
    try:
        described = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        weights = (folder / WEIGHTS_FILE).read_bytes()
        sizes, digest = described["config"], described["digest"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"No codec can be read from {source}: {reason_of(error)}. Run `python -m training prepare` first."
        ) from None
    expected = config.model_dump(exclude={"weights"})
    if sizes != expected:
        raise BadInput(
            f"The codec in {folder} has {sizes}, the recipe says {expected}. Prepare the shards with this recipe."
        )
    if digest_of(weights) != digest:
        raise BadInput(
            f"{folder / WEIGHTS_FILE} is not what {CONFIG_FILE} describes (SHA-256). Fetch or prepare it again."
        )
    try:
        tensors = safetensors.torch.load(weights)
        if config.kind == "vqgan":
            return _vqgan().VqGan.from_tensors(tensors, config)
        codec = SmallCodec(config)
        codec.load_state_dict(tensors)
    except (RuntimeError, SafetensorError) as error:
        raise BadInput(
            f"{folder / WEIGHTS_FILE} holds other weights than a small codec's: {error}.",
            cure="Prepare the shards again.",
        ) from None
    return codec.eval().requires_grad_(False)


def _vqgan() -> ModuleType:
    """Imports the module of VQ-GAN, only when it is used, and returns it."""
    return importlib.import_module("training.model.codecs.vqgan")
