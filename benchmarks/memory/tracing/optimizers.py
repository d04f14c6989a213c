"""The optimizers of steps that are traced on one GPU: PyTorch's, bitsandbytes', and those of low rank.

Every traced update of GaLore and APOLLO finds new projections, as otherwise every 200th does: it is the update that
takes the most. Nothing is drawn or decomposed. The limiter of APOLLO's updates always acts; where it does not, a step
may take 512 bytes less. PyTorch's copy of a matrix that is decomposed counts; the workspace of cuSOLVER is not known.
"""

from __future__ import annotations

import torch

from benchmarks.memory.memory_on_gpu import Muon
from benchmarks.memory.tracing.held import tensors_in, total
from calculator.parts.adapters import modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.resolve import resolve
from calculator.step.setups import Setup

SETTINGS = {
    "galore": {"scale": 0.25},
    "apollo": {"proj": "random", "scale_type": "channel", "scale": 1.0},
    "apollo-mini": {"proj": "random", "scale_type": "tensor", "scale": 128.0},
}
"""The settings that the packages' own examples give to a group of matrices."""


def optimizer_of(setup: Setup, named: dict[str, torch.nn.Parameter]):
    """Makes the optimizer of a setup for trained parameters, by their names in the model."""
    if setup.offload_optimizer:
        return Offloaded(setup, list(named.values()))
    if setup.optimizer == "muon":
        return Muon(named)
    return LowRank(setup, named) if setup.optimizer in SETTINGS else make_optimizer(setup, list(named.values()))


class Offloaded:
    """An optimizer on the host, which keeps copies of parameters and gradients there in 32 bits."""

    def __init__(self, setup: Setup, parameters: list[torch.nn.Parameter]) -> None:
        self.on_gpu = parameters
        self.copies = [torch.nn.Parameter(torch.empty(p.shape, dtype=torch.float32)) for p in parameters]
        for copy in self.copies:
            copy.grad = torch.zeros_like(copy)
        self.optimizer = make_optimizer(setup, self.copies)
        self.state = self.optimizer.state

    @torch.no_grad()
    def step(self) -> None:
        """Takes the gradients to the host, and what they change back."""
        for copy, parameter in zip(self.copies, self.on_gpu, strict=True):
            copy.grad.copy_(parameter.grad)
        self.optimizer.step()
        for copy, parameter in zip(self.copies, self.on_gpu, strict=True):
            parameter.copy_(copy)

    @property
    def host_bytes(self) -> int:
        """Copies, gradients and state."""
        kept = [tensor for copy in self.copies for tensor in (copy, copy.grad)]
        return total([*kept, *tensors_in(self.state)], "cpu")


def make_optimizer(setup: Setup, parameters: list[torch.nn.Parameter]):
    """The optimizer of a setup."""
    if setup.optimizer == "adamw":
        implementation = setup.optimizer_impl
        return torch.optim.AdamW(
            parameters, lr=1e-4, foreach=implementation == "foreach", fused=implementation == "fused"
        )
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True)
    if setup.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    return _of_bitsandbytes(setup.optimizer, parameters)


def _of_bitsandbytes(name: str, parameters: list[torch.nn.Parameter]):
    """An optimizer of bitsandbytes: its own code, without launches of kernels and without values."""
    import bitsandbytes
    from bitsandbytes import functional

    bitsandbytes.optim.optimizer.sync_gpu = lambda tensor: None
    functional.is_on_gpu = lambda tensors: True
    functional.create_dynamic_map = lambda *args, **kwargs: torch.zeros(256, device="cpu")
    original = functional.optimizer_update_32bit

    def update(name, gradient, parameter, *args, max_unorm=0.0, **kwargs):
        if max_unorm > 0:
            torch.norm(parameter.data.float())  # it would be passed on as a number, which a fake tensor has not
        original(name, gradient, parameter, *args, max_unorm=0.0, **kwargs)

    if not hasattr(original, "faked"):
        update.faked = True
        functional.optimizer_update_32bit = update
    kinds = {"adamw8bit": "AdamW8bit", "lamb": "LAMB", "lamb8bit": "LAMB8bit"}
    return getattr(bitsandbytes.optim, kinds[name])(parameters, lr=1e-4)


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
