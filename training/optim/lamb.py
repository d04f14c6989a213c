"""LAMB with 8-bit moments, for large batches and little host memory.

One update of a tensor w with gradient g, in the order of the code below:

    g   <- g * min(1, max_grad_norm / |all g|)            clip to a global norm
    m   <- beta1 m + (1 - beta1) g                        moments
    v   <- beta2 v + (1 - beta2) g^2
    u   =  m / (sqrt(v) + eps) + weight_decay w           direction (moments corrected for their start, if asked)
    w   <- w - lr * (min(|w|, trust_clamp) / |u|) * u     trust ratio; 1 if either norm is 0

Sources: You et al. 2020, arXiv:1904.00962, algorithm 2 (LAMB); Dettmers et al. 2021, arXiv:2110.02861 (8-bit moments).
The defaults differ from the paper's LAMB in the same way as the 2021 run: no bias correction, clipping before the
update. bitsandbytes' class of that name applies no trust ratio on a CPU; therefore it is not used.

The stages are the functions at the end of this module. If the machine has a C compiler, kernels.c computes the stages
from clipping to the direction in one pass over memory and gives the same codes; `native=False` uses only PyTorch.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from training.config import LARGEST_BLOCK, OptimizerConfig
from training.errors import BadInput
from training.optim import blockwise
from training.optim.codebook import codebook
from training.optim.kernels import Kernels, Settings, kernels

logger = logging.getLogger(__name__)

_DEFAULTS = OptimizerConfig()
_CHUNK_VALUES = LARGEST_BLOCK
"""Values that PyTorch processes at once: four float32 buffers of this size stay in a core's second-level cache."""
_COMPILED_CHUNK_VALUES = 262_144
"""Values that one thread of the compiled loops processes at once; a call costs as much as some thousand values."""


