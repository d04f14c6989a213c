"""Training on several GPUs: the memory of each when weights, gradients and optimizer state are divided among them.

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

With LoRA, the frozen weights are divided and gathered like all others, each as it is stored or cast, but only the
adapters have gradients. The inputs of the first layer need no gradient, unless a hook on the embeddings makes them need
one for checkpointing. FSDP2 then learns only from the end of backward that this layer's is over: until then, its whole
weights and gradients stay (FSDPParamGroup._register_post_backward_hook).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.parts.adapters import Lora, adapter_matrices, adapter_tensors, keeps_a
from calculator.parts.optimizers import Optimizer
from calculator.parts.parameters import parameter_tensors, values_in_order
from calculator.step.timeline import PLACES, Instant, Options, Timeline, played
from calculator.tape.autograd import rounded
from calculator.tape.recording import Levels, Segment

_OF_FIRST = {f"attention.{stack}.relative_bias": stack for stack in ("encoder", "decoder")}
"""Maps the parameters that T5's first layers hold for all layers to their stack."""
_FIRST = "first"
"""Kind of a first layer of T5."""


@dataclass(frozen=True, slots=True)
class Course:
    """Settings with which FSDP2 divides a model."""

    gpus: int
    reshard: bool
    """True if a layer's whole weights are freed after its forward ("zero-3")."""
    stored: int
    """Bytes of a value of the trained shards, and of the gradients that are summed over the GPUs."""
    cast: int | None
    """Bytes of a value to which FSDP2 casts what it gathers; None: everything is gathered as it is stored."""
    accumulating: bool
    """True if shares of the gradients are already there from an earlier micro-batch."""
    lora: Lora | None = None
    """Adapters as the shards store them; None: all parameters are trained."""
    waits: bool = False
    """True if the first layer's inputs need no gradient, so that its gradients are summed at the end of backward."""

    def computed(self, stored: int) -> int:
        """Bytes of a gathered value."""
        return self.cast or stored


@dataclass(frozen=True, slots=True)
class _Piece:
    """One GPU's share of a parameter, as it is gathered."""

    values: int
    stored: int
    """Bytes of a value."""
    gathered: int
    """Bytes of a value of the whole parameter."""
    whole_values: int
    """Values of the whole parameter."""
    is_trained: bool


@dataclass(frozen=True, slots=True)
class ShardedGroup:
    """Bytes of the parameters that are gathered together: those of a layer, or those outside of the layers."""

    whole: int = 0
    """The gathered parameters."""
    buffer: int = 0
    """The buffer into which they are gathered."""
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
def shards(architecture: Architecture, gpus: int, lora: Lora | None = None) -> tuple[ParameterTensor, ...]:
    """This GPU's share of every kind of trained tensor."""
    tensors = adapter_tensors(architecture, lora) if lora else parameter_tensors(architecture)
    return tuple(_shard(tensor, gpus) for tensor in tensors)


@lru_cache(maxsize=256)
def frozen_shards(architecture: Architecture, gpus: int, lora: Lora) -> tuple[tuple[ParameterTensor, int], ...]:
    """This GPU's share of every kind of tensor that is not trained, with the bytes of a value."""
    found = []
    for tensor in parameter_tensors(architecture):
        found.append((_shard(tensor, gpus), lora.itemsize(tensor.name)))
        if keeps_a(tensor, lora):
            found.append((_shard(adapter_matrices(tensor, lora)[0], gpus), lora.adapter_itemsize))
    return tuple(found)


def _shard(tensor: ParameterTensor, gpus: int) -> ParameterTensor:
    return ParameterTensor(tensor.name, tensor.part, shard_shape(tensor.shape, gpus), tensor.copies)


