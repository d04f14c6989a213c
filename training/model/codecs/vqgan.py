"""VQ-GAN with a Gumbel quantizer, the image codec of the 2021 run (Esser et al. 2021, arXiv:2012.09841).

That run used `vqgan_gumbel_f8`: 8 pixels per token, 8192 entries. Encoder and decoder consist of diffusers' blocks;
weights are read and written in the layout of taming-transformers, in which they are published. The sizes of the network
follow from the weights. Encoding takes the likeliest entry. The published code samples an entry with Gumbel noise even
outside of training, so its codes differ between calls.

Letters as in `training.model.codecs.codec`; E width of an entry, Z width of the encoder's last map.
"""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from training.errors import BadInput
from training.model.codecs.config import CodecConfig

INSTALL = "pip install diffusers"

PICTURES_TOGETHER = 8
"""Number of pictures in one pass; a picture of 256 x 256 takes about 0.3 GB of working memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VqGanShape:
    """Sizes of the network, as read from its weights."""

    widths: tuple[int, ...]
    """Channels of each level, the finest first; every level but the last halves the side."""
    blocks_per_level: int
    """Number of residual blocks of an encoder level; a decoder level has one more."""
    attention: tuple[bool, ...]
    """True for each level that has self-attention."""
    map_width: int
    """Z, width of the encoder's last map."""
    entry_width: int
    """E, width of a codebook entry."""
    codebook_size: int
    """K, number of codebook entries."""

    @property
    def downsampling(self) -> int:
        """f, number of pixels per token along a side."""
        return 2 ** (len(self.widths) - 1)


def read_shape(tensors: dict[str, Tensor]) -> VqGanShape:
    """Reads sizes from weights in the layout of taming-transformers.

    Raises:
        BadInput: If the weights are not those of a Gumbel VQ-GAN.
    """
    try:
        levels = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("encoder.down."))
        blocks = 1 + max(int(name.split(".")[4]) for name in tensors if name.startswith("encoder.down.0.block."))
        return VqGanShape(
            widths=tuple(len(tensors[f"encoder.down.{level}.block.0.conv1.weight"]) for level in range(levels)),
            blocks_per_level=blocks,
            attention=tuple(f"encoder.down.{level}.attn.0.q.weight" in tensors for level in range(levels)),
            map_width=len(tensors["encoder.conv_out.weight"]),
            entry_width=tensors["quantize.embed.weight"].shape[1],
            codebook_size=len(tensors["quantize.proj.weight"]),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise BadInput(
            f"The weights are not those of a Gumbel VQ-GAN in the layout of taming-transformers ({error} is missing).",
            cure="Give the weights of taming-transformers' vqgan_gumbel_f8.",
        ) from None


class VqGan(nn.Module):
    """VQ-GAN codec; see `training.model.codecs.codec.ImageCodec`.

    Args:
        shape: Sizes of the network.
        config: Codec section of the recipe; it must agree with the shape.

    Raises:
        BadInput: If shape and config disagree, or diffusers is not installed.
    """

    def __init__(self, shape: VqGanShape, config: CodecConfig):
        super().__init__()
        try:
            from diffusers.models.autoencoders.vae import Decoder, Encoder
        except ImportError as error:
            raise BadInput(f"VQ-GAN needs diffusers ({error}). Install it: {INSTALL}") from None
        for what, ours, theirs in (
            ("codebook_size", config.codebook_size, shape.codebook_size),
            ("downsampling", config.downsampling, shape.downsampling),
        ):
            if ours != theirs:
                raise BadInput(
                    f"The recipe's codec.{what} is {ours}, the VQ-GAN's weights have {theirs}.",
                    cure="Use the codec's weights that the recipe means, or correct the recipe's `[codec]`.",
                )
        self.shape = shape
        self.config = config
        sizes = {"block_out_channels": shape.widths, "layers_per_block": shape.blocks_per_level}
        self.encoder = Encoder(
            out_channels=shape.map_width,
            down_block_types=tuple("AttnDownEncoderBlock2D" if it else "DownEncoderBlock2D" for it in shape.attention),
            # A second half would be variances, which only a variational autoencoder predicts.
            double_z=False,
            **sizes,
        )
        self.decoder = Decoder(
            in_channels=shape.map_width,
            up_block_types=tuple("AttnUpDecoderBlock2D" if it else "UpDecoderBlock2D" for it in shape.attention[::-1]),
            **sizes,
        )
        self.quant_conv = nn.Conv2d(shape.map_width, shape.entry_width, 1)
        self.post_quant_conv = nn.Conv2d(shape.entry_width, shape.map_width, 1)
        self.scores = nn.Conv2d(shape.entry_width, shape.codebook_size, 1)
        self.codebook = nn.Embedding(shape.codebook_size, shape.entry_width)

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], config: CodecConfig) -> VqGan:
        """Makes a codec from weights in the layout of taming-transformers; weights of its training losses are ignored.

        Raises:
            BadInput: If weights are missing, unknown, or of another size.
        """
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("loss.")}
        codec = cls(read_shape(tensors), config)
        own = codec.state_dict()
        names = {published_name(name, codec.shape): name for name in own}
        if names.keys() != tensors.keys():
            strange = sorted(names.keys() ^ tensors.keys())
            raise BadInput(
                f"{len(strange)} weights of the VQ-GAN are missing or left over, such as {strange[0]!r}.",
                cure="Fetch the VQ-GAN's weights again, in the layout of taming-transformers.",
            )
        for name, tensor in tensors.items():
            target = own[names[name]]
            if tensor.squeeze().shape != target.squeeze().shape:  # published weights have more axes of length 1
                raise BadInput(
                    f"The VQ-GAN's weight {name!r} has the shape {tuple(tensor.shape)}, not {tuple(target.shape)}.",
                    cure="Give the weights that the recipe's `[codec]` means.",
                )
            target.copy_(tensor.reshape(target.shape))
        return codec.eval().requires_grad_(False)

    def tensors(self) -> dict[str, Tensor]:
        """Returns all weights in the layout of taming-transformers, where attention projections are 1x1
        convolutions."""
        published = {}
        for own_name, tensor in self.state_dict().items():
            name = published_name(own_name, self.shape)
            is_projection = re.search(r"attn(_1|\.\d+)\.(q|k|v|proj_out)\.weight$", name)
            published[name] = (tensor[:, :, None, None] if is_projection else tensor).contiguous()
        return published

    @torch.inference_mode()
    def encode(self, pictures: Tensor) -> Tensor:
        codes = [
            self.scores(self.quant_conv(self.encoder(2 * part - 1))).argmax(dim=1).flatten(1)
            for part in pictures.split(PICTURES_TOGETHER)
        ]
        return torch.cat(codes)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        grid = self.config.image_size // self.config.downsampling
        pictures = []
        for part in codes.split(PICTURES_TOGETHER):
            entries = self.codebook(part).view(len(part), grid, grid, -1).permute(0, 3, 1, 2)
            pictures.append((self.decoder(self.post_quant_conv(entries)).clamp(-1, 1) + 1) / 2)
        return torch.cat(pictures)


