"""Traces training steps whose optimizer is GaLore, APOLLO or Muon, and counts what the device holds.

    pip install --no-deps galore-torch==1.0 apollo-torch==1.0.3
    python benchmarks/memory/low_rank_steps.py --check steps/low_rank_steps.json
    python benchmarks/memory/low_rank_steps.py --cases 60 --seed 2026 --json steps/low_rank_steps.json
    python benchmarks/memory/low_rank_steps.py --muon --cases 40 --seed 2027 --json steps/muon_steps.json

Real code of transformers, galore-torch and apollo-torch runs on a fake GPU, as in `picture_steps.py`. Every traced
update finds new projections, as otherwise every 200th does: it is the update that takes the most. Nothing is drawn or
decomposed. The limiter of APOLLO's updates always acts; where it does not, a step may take 512 bytes less. Counted is
PyTorch's copy of a matrix that is decomposed, but not the workspace of cuSOLVER, which is not known.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory import fake_cuda  # noqa: F401  before torch

# isort: split
import torch

from benchmarks.memory import decoder_steps, picture_steps, sharded_steps
from benchmarks.memory.memory_on_gpu import Muon
from calculator.parts.adapters import modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.setups import Setup, resolve, setup_from

FAMILIES = ("llama", "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text")
"""Model types of a drawn step; the first is drawn twice as often."""
OFFLOADED = ("llama", "qwen2", "qwen3", "mistral", "phi3")
"""Model types of a drawn step with what backward needs on the host."""
SETTINGS = {
    "galore": {"scale": 0.25},
    "apollo": {"proj": "random", "scale_type": "channel", "scale": 1.0},
    "apollo-mini": {"proj": "random", "scale_type": "tensor", "scale": 128.0},
}
"""The settings that the packages' own examples give to a group of matrices."""


class LowRank:
    """An optimizer of galore-torch or apollo-torch.

    Args:
        setup: Names the optimizer and its rank.
        named: All parameters, by their names in the model.
    """

    def __init__(self, setup: Setup, named: dict[str, torch.nn.Parameter]) -> None:
        modules = tuple(f".{name}.weight" for name in modules_of(resolve(setup)))
        others = [parameter for name, parameter in named.items() if not name.endswith(modules)]
        matrices = [parameter for name, parameter in named.items() if name.endswith(modules)]
        settings = {"rank": setup.optimizer_rank or DEFAULT_RANKS[setup.optimizer], **SETTINGS[setup.optimizer]}
        settings |= {"update_proj_gap": 1, "proj_type": "std"}
        self.optimizer = _class_of(setup.optimizer)([{"params": others}, {"params": matrices, **settings}], lr=1e-3)
        self.step = self.optimizer.step

    @property
    def state(self) -> dict:
        """The state of each parameter; of an object that projects, its matrix."""
        return {
            parameter: {name: getattr(value, "ortho_matrix", value) for name, value in state.items()}
            for parameter, state in self.optimizer.state.items()
        }


def _class_of(name: str) -> type:
    """The package's optimizer, which neither draws numbers nor reads any: fake tensors have none."""
    if name == "galore":
        import galore_torch

        return galore_torch.GaLoreAdamW
    import apollo_torch
    from apollo_torch import apollo, random_projector

    random_projector.stable_randn = lambda shape, seed, device, dtype: torch.randn(shape, device=device, dtype=dtype)
    random_projector.next_seed = lambda seed: seed + 1
    apollo.max = _first_of
    return apollo_torch.APOLLOAdamW


def _first_of(tensor: torch.Tensor, other: float) -> torch.Tensor:
    """Python's `max` where the tensor is larger, after the comparison on the device."""
    _larger = tensor < other
    return tensor


def trace(setup: Setup) -> dict:
    """What the device holds in a step of a setup."""
    built = []

    def build(setup: Setup) -> torch.nn.Module:
        built.append(sharded_steps.build(setup))
        return built[0]

    def make_optimizer(setup: Setup, parameters: list) -> LowRank | Muon:
        if setup.optimizer in picture_steps.OPTIMIZERS:
            return picture_steps.make_optimizer(setup, parameters)
        named = dict(built[0].named_parameters())
        return Muon(named) if setup.optimizer == "muon" else LowRank(setup, named)

    return decoder_steps.trace(setup, build, make_optimizer=make_optimizer)


def draw(chance: random.Random) -> Setup:
    """A random setup: a decoder of a few layers, whose attention runs in separate operations."""
    family = chance.choice(FAMILIES)
    config = {"model_type": family, **sharded_steps.random_sizes(family, chance)}
    if family == "qwen2":
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    optimizer = chance.choice(tuple(SETTINGS))
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice((16, 64, 96, 130, 250)),
        "precision": chance.choice(("amp-bf16", "amp-fp16", "bf16", "bf16", "fp16", "fp32")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, True)),
        "optimizer": optimizer,
        "optimizer_rank": chance.choice((None, 1, 4, chance.randint(1, 300))),
    }
    return setup_from(values)


def with_muon(setup: Setup) -> Setup:
    """The same step with Muon, which is counted in bfloat16 and in 32 bits."""
    precision = "bf16" if setup.precision == "fp16" else setup.precision
    return replace(setup, optimizer="muon", optimizer_rank=None, precision=precision)


def with_activations_moved(setup: Setup, chance: random.Random) -> Setup:
    """The same step, or another one of these families, without checkpointing, what backward needs being on the host."""
    while setup.config["model_type"] not in OFFLOADED:
        setup = draw(chance)
    changes = {"optimizer": chance.choice(("adamw", "adamw8bit", "sgd")), "attention": "eager"}
    if resolve(setup).key_heads == resolve(setup).num_heads:
        changes["attention"] = chance.choice(("eager", "sdpa"))
    return replace(setup, optimizer_rank=None, checkpointing=False, offload_activations=True, **changes)


def main(arguments: list[str] | None = None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each, and writes them if asked."""
    parser = picture_steps.parser_of(__doc__)
    parser.add_argument("--offload", action="store_true", help="the drawn steps move activations to the host instead")
    parser.add_argument("--muon", action="store_true", help="the drawn steps have Muon instead")
    flags = parser.parse_args(arguments)
    chance = random.Random(flags.seed)
    pairs = [(draw(chance), None) for _ in range(flags.cases)]
    if flags.offload:
        pairs = [(with_activations_moved(setup, chance), None) for setup, _ in pairs]
    if flags.muon:
        pairs = [(with_muon(setup), None) for setup, _ in pairs]
    if flags.check:
        pairs = picture_steps.recorded(flags.check)
    picture_steps.trace_all(pairs, trace, flags.json)


if __name__ == "__main__":
    main()