@lru_cache(maxsize=256)
def _groups(architecture: Architecture, course: Course) -> dict[tuple[str, str], ShardedGroup]:
    """The group of each kind of layer, by stack and attention; that outside of the layers under two empty names."""
    kinds: dict[tuple[str, str], list[_Piece]] = {("", ""): []}
    of_first: dict[str, list[_Piece]] = {}
    stacks = {"layers": architecture.num_layers, "encoder": architecture.num_layers}
    stacks["decoder"] = architecture.num_decoder_layers
    for group in family_of(architecture).parameters(architecture):
        pieces = []
        for name, shape in group.shapes.items():
            place = pieces if name not in _OF_FIRST else of_first.setdefault(_OF_FIRST[name], [])
            place += _pieces(name, shape, course)
        if not group.stack:
            kinds["", ""] += pieces
            continue
        for kind in dict.fromkeys(map(architecture.attention_kind, range(stacks[group.stack]))):
            if group.only in kind:
                kinds.setdefault((group.stack, kind), []).extend(pieces)
    for stack, pieces in of_first.items():
        kinds[stack, _FIRST] = kinds[stack, architecture.attention_kind(0)] + pieces
    if course.lora:
        lasts = {kind: _last_trained(pieces) for kind, pieces in kinds.items()}
    else:
        # A layer's last parameter is a norm's, or the bias of its last product, of as many values.
        lasts = {kind: architecture.hidden_size for kind in kinds} | {("", ""): values_in_order(architecture)[-1]}
    return {kind: _group(pieces, lasts[kind], course) for kind, pieces in kinds.items()}


def _pieces(name: str, shape: tuple[int, ...], course: Course) -> list[_Piece]:
    """A parameter and, if it has one, its adapter."""
    lora = course.lora
    tensors = [(ParameterTensor(name, "", shape, 1), lora.itemsize(name) if lora else course.stored, lora is None)]
    if lora and lora.has_adapter(name):
        a, b = adapter_matrices(tensors[0][0], lora)
        tensors += [(a, lora.adapter_itemsize, not lora.freeze_a), (b, lora.adapter_itemsize, True)]
    return [
        _Piece(
            values=prod(shard_shape(tensor.shape, course.gpus)),
            stored=stored,
            gathered=course.computed(stored),
            whole_values=tensor.count,
            is_trained=is_trained,
        )
        for tensor, stored, is_trained in tensors
    ]


def _last_trained(pieces: list[_Piece]) -> int:
    """Values of the last matrix of the last adapter, in the order of the modules."""
    return next((piece.whole_values for piece in reversed(pieces) if piece.is_trained), 0)


def _group(pieces: list[_Piece], last: int, course: Course) -> ShardedGroup:
    """Makes a group of pieces; `last` counts the last trained one's values on all GPUs together."""
    trained = sum(piece.values for piece in pieces if piece.is_trained)
    return ShardedGroup(
        whole=sum(rounded(piece.values * course.gpus * piece.gathered) for piece in pieces),
        buffer=rounded(sum(piece.values * course.gpus * piece.gathered for piece in pieces)),
        cast=rounded(sum(piece.values * piece.gathered for piece in pieces if piece.gathered != piece.stored)),
        summed=rounded(trained * course.gpus * course.stored),
        gradients=rounded(trained * course.stored),
        last_gradient=rounded(last * course.computed(course.stored)),
    )


@lru_cache(maxsize=256)
def gradient_bytes(architecture: Architecture, course: Course) -> int:
    """This GPU's share of all gradients."""
    return _Step(architecture, course).all_gradients


