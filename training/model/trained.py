"""Trained part of a model, which peers exchange and checkpoints hold.

Usually that is the whole model. Beside adapters, the other parameters are frozen; every peer has them already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the site's builder, which has no torch, imports modules that import this one
    from torch import Tensor, nn


def trained_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yields each trained parameter once, in the model's order."""
    return (parameter for parameter in model.parameters() if parameter.requires_grad)


def count_trained(model: nn.Module) -> int:
    """Number of values that are trained."""
    return sum(parameter.numel() for parameter in trained_parameters(model))


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """State dictionary of the trained part: of the whole model, or of the trained parameters alone if some are
    frozen."""
    names = _names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if names is None or name in names}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads the result of an equal model's `trained_state`; frozen parameters do not change.

    Raises:
        RuntimeError: If `state` lacks a tensor, or has others than the model.
    """
    names = _names(model)
    if names is None:
        model.load_state_dict(state)
        return
    if different := names ^ state.keys():
        raise RuntimeError(f"{len(different)} tensors are on one side only, among them {min(different)}")
    model.load_state_dict(state, strict=False)


def _names(model: nn.Module) -> set[str] | None:
    """Names of the trained parameters; None if no parameter is frozen."""
    named = list(model.named_parameters(remove_duplicate=False))
    if all(parameter.requires_grad for _, parameter in named):
        return None
    return {name for name, parameter in named if parameter.requires_grad}
