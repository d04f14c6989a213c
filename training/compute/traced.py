"""The memory of a training step of a model that the calculator does not know, by tracing the step itself.

A traced step runs the model's own code, forward and backward, on tensors that have a shape and no content
(`training.model.kernels.live_bytes`), and notes what each operation returns and when it is freed. Two steps with few
samples
are traced. What exists while an operation runs grows linearly with the samples, so the two determine it for any number,
and the highest operation is the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.errors import BadInput, first_line
from training.model.kernels.live_bytes import LiveBytes, fake_tensors
from training.tasks.task import Task

FEW, MORE = 4, 8
"""Samples of the two steps. With fewer, a loss that is computed in pieces may not fill its first one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMemory:
    """Bytes while one operation runs; the parts are those of the calculator and add up to `total`."""

    phase: str
    """"forward" or "backward"."""
    operation: str
    """Its name in PyTorch, such as `aten.mm`."""
    weights: int
    """Parameters and buffers."""
    gradients: int
    """Gradients of the parameters."""
    activations: int
    """Kept for backward, with the inputs and autocast's copies of weights."""
    temporary: int
    saved: int
    """Activations at the end of forward."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.weights + self.gradients + self.activations + self.temporary


class TracedSteps:
    """Steps of a task's model; each kind is traced when it is first asked for.

    Args:
        task: Gives the model and its inputs.
    """

    def __init__(self, task: Task):
        self._task, self._model = task, task.on_paper()
        self._traced: dict[tuple, tuple[_Trace, _Trace]] = {}

    def peak(self, samples: int, stored_layers: int, dtype: torch.dtype) -> StepMemory:
        """The most that a step holds.

        Args:
            samples: B, computed at once.
            stored_layers: See `training.tasks.task.TrainedModel`.
            dtype: Type in which layers compute, by autocast; float32: without.

        Raises:
            BadInput: If the model cannot be traced.
        """
        kind = stored_layers, dtype
        if kind not in self._traced:
            self._traced[kind] = self._trace(FEW, *kind), self._trace(MORE, *kind)
        few, more = self._traced[kind]
        share = (samples - FEW) / (MORE - FEW)

        def between(first: int, second: int) -> int:
            return max(0, round(first + share * (second - first)))

        def total(pair: tuple[int, int]) -> int:
            return between(few.total[pair[0]], more.total[pair[1]])

        first, second = max(_same_operations(few, more), key=total)
        gradients = between(few.gradients[first], more.gradients[second])
        activations = between(few.activations[first], more.activations[second])
        return StepMemory(
            phase="backward" if first >= few.forward_operations else "forward",
            operation=few.operations[first],
            weights=few.weights,
            gradients=gradients,
            activations=activations,
            temporary=max(0, total((first, second)) - few.weights - gradients - activations),
            saved=between(few.saved, more.saved),
        )

    def _trace(self, samples: int, stored_layers: int, dtype: torch.dtype) -> _Trace:
        try:
            return _trace(self._model, self._task.example(samples).inputs, stored_layers, dtype)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise BadInput(
                "The memory of this recipe's model cannot be estimated, because neither the calculator knows it nor "
                f"can a step be traced: {first_line(error).rstrip('.')}.",
                cure="Ask the author of the task: what its model computes must not depend on the values of tensors.",
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trace:
    """One step. Lists have an entry for each operation that returned new memory."""

    operations: list[str]
    forward_operations: int
    """The number of those before backward."""
    weights: int
    total: list[int]
    gradients: list[int]
    activations: list[int]
    saved: int


class _Step(nn.Module):
    """A step as a module, so that the parameters can be replaced for backward too, where layers are recomputed."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, inputs: list[Tensor], stored_layers: int, dtype: torch.dtype, live: LiveBytes) -> int:
        """Forward and backward; returns the number of operations in forward."""
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = self.model(*inputs, stored_layers=stored_layers).loss
        operations = len(live.operations)
        loss.backward()
        return operations


def _trace(model: nn.Module, inputs: list[Tensor], stored_layers: int, dtype: torch.dtype) -> _Trace:
    step, live = _Step(model), LiveBytes()
    with fake_tensors(step) as weights:
        batch = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in inputs]
        with live:
            for tensor in (*weights.values(), *batch):
                tensor.detach()  # an operation, so that the memory is known
            always = len(live.operations)
            forward = torch.func.functional_call(step, weights, (batch, stored_layers, dtype, live))
        grads = [tensor.grad for tensor in weights.values() if tensor.grad is not None]
        of_gradients = {id(live.block(grad)) for grad in grads}
        of_weights = {id(live.block(tensor)) for tensor in weights.values()}
        blocks = [block for block in live.blocks if id(block) not in of_weights]
        gradients = [block for block in blocks if id(block) in of_gradients]
        # What is there while the first operation of backward runs, the inputs included.
        kept = [b for b in blocks if b.birth < forward and (b.death is None or b.death > forward)]
        kept = [block for block in kept if id(block) not in of_gradients]
        total, activations = live.held(live.blocks), live.held(kept)
        return _Trace(
            operations=live.operations[always:],
            forward_operations=forward - always,
            weights=sum(block.bytes for block in live.blocks if id(block) in of_weights),
            total=total[always:],
            gradients=live.held(gradients)[always:],
            activations=activations[always:],
            saved=activations[forward - 1],
        )


def _same_operations(few: _Trace, more: _Trace) -> list[tuple[int, int]]:
    """Numbers of operations that are the same in both steps.

    The steps differ where a loop has more passes for more samples, as in a loss that is computed in pieces. Of what
    lies between the common beginning and the common end, the highest operation of each step stands for all.
    """
    most = min(len(few.operations), len(more.operations))
    begin = next((i for i in range(most) if few.operations[i] != more.operations[i]), most)
    end = next((i for i in range(most - begin) if few.operations[-1 - i] != more.operations[-1 - i]), most - begin)
    pairs = [(i, i) for i in range(begin)]
    middles = range(begin, len(few.operations) - end), range(begin, len(more.operations) - end)
    if all(middles):
        pairs.append((max(middles[0], key=few.total.__getitem__), max(middles[1], key=more.total.__getitem__)))
    pairs += [(len(few.operations) - i, len(more.operations) - i) for i in range(end, 0, -1)]
    return pairs
