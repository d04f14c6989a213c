"""State of an optimizer as named tensors for a file, and the check of a state that comes from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from training.errors import BadInput


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Returns an optimizer's whole state as named tensors, for a file; parameters are numbered in the optimizer's
    order."""
    states = [optimizer.state[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value if isinstance(value, Tensor) else torch.tensor(value)
        for number, state in enumerate(states)
        for name, value in state.items()
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Loads the result of `optimizer_tensors`.

    Raises:
        BadInput: If the tensors belong to another optimizer or model, or cannot result from updates; then nothing has
            changed.
    """
    own, given = (
        {name: kind_of(value) for name, value in state.items()} for state in (optimizer_tensors(optimizer), tensors)
    )
    if own != given:
        raise BadInput(
            "The saved optimizer state does not fit this model and recipe; use the recipe saved beside it, "
            "or omit the state to start with empty moments."
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [
        {name: tensors[f"{number}.{name}"] for name in optimizer.state[parameter]}
        for number, parameter in enumerate(parameters)
    ]
    check_moments(states)
    for parameter, state in zip(parameters, states, strict=True):
        for name, value in optimizer.state[parameter].items():
            if isinstance(value, Tensor):
                value.copy_(state[name])
            else:
                optimizer.state[parameter][name] = state[name].item()


def check_moments(states: Iterable[Mapping]) -> None:
    """Checks that moments can result from updates; with impossible ones the next update would ruin the weights.

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


def kind_of(value: object) -> tuple:
    """Type and shape of a tensor; the type of any other value."""
    return (value.dtype, tuple(value.shape)) if isinstance(value, Tensor) else (type(value),)
