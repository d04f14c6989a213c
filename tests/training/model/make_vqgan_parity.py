"""Writes `parity/vqgan.npz` with taming-transformers: codes and pictures of a VQ-GAN whose weights follow from names.

    pip install --no-deps taming-transformers-rom1504 einops
    python tests/training/model/make_vqgan_parity.py

Its Encoder, Decoder and GumbelQuantize in the sizes of `test_vqgan.py`. A code is the likeliest entry, without the
noise by which GumbelQuantize draws one.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[3]), str(Path(__file__).parent)]

from parity_fixtures import OWN, random_weight  # noqa: E402
from taming.modules.diffusionmodules.model import Decoder, Encoder  # noqa: E402
from taming.modules.vqvae.quantize import GumbelQuantize  # noqa: E402

SIZES = dict(
    ch=32,
    out_ch=3,
    ch_mult=(1, 1, 2),
    num_res_blocks=2,
    attn_resolutions=[8],
    in_channels=3,
    resolution=32,
    z_channels=24,
)


@torch.no_grad()
def main() -> None:
    """Writes the file."""
    parts = torch.nn.ModuleDict(
        {
            "encoder": Encoder(double_z=False, **SIZES),
            "decoder": Decoder(**SIZES),
            "quantize": GumbelQuantize(24, 24, n_embed=48),
            "quant_conv": torch.nn.Conv2d(24, 24, 1),
            "post_quant_conv": torch.nn.Conv2d(24, 24, 1),
        }
    ).eval()
    shapes = {name: list(tensor.shape) for name, tensor in parts.state_dict().items()}
    parts.load_state_dict({name: random_weight(name, tuple(shape)) for name, shape in shapes.items()})
    pictures = np.random.RandomState(0).randint(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    inputs = 2 * (torch.from_numpy(pictures).float() / 255) - 1
    scores = parts["quantize"].proj(parts["quant_conv"](parts["encoder"](inputs)))
    codes = scores.argmax(1).flatten(1)
    best = scores.topk(2, dim=1).values
    entries = parts["quantize"].embed(codes).view(len(codes), 8, 8, 24).permute(0, 3, 1, 2)
    decoded = (parts["decoder"](parts["post_quant_conv"](entries)).clamp(-1, 1) + 1) / 2
    print(f"{len(codes.unique())} codes in use; nearest decision {float((best[:, 0] - best[:, 1]).min()):.2g};")
    print(
        f"pictures from {float(decoded.min()):.2f} to {float(decoded.max()):.2f}, deviation {float(decoded.std()):.2f}"
    )
    np.savez_compressed(
        OWN / "vqgan.npz",
        shapes=np.frombuffer(json.dumps(shapes).encode(), dtype=np.uint8),
        pictures=pictures,
        codes=codes.numpy().astype(np.int16),
        decoded=decoded.numpy(),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
