"""Training on several GPUs: what each holds when weights, gradients and optimizer state are divided among them.

- "zero-1" is PyTorch's DistributedDataParallel with `ZeroRedundancyOptimizer`: each GPU keeps the state of whole
  parameters, which are dealt out by size.
- "zero-2" and "zero-3" are FSDP2 (`torch.distributed.fsdp.fully_shard`) on each layer and on the whole model, with
  `reshard_after_forward` false and true. Each parameter is divided by its first dimension, padded to a multiple of the
  GPUs. With 16-bit precision over 32-bit weights, a layer is gathered in 16 bits and nothing runs under autocast
  (`MixedPrecisionPolicy(param_dtype, reduce_dtype=torch.float32)`); its gradients are summed over the GPUs in 32 bits.

What is alive when, by torch 2.13, distributed/fsdp/_fully_shard:

- a layer's shards are cast (if needed) and gathered into one buffer, which is then copied to one tensor for each
  parameter (foreach_all_gather, foreach_all_gather_copy_out);
- in forward, that buffer is kept until the next layer has been gathered into its own and copied from there: a variable
  of wait_for_unshard refers to it until then; the last one, until the model's forward ends (FSDPState._post_forward);
- in backward, the buffer of the layer before is filled as soon as a layer begins, and the last layer's when backward
  begins (FSDPParamGroup._backward_prefetch);
- after a layer's backward, its whole weights are freed, its gradients are copied into one buffer, and their sum for
  this GPU's share into another. The first buffer is kept until the next layer's backward ends (post_backward), the last
  gradient of the layer until the sum has been made: a variable of foreach_reduce still refers to it;
- the model's own weights (embeddings, last norm, head) are gathered from the beginning of forward to the end of
  backward, and their gradients are kept whole until then (FSDPState._lazy_init, _root_post_backward_final_callback).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from calculator.architecture import Architecture
from calculator.autograd import rounded
from calculator.optimizers import Optimizer
from calculator.parameters import FAMILIES, ParameterTensor, parameter_tensors
from calculator.recording import Levels, Segment
from calculator.timeline import PLACES, Instant, Options, Timeline, played


@dataclass(frozen=True, slots=True)
class Course:
    """How a model is divided."""

    gpus: int
    reshard: bool
    """Whether a layer's whole weights are freed after its forward ("zero-3")."""
    stored: int
    """Bytes of a value of the shards, and of the gradients that are summed over the GPUs."""
    computed: int
    """Bytes of a value with which the model computes."""
    accumulating: bool
    """Whether shares of the gradients are already there from an earlier micro-batch."""


@dataclass(frozen=True, slots=True)
class Group:
    """Bytes of the parameters that are gathered together: those of a layer, or those outside of the layers."""

    whole: int = 0
    """The gathered parameters."""
    buffer: int = 0
    """Into which they are gathered."""
    cast: int = 0
    """The shards in the precision of the computation, until they are gathered."""
    summed: int = 0
    """The gradients on their way to the other GPUs."""
    gradients: int = 0
    """This GPU's share of the gradients."""
    last_gradient: int = 0
    """The whole gradient of the last parameter, in the order of the modules."""


