"""State that each optimizer keeps for every parameter, and temporary memory of its step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from calculator.models.architecture import ParameterTensor
from calculator.parts.low_rank import (
    APOLLO_PACKAGE,
    DEFAULT_RANKS,
    GALORE_PACKAGE,
    apollo_state,
    apollo_step,
    galore_8bit_state,
    galore_8bit_step,
    galore_state,
    galore_step,
)
from calculator.parts.muon import is_hidden, muon_state, muon_step
from calculator.tape.autograd import allocated_bytes

LAMB_BLOCK_SIZE, LAMB_MIN_8BIT_SIZE = 4096, 65_536
"""The run's 8-bit LAMB, on the host: the number of values that share one scale, and the size below which a tensor keeps
its moments in 32 bits (paper, section 3.3). The trainer's 8-bit AdamW has equal values."""
PAGED_FROM = 100_000
"""Values from which bitsandbytes pages a tensor's state (bitsandbytes 0.50, optim/optimizer.py, get_state_buffer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """A rule for the states of one tensor."""

    number: int
    """Values kept for each value of the parameter: 1 or 2."""
    min_8bit_size: int | None = None
    """Tensors with fewer values keep 32-bit state; None: all do."""
    block_size: int = 256
    """Values of 8-bit state that share one 32-bit scale."""
    precise: bool = True
    """True if states are in 32 bits regardless of the parameter's precision."""
    counter: bool = False
    """True if each tensor has one more 32-bit number: the update's norm, for LAMB's trust ratio, or the fused AdamW's
    count of steps."""

    def is_8bit(self, count: int) -> bool:
        """Returns True if a tensor of `count` values has 8-bit state."""
        return self.min_8bit_size is not None and count >= self.min_8bit_size

    def bytes_of(self, count: int, itemsize: int) -> int:
        """Bytes of one tensor's states, scales included."""
        if self.is_8bit(count):
            state = allocated_bytes(count, 1) + allocated_bytes(-(-count // self.block_size), 4)
        else:
            state = allocated_bytes(count, 4 if self.precise else itemsize)
        return self.number * state + (allocated_bytes(1, 4) if self.counter else 0)


def _nothing(tensor: ParameterTensor, itemsize: int) -> int:
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """An optimizer as a setup names it."""

    name: str
    title: str
    source: str
    """Where the rule is documented or implemented."""
    state_bytes: Callable[[ParameterTensor, int], int]
    """Bytes of one tensor's state on the device; arguments: the tensor, bytes of a value of the parameter."""
    step_bytes: Callable[[ParameterTensor, int], int]
    """Bytes that the update of one tensor uses temporarily."""
    shared_bytes: int = 0
    """Bytes kept once for all tensors (quantization maps), if one of them has a state in 8 bits."""
    eight_bit_from: int = 0
    """Tensors with at least this many values have their state in 8 bits."""
    paged: Moments | None = None
    """The rule of a paged optimizer's state; states of large tensors live in memory shared by host and device."""
    step_counters: bool = False
    """True if the host keeps one number per tensor (torch.optim's `step`)."""
    whole_step: bool = False
    """True if the update takes the temporary memory of all tensors at once (`foreach`)."""
    kept_bytes: Callable[[ParameterTensor, int], int] = _nothing
    """The part of `step_bytes` that a loop over tensors frees only when the next tensor's update assigns the same
    local name."""
    later_bytes: Callable[[ParameterTensor, int], int] = _nothing
    """Bytes that an update takes besides `step_bytes`, after it has freed `kept_bytes` of the previous tensor."""
    all_step_bytes: Callable[[tuple[ParameterTensor, ...], int], int] | None = None
    """Bytes that the update of all tensors, in the model's order, uses temporarily, if `step_bytes` does not say it."""

    def alone_bytes(self, tensor: ParameterTensor, itemsize: int) -> int:
        """Bytes that an update of this tensor alone uses temporarily."""
        if self.all_step_bytes:
            return self.all_step_bytes((tensor,), itemsize)
        return self.step_bytes(tensor, itemsize) + self.later_bytes(tensor, itemsize)


def _moments(rule: Moments) -> Callable[[ParameterTensor, int], int]:
    return lambda tensor, itemsize: rule.bytes_of(tensor.count, itemsize)


def _paged(rule: Moments) -> Callable[[ParameterTensor, int], int]:
    """State that stays on the device: scales, and all state of tensors that are too small for paging."""

    def state_bytes(tensor: ParameterTensor, itemsize: int) -> int:
        count = tensor.count
        if count < PAGED_FROM:
            return rule.bytes_of(count, itemsize)
        return rule.bytes_of(count, itemsize) - rule.number * allocated_bytes(count, 1 if rule.is_8bit(count) else 4)

    return state_bytes


def _two_temporaries(tensor: ParameterTensor, itemsize: int) -> int:
    """The root of the second moment, and the root divided by its bias correction."""
    return 2 * allocated_bytes(tensor.count, itemsize)


def _one_temporary(tensor: ParameterTensor, itemsize: int) -> int:
    """The root of the second moment."""
    return allocated_bytes(tensor.count, itemsize)


def _parameter_norm(tensor: ParameterTensor, itemsize: int) -> int:
    """A 32-bit copy of the parameter, for its norm, unless the parameter is in 32 bits."""
    return allocated_bytes(1, 4) + (allocated_bytes(tensor.count, 4) if itemsize != 4 else 0)


def _parameter_norm_if_32bit(tensor: ParameterTensor, itemsize: int) -> int:
    # From 4096 values on, the state is in 8 bits (`_LAMB_8BIT`).
    return _parameter_norm(tensor, itemsize) if tensor.count < 4096 else 0


def _adafactor_state(tensor: ParameterTensor, itemsize: int) -> int:
    """Means of squared gradients over rows and columns (for a vector, all squares), and one root mean square."""
    if len(tensor.shape) < 2:
        return allocated_bytes(tensor.count, 4) + allocated_bytes(1, 4)
    # Adafactor factors the last two axes only; all others count as more rows and columns.
    rows, columns = tensor.count // tensor.shape[-1], tensor.count // tensor.shape[-2]
    return allocated_bytes(rows, 4) + allocated_bytes(columns, 4) + allocated_bytes(1, 4)


def _adafactor_momentum_state(tensor: ParameterTensor, itemsize: int) -> int:
    return _adafactor_state(tensor, itemsize) + allocated_bytes(tensor.count, 4)


def _adafactor_step(tensor: ParameterTensor, itemsize: int) -> int:
    """Two tensors of the update's size and, unless they are in 32 bits, copies of parameter and gradient that are."""
    return (2 if itemsize == 4 else 4) * _adafactor_update(tensor, itemsize)


def _adafactor_update(tensor: ParameterTensor, itemsize: int) -> int:
    return allocated_bytes(tensor.count, 4)


def _adafactor_factors(tensor: ParameterTensor, itemsize: int) -> int:
    """Roots of the means over rows and columns; the update is scaled by their product."""
    if len(tensor.shape) < 2:
        return 0
    return allocated_bytes(tensor.count // tensor.shape[-1], 4) + allocated_bytes(tensor.count // tensor.shape[-2], 4)


def _host_muon_state(tensor: ParameterTensor, itemsize: int) -> int:
    return muon_state(tensor, 4)


def _host_muon_step(tensor: ParameterTensor, itemsize: int) -> int:
    """Newton-Schulz: a second copy of the matrix, and two squares of its shorter side; the first is the gradient's."""
    if not is_hidden(tensor):
        return 0
    return allocated_bytes(tensor.count, 4) + 2 * allocated_bytes(min(tensor.shape) ** 2, 4)


_MAPS_OF_ONE, _MAPS_OF_TWO = allocated_bytes(256, 4), 2 * allocated_bytes(256, 4)
_TORCH_ADAMW = "torch 2.13, optim/adam.py"
_BITSANDBYTES = "bitsandbytes 0.50, optim/optimizer.py, init_state"

_ADAMW = Moments(number=2, precise=False)
_ADAMW_FUSED = Moments(number=2, precise=False, counter=True)
_ADAMW_8BIT = Moments(number=2, min_8bit_size=4096)
_ADAMW_PAGED = Moments(number=2)
_LAMB = Moments(number=2, counter=True)
_LAMB_8BIT = Moments(number=2, min_8bit_size=4096, counter=True)
_8BIT_HOST = Moments(number=2, min_8bit_size=LAMB_MIN_8BIT_SIZE, block_size=LAMB_BLOCK_SIZE)
_32BIT_HOST = Moments(number=2)
_LION = Moments(number=1)
_LION_8BIT = Moments(number=1, min_8bit_size=4096)
_MOMENTUM = Moments(number=1, precise=False)


def _adamw(implementation: str, step_bytes: Callable[[ParameterTensor, int], int]) -> Optimizer:
    fused = implementation == "fused"
    return Optimizer(
        name="adamw",
        title="AdamW",
        source=_TORCH_ADAMW,
        state_bytes=_moments(_ADAMW_FUSED if fused else _ADAMW),
        step_bytes=step_bytes,
        step_counters=not fused,
        whole_step=implementation == "foreach",
        kept_bytes=_one_temporary if implementation == "for-loop" else _nothing,
    )


def _paged_optimizer(name: str, title: str, rule: Moments, shared_bytes: int = 0) -> Optimizer:
    return Optimizer(
        name=name,
        title=title,
        source="bitsandbytes 0.50, optim/optimizer.py, get_state_buffer",
        state_bytes=_paged(rule),
        step_bytes=_nothing,
        shared_bytes=shared_bytes,
        eight_bit_from=rule.min_8bit_size or 0,
        paged=rule,
    )


LOW_RANK_TITLES = {
    "galore": "GaLore",
    "galore8bit": "GaLore, 8-bit",
    "apollo": "APOLLO",
    "apollo-mini": "APOLLO-Mini",
}
LOW_RANK_SOURCES = {"galore": f"{GALORE_PACKAGE}, adamw.py", "galore8bit": f"{GALORE_PACKAGE}, adamw8bit.py"}


@lru_cache(maxsize=256)
def low_rank(name: str, rank: int) -> Optimizer:
    """GaLore or APOLLO with a rank; the same object for the same rank, so that caches know it."""
    if name == "galore":
        state, step = partial(galore_state, rank=rank), partial(galore_step, rank=rank)
    elif name == "galore8bit":
        state = partial(galore_8bit_state, rank=rank, moments=_ADAMW_8BIT.bytes_of)
        step = partial(galore_8bit_step, rank=rank, min_8bit_size=_ADAMW_8BIT.min_8bit_size)
    else:
        state = partial(apollo_state, rank=rank)
        step = partial(apollo_step, rank=rank, by_channel=name == "apollo")
    return Optimizer(
        name=name,
        title=LOW_RANK_TITLES[name],
        source=LOW_RANK_SOURCES.get(name, f"{APOLLO_PACKAGE}, apollo.py"),
        state_bytes=state,
        step_bytes=_nothing,
        all_step_bytes=step,
        shared_bytes=_MAPS_OF_TWO if name == "galore8bit" else 0,
    )


ADAMW: dict[str, Optimizer] = {
    "foreach": _adamw("foreach", _one_temporary),
    "for-loop": _adamw("for-loop", _two_temporaries),
    "fused": _adamw("fused", _nothing),
}
"""torch.optim.AdamW by implementation: "foreach", its default on CUDA, holds the roots of all second moments at once;
"for-loop" holds two temporaries of one tensor; "fused" holds none."""

OPTIMIZERS: dict[str, Optimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        ADAMW["foreach"],
        Optimizer(
            name="adamw8bit",
            title="AdamW, 8-bit",
            source=_BITSANDBYTES,
            state_bytes=_moments(_ADAMW_8BIT),
            step_bytes=_nothing,
            shared_bytes=_MAPS_OF_TWO,
            eight_bit_from=_ADAMW_8BIT.min_8bit_size,
        ),
        _paged_optimizer("paged-adamw8bit", "AdamW, 8-bit, paged", _ADAMW_8BIT, shared_bytes=_MAPS_OF_TWO),
        _paged_optimizer("paged-adamw", "AdamW, paged", _ADAMW_PAGED),
        _paged_optimizer("paged-lion", "Lion, paged", _LION),
        _paged_optimizer("paged-lion8bit", "Lion, 8-bit, paged", _LION_8BIT, shared_bytes=_MAPS_OF_ONE),
        Optimizer(
            name="lamb",
            title="LAMB",
            source=_BITSANDBYTES,
            state_bytes=_moments(_LAMB),
            step_bytes=_parameter_norm,
        ),
        Optimizer(
            name="lamb8bit",
            title="LAMB, 8-bit",
            source=_BITSANDBYTES,
            state_bytes=_moments(_LAMB_8BIT),
            step_bytes=_parameter_norm_if_32bit,
            shared_bytes=_MAPS_OF_TWO,
            eight_bit_from=_LAMB_8BIT.min_8bit_size,
        ),
        Optimizer(
            name="lamb8bit-demo",
            title="LAMB, 8-bit, as in the 2021 run",
            source=f"arXiv:2207.03481, section 3.3: blocks of {LAMB_BLOCK_SIZE} values, 32 bit below 65 536 values",
            state_bytes=_moments(_8BIT_HOST),
            step_bytes=_nothing,
            shared_bytes=_MAPS_OF_TWO,
            eight_bit_from=_8BIT_HOST.min_8bit_size,
        ),
        Optimizer(
            name="adamw8bit-host",
            title="AdamW, 8-bit, of this trainer",
            source="training/optim/adamw.py",
            state_bytes=_moments(_8BIT_HOST),
            step_bytes=_nothing,
            shared_bytes=_MAPS_OF_TWO,
            eight_bit_from=_8BIT_HOST.min_8bit_size,
        ),
        Optimizer(
            name="adamw-host",
            title="AdamW, of this trainer",
            source="training/optim/adamw.py",
            state_bytes=_moments(_32BIT_HOST),
            step_bytes=_nothing,
        ),
        Optimizer(
            name="muon-host",
            title="Muon, of this trainer",
            source="training/optim/muon.py",
            state_bytes=_host_muon_state,
            step_bytes=_host_muon_step,
        ),
        Optimizer(
            name="muon",
            title="Muon",
            source="torch 2.13, optim/_muon.py",
            state_bytes=muon_state,
            step_bytes=_nothing,
            all_step_bytes=muon_step,
        ),
        Optimizer(name="lion", title="Lion", source=_BITSANDBYTES, state_bytes=_moments(_LION), step_bytes=_nothing),
        Optimizer(
            name="lion8bit",
            title="Lion, 8-bit",
            source=_BITSANDBYTES,
            state_bytes=_moments(_LION_8BIT),
            step_bytes=_nothing,
            shared_bytes=_MAPS_OF_ONE,
            eight_bit_from=_LION_8BIT.min_8bit_size,
        ),
        Optimizer(
            name="adafactor",
            title="Adafactor",
            source="transformers 5.23, optimization.py, Adafactor.step",
            state_bytes=_adafactor_state,
            step_bytes=_adafactor_step,
            kept_bytes=_adafactor_update,
            later_bytes=_adafactor_factors,
        ),
        Optimizer(
            name="adafactor-momentum",
            title="Adafactor with momentum",
            source="transformers 5.23, optimization.py, Adafactor.step",
            state_bytes=_adafactor_momentum_state,
            step_bytes=_adafactor_step,
            later_bytes=_adafactor_factors,
        ),
        Optimizer(
            name="sgd",
            title="SGD with momentum",
            source="torch 2.13, optim/sgd.py",
            state_bytes=_moments(_MOMENTUM),
            step_bytes=_nothing,
        ),
        *(low_rank(name, rank) for name, rank in DEFAULT_RANKS.items()),
    )
}
"""Every optimizer that a setup may name."""


def chosen(name: str, *, implementation: str = "foreach", rank: int | None = None) -> Optimizer:
    """The optimizer of a setup.

    Args:
        name: A key of `OPTIMIZERS`.
        implementation: AdamW's implementation, a key of `ADAMW`.
        rank: Rank of GaLore's and APOLLO's projections; None: the usual one.
    """
    if name == "adamw":
        return ADAMW[implementation]
    return low_rank(name, rank) if name in DEFAULT_RANKS and rank else OPTIMIZERS[name]


OF_RECIPES = {
    "lamb8bit": "lamb8bit-demo",
    "lamb": "lamb",
    "adamw8bit": "adamw8bit-host",
    "adamw": "adamw-host",
    "muon": "muon-host",
}
"""Name of an optimizer in a recipe (`training.optim.config.OptimizerConfig`) -> its name here."""

IN_32_BIT: dict[str, Optimizer] = {
    "adamw8bit": ADAMW["for-loop"],
    "paged-adamw8bit": OPTIMIZERS["paged-adamw"],
    "lamb8bit": OPTIMIZERS["lamb"],
    "lamb8bit-demo": OPTIMIZERS["lamb"],
    "adamw8bit-host": OPTIMIZERS["adamw-host"],
    "lion8bit": OPTIMIZERS["lion"],
    "paged-lion8bit": OPTIMIZERS["paged-lion"],
}
"""The optimizer whose rule holds for embeddings if an 8-bit optimizer keeps their state in 32 bits."""
