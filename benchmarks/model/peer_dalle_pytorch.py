r"""dalle-pytorch 1.6.6, the code of the 2021 run's model, made importable and built from a recipe's sizes.

    pip install --no-deps dalle-pytorch==1.6.6 axial-positional-embedding==0.2.1 rotary-embedding-torch \
        g-mlp-pytorch einops

It imports some packages that only its image codecs and tokenizers need. Empty modules replace those that are missing.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import cycle, islice
from types import ModuleType, SimpleNamespace

from torch import nn

from training.model.config import ModelConfig
from training.model.transformer import IMAGE_LOSS_WEIGHT

INSTALL = "pip install --no-deps dalle-pytorch==1.6.6 " + (
    "axial-positional-embedding==0.2.1 rotary-embedding-torch g-mlp-pytorch einops"
)
KINDS = {"row": "axial_row", "column": "axial_col", "conv": "conv_like", "full": "full"}
"""This project's name of an attention mask -> dalle-pytorch's, whose `conv_like` has a neighbourhood of 5 by 5."""
_UNUSED = {
    "youtokentome": {},
    "ftfy": {"fix_text": str},
    "omegaconf": {"OmegaConf": None},
    "pkg_resources": {"get_distribution": lambda name: SimpleNamespace(version="1.6.6")},
    "taming.models.vqgan": {"VQModel": object, "GumbelVQ": object},
}
"""Modules that dalle-pytorch imports but does not need here, with the names that it imports from them."""


def is_installed() -> bool:
    """Returns True if dalle-pytorch can be imported."""
    return find_spec("dalle_pytorch") is not None


def build(config: ModelConfig) -> nn.Module:
    """dalle-pytorch's `DALLE` of these sizes; its weights are drawn with torch's global seed.

    Args:
        config: Must have no `text_padding_id`.
    """
    _stand_in_for_unused()
    from dalle_pytorch.dalle_pytorch import DALLE
    from dalle_pytorch.vae import VQGanVAE

    class Codec(VQGanVAE):
        """Has the sizes of an image codec, but does not decode: it returns the codes as the picture."""

        def __init__(self):
            nn.Module.__init__(self)
            self.num_layers, self.image_size, self.num_tokens = 3, 8 * config.image_grid, config.image_vocab_size

        def decode(self, codes):
            return codes

    last = config.num_layers - 1
    kinds = [KINDS[kind] for kind in (*islice(cycle(config.attention_cycle), last), config.last_attention)]
    shared = None
    if config.shared_groups is not None:
        shared = [*islice(cycle(range(config.shared_groups)), last), "last"]
    return DALLE(
        vae=Codec(),
        num_text_tokens=config.text_vocab_size,
        text_seq_len=config.text_seq_len,
        dim=config.hidden_size,
        depth=config.num_layers,
        heads=config.num_heads,
        dim_head=config.head_dim,
        attn_types=kinds,
        shared_attn_ids=shared,
        shared_ff_ids=shared,
        rotary_emb=config.rotary,
        reversible=config.reversible,
        shift_tokens=config.shift_tokens,
        loss_img_weight=IMAGE_LOSS_WEIGHT,
        share_input_output_emb=config.tied_embeddings,
    )


def _stand_in_for_unused() -> None:
    for name, attributes in _UNUSED.items():
        parts = name.split(".")
        if parts[0] in sys.modules or (find_spec(parts[0]) is not None and parts[0] != "taming"):
            continue
        for end in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        vars(sys.modules[name]).update(attributes)
