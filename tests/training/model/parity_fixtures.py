"""Fixtures made with dalle-pytorch 1.6.6: four that come with the tests, and those beside the checkout, if any.

Of those that come with the tests, only what dalle-pytorch computed is stored (`parity/`); its weights are made anew
from the names and shapes in the fixture by `random_weight`. `make_parity.py` writes them.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from training.model.config import ModelConfig

OWN = Path(__file__).parent / "parity"
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


def paths() -> list[Path]:
    """The JSON files of all fixtures at hand."""
    return [*sorted(OWN.glob("*.json")), *sorted(FOLDER.glob("*.json"))]


def random_weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The fixture's weight of this name, float32: far enough from first values that every weight shows in the logits.

    numpy's `RandomState` is frozen: it gives the same numbers on every machine and in every version.
    """
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    values = np.random.RandomState(seed).standard_normal(shape)
    if name.endswith("scale"):
        values = 0.25 + 0.1 * values
    elif re.search(r"norm\w*\.weight$", name) or name == "to_logits.0.weight":
        values = 1 + 0.2 * values
    elif len(shape) == 1:
        values = 0.1 * values
    else:
        values = values * np.prod(shape[1:]) ** -0.5
    return torch.from_numpy(values.astype(np.float32))


def read_fixture(path: Path) -> Fixture:
    """Reads a fixture's JSON and arrays; its weights are made, or read with every alias in its place."""
    facts = json.loads(path.read_text())
    arrays = dict(np.load(path.with_suffix(".npz")))
    if path.parent == OWN:
        config = ModelConfig(**facts["config"])
        state = {}
        for name, shape, alias in facts["state_dict"]:
            if f"buffer:{name}" in arrays:
                state[name] = torch.from_numpy(arrays[f"buffer:{name}"])
            else:
                state[name] = random_weight(alias or name, tuple(shape))
        facts["state_dict_keys_in_order"] = list(state)
    else:
        config, state = _beside_the_checkout(path, facts)
    return Fixture(
        config=config,
        state=state,
        facts=facts,
        arrays=arrays,
        text=torch.from_numpy(arrays["text"]).long(),
        image=torch.from_numpy(arrays["image"]).long(),
    )


def _beside_the_checkout(path: Path, facts: dict) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
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
    if path.stem == "small_sequential":  # the same tensors as the reversible one, under other names
        tensors = {
            re.sub(r"blocks\.(\d+)\.([fg])\.net", lambda m: f"layers.{m[1]}.{'fg'.index(m[2])}", key): tensor
            for key, tensor in load_file(path.parent / "small_reversible.safetensors").items()
        }
    else:
        tensors = load_file(path.with_suffix(".safetensors"))
    return config, {key: tensors[facts["alias"].get(key, key)] for key in facts["state_dict_keys_in_order"]}
