"""Random-weight fixtures made with dalle-pytorch 1.6.6, where this machine has them."""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from training.config import ModelConfig

FOLDER = Path(os.environ.get("TTT_PARITY", Path(__file__).parents[3].parent / "shared" / "parity"))


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One construction: what dalle-pytorch computed, and with what."""

    config: ModelConfig
    state: dict[str, torch.Tensor]
    facts: dict
    arrays: dict[str, np.ndarray]
    text: torch.Tensor
    image: torch.Tensor


def read_fixture(name: str) -> Fixture:
    """Reads NAME.json, NAME.npz and the tensors, with every alias in its place."""
    facts = json.loads((FOLDER / f"{name}.json").read_text())
    sizes = facts["config"]
    config = ModelConfig(
        hidden_size=sizes["dim"],
        num_layers=sizes["depth"],
        num_heads=sizes["heads"],
        head_dim=sizes["dim_head"],
        text_vocab_size=sizes["num_text_tokens"],
        text_seq_len=sizes["text_seq_len"],
        image_grid=sizes["image_fmap"],
        image_vocab_size=sizes["num_image_tokens"],
        reversible=sizes["reversible"],
    )
    if name == "small_sequential":  # the same tensors as the reversible one, under other names
        tensors = {
            re.sub(r"blocks\.(\d+)\.([fg])\.net", lambda m: f"layers.{m[1]}.{'fg'.index(m[2])}", key): tensor
            for key, tensor in load_file(FOLDER / "small_reversible.safetensors").items()
        }
    else:
        tensors = load_file(FOLDER / f"{name}.safetensors")
    state = {key: tensors[facts["alias"].get(key, key)] for key in facts["state_dict_keys_in_order"]}
    arrays = dict(np.load(FOLDER / f"{name}.npz"))
    return Fixture(
        config=config,
        state=state,
        facts=facts,
        arrays=arrays,
        text=torch.from_numpy(arrays["text"]).long(),
        image=torch.from_numpy(arrays["image"]).long(),
    )
