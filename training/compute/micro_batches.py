"""Gradients of micro-batches, computed in the chosen precision and within the available memory.

If memory runs out, we drop the remains of the failed attempt, halve the micro-batch, and compute the samples in two
pieces: no sample is lost or counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from training.compute.plan import Precision
from training.data.stream.stream import Batch, TextBatch
from training.errors import TrainingError
from training.tasks.task import TrainedModel

FIRST_LOSS_SCALE = 2.0**14
"""First factor by which the loss is multiplied before backward; the gradients are divided by it. Without it, float16
cannot hold gradients below 6e-8 (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2)."""
STEPS_TO_DOUBLE_SCALE = 500
"""Micro-batches without overflow after which the loss scale is doubled."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Samples whose gradient is in the model's parameters now."""

    samples: int
    loss: float
    """Mean loss of the samples; if it is not finite, the parameters have no gradient."""


class MicroBatches:
    """Computes gradients piece by piece.

    Args:
        model: Model on its device.
        micro_batch_size: Samples per forward pass, until memory runs out.
        activation_budget_bytes: Bytes of activations to keep, until memory runs out; None keeps all, 0 none. See
            `TrainedModel.stored_layers`.
        precision: Type in which layers compute.
        tell: Called with a sentence when memory has run out and later micro-batches are smaller or keep less.
    """

    def __init__(
        self,
        model: TrainedModel,
        *,
        micro_batch_size: int,
        activation_budget_bytes: int | None,
        precision: Precision,
        tell: Callable[[str], None] = lambda sentence: None,
    ):
        self._model, self._precision, self._tell = model, precision, tell
        self._device = next(model.parameters()).device
        self.micro_batch_size, self.activation_budget_bytes = micro_batch_size, activation_budget_bytes
        self.loss_scale = FIRST_LOSS_SCALE if precision == "float16" else 1.0
        self._steps_since_overflow = 0

    def gradients_of(self, batch: Batch | TextBatch) -> Iterator[Piece]:
        """Computes the batch piece by piece. After each, the parameters hold its mean gradient, which the caller
        clears.

        Raises:
            TrainingError: If memory is not enough for a single sample.
        """
        done, size = 0, len(batch)
        while done < size:
            until = min(done + self.micro_batch_size, size)
            loss = self._try([tensor[done:until] for tensor in batch.inputs])
            if loss is None:
                self._take_less(until - done)
                continue
            yield Piece(samples=until - done, loss=loss)
            done = until

    def _try(self, inputs: list[torch.Tensor]) -> float | None:
        """Returns the loss, or None if memory ran out or float16 overflowed; then no remains of the attempt are
        left."""
        try:
            loss, exhausted = self._forward_and_backward(inputs), False
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            loss, exhausted = None, True
        if exhausted:  # after the `except` block, where the error no longer keeps the computed tensors alive
            self._model.zero_grad(set_to_none=True)
            if self._device.type == "cuda":
                # PyTorch keeps the freed blocks in the sizes of the failed attempt; smaller pieces might not fit into
                # them.
                torch.cuda.empty_cache()
        return loss

    def _forward_and_backward(self, inputs: list[torch.Tensor]) -> float:
        scale_before = self.loss_scale
        while True:
            lower = self._precision != "float32"
            # Only around forward: backward then uses the types that forward has chosen.
            with torch.autocast(self._device.type, dtype=getattr(torch, self._precision), enabled=lower):
                stored_layers = self._model.stored_layers(len(inputs[0]), self.activation_budget_bytes)
                on_device = [tensor.to(self._device) for tensor in inputs]
                loss = self._model(*on_device, stored_layers=stored_layers).loss
            value = float(loss.detach())
            # Backward would write NaN into every gradient.
            if not math.isfinite(value):
                return value
            (loss * self.loss_scale).backward()
            if self._precision != "float16" or self._unscale():
                return value
            self._model.zero_grad(set_to_none=True)
            if self.loss_scale <= 1:  # no loss scale helps these samples, and later ones need not suffer for them
                self.loss_scale = scale_before
                return math.nan
            self.loss_scale /= 2

    @torch.no_grad()
    def _unscale(self) -> bool:
        """Divides the gradients by the loss scale. Returns whether all are finite."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            self._steps_since_overflow = 0
            return False
        # A few kernels for all tensors; with one for each tensor, the launches would take a GPU longer than the
        # division.
        torch._foreach_div_(gradients, self.loss_scale)
        self._steps_since_overflow += 1
        if self._steps_since_overflow % STEPS_TO_DOUBLE_SCALE == 0:
            self.loss_scale *= 2
        return True

    def _take_less(self, tried: int) -> None:
        """Lowers the amount that is computed at once, after memory has run out for `tried` samples."""
        if tried > 1:
            self.micro_batch_size = tried // 2
            more = "" if self.micro_batch_size == 1 else "s"
            self._tell(
                f"There is not enough memory for {tried} samples at once; continuing with {self.micro_batch_size} "
                f"sample{more}. No sample is lost."
            )
        elif self.activation_budget_bytes != 0:
            self.activation_budget_bytes = 0
            self._tell("There is not enough memory for one sample; continuing with all activations recomputed.")
        else:
            raise TrainingError(
                "There is not enough memory for a single sample. Close other programs, or train on a machine with "
                "more memory; `python -m training plan` says how much the model needs."
            )


_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "could not create a primitive",
)
"""Messages of errors for lack of memory: those of PyTorch's allocators; of cuBLAS and cuDNN, which fail when PyTorch
has taken all GPU memory; and of oneDNN if it finds no memory for an operation on the CPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns True if an error means that the device or the host has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
