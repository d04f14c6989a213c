"""Traces training steps of decoders whose matrix products are in FP8, and counts what the device holds.

    pip install --no-deps torchao==0.18.0
    python benchmarks/memory/eight_bit_steps.py --check steps/eight_bit_steps.json
    python benchmarks/memory/eight_bit_steps.py --cases 80 --seed 2036 --json steps/eight_bit_steps.json

Real code of transformers and torchao runs on a fake GPU, as in `picture_steps.py`, without torch.compile. torchao's
`convert_to_float8_training` changes all linear layers but the output head.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory import fake_cuda  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.memory import decoder_steps, picture_steps
from calculator.step.setups import Setup
from calculator.tape.eight_bit import SIDES_OF

SIZES = ("hidden_size", "intermediate_size", "head_dim")


def in_8_bit(model: torch.nn.Module) -> None:
    """Makes the layers' products FP8's."""
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model, module_filter_fn=lambda module, name: name != "lm_head")


trace = partial(decoder_steps.trace, build=partial(decoder_steps.build, change=in_8_bit))


def draw(chance: random.Random) -> Setup:
    """A random setup of a family that has dense layers, with matrices that FP8 can multiply."""
    while True:
        setup = decoder_steps.draw(chance, packed=chance.random() < 0.2)
        if setup.config["model_type"] not in decoder_steps.SPARSE and setup.lora_rank is None:
            break
    config = {
        name: -(-value // SIDES_OF) * SIDES_OF if name in SIZES else value for name, value in setup.config.items()
    }
    if "head_dim" not in config or config["model_type"] == "qwen2":  # a head's share of the hidden state
        config["hidden_size"] = SIDES_OF * config["num_attention_heads"] * chance.randint(1, 4)
        if "head_dim" in config:
            config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return replace(
        setup,
        config=config,
        fp8=True,
        precision=chance.choice(("bf16", "amp-bf16")),
        sequence_length=chance.choice((16, 64, 96, 128, 256)),
    )


def main(arguments: list[str] | None = None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each, and writes them if asked."""
    picture_steps.draw_and_trace(picture_steps.parser_of(__doc__).parse_args(arguments), draw, trace)


if __name__ == "__main__":
    main()
