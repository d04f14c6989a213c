"""The optimizers of measured and traced steps: PyTorch's, bitsandbytes', and those of low rank.

Every traced update of GaLore and APOLLO finds new projections, as otherwise every 200th does: it is the update that
takes the most. Nothing is drawn or decomposed. The limiter of APOLLO's updates always acts; where it does not, a step
may take 512 bytes less. PyTorch's copy of a matrix that is decomposed counts; the workspace of cuSOLVER is not known.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from calculator.parts.adapters import modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.tape.autograd import rounded

SETTINGS = {
    "galore": {"scale": 0.25},
    "galore8bit": {"scale": 0.25},
    "apollo": {"proj": "random", "scale_type": "channel", "scale": 1.0},
    "apollo-mini": {"proj": "random", "scale_type": "tensor", "scale": 128.0},
}
"""The settings that the packages' own examples give to a group of matrices."""
OF_BITSANDBYTES = {
    "adamw8bit": "AdamW8bit",
    "paged-adamw8bit": "PagedAdamW8bit",
    "lamb": "LAMB",
    "lamb8bit": "LAMB8bit",
    "lion8bit": "Lion8bit",
}


def optimizer_of(setup: Setup, named: dict[str, torch.nn.Parameter]):
    """Makes the optimizer of a setup for trained parameters, by their names in the model."""
    if setup.optimizer_in_backward:
        setup = replace(setup, optimizer_in_backward=False)
        return InBackward({parameter: optimizer_of(setup, {name: parameter}) for name, parameter in named.items()})
    if setup.offload_optimizer:
        return Offloaded(setup, list(named.values()))
    if setup.optimizer == "muon":
        return Muon(named)
    return LowRank(setup, named) if setup.optimizer in SETTINGS else make_optimizer(setup, list(named.values()))


class Offloaded:
    """An optimizer on the host over 32-bit copies; the device keeps parameters and gradients."""

    def __init__(self, setup: Setup, parameters: list[torch.nn.Parameter]) -> None:
        self.on_device = parameters
        self.copies = [torch.nn.Parameter(p.detach().to("cpu", torch.float32, copy=True)) for p in parameters]
        for copy in self.copies:
            copy.grad = torch.zeros_like(copy)
        self.optimizer = make_optimizer(setup, self.copies)
        self.state = self.optimizer.state

    @property
    def on_host(self) -> list[torch.Tensor]:
        """Copies and their gradients, which are beside the state on the host."""
        return [tensor for copy in self.copies for tensor in (copy, copy.grad)]

    @torch.no_grad()
    def step(self) -> None:
        """Copies gradients to the host, updates the copies there, and copies them back to the device."""
        for copy, parameter in zip(self.copies, self.on_device, strict=True):
            copy.grad.copy_(parameter.grad)
        self.optimizer.step()
        for copy, parameter in zip(self.copies, self.on_device, strict=True):
            parameter.copy_(copy)


class InBackward:
    """An optimizer for each parameter, which a hook runs during backward; then the gradient is freed.

    Args:
        optimizers: By their parameters.
    """

    def __init__(self, optimizers: dict[torch.nn.Parameter, object]) -> None:
        self.optimizers = optimizers
        self.gradient_bytes = 0  # of the largest gradient
        for parameter in optimizers:
            parameter.register_post_accumulate_grad_hook(self._update)

    def _update(self, parameter: torch.nn.Parameter) -> None:
        self.gradient_bytes = max(self.gradient_bytes, rounded(parameter.grad.nbytes))
        self.optimizers[parameter].step()
        parameter.grad = None

    def step(self) -> None:
        """Updates all parameters that have a gradient: none after backward."""
        for optimizer in self.optimizers.values():
            optimizer.step()

    @property
    def state(self) -> dict:
        """The state of each parameter."""
        return {parameter: one.state[parameter] for parameter, one in self.optimizers.items()}


class Muon:
    """PyTorch's Muon of the hidden matrices, and its AdamW of all else.

    Args:
        named: All parameters, by their names in the model.
    """

    def __init__(self, named: dict) -> None:
        hidden = {name for name, parameter in named.items() if parameter.ndim == 2 and not _is_outside(name)}
        self.muon = torch.optim.Muon([named[name] for name in named if name in hidden])
        # "foreach" is its default for tensors on a GPU, but not for fake ones.
        self.adamw = torch.optim.AdamW([named[name] for name in named if name not in hidden], foreach=True)

    def step(self) -> None:
        """Updates the matrices, then all else."""
        self.muon.step()
        self.adamw.step()

    @property
    def state(self) -> dict:
        """The state of each parameter."""
        return {**self.muon.state, **self.adamw.state}


def _is_outside(name: str) -> bool:
    return "embed" in name or "lm_head" in name


def kind_of(setup: Setup) -> tuple[type, dict]:
    """Finds the class of the optimizer of a setup, and its arguments."""
    if setup.optimizer == "adamw":
        implementation = setup.optimizer_impl
        given = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
        return torch.optim.AdamW, {"lr": 1e-4, **given}
    if setup.optimizer == "sgd":
        return torch.optim.SGD, {"lr": 1e-4, "momentum": 0.9, "foreach": True}
    if setup.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor, {"lr": 1e-4, "scale_parameter": False, "relative_step": False}
    import bitsandbytes

    return getattr(bitsandbytes.optim, OF_BITSANDBYTES[setup.optimizer]), {"lr": 1e-4}


def make_optimizer(setup: Setup, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Makes the optimizer of a setup."""
    kind, given = kind_of(setup)
    return kind(parameters, **given)


def run_bitsandbytes_without_kernels() -> None:
    """Lets bitsandbytes' own code run without launches of kernels and without values."""
    import bitsandbytes
    from bitsandbytes import functional

    bitsandbytes.optim.optimizer.sync_gpu = lambda tensor: None
    torch.cuda.synchronize = lambda device=None: None  # GaLore's own
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
    if name.startswith("galore"):
        import galore_torch

        return galore_torch.GaLoreAdamW8bit if name == "galore8bit" else galore_torch.GaLoreAdamW
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
