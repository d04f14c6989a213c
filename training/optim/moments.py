"""Moments of LAMB, AdamW and Muon: storage in block-wise 8 bits, steps that skip non-finite gradients, state dicts."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import Tensor

from calculator.parts.optimizers import LAMB_BLOCK_SIZE, LAMB_MIN_8BIT_SIZE
from training.errors import BadInput
from training.optim.config import OptimizerConfig
from training.optim.directions import CHUNK_VALUES, Directions, clip_factor, update_settings
from training.optim.eight_bit import blockwise
from training.optim.eight_bit.codebook import codebook
from training.optim.eight_bit.kernels import Kernels, kernels
from training.optim.saved import check_moments, kind_of

logger = logging.getLogger(__name__)

USUAL = OptimizerConfig()
"""Defaults of a recipe, which are also those of each optimizer."""


class MomentOptimizer(torch.optim.Optimizer):
    """Base of optimizers whose moments are stored block-wise in 8 bits, or in 32.

    The state is allocated with the optimizer: 2 bytes per parameter and 8 bytes per block, or 8 bytes per parameter
    for small tensors. A step with gradients that are not all finite changes nothing and is counted in `skipped_steps`.

    A step overwrites the gradients, which must be written again before the next one, as hivemind's averager does.

    Args:
        params: Parameters or groups of parameters, float32 and contiguous; see `training.optim.groups`.
        lr: Learning rate.
        betas: Decays of the first and the second moment.
        eps: Term added to the root of the second moment.
        weight_decay: Decoupled weight decay, which is part of the direction.
        max_grad_norm: Norm to which the gradients of all groups together are clipped; `inf` does not clip.
        block_size: Number of values that share one 8-bit scale.
        min_8bit_size: Least number of values of a tensor with 8-bit moments; `sys.maxsize` keeps all in 32 bits.
        native: Use the compiled loops if they are available, in `torch.get_num_threads()` threads.

    Raises:
        BadInput: If a parameter is not float32 or not contiguous, or a setting is out of range.
    """

    title: ClassVar[str]
    """Name of the optimizer in messages."""
    corrects_start: ClassVar[bool]
    """True if moments are corrected for their initial zeros."""

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        betas: tuple[float, float] = USUAL.betas,
        eps: float = USUAL.eps,
        weight_decay: float = USUAL.weight_decay,
        max_grad_norm: float = USUAL.max_grad_norm,
        block_size: int = LAMB_BLOCK_SIZE,
        min_8bit_size: int = LAMB_MIN_8BIT_SIZE,
        native: bool = True,
    ):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        _check_settings(self.title, defaults, max_grad_norm, block_size)
        self.max_grad_norm, self.block_size, self.min_8bit_size = max_grad_norm, block_size, min_8bit_size
        self.native, self.skipped_steps = native, 0
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._check_parameter(parameter, group)
                self.state[parameter] = self._zero_state(parameter, group)
                self._kernels_for(parameter)  # so that compiling and its message do not delay the first update

    @abstractmethod
    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """Updates one tensor, after its gradient is multiplied by `clip`."""

    def _check_parameter(self, parameter: Tensor, group: dict) -> None:
        if parameter.dtype != torch.float32 or not parameter.is_contiguous():
            raise BadInput(
                f"{self.title} updates contiguous float32 parameters; got {parameter.dtype} of shape "
                f"{tuple(parameter.shape)}. Keep float32 copies of the weights on the host (offloading does)."
            )

    def _kernels_for(self, parameter: Tensor) -> Kernels | None:
        """Returns the compiled loops if they are wanted, available, and suitable for the parameter; otherwise None."""
        fit = self.native and parameter.device.type == "cpu" and "moment1_scales" in self.state[parameter]
        return kernels() if fit else None

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _zero_state(self, parameter: Tensor, group: dict) -> dict:
        size, device = parameter.numel(), parameter.device
        if size < self.min_8bit_size:
            zeros = {moment: torch.zeros(size, device=device) for moment in ("moment1", "moment2")}
            return {"step": 0, **zeros}
        blocks = blockwise.block_count(size, self.block_size)
        state: dict = {"step": 0}
        for moment, signed in (("moment1", True), ("moment2", False)):
            # Zeros are stored as the code of the value 0, which is not the number 0.
            state[moment] = torch.full((size,), codebook(signed).zero, dtype=torch.uint8, device=device)
            state[f"{moment}_scales"] = torch.zeros(blocks, device=device)
        return state

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Updates all parameters that have gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        gradients = [parameter.grad for parameter in self._parameters() if parameter.grad is not None]
        clip = clip_factor(gradients, self.max_grad_norm)
        if not math.isfinite(clip):
            self.skipped_steps += 1
            logger.warning("The gradients are not finite; this update is skipped.")
            return loss
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.numel():
                    self.state[parameter]["step"] += 1
                    self._update(parameter, group, clip)
        return loss

    def _directions(self, parameter: Tensor, group: dict, clip: float) -> Directions:
        state = self.state[parameter]
        return Directions(
            parameter.view(-1),
            parameter.grad.contiguous().view(-1),
            state,
            update_settings(group, state["step"], clip, corrects_start=self.corrects_start),
            block_size=self.block_size,
            compiled=self._kernels_for(parameter),
        )

    def add_param_group(self, param_group: dict) -> None:
        _uncompiled(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _shape_of(self, groups: list[dict]) -> list[tuple[int, set[str]]]:
        """Number of parameters and names of the settings of each group; loading a state makes torch add to the
        defaults."""
        return [(len(group["params"]), self.defaults.keys() & group.keys()) for group in groups]

    def state_dict(self) -> dict:
        return _uncompiled(torch.optim.Optimizer.state_dict)(self)

    def load_state_dict(self, state_dict: dict) -> None:
        """Loads groups and moments from `state_dict()`; 8-bit moments stay in 8 bits.

        Raises:
            BadInput: If it is not the state of such an optimizer, if the size or the number of bits of a moment
                differs, or if a moment cannot result from an update (not finite, a negative mean of squares); then
                nothing has changed.
        """
        own = [{key: kind_of(value) for key, value in self.state[p].items()} for p in self._parameters()]
        try:
            states = [state for _, state in sorted(state_dict["state"].items())]
            given = [{key: kind_of(value) for key, value in state.items()} for state in states]
            same_groups = self._shape_of(state_dict["param_groups"]) == self._shape_of(self.param_groups)
        except (AttributeError, KeyError, TypeError):
            raise BadInput(
                "This is not the state of an optimizer, which has `state`, with the moments of each parameter, and "
                "`param_groups`. Give the result of `state_dict()`."
            ) from None
        if own != given or not same_groups:
            raise BadInput(
                f"The optimizer state does not fit: of {len(own)} parameters' moments and {len(given)} given ones, "
                f"{sum(a == b for a, b in zip(own, given, strict=False))} agree in size and bits"
                f"{'' if same_groups else ', and its groups of parameters are others'}. "
                "Use the recipe with which the state was made (block_size and min_8bit_size in particular)."
            )
        check_moments(states)
        kept = dict(self.state)
        # torch would cast each moment to its parameter's type in new memory; here the existing moments are overwritten
        _uncompiled(torch.optim.Optimizer.load_state_dict)(self, {**state_dict, "state": {}})
        self.state.update(kept)
        for parameter, state in zip(self._parameters(), states, strict=True):
            for key, value in state.items():
                if isinstance(value, Tensor):
                    self.state[parameter][key].copy_(value)
                else:
                    self.state[parameter][key] = value


def _check_settings(title: str, defaults: dict, max_grad_norm: float, block_size: int) -> None:
    lr, eps, weight_decay, betas = (defaults[name] for name in ("lr", "eps", "weight_decay", "betas"))
    if not (lr >= 0 and eps > 0 and weight_decay >= 0 and max_grad_norm > 0):
        raise BadInput(
            f"{title} needs lr and weight_decay >= 0, eps and max_grad_norm > 0; got lr={lr}, "
            f"weight_decay={weight_decay}, eps={eps}, max_grad_norm={max_grad_norm}.",
            cure="Change it in the recipe's `[optimizer]`.",
        )
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise BadInput(
            f"{title} needs two betas in [0, 1); got {betas}.", cure="Change it in the recipe's `[optimizer]`."
        )
    if not 1 <= block_size <= CHUNK_VALUES:
        raise BadInput(
            f"block_size must lie between 1 and {CHUNK_VALUES}; got {block_size}.",
            cure="Change it in the recipe's `[optimizer]`.",
        )


def _uncompiled(method: Callable) -> Callable:
    """Returns a method without torch's guard against compiling it; the guard imports the compiler, which takes
    seconds."""
    return getattr(method, "__wrapped__", method)
