"""Sanity of a state that may become a checkpoint; newcomers and a restored run would start from a bad one.

A state is good if

- each of its numbers is finite, the optimizer's included;
- the norm of all its weights is within a factor of `WIDE` of the last good checkpoint's, and that of each weight tensor
  within a factor of `WIDE_TENSOR`; tensors of values that were tiny are not compared, since biases and norms begin at
  0. For each `EPOCHS` epochs that lie between the two, the factors are multiplied once more;
- the run's loss is not far above its earlier values: not more than `max_loss_rise` times (of the recipe), and 1 more
  than, its median over the last `WINDOW` epochs, and over those before the last checkpoint. An epoch's loss is the
  median of its volunteers' here, so that a single false report does not count.

The rule does not notice weights that are wrong but of usual size while the loss is good, such as one layer taken from
another epoch by a single donor; a run that becomes worse slowly, by less than `max_loss_rise` from one checkpoint to
the next; and the first state of a run, which cannot be compared. A run whose loss stays high gets no checkpoint until
it goes back to an earlier one, or its maintainer sets `max_loss_rise` to 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median

from safetensors import SafetensorError, safe_open
from torch import Tensor

from training.checkpoints.facts import MODEL_FILE
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints

WIDE, WIDE_TENSOR = 10.0, 100.0
EPOCHS = 100
"""Number of epochs for which the factors apply once. Between two checkpoints, LAMB changes a tensor's norm by at most
its learning rate per update: with the 2021 run's rate of 0.0025, by a factor of 1.3 in 100 epochs. Local updates
(DiLoCo) may change it more."""
TINY = 1e-3
"""Root mean square below which an earlier tensor is not compared."""
WINDOW, NEWEST, FEWEST = 50, 3, 10
"""Numbers of epochs: those whose median is the usual loss, those whose median is the newest loss, and the fewest for a
comparison."""


class Norms:
    """Norms of a good checkpoint's weights, with which others are compared.

    Args:
        epoch: Epoch of the checkpoint.
        weights: Weights of the checkpoint by name.
    """

    def __init__(self, epoch: int, weights: Mapping[str, Tensor]):
        self.epoch = epoch
        self._norms = {name: _norm(tensor) for name, tensor in weights.items()}
        self._sizes = {name: max(tensor.numel(), 1) for name, tensor in weights.items()}

    @property
    def total(self) -> float:
        """Norm of all weights together."""
        return sum(norm**2 for norm in self._norms.values()) ** 0.5

    def fault_of(self, name: str, tensor: Tensor, epoch: int) -> str | None:
        """Describes the fault of one tensor of weights at an epoch; None if it has no fault."""
        before = self._norms.get(name)
        if before is None or before < TINY * self._sizes[name] ** 0.5:
            return None
        return _fault(f"the weights {name}", before, _norm(tensor), WIDE_TENSOR, epoch - self.epoch)

    def fault_of_all(self, norm: float, epoch: int) -> str | None:
        """Describes the fault of the norm of all weights at an epoch; None if it has no fault."""
        return _fault("all weights together", self.total, norm, WIDE, epoch - self.epoch)


def _norm(tensor: Tensor) -> float:
    return float(tensor.detach().float().norm())


def _fault(what: str, before: float, now: float, factor: float, epochs: int) -> str | None:
    factor **= min(max(1.0, epochs / EPOCHS), 10.0)  # a larger factor would exclude nothing, and in the end overflow
    if before and not before / factor <= now <= before * factor:  # NaN fails this too
        return f"the norm of {what} is {now:.4g} and was {before:.4g} {epochs} epochs before"
    return None


def norms_of_latest(folder: Path, names: Collection[str]) -> Norms | None:
    """Norms of these weights in the newest checkpoint of a folder that has them; None if none has."""
    for path in reversed(list_checkpoints(folder)):
        try:
            with safe_open(path / MODEL_FILE, framework="pt") as file:
                return Norms(checkpoint_epoch(path), {name: file.get_tensor(name) for name in names})
        except (OSError, SafetensorError):
            continue
    return None


def loss_fault(losses: Sequence[float], *, good: Sequence[float] = (), rise: float = 2.0) -> str | None:
    """Describes the fault of a run's loss; None if it has no fault.

    Args:
        losses: Losses of the last `WINDOW` epochs, the newest last.
        good: Losses of the `WINDOW` epochs up to the last checkpoint. After many epochs of high loss, `losses` are all
            high.
        rise: Largest ratio of the newest loss to the usual loss.

    >>> loss_fault([3.0] * 40 + [3.1, 3.2, 2.9])
    >>> loss_fault([3.0] * 40 + [6.5, 7.0, 6.8])
    'its loss is 6.8, and 3 in the last 43 epochs'
    >>> loss_fault([6.7] * 50, good=[3.0] * 50)
    'its loss is 6.7, and 3 before its last checkpoint'
    """
    if len(losses) < FEWEST:
        return None
    newest = median(losses[-NEWEST:])
    for before, when in ((losses, f"in the last {len(losses)} epochs"), (good, "before its last checkpoint")):
        if len(before) < FEWEST:
            continue
        usual = median(before)
        if newest > max(rise * usual, usual + 1):
            return f"its loss is {newest:.4g}, and {usual:.4g} {when}"
    return None
