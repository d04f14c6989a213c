"""Writes the fixtures in `parity/` with dalle-pytorch 1.6.6.

benchmarks/model/peer_dalle_pytorch.py says how to install it.

    python tests/training/model/make_parity.py

Weights, text and codes follow from names and seeds; what is stored is what dalle-pytorch makes of them, in float32 on a
CPU. Greedy codes are those of its sampling without a cache, one whole pass a token.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from parity_fixtures import OWN, random_weight  # noqa: E402

from benchmarks.model import peer_dalle_pytorch as peer  # noqa: E402
from training.model.config import ModelConfig  # noqa: E402

SMALL = dict(
    hidden_size=32,
    num_layers=6,
    num_heads=2,
    head_dim=16,
    text_vocab_size=50,
    text_seq_len=9,
    image_grid=6,
    image_vocab_size=40,
)
CONSTRUCTIONS = {
    "reversible": SMALL,
    "sequential": SMALL | dict(reversible=False),
    "64-layers": SMALL | dict(num_layers=64, image_grid=5),
    "nothing-shared": SMALL
    | dict(
        reversible=False,
        shared_groups=None,
        rotary=False,
        shift_tokens=False,
        tied_embeddings=False,
        attention_cycle=("full", "conv", "column"),
        last_attention="row",
        head_dim=20,
    ),
}
POSITIONS = 12
"""Logits are stored at so many positions, those about the border of text and image among them."""


def make(name: str, sizes: dict) -> None:
    """Writes NAME.json and NAME.npz."""
    config = ModelConfig(**sizes)
    model = peer.build(config)
    weights = dict(model.named_parameters(remove_duplicate=False))
    first_name: dict[int, str] = {}
    state, arrays = [], {}
    for key, tensor in model.state_dict().items():
        if key not in weights:
            arrays[f"buffer:{key}"] = tensor.numpy()
            state.append([key, list(tensor.shape), None])
            continue
        first = first_name.setdefault(id(weights[key]), key)
        if first == key:
            weights[key].data.copy_(random_weight(key, tuple(tensor.shape)))
        state.append([key, list(tensor.shape), None if first == key else first])

    numbers = np.random.RandomState(0)
    text = numbers.randint(1, config.text_vocab_size, (2, config.text_seq_len))
    text[0, -3:] = 0
    image = numbers.randint(0, config.image_vocab_size, (2, config.image_seq_len))
    tokens = torch.from_numpy(text), torch.from_numpy(image)
    with torch.no_grad():
        logits = model(*tokens)
    loss = model(*tokens, return_loss=True)
    loss.backward()
    border = np.arange(config.text_seq_len - 2, config.text_seq_len + 2)
    others = np.linspace(0, config.seq_len - 1, POSITIONS - len(border)).astype(int)
    positions = np.unique(np.concatenate([border, others]))
    labels = torch.cat(
        [
            torch.where(tokens[0] == 0, torch.arange(config.text_seq_len) + config.text_vocab_size, tokens[0]),
            tokens[1] + config.text_vocab_size + config.text_seq_len,
        ],
        dim=1,
    )
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    split = config.text_seq_len
    facts = {
        "dalle_pytorch": "1.6.6",
        "config": sizes,
        "unique_params": sum(parameter.numel() for parameter in model.parameters()),
        "loss": loss.item(),
        "loss_text": losses[:, :split].mean().item(),
        "loss_img": losses[:, split:].mean().item(),
        "state_dict": state,
        "grad_norms": {key: weight.grad.double().norm().item() for key, weight in model.named_parameters()},
    }
    arrays |= {
        "text": text.astype(np.int32),
        "image": image.astype(np.int32),
        "positions": positions,
        "logits": logits[:, positions].numpy(),
        "logsumexp": torch.logsumexp(logits.double(), dim=-1).numpy(),
        "greedy_cached": greedy(model, config, tokens[0]),
    }
    OWN.mkdir(exist_ok=True)
    (OWN / f"{name}.json").write_text(json.dumps(facts, indent=0) + "\n", encoding="utf-8")
    np.savez_compressed(OWN / f"{name}.npz", **arrays)


@torch.no_grad()
def greedy(model: torch.nn.Module, config: ModelConfig, text: torch.Tensor) -> np.ndarray:
    """The likeliest code, one after the other."""
    codes = torch.zeros(len(text), 0, dtype=torch.long)
    for _ in range(config.image_seq_len):
        best = model(text, codes)[:, -1].argmax(-1) - config.text_vocab_size - config.text_seq_len
        codes = torch.cat([codes, best[:, None]], dim=1)
    return codes.numpy().astype(np.int32)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, sizes in CONSTRUCTIONS.items():
        make(name, sizes)
        print(f"Wrote {OWN / name}.json and .npz.")