def published_name(name: str, shape: VqGanShape) -> str:
    """Name in taming-transformers of a weight of `VqGan`."""
    last = len(shape.widths) - 1
    if name.startswith(("scores.", "codebook.")):
        return name.replace("scores.", "quantize.proj.").replace("codebook.", "quantize.embed.")
    name = re.sub(r"down_blocks\.(\d+)\.resnets", r"down.\1.block", name)
    name = re.sub(r"down_blocks\.(\d+)\.attentions", r"down.\1.attn", name)
    name = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", name)
    # taming-transformers counts the decoder's levels from the finest, diffusers from the coarsest.
    name = re.sub(r"up_blocks\.(\d+)", lambda match: f"up.{last - int(match[1])}", name)
    name = (
        name.replace(".resnets.", ".block.").replace(".attentions.", ".attn.").replace(".upsamplers.0.", ".upsample.")
    )
    name = re.sub(r"mid_block\.block\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}", name)
    name = name.replace("mid_block.attn.0", "mid.attn_1").replace("conv_shortcut", "nin_shortcut")
    name = name.replace("conv_norm_out", "norm_out").replace("group_norm", "norm").replace("to_out.0", "proj_out")
    return re.sub(r"\.to_([qkv])\.", r".\1.", name)


def load_vqgan(path: Path, config: CodecConfig) -> VqGan:
    """Loads a codec from a published checkpoint: safetensors, or a `.pt`/`.ckpt` that holds tensors only.

    Raises:
        BadInput: If the file cannot be read safely, or belongs to another network.
    """
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise BadInput(
            f"{path} holds Python objects beside tensors and is not opened, since they could run code. Get the weights "
            "as safetensors, or save checkpoint['state_dict'] alone on a machine that you trust with it."
        ) from None
    except (OSError, RuntimeError, SafetensorError, EOFError) as error:
        raise BadInput(
            f"The VQ-GAN's weights cannot be read from {path}: {error}.",
            cure="Check that the file is there, whole, and readable for you.",
        ) from None
    if isinstance(tensors, dict) and isinstance(tensors.get("state_dict"), dict):
        tensors = tensors["state_dict"]
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise BadInput(
            f"{path} holds no dictionary of weights.",
            cure="Fetch the file again; it must be a checkpoint of taming-transformers.",
        )
    return VqGan.from_tensors(tensors, config)
