"""Traces training steps whose output head and loss are Liger's fused linear cross-entropy, and counts what they hold.

    pip install --no-deps liger-kernel==0.8.5 triton==3.9.0
    python benchmarks/memory/liger_steps.py --check steps/liger_steps.json
    python benchmarks/memory/liger_steps.py --cases 80 --seed 2030 --json steps/liger_steps.json
    python benchmarks/memory/liger_steps.py --deepseek --cases 30 --seed 20261313 --json steps/deepseek_liger_steps.json
    python benchmarks/memory/liger_steps.py --divided --cases 40 --seed 1 --json steps/divided_liger_steps.json

Real code of transformers, peft and Liger runs on a fake GPU, as in `picture_steps.py`; only the launches of Liger's
kernels do nothing, which allocate nothing either. Of Liger, a model has the loss alone, as `liger_kernel_config` can
ask for it. The GPU is said to be of compute capability 8.0.

With `--divided`, FSDP2 divides the model among several GPUs, as in `sharded_steps.py`.
"""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MethodType
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory import fake_cuda  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.memory import decoder_steps, picture_steps, sharded_steps
from calculator.step.setups import Setup, resolve, setup_from

MODULES = {"gemma3_text": ("gemma3", "causal_forward")}
"""Liger's module and function for a model type, where they are not named like it and `lce_forward`."""
ADAPTED = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text")
"""Model types that may have LoRA's adapters."""


class _Nothing:
    """A kernel of Triton whose launch does nothing."""

    def __getitem__(self, grid: tuple):
        return lambda *args, **kwargs: None


class _Torch:
    """PyTorch, except for what it cannot do with fake tensors in Liger's backward."""

    def __getattr__(self, name: str):
        return getattr(torch, name)

    def tensor(self, value: float, device: torch.device) -> torch.Tensor:
        """A number on a device."""
        return torch.full((), value, device=device)

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether the gradient of the loss is 1, as `loss.backward()` makes it."""
        return True


@contextmanager
def without_kernels() -> Iterator[None]:
    """Launches of Liger's kernels do nothing, and what it reads from the GPU, which fake tensors have not, is told."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    with ExitStack() as changed:
        for name in ("liger_cross_entropy_kernel", "element_mul_kernel"):
            changed.enter_context(patch.object(fused, name, _Nothing()))
        changed.enter_context(patch.object(fused, "torch", _Torch()))
        changed.enter_context(patch.object(torch.Tensor, "item", lambda tensor: 1))  # the number of labels
        yield


def with_liger(model: torch.nn.Module) -> None:
    """Puts Liger's forward in place of the model's own."""
    module, name = MODULES.get(model.config.model_type, (model.config.model_type, "lce_forward"))
    module = importlib.import_module(f"liger_kernel.transformers.model.{module}")
    model.forward = MethodType(getattr(module, name), model)


build = partial(decoder_steps.build, change=with_liger)


def trace(setup: Setup) -> dict:
    """What the device holds in a step of a setup."""
    with without_kernels():
        return decoder_steps.trace(setup, build)


def trace_divided(setup: Setup) -> dict:
    """The same of one of several GPUs, as `sharded_steps.trace` gives it."""
    take_cpu_for_gpu()
    with without_kernels():
        return sharded_steps.trace(setup, build)


@cache
def take_cpu_for_gpu() -> None:
    """From now on Liger does on a CPU, whose tensors those of `sharded_steps` are, what it would do on a GPU."""
    from liger_kernel.ops import fused_linear_cross_entropy as fused

    path = Path(fused.__file__)
    asked = re.sub(r'(\.device\.type [!=]=) "cuda"', r'\1 "cpu"', source := path.read_text(encoding="utf-8"))
    if asked == source:
        raise SystemExit(f"{path.name} no longer asks where its tensors are: see what it asks, and mend this program.")
    exec(compile(asked, path, "exec"), vars(fused))
    torch.cuda.get_device_capability = lambda device=None: (8, 0)


def draw_divided(chance: random.Random) -> Setup:
    """A random setup that FSDP2 divides, of a family that Liger knows."""
    while True:
        setup = sharded_steps.draw(chance)
        if setup.config["model_type"] in decoder_steps.FAMILIES and setup.sharding in ("zero-2", "zero-3"):
            return replace(setup, loss="liger")


def draw(chance: random.Random) -> Setup:
    """A random setup: a decoder of a few layers with a large vocabulary, half of them with adapters."""
    family = chance.choice(decoder_steps.FAMILIES)
    config = {"model_type": family, **sharded_steps.random_sizes(family, chance)}
    config["vocab_size"] = chance.choice((50, 300, 2000, 9000, chance.randint(50, 30000)))
    config = decoder_steps.fitted(config, chance)
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice((16, 64, 96, 130, 250)),
        "precision": chance.choice(("amp-bf16", "amp-fp16", "bf16", "fp16", "fp32")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, True)),
        "optimizer": chance.choice(("adamw", "adamw8bit", "sgd")),
        "loss": "liger",
    }
    if family in decoder_steps.SPARSE:
        values["precision"] = "bf16"  # fake tensors have no other kernel of experts
    if family in ADAPTED and chance.random() < 0.5:
        values |= {"lora_rank": chance.randint(1, 64), "lora_dropout": chance.choice((0.0, 0.1))}
        if values["precision"].startswith("amp-"):
            values["base_bits"] = chance.choice((16, 32))
    setup = setup_from(values)
    if resolve(setup).key_heads == resolve(setup).num_heads and resolve(setup).fusable:
        setup = replace(setup, attention=chance.choice(("eager", "sdpa")))
    return setup


def draw_deepseek(chance: random.Random) -> Setup:
    """A random setup like DeepSeek-V3 with a large vocabulary, half of them with adapters beside attention."""
    kind = chance.choice((decoder_steps.draw_deepseek, decoder_steps.draw_adapted_deepseek))
    setup = kind(chance)
    vocabulary = {"vocab_size": chance.choice((50, 300, 2000, 9000, chance.randint(50, 30000)))}
    return replace(setup, config=setup.config | vocabulary, loss="liger")


def main(arguments: list[str] | None = None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each, and writes them if asked."""
    parser = picture_steps.parser_of(__doc__)
    parser.add_argument("--divided", action="store_true", help="draw steps of several GPUs with FSDP2")
    parser.add_argument("--deepseek", action="store_true", help="draw models like DeepSeek-V3")
    flags = parser.parse_args(arguments)
    if flags.divided:
        chance = random.Random(flags.seed)
        sharded_steps.trace_all((draw_divided(chance) for _ in range(flags.cases)), trace_divided, flags.json)
        return
    picture_steps.draw_and_trace(flags, draw_deepseek if flags.deepseek else draw, trace)


if __name__ == "__main__":
    main()