def shard_shape(shape: tuple[int, ...], gpus: int) -> tuple[int, ...]:
    """The shape of the first GPU's share of a parameter; the others' are padded to it.

    >>> shard_shape((10, 3), 4), shard_shape((2,), 4)
    ((3, 3), (1,))
    """
    return (-(-shape[0] // gpus), *shape[1:])


@lru_cache(maxsize=256)
def shards(architecture: Architecture, gpus: int) -> tuple[ParameterTensor, ...]:
    """This GPU's share of every kind of tensor."""
    return tuple(
        ParameterTensor(tensor.name, tensor.part, shard_shape(tensor.shape, gpus), tensor.copies)
        for tensor in parameter_tensors(architecture)
    )


@lru_cache(maxsize=256)
def _groups(architecture: Architecture, course: Course) -> dict[tuple[str, str], Group]:
    """The group of each kind of layer, by stack and attention; that outside of the layers under two empty names."""
    kinds: dict[tuple[str, str], list[int]] = {("", ""): []}
    stacks = {"layers": architecture.num_layers, "encoder": architecture.num_layers}
    stacks["decoder"] = architecture.num_decoder_layers
    for group in FAMILIES[architecture.family].parameters(architecture):
        counts = [prod(shard_shape(shape, course.gpus)) for shape in group.shapes.values()]
        if not group.stack:
            kinds["", ""] += counts
            continue
        for kind in dict.fromkeys(map(architecture.attention_kind, range(stacks[group.stack]))):
            if group.only in kind:
                kinds.setdefault((group.stack, kind), []).extend(counts)
    # A layer's last parameter is a norm's, or the bias of its last product, of as many values.
    lasts = {kind: architecture.hidden_size for kind in kinds} | {("", ""): _last_outside(architecture)}
    return {kind: _group(counts, lasts[kind], course) for kind, counts in kinds.items()}


def _last_outside(architecture: Architecture) -> int:
    """Values of the last parameter outside of the layers: of the output head, or of the last norm if both are one."""
    shapes = dict(
        shape
        for group in FAMILIES[architecture.family].parameters(architecture)
        if not group.stack
        for shape in group.shapes.items()
    )
    # BERT's bias stands before the head.
    names = ("head.weight",) if architecture.family == "bert" else ("head.bias", "head.weight")
    return next((prod(shapes[name]) for name in names if name in shapes), architecture.hidden_size)


def _group(counts: list[int], last: int, course: Course) -> Group:
    """Of parameters with these numbers of values on each GPU, and so many values of the last one on all together."""
    values, itemsize = sum(counts), course.computed
    return Group(
        whole=sum(rounded(count * course.gpus * itemsize) for count in counts),
        buffer=rounded(values * course.gpus * itemsize),
        cast=rounded(values * itemsize) if itemsize != course.stored else 0,
        summed=rounded(values * course.gpus * course.stored),
        gradients=rounded(values * course.stored),
        last_gradient=rounded(last * itemsize),
    )


@lru_cache(maxsize=256)
def gradient_bytes(architecture: Architecture, course: Course) -> int:
    """This GPU's share of all gradients."""
    return _Step(architecture, course).all_gradients


@lru_cache(maxsize=4096)
def play_sharded(architecture: Architecture, options: Options, course: Course) -> Timeline:
    """Forward and backward of one micro-batch on one of the GPUs, as `calculator.timeline.play` gives them for one."""
    segments, plans = played(architecture, options)
    step = _Step(architecture, course)
    for phase in ("forward", "backward"):
        by_key: dict[object, Segment] = {}
        for segment in segments:
            if segment.phase == phase:
                by_key.setdefault(segment.key[0] if isinstance(segment.key, tuple) else segment.key, segment)
        seen = set()
        for key in by_key:
            if not isinstance(key, tuple):
                step.outside(by_key[key], key)
            elif key[0] not in seen:
                seen.add(key[0])
                runs = plans[key[0]].runs
                for kind, first, last in runs if phase == "forward" else reversed(runs):
                    indices = range(first, last + 1) if phase == "forward" else range(last, first - 1, -1)
                    step.run(by_key[kind], key[0], indices)
        if phase == "forward":
            after_forward = step.level
    step.end()
    return Timeline(tuple(step.instants), after_forward, step.level)


class _Step:
    """Goes through a step, layer by layer, with FSDP2's own memory beside that of the tape.

    Args:
        architecture: The model.
        course: How it is divided.
    """

    def __init__(self, architecture: Architecture, course: Course) -> None:
        self.architecture = architecture
        self.course = course
        self.groups = _groups(architecture, course)
        self.root = self.groups["", ""]
        order = [("layers", index) for index in range(architecture.num_layers)]
        if architecture.num_decoder_layers:
            order = [("encoder", index) for index in range(architecture.num_layers)]
            order += [("decoder", index) for index in range(architecture.num_decoder_layers)]
        self.order = {layer: self.groups[layer[0], architecture.attention_kind(layer[1])] for layer in order}
        self.before = dict(zip(order[1:], order, strict=False))
        self.last = order[-1]
        earlier = self.all_gradients if course.accumulating else 0
        # Gemma's embeddings are multiplied by a number of 32 bits; backward needs its copy in the other precision.
        casts = architecture.family == "gemma" and course.computed != course.stored
        self.kept = Levels(live=rounded(2), activations=rounded(2)) if casts else Levels()
        self.level = Levels(live=earlier, gradients=earlier) + self.kept
        """As the tape has it, with this GPU's share of the gradients instead of the whole ones of finished layers."""
        self.whole = 0
        """Gathered parameters."""
        self.buffer = 0
        """The buffer into which parameters were gathered last, if it still exists."""
        self.summed = 0
        """The gradients that the last group sent."""
        self.instants: list[Instant] = []

    @property
    def all_gradients(self) -> int:
        """This GPU's share of all gradients."""
        return self.root.gradients + sum(group.gradients for group in self.order.values())

    def outside(self, segment: Segment, key: str) -> None:
        """A stretch outside of the layers."""
        place, phase = PLACES[key], segment.phase
        if phase == "forward" and key == "inputs":
            self._gather(self.root, place)
        elif phase == "forward" and key == "end of forward":
            self.buffer = 0
        elif phase == "backward" and key == "head":
            self._prefetch(self.last, place)
        elif phase == "backward" and key == "inputs":
            self.level -= self.kept
        self._add(segment, place, phase)

    def run(self, segment: Segment, stack: str, indices: range) -> None:
        """Layers with equal stretches; of each kind of instant, the highest of all these layers is kept."""
        begin = len(self.instants)
        for index in indices:
            place = f"{stack.removesuffix('s')} {index + 1}"
            (self._forward if segment.phase == "forward" else self._backward)(segment, (stack, index), place)
        highest: dict[str, Instant] = {}
        for instant in self.instants[begin:]:
            name = instant.levels.instant
            if name not in highest or instant.levels.live > highest[name].levels.live:
                highest[name] = instant
        self.instants[begin:] = highest.values()

    def _forward(self, segment: Segment, layer: tuple[str, int], place: str) -> None:
        group = self.order[layer]
        self._gather(group, place)
        self._add(segment, place, "forward")
        if self.course.reshard:
            self.whole -= group.whole

    def _backward(self, segment: Segment, layer: tuple[str, int], place: str) -> None:
        group = self.order[layer]
        if self.course.reshard:
            self._copy_out(group, place, "backward")
            self.buffer = 0
            if layer in self.before:
                self._prefetch(self.before[layer], place)
        whole_gradients = self.level.gradients
        self._add(segment, place, "backward")
        self._reduce(group, self.level.gradients - whole_gradients, place)

    def end(self) -> None:
        """After the last layer's backward: the gradients outside of the layers."""
        reduced = self.all_gradients
        if not self.course.accumulating:
            reduced -= self.root.gradients
        # This sum is a part of backward, which keeps the gradient of the loss itself until it ends.
        ones = Levels(live=rounded(4))
        self.level += ones
        self._reduce(self.root, self.level.gradients - reduced, "embeddings and output head")
        self.level -= ones
        self.summed = 0

    def _gather(self, group: Group, place: str) -> None:
        """In forward; the buffer of the group before is still there."""
        self._note("forward", place, "gathering of its weights", group.cast + group.buffer)
        self._copy_out(group, place, "forward", group.buffer)
        self.buffer = group.buffer

    def _copy_out(self, group: Group, place: str, phase: str, more: int = 0) -> None:
        self.whole += group.whole
        self._note(phase, place, "gathering of its weights", more)

    def _prefetch(self, layer: tuple[str, int], place: str) -> None:
        if self.course.reshard:
            group = self.order[layer]
            self._note("backward", place, "gathering of the next layer's weights", group.cast + group.buffer)
            self.buffer = group.buffer

    def _add(self, segment: Segment, place: str, phase: str) -> None:
        self._note(phase, place, None, 0, segment.peak)
        self.level += segment.change

    def _reduce(self, group: Group, gradients: int, place: str) -> None:
        """The whole gradients of a group become this GPU's share."""
        self.whole -= group.whole
        self.summed = group.summed
        self._note("backward", place, "sum of its gradients over the GPUs", 0)
        self.level -= Levels(live=gradients, gradients=gradients)
        self._note("backward", place, "sum of its gradients over the GPUs", group.gradients + group.last_gradient)
        if not self.course.accumulating:
            self.level += Levels(live=group.gradients, gradients=group.gradients)

    def _note(self, phase: str, place: str, instant: str | None, more: int, peak: Levels | None = None) -> None:
        own = self.whole + self.buffer + self.summed + more
        levels = self.level + (peak or Levels())
        levels = levels._replace(live=levels.live + own, instant=levels.instant if instant is None else instant)
        self.instants.append(Instant(phase, place, levels, self.whole))


@lru_cache(maxsize=256)
def largest_part(
    architecture: Architecture, shared_groups: int, gpus: int, optimizer: Optimizer, itemsize: int
) -> tuple[ParameterTensor, ...]:
    """The tensors whose optimizer state one GPU keeps with "zero-1": those of the GPU whose state is largest.

    ZeroRedundancyOptimizer sorts the parameters by size and gives each to the GPU that has the fewest values so far
    (torch 2.13, distributed/optim/zero_redundancy_optimizer.py, _partition_parameters).
    """
    tensors = [tensor for tensor in parameter_tensors(architecture, shared_groups) for _ in range(tensor.copies)]
    tensors.sort(key=lambda tensor: -tensor.count)
    heap = [(0, gpu) for gpu in range(min(gpus, len(tensors)))]
    parts: list[list[ParameterTensor]] = [[] for _ in heap]
    for tensor in tensors:
        values, gpu = heapq.heappop(heap)
        parts[gpu].append(tensor)
        heapq.heappush(heap, (values + tensor.count, gpu))
    largest = max(parts, key=lambda part: sum(optimizer.state_bytes(tensor, itemsize) for tensor in part))
    return tuple(ParameterTensor(tensor.name, tensor.part, tensor.shape, 1) for tensor in largest)
