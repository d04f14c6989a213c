"""What the programs of this folder share: the models, their FLOPs, and a process for each measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from training.model.config import ModelConfig
from training.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]


def case(name: str) -> ModelConfig:
    """The model of the 2021 run, or one with its structure and vocabularies but smaller sizes.

    It has no attention mask for padding, because dalle-pytorch 1.6.6 has none; the batches have no padding either.

    Args:
        name: "S", "M" or "full".
    """
    full = load_recipe("dalle-2021").model.model_copy(update={"text_padding_id": 0})
    sizes = {
        "S": dict(hidden_size=256, num_layers=8, num_heads=4, text_seq_len=64, image_grid=16),
        "M": dict(hidden_size=512, num_layers=12, num_heads=8, text_seq_len=64, image_grid=32),
        "full": {},
    }
    return full.model_copy(update=sizes[name])


def forward_flops(config: ModelConfig) -> float:
    """Floating-point operations of one sample's forward pass: 2 per weight and token, and those of attention.

    Pairs of tokens that a mask hides do not count, and neither does recomputation.
    """
    from training.model.attention import allowed_pairs
    from training.model.layout import Layout
    from training.model.transformer import FEED_FORWARD_MULTIPLIER

    inner, width, tokens = config.num_heads * config.head_dim, config.hidden_size, config.seq_len
    layout = Layout(text_len=config.text_seq_len + 1, grid=config.image_grid)
    pairs = {
        kind: int(allowed_pairs(kind, layout)[:tokens, :tokens].sum())
        for kind in {*config.attention_cycle, config.last_attention}
    }
    kinds = [config.attention_cycle[i % len(config.attention_cycle)] for i in range(config.num_layers - 1)]
    weights = 4 * width * inner + 3 * width * width * FEED_FORWARD_MULTIPLIER
    layers = sum(2 * weights * tokens + 4 * inner * pairs[kind] for kind in (*kinds, config.last_attention))
    text = config.text_seq_len * (config.text_vocab_size + config.text_seq_len)
    return layers + 2 * width * (text + config.image_seq_len * config.image_vocab_size)


def batch(config: ModelConfig, size: int):
    """Random text without padding and random codes, the same in every process."""
    import torch

    generator = torch.Generator().manual_seed(0)
    text = torch.randint(1, config.text_vocab_size, (size, config.text_seq_len), generator=generator)
    return text, torch.randint(0, config.image_vocab_size, (size, config.image_seq_len), generator=generator)


def matrix_rate(seconds: float = 0.5, *, device: str = "cpu", dtype=None) -> float:
    """The best rate of some matrix products: FLOP per CPU second in one thread, or per second on a GPU.

    Args:
        seconds: For how long products are computed.
        device: "cpu", with matrices of 1024 x 1024, or "cuda", of 8192 x 8192.
        dtype: Of the matrices; None: fp32.
    """
    import time

    import torch

    side = 1024 if device == "cpu" else 8192

    def clock() -> float:
        if device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    first, second = torch.rand(2, side, side, device=device).to(dtype or torch.float32)
    out, best, until = torch.empty_like(first), 0.0, clock() + seconds
    while clock() < until:
        started = clock()
        for _ in range(3):
            torch.mm(first, second, out=out)
        best = max(best, 3 * 2 * side**3 / (clock() - started))
    return best


def in_own_process(program: str, arguments: Sequence[str]) -> dict:
    """Runs a program of this folder in one thread; returns the JSON of the last line that it prints."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / program), *arguments],
        env={**os.environ, **one_thread},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{program} {' '.join(arguments)} ended with exit code {done.returncode}.")
    return json.loads(done.stdout.splitlines()[-1])