class Lamb8bit(torch.optim.Optimizer):
    """LAMB whose moments are stored block-wise in 8 bit.

    The state is allocated with the optimizer: 2 bytes per parameter and 8 bytes per block, or 8 bytes per parameter
    for small tensors. Temporary memory is a few buffers of one chunk, regardless of the size of the tensors.
    A step with gradients that are not all finite changes nothing and is counted in `skipped_steps`.

    Args:
        params: Parameters or groups of them, float32 and contiguous; `parameter_groups` makes the usual two.
        lr: Learning rate.
        betas: Decay of the first and the second moment.
        eps: Added to the root of the second moment.
        weight_decay: Decoupled decay, part of the direction.
        max_grad_norm: The gradients of all groups together are clipped to this norm; `inf` does not clip.
        bias_correction: Whether moments are corrected for their initial zeros.
        trust_clamp: The weight norm in the trust ratio is at most this.
        block_size: Values that share one 8-bit scale.
        min_8bit_size: Tensors with fewer values keep 32-bit moments; `sys.maxsize` keeps all in 32 bits.
        overwrite_gradients: Store the direction in the gradients' memory, which avoids computing it twice. Correct if
            gradients are written again for each step, as by hivemind's averager.
        native: Use the compiled loops if they are available, in `torch.get_num_threads()` threads.

    Raises:
        BadInput: If a parameter is not float32 or not contiguous, or a setting is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        betas: tuple[float, float] = _DEFAULTS.betas,
        eps: float = _DEFAULTS.eps,
        weight_decay: float = _DEFAULTS.weight_decay,
        max_grad_norm: float = _DEFAULTS.max_grad_norm,
        bias_correction: bool = _DEFAULTS.bias_correction,
        trust_clamp: float = _DEFAULTS.trust_clamp,
        block_size: int = _DEFAULTS.block_size,
        min_8bit_size: int = _DEFAULTS.min_8bit_size,
        overwrite_gradients: bool = False,
        native: bool = True,
    ):
        if not (lr >= 0 and eps > 0 and weight_decay >= 0 and max_grad_norm > 0 and trust_clamp > 0):
            raise BadInput(
                f"LAMB needs lr and weight_decay >= 0, eps, max_grad_norm and trust_clamp > 0; got lr={lr}, "
                f"weight_decay={weight_decay}, eps={eps}, max_grad_norm={max_grad_norm}, trust_clamp={trust_clamp}.",
                cure="Change it in the recipe's `[optimizer]`.",
            )
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise BadInput(
                f"LAMB needs two betas in [0, 1); got {betas}.", cure="Change it in the recipe's `[optimizer]`."
            )
        if not 1 <= block_size <= _CHUNK_VALUES:
            raise BadInput(
                f"block_size must lie between 1 and {_CHUNK_VALUES}; got {block_size}.",
                cure="Change it in the recipe's `[optimizer]`.",
            )
        self.max_grad_norm, self.block_size, self.min_8bit_size = max_grad_norm, block_size, min_8bit_size
        self.overwrite_gradients, self.native = overwrite_gradients, native
        self.skipped_steps = 0
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                bias_correction=bias_correction,
                trust_clamp=trust_clamp,
            ),
        )
        for parameter in self._parameters():
            if parameter.dtype != torch.float32 or not parameter.is_contiguous():
                raise BadInput(
                    f"LAMB updates contiguous float32 parameters; got {parameter.dtype} of shape "
                    f"{tuple(parameter.shape)}. Keep float32 copies of the weights on the host (offloading does)."
                )
            self.state[parameter] = self._zero_state(parameter)
            self._kernels_for(parameter)  # so that compiling and its message do not delay the first update

    def _kernels_for(self, parameter: Tensor) -> Kernels | None:
        """The compiled loops, if they are wanted, available, and made for such a parameter."""
        fit = self.native and parameter.device.type == "cpu" and "moment1_scales" in self.state[parameter]
        return kernels() if fit else None

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _zero_state(self, parameter: Tensor) -> dict:
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
                    self._update(parameter, group, clip)
        return loss

    def _update(self, parameter: Tensor, group: dict, clip: float) -> None:
        """Two passes over a tensor: the direction in chunks and its norm, then the weights."""
        state = self.state[parameter]
        state["step"] += 1
        weights, gradient = parameter.view(-1), parameter.grad.contiguous().view(-1)
        settings = update_settings(group, state["step"], clip)
        compiled = self._kernels_for(parameter)
        most = _COMPILED_CHUNK_VALUES if compiled else _CHUNK_VALUES
        # Whole blocks, because two chunks must not write the scale of the same block.
        step = most // self.block_size * self.block_size
        chunks = [slice(start, start + step) for start in range(0, weights.numel(), step)]
        buffers = None if compiled else torch.empty(2, min(step, weights.numel()), device=weights.device)

        def direct(chunk: slice, out: Tensor, keep: bool) -> tuple[float, float]:
            given = gradient[chunk], weights[chunk], out, chunk, state, settings, keep
            return self._direct_compiled(compiled, *given) if compiled else self._direct(buffers, *given)

        def first_pass(chunk: slice) -> tuple[float, float]:
            out = gradient[chunk] if self.overwrite_gradients else torch.empty_like(gradient[chunk])
            return direct(chunk, out, self.overwrite_gradients)

        squares = _each(first_pass, chunks, threads=torch.get_num_threads() if compiled else 1)
        norms = (math.sqrt(math.fsum(sums)) for sums in zip(*squares, strict=True))
        rate = group["lr"] * trust_ratio(*norms, clamp=group["trust_clamp"])
        if self.overwrite_gradients:
            # The gradient's memory holds the direction by now.
            weights.sub_(gradient, alpha=rate)
            return
        again = torch.empty_like(gradient[:step])
        for chunk in chunks:  # the directions were not kept: compute them again, and store the moments this time
            out = again[: gradient[chunk].numel()]
            direct(chunk, out, True)
            weights[chunk].sub_(out, alpha=rate)

    def _direct_compiled(
        self,
        compiled: Kernels,
        gradient: Tensor,
        weights: Tensor,
        out: Tensor,
        chunk: slice,
        state: dict,
        settings: Settings,
        keep: bool,
    ) -> tuple[float, float]:
        """As `_direct`."""
        moments = [
            tensor
            for moment in ("moment1", "moment2")
            for tensor in (state[moment][chunk], state[f"{moment}_scales"][self._blocks_of(chunk)])
        ]
        return compiled.direction(
            gradient, weights, out, *moments, block_size=self.block_size, keep=keep, settings=settings
        )

    def _direct(
        self,
        buffers: Tensor,
        gradient: Tensor,
        weights: Tensor,
        out: Tensor,
        chunk: slice,
        state: dict,
        settings: Settings,
        keep: bool,
    ) -> tuple[float, float]:
        """Writes a chunk's direction to `out`, which may be the gradient; stores the new moments if `keep`.

        Returns:
            The sums of squares of the weights and of the direction.
        """
        moment1, moment2 = buffers[:, : gradient.numel()]
        self._read(state, "moment1", chunk, moment1)
        self._read(state, "moment2", chunk, moment2)
        clipped = torch.mul(gradient, settings.clip, out=out)
        update_moments(moment1, moment2, clipped, settings)
        direction(moment1, moment2, weights, settings, out=out)
        if keep:
            self._write(state, "moment1", chunk, moment1)
            self._write(state, "moment2", chunk, moment2)
        return float(weights.dot(weights)), float(out.dot(out))

    def _read(self, state: dict, moment: str, chunk: slice, out: Tensor) -> None:
        if f"{moment}_scales" not in state:
            out.copy_(state[moment][chunk])
            return
        blockwise.dequantize(
            state[moment][chunk],
            state[f"{moment}_scales"][self._blocks_of(chunk)],
            out,
            block_size=self.block_size,
            signed=moment == "moment1",
            native=False,
        )

    def _write(self, state: dict, moment: str, chunk: slice, values: Tensor) -> None:
        """Stores a chunk of a moment; clobbers `values`."""
        if f"{moment}_scales" not in state:
            state[moment][chunk].copy_(values)
            return
        blockwise.quantize(
            values,
            state[moment][chunk],
            state[f"{moment}_scales"][self._blocks_of(chunk)],
            block_size=self.block_size,
            signed=moment == "moment1",
            native=False,
        )

    def _blocks_of(self, chunk: slice) -> slice:
        return slice(chunk.start // self.block_size, chunk.stop // self.block_size)

    def add_param_group(self, param_group: dict) -> None:
        """As in torch."""
        _uncompiled(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _shape_of(self, groups: list[dict]) -> list[tuple[int, set[str]]]:
        """The number of parameters and the settings of each group; loading a state makes torch add to the defaults."""
        return [(len(group["params"]), self.defaults.keys() & group.keys()) for group in groups]

    def state_dict(self) -> dict:
        """As in torch: for each parameter the step, both moments and, if these are in 8 bits, the blocks' scales."""
        return _uncompiled(torch.optim.Optimizer.state_dict)(self)

    def load_state_dict(self, state_dict: dict) -> None:
        """Loads groups and moments from `state_dict()`; 8-bit moments stay in 8 bits.

        Raises:
            BadInput: If it is not such a state, if the size or the number of bits of a moment differs, or if a moment
                cannot result from an update (not finite, a negative mean of squares); then nothing has changed.
        """
        own = [{key: _kind(value) for key, value in self.state[p].items()} for p in self._parameters()]
        try:
            states = [state for _, state in sorted(state_dict["state"].items())]
            given = [{key: _kind(value) for key, value in state.items()} for state in states]
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
        _check_moments(states)
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


