"""Reads the optimizer state of the 2021 run, so that such a run can be resumed.

Its `CPULAMB8Bit` (learning-at-home/dalle-hivemind, lib/training/lamb_8bit.py) kept with bitsandbytes 0.26, for each
parameter: `step`; `state1` and `state2`, the moments in the parameter's shape, either float32 or the uint8 codes of
blocks of 4096; with codes `absmax1` and `absmax2`, the blocks' scales, and `qmap1` and `qmap2`, the 256 values that the
codes stand for; and the norms of the last update, `weight_norm`, `step_norm` and `trust_ratio`, which nothing reads.
Today bitsandbytes' own 8-bit classes keep their state in the same form, in blocks of 256.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from training.errors import BadInput
from training.optim.eight_bit import blockwise
from training.optim.eight_bit.codebook import codebook
from training.optim.moments import MomentOptimizer

_NOT_DECAYED = ("bias", "LayerNorm.weight")
"""Parameters with one of these in their name came last, in a group without weight decay (dalle-hivemind, task.py)."""
_BLOCK_SIZES = tuple(2**power for power in range(12, 5, -1))
"""4096 (the 2021 run) to 64; if several fit a tensor, the result is the same."""


def order_of_2021(names: Iterable[tuple[str, str]]) -> list[str]:
    """The second names in the order in which the 2021 run's optimizer had its parameters.

    Args:
        names: Their and our name of every parameter, in the order of their model's `parameters()`.
    """
    names = list(names)
    last = [ours for theirs, ours in names if any(part in theirs for part in _NOT_DECAYED)]
    return [ours for _, ours in names if ours not in last] + last


def saved_epoch(state_dict: Mapping) -> int | None:
    """The epoch that hivemind stored in an optimizer's state; None if there is none."""
    epoch = state_dict.get("state", {}).get("local_epoch")
    return epoch if isinstance(epoch, int) and epoch >= 0 else None


def load_2021_state(optimizer: MomentOptimizer, state_dict: Mapping) -> None:
    """Loads the moments and steps of a `CPULAMB8Bit.state_dict()`; the settings of `optimizer` do not change.

    Codes are copied if blocks and values are the same here; otherwise the moments are quantized again.

    Args:
        optimizer: An optimizer of the same parameters in the same order.
        state_dict: The result of `torch.load(path, weights_only=True)`.

    Raises:
        BadInput: If it belongs to another model, is incomplete or is not finite; then nothing has changed.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    saved_states = state_dict.get("state") if isinstance(state_dict.get("state"), Mapping) else {}
    # hivemind keeps entries of its own, such as `local_epoch`, among the numbered ones.
    states = [saved_states[number] for number in sorted(key for key in saved_states if isinstance(key, int))]
    if len(states) != len(parameters):
        raise BadInput(
            f"The saved optimizer has {len(states)} parameters' moments, this model {len(parameters)} parameters.",
            cure="Use the recipe that the weights were trained with.",
        )
    loaded = []
    for number, (parameter, saved) in enumerate(zip(parameters, states, strict=True)):
        try:
            moments = [_moment(saved, place, parameter.numel()) for place in (1, 2)]
            loaded.append((_step(saved), moments))
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            fault = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise BadInput(
                f"The moments of parameter {number} cannot be read: {fault}.",
                cure="Check that the file is there, whole, and readable for you.",
            ) from None
    for parameter, (step, moments) in zip(parameters, loaded, strict=True):
        own = optimizer.state[parameter]
        own["step"] = step
        for place, moment in enumerate(moments, start=1):
            _store(moment, own, place, optimizer.block_size)


def _step(saved: Mapping) -> int:
    step = int(saved["step"])
    if step < 0:
        raise ValueError(f"step is {step}")
    return step


def _tensor(saved: Mapping, name: str) -> Tensor:
    if not isinstance(saved, Mapping) or not isinstance(saved[name], Tensor):
        raise ValueError(f"{name} is no tensor")
    return saved[name].flatten()


def _moment(saved: Mapping, place: int, size: int) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    """Codes, scales, values and block size of one moment; for a 32-bit moment, its numbers in place of the codes.

    Raises:
        KeyError, ValueError: If it is incomplete, has another size, is not finite, or is a negative mean of squares.
    """
    content = _tensor(saved, f"state{place}")
    if content.numel() != size:
        raise ValueError(f"state{place} has {content.numel()} values, the parameter {size}")
    if content.dtype == torch.float32:
        scales = values = None
        block_size = size
    elif content.dtype == torch.uint8:
        scales, values = (_tensor(saved, f"{part}{place}").float() for part in ("absmax", "qmap"))
        fitting = [block for block in _BLOCK_SIZES if blockwise.block_count(size, block) == scales.numel()]
        if not fitting or values.numel() != 256:
            raise ValueError(
                f"absmax{place} has {scales.numel()} scales for {size} values, and qmap{place} {values.numel()} values"
            )
        block_size = fitting[0]
    else:
        raise ValueError(f"state{place} is {content.dtype}, neither float32 nor uint8")
    parts = (content,) if values is None else (scales, values, scales * values.abs().max())
    if not all(bool(part.isfinite().all()) for part in parts):
        raise ValueError(f"moment {place} is not finite")
    numbers = (content,) if values is None else (scales, values)
    if place == 2 and any(bool((part < 0).any()) for part in numbers):
        raise ValueError("moment 2, a mean of squares, is negative")
    return content, scales, values, block_size


def _store(moment: tuple, own: dict, place: int, block_size: int) -> None:
    content, scales, values, saved_block_size = moment
    name, signed = f"moment{place}", place == 1
    codes, own_scales = own[name], own.get(f"{name}_scales")
    same_map = values is not None and torch.equal(values.cpu(), codebook(signed).values)
    if own_scales is not None and same_map and own_scales.numel() == scales.numel() and saved_block_size == block_size:
        codes.copy_(content)
        own_scales.copy_(scales)
        return
    numbers = content.clone() if values is None else values[content.to(torch.int64)]  # overwritten below
    if scales is not None:
        numbers *= scales.repeat_interleave(saved_block_size)[: numbers.numel()]
    numbers = numbers.to(codes.device)
    if own_scales is None:
        codes.copy_(numbers)
    else:
        blockwise.quantize(numbers, codes, own_scales, block_size=block_size, signed=signed)