@lru_cache(maxsize=4096)
def play_sharded(architecture: Architecture, options: Options, course: Course) -> Timeline:
    """Plays forward and backward of one micro-batch on one of several GPUs; see `timeline.play`."""
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
        course: Settings of the division.
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
        self.order = {layer: self._group_of(*layer) for layer in order}
        self.before = dict(zip(order[1:], order, strict=False))
        self.last = order[-1]
        earlier = self.all_gradients if course.accumulating else 0
        casts = family_of(architecture).scaled_embeddings and course.cast and not course.lora
        self.kept = Levels(live=rounded(2), activations=rounded(2)) if casts else Levels()
        self.level = Levels(live=earlier, gradients=earlier) + self.kept
        """Memory as on the tape, with this GPU's share of the gradients instead of finished layers' whole ones."""
        self.whole = 0
        """Gathered parameters."""
        self.buffer = 0
        """The buffer into which parameters were gathered last, if it still exists."""
        self.summed = 0
        """The gradients that the last group sent."""
        self.waiting: list[tuple[ShardedGroup, int, str]] = []
        """Groups whose gradients are summed at the end, with their whole gradients' bytes and their place."""
        self.instants: list[Instant] = []

    def _group_of(self, stack: str, index: int) -> ShardedGroup:
        of_first = self.groups.get((stack, _FIRST)) if index == 0 else None
        return of_first or self.groups[stack, self.architecture.attention_kind(index)]

    @property
    def all_gradients(self) -> int:
        """This GPU's share of all gradients."""
        return self.root.gradients + sum(group.gradients for group in self.order.values())

    def outside(self, segment: Segment, key: str) -> None:
        """Adds a stretch of the step outside of the layers."""
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
        """Adds layers with equal stretches; keeps for each kind of instant the highest of all these layers."""
        begin = len(self.instants)
        go = self._forward if segment.phase == "forward" else self._backward
        change, gathered = Levels(), 0
        for nth, index in enumerate(indices):
            if 2 <= nth < len(indices) - 2:
                # All from the second one on change the levels equally, so the highest are among the first and the last.
                self.level, self.whole = self.level + change, self.whole + gathered
                continue
            level, whole = self.level, self.whole
            go(segment, (stack, index), f"{stack.removesuffix('s')} {index + 1}")
            change, gathered = self.level - level, self.whole - whole
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
        gradients = self.level.gradients - whole_gradients
        if self.course.waits and layer[1] == 0:
            self.waiting.append((group, gradients, place))
        else:
            self._reduce(group, gradients, place)

    def end(self) -> None:
        """Plays the end of backward: the gradients outside of the layers, and those that have waited."""
        # These sums are a part of backward, which keeps the gradient of the loss itself until it ends.
        ones = Levels(live=rounded(4))
        self.level += ones
        if self.root.summed:
            reduced = self.all_gradients - (0 if self.course.accumulating else self.root.gradients)
            self._reduce(self.root, self.level.gradients - reduced, "embeddings and output head")
        else:  # all of it is frozen
            self.whole -= self.root.whole
        for group, gradients, place in self.waiting:
            self._reduce(group, gradients, place)
        self.level -= ones
        self.summed = 0

    def _gather(self, group: ShardedGroup, place: str) -> None:
        """Gathers a group's parameters in forward, while the previous group's buffer still exists."""
        self._note("forward", place, "gathering of its weights", group.cast + group.buffer)
        self._copy_out(group, place, "forward", group.buffer)
        self.buffer = group.buffer

    def _copy_out(self, group: ShardedGroup, place: str, phase: str, more: int = 0) -> None:
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

    def _reduce(self, group: ShardedGroup, gradients: int, place: str) -> None:
        """Reduces the whole gradients of a group to this GPU's share."""
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
    trained: tuple[ParameterTensor, ...], gpus: int, optimizer: Optimizer, itemsize: int
) -> tuple[ParameterTensor, ...]:
    """The tensors whose optimizer state one GPU keeps with "zero-1": those of the GPU whose state is largest.

    ZeroRedundancyOptimizer sorts the parameters by size and gives each to the GPU that has the fewest values so far
    (torch 2.13, distributed/optim/zero_redundancy_optimizer.py, _partition_parameters).

    Args:
        trained: All kinds of tensors that are trained.
        gpus: Number of GPUs that divide the tensors.
        optimizer: Optimizer whose state is divided.
        itemsize: Bytes of a value of the parameters.
    """
    tensors = [tensor for tensor in trained for _ in range(tensor.copies)]
    tensors.sort(key=lambda tensor: -tensor.count)
    heap = [(0, gpu) for gpu in range(min(gpus, len(tensors)))]
    parts: list[list[ParameterTensor]] = [[] for _ in heap]
    for tensor in tensors:
        values, gpu = heapq.heappop(heap)
        parts[gpu].append(tensor)
        heapq.heappush(heap, (values + tensor.count, gpu))
    largest = max(parts, key=lambda part: sum(optimizer.state_bytes(tensor, itemsize) for tensor in part))
    return tuple(ParameterTensor(tensor.name, tensor.part, tensor.shape, 1) for tensor in largest)