def clip_factor(gradients: Iterable[Tensor], max_norm: float) -> float:
    """Stage 1: the factor that clips the joint norm of all gradients to `max_norm`; not finite if they are not.

    >>> clip_factor([torch.tensor([3.0, 4.0])], max_norm=2.5)
    0.5
    """
    squares = sum(float(torch.linalg.vector_norm(gradient)) ** 2 for gradient in gradients)
    # NaN also for infinite gradients: with infinity, the factor would be 0, and the step would not be skipped.
    norm = math.sqrt(squares) if math.isfinite(squares) else math.nan
    return 1.0 if norm <= max_norm else max_norm / norm


def update_settings(group: Mapping, step: int, clip: float) -> Settings:
    """Stage 2: the numbers that the stages from clipping to the direction need.

    Moments corrected for their initial zeros are m / c1 and v / c2 with c = 1 - beta ** step. The direction
    m/c1 / (sqrt(v/c2) + eps) equals m / (sqrt(v) * root_factor + root_shift) with the two numbers returned here.

    Args:
        group: The parameter group: betas, eps, weight_decay, bias_correction.
        step: Updates of this tensor, including this one.
        clip: See `clip_factor`.
    """
    beta1, beta2 = group["betas"]
    correction1, correction2 = (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)
    return Settings(
        clip=clip,
        gain1=1 - beta1,
        decay2=beta2,
        gain2=1 - beta2,
        root_factor=correction1 / math.sqrt(correction2),
        root_shift=group["eps"] * correction1,
        weight_decay=group["weight_decay"],
    )


def update_moments(moment1: Tensor, moment2: Tensor, gradient: Tensor, settings: Settings) -> None:
    """Stage 3: running means of the clipped gradient and of its square, in place."""
    moment1.lerp_(gradient, settings.gain1)
    moment2.mul_(settings.decay2).addcmul_(gradient, gradient, value=settings.gain2)


def direction(moment1: Tensor, moment2: Tensor, weights: Tensor, settings: Settings, *, out: Tensor) -> None:
    """Stage 4: the direction of the update, including the decoupled decay; written to `out`."""
    torch.sqrt(moment2, out=out).mul_(settings.root_factor).add_(settings.root_shift)
    torch.div(moment1, out, out=out)
    if settings.weight_decay:
        out.add_(weights, alpha=settings.weight_decay)


def trust_ratio(weight_norm: float, direction_norm: float, *, clamp: float) -> float:
    """Stage 5: the clamped norm of the weights divided by that of the direction.

    >>> trust_ratio(2.0, 4.0, clamp=10.0), trust_ratio(0.0, 4.0, clamp=10.0)
    (0.5, 1.0)
    """
    return min(weight_norm, clamp) / direction_norm if weight_norm > 0 and direction_norm > 0 else 1.0


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two parameter groups: matrices and embeddings decay; biases, norms and scales (one dimension or none) do not.

    A parameter that several layers share is listed once. The order is that of the model, so it is equal for all peers.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        dict(params=[parameter for parameter in parameters if parameter.ndim >= 2], weight_decay=weight_decay),
        dict(params=[parameter for parameter in parameters if parameter.ndim < 2], weight_decay=0.0),
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(config: OptimizerConfig, params: Iterable[Tensor] | Iterable[dict], *, lr: float) -> Lamb8bit:
    """The optimizer of a recipe, for host copies of the weights whose gradients are written again for each step."""
    return Lamb8bit(
        params,
        lr=lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        bias_correction=config.bias_correction,
        trust_clamp=config.trust_clamp,
        block_size=config.block_size,
        min_8bit_size=config.min_8bit_size if config.name == "lamb8bit" else sys.maxsize,
        overwrite_gradients=True,
    )


def optimizer_tensors(optimizer: Lamb8bit) -> dict[str, Tensor]:
    """All of an optimizer's state as named tensors, for a file; parameters are numbered in the optimizer's order."""
    states = [optimizer.state[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, state in enumerate(states)
        for name, value in state.items()
    }


def load_optimizer_tensors(optimizer: Lamb8bit, tensors: Mapping[str, Tensor]) -> None:
    """Loads the result of `optimizer_tensors`.

    Raises:
        BadInput: If the tensors belong to another optimizer or model, or cannot result from updates; then nothing has
            changed.
    """
    own = optimizer_tensors(optimizer)
    if {name: _kind(value) for name, value in own.items()} != {name: _kind(value) for name, value in tensors.items()}:
        raise BadInput(
            "The saved optimizer state does not fit this model and recipe; use the recipe saved beside it, "
            "or omit the state to start with empty moments."
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [
        {name: tensors[f"{number}.{name}"] for name in optimizer.state[parameter]}
        for number, parameter in enumerate(parameters)
    ]
    _check_moments(states)
    for parameter, state in zip(parameters, states, strict=True):
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                value.copy_(state[name])
            else:
                optimizer.state[parameter][name] = state[name].item()


def _check_moments(states: Iterable[Mapping]) -> None:
    """Checks that these moments can result from updates; with others the next update would ruin the weights.

    Raises:
        BadInput: If a number is not finite, or a step, a scale or a mean of squares is negative.
    """
    for number, state in enumerate(states):
        for name, value in state.items():
            numbers = value if isinstance(value, Tensor) else torch.tensor(value)
            if not numbers.numel():
                continue
            low, high = (float(extreme) for extreme in numbers.aminmax())
            never_negative = name in ("step", "moment2") or name.endswith("_scales")
            if not (math.isfinite(low) and math.isfinite(high)) or (never_negative and low < 0):
                raise BadInput(
                    f"The optimizer state is damaged: {name} of parameter {number} lies between {low:g} and {high:g}. "
                    "Use another checkpoint, or omit the state to start with empty moments."
                )


def _each(function: Callable[[slice], tuple[float, float]], chunks: list[slice], *, threads: int) -> list:
    """The function's results for all chunks, in order."""
    if threads == 1 or len(chunks) <= 1:
        return [function(chunk) for chunk in chunks]
    with ThreadPoolExecutor(min(threads, len(chunks))) as pool:
        return list(pool.map(function, chunks))


def _uncompiled(method: Callable) -> Callable:
    """A method without torch's guard against compiling it; the guard imports the compiler, which takes seconds."""
    return getattr(method, "__wrapped__", method)


def _kind(value: object) -> tuple:
    return (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else (type(value),)
