"""A model of PyTorch's memory: storages, the tape that forward records, and the backward pass that consumes it.

Nothing is computed here. The tape notes which storages are allocated and freed, with their sizes as formulas
(`calculator.tape.sizes`); `calculator.tape.recording` turns these notes into bytes.

A `Storage` stands for one allocation of device memory and lives exactly as long as something refers to it, as in
PyTorch: a local variable of a model's forward, a node of the autograd graph that keeps it for backward, or a gradient
on its way. The families (`calculator.families`) therefore mirror the scopes of the code that they describe, and the
reference counts of CPython stand for those of PyTorch. A local variable that lives a line too long in this package is
counted as memory of the GPU; hence the `del` statements and the names that are set to None.

What is modelled, with the place in PyTorch 2.13 that decides it:

- every storage is rounded up to 512 bytes (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize);
- nodes run in the reverse order of their creation, as soon as all their gradients have arrived, and free what they
  keep right after they ran (torch/csrc/autograd/engine.cpp, evaluate_function);
- two gradients of one tensor are added in place if nothing else holds one of them (input_buffer.cpp,
  can_accumulate_inplace);
- the gradient of a leaf is taken over, not copied (accumulate_grad.h);
- under autocast, a parameter's 16-bit copy is cached until autocast is left (autocast_mode.cpp, cached_cast);
- a checkpointed block keeps its inputs and is computed again when backward first needs one of its tensors, up to
  the last tensor that is needed (torch/utils/checkpoint.py, non-reentrant with early stop).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from calculator.tape.sizes import Formulas, Size

ALLOCATION_BYTES = 512
"""Sizes are rounded up to a multiple of this (CUDACachingAllocator.cpp, kMinBlockSize)."""

ORDINARY, WEIGHT_COPY, GRADIENT = range(3)


def rounded(size: int) -> int:
    """Bytes that the caching allocator reserves for a request of `size` bytes."""
    return (size + ALLOCATION_BYTES - 1) & -ALLOCATION_BYTES


def allocated_bytes(count: int, itemsize: int) -> int:
    """Bytes that the caching allocator reserves for `count` values of `itemsize` bytes.

    >>> allocated_bytes(768, 4), allocated_bytes(1, 4)
    (3072, 512)
    """
    return rounded(count * itemsize)


@dataclass(frozen=True, slots=True)
class Mark:
    """Position on a tape where a stretch begins or ends."""

    live: int
    held: int
    weight_copies: int
    gradients: int
    cached: tuple[int, ...]
    """Copies of weights that only autocast's cache held."""
    name: str
    """The last operation."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Notes of a tape under one key."""

    phase: str
    key: object
    start: Mark
    end: Mark
    arrived: int | None = None
    """The size_id of the gradient whose completion ends the stretch."""


class Storage:
    """One allocation of device memory; it is freed when nothing refers to it any more."""

    __slots__ = ("holders", "kind", "size_id", "tape", "uses", "viewed")

    def __init__(self, tape: Tape, size_id: int, kind: int = ORDINARY) -> None:
        self.tape = tape
        self.size_id = size_id  # see `Tape.size_id`
        self.kind = kind
        self.uses = 0  # nodes that keep it for backward
        self.holders = 0  # gradient slots that refer to it
        self.viewed = False  # whether gradient slots refer to views of it, to which nothing is added in place
        tape.live.append(size_id)
        tape.names.append(tape.name)

    def __del__(self) -> None:
        live = self.tape.live
        # `~` rather than a minus sign, since 0 is a size_id too.
        live.append(~self.size_id)
        if self.kind == GRADIENT:
            self.tape.gradients.append((len(live), ~self.size_id))


class Tensor:
    """A view of a storage. Without a node it needs no gradient."""

    __slots__ = ("count", "itemsize", "node", "slot", "storage")

    def __init__(self, storage: Storage | None, count: int, itemsize: int, node: Node | None = None, slot: int = 0):
        self.storage = storage
        self.count = count
        self.itemsize = itemsize
        self.node = node
        self.slot = slot

    @property
    def kept(self) -> Storage | tuple[int, int]:
        """The storage that a node keeps, or only its size if it exists anyway or the host has a copy."""
        storage = self.storage
        return (self.count, self.itemsize) if storage is None or storage.tape.moving else storage


class Matrix(Tensor):
    """A tensor whose shape matters to an operation: a parameter, or rows of one."""

    __slots__ = ("shape",)

    def __init__(
        self, storage: Storage | None, count: int, itemsize: int, node: Node | None, shape: tuple[int, ...]
    ) -> None:
        super().__init__(storage, count, itemsize, node)
        self.shape = shape


class Parameter(Matrix):
    """A trained tensor. Its own storage is always there and is not counted by the tape.

    Args:
        shape: The tensor's shape.
        itemsize: Bytes of a value.
        update_bytes: Bytes that its update takes for a moment, if backward makes it; see `Tape`.
    """

    __slots__ = ()

    def __init__(self, shape: tuple[int, ...], itemsize: int, update_bytes: int = 0) -> None:
        super().__init__(None, prod(shape), itemsize, Node("accumulating", (), None, ()), shape)
        self.node.update_bytes = update_bytes


class Adapter:
    """The two matrices of a LoRA adapter, of which A may be frozen, and the probability of dropping their input."""

    __slots__ = ("a", "b", "dropout")

    def __init__(self, a: Matrix, b: Parameter, dropout: float) -> None:
        self.a = a
        self.b = b
        self.dropout = dropout


class FrozenWeight(Matrix):
    """A tensor of the model that is not trained. Its own storage is always there and is not counted by the tape.

    Args:
        shape: The tensor's shape.
        itemsize: Bytes of a value with which it computes.
        scales: 32-bit scales that are made of the quantized ones whenever it computes; None if it is not quantized.
        adapter: Adapter that is trained in place of the tensor; None without one.
    """

    __slots__ = ("adapter", "scales")

    def __init__(
        self, shape: tuple[int, ...], itemsize: int, scales: int | None = None, adapter: Adapter | None = None
    ) -> None:
        super().__init__(None, prod(shape), itemsize, None, shape)
        self.scales = scales
        self.adapter = adapter


class Node:
    """A node of the backward graph: what it keeps, which nodes get its results, and what it allocates when it runs."""

    __slots__ = (
        "apart",
        "backward",
        "edges",
        "fits",
        "frame",
        "name",
        "pending",
        "saved",
        "segment",
        "sequence",
        "slots",
        "update_bytes",
    )

    def __init__(self, name: str, edges: tuple, backward: Callable | None, saved: tuple) -> None:
        self.name = name
        self.edges = edges
        self.backward = backward
        self.saved = saved
        self.pending = 0
        self.slots: list = [None]
        self.fits: tuple = ()
        self.frame: Frame | None = None
        self.apart = False  # whether its gradients are never added in place


class Frame:
    """One call of a checkpointed block: its inputs and, once the block is computed again, the tensors that it keeps."""

    __slots__ = ("block", "count", "inputs", "kept")

    def __init__(self, block: Callable, inputs: tuple[Tensor, ...]) -> None:
        self.block = block
        self.inputs = inputs
        self.count = 0
        self.kept: list | None = None


class _RecomputationDone(Exception):
    """Stops the second computation of a block as soon as it has all tensors that backward needs.

    PyTorch stops there too (early stop): whatever the block allocates after that point is not allocated again.
    """


RECOMPUTED = Node("recomputed", (), None, ())
"""Marks tensors of a second computation that need a gradient; the graph stays that of the first computation."""


class Tape:
    """Records one forward pass and plays its backward pass, noting each allocation and each release.

    `live` is the list of these events: a `size_id` for an allocation, `~size_id` for a release of the same size. The
    other lists point into it, so that the bytes of all of them can be summed later for other sizes.

    Args:
        formulas: Formulas of all sizes.
        itemsize: Bytes of a value of the parameters and activations: 4, or 2 in pure 16 bit.
        autocast: Whether forward runs under 16-bit autocast.
        half: "bf16" or "fp16", whichever 16-bit type is used.
        accumulating: Whether `.grad` is already there from an earlier micro-batch.
        moving: Whether the host keeps what is saved for backward (torch.autograd.graph.save_on_cpu): each node's
            tensors, parameters too, are copied to it, and back just before the node runs. `held` is then the host's.
        updating: Whether a hook updates each parameter and frees its gradient as soon as this is complete.
        arriving: Whether each complete gradient ends a stretch.
    """

    def __init__(
        self,
        formulas: Formulas,
        *,
        itemsize: int,
        autocast: bool = False,
        half: str = "",
        accumulating: bool = False,
        moving: bool = False,
        updating: bool = False,
        arriving: bool = False,
    ) -> None:
        self.formulas = formulas
        self.size_ids: dict[tuple[int, int], int] = {}
        self.itemsize = itemsize
        self.autocast = self.autocast_in_forward = autocast
        self.half = half
        self.accumulating = accumulating
        self.moving = moving
        self.updating = updating
        self.arriving = arriving
        self.live: list[int] = []
        self.names: list[str] = []  # the operation of each allocation
        # What is kept for backward, copies of weights, and gradients: (length of `live` at the event, size_id).
        self.held: list[tuple[int, int]] = []
        self.weight_copies: list[tuple[int, int]] = []
        self.gradients: list[tuple[int, int]] = []
        self.sequence = 0
        self.leaves: list[Storage] = []  # gradients, and leaves that are not parameters
        self.frame: Frame | None = None
        self.recomputing = False
        self.cache: dict[int, Tensor] = {}
        self.name = ""
        self.segment: object = None
        self.phase = self.phase_at_start = "forward"
        self.stretches: list[Stretch] = []
        self.at_start: Mark | None = None

    # -- what lives --------------------------------------------------------------------------------------------

    def size_id(self, count: int, itemsize: int) -> int:
        """The number under which the tape notes this size; equal formulas have one number."""
        key = (count.number if type(count) is Size else self.formulas.number(count), itemsize)
        size_id = self.size_ids.get(key)
        if size_id is None:
            size_id = self.size_ids[key] = len(self.size_ids)
        return size_id

    def workspace(self, size: int) -> None:
        """Memory that a kernel allocates and frees within one operation; `size` is in bytes, already rounded."""
        size_id = self.size_id(size, 0)
        self.live += (size_id, ~size_id)
        self.names.append(self.name)

    def new(self, count: int, itemsize: int) -> Storage:
        """A fresh storage for `count` values."""
        return Storage(self, self.size_id(count, itemsize))

    def nothing(self) -> Storage:
        """A storage of 0 bytes, in place of a storage that is counted elsewhere."""
        return self.new(0, 1)

    def enter(self, key: object, arrived: int | None = None) -> None:
        """Ends the current stretch, because a gradient has arrived or for another reason, and starts the next one."""
        now = Mark(
            len(self.live), len(self.held), len(self.weight_copies), len(self.gradients), self._cached(), self.name
        )
        if self.segment is not None:
            self.stretches.append(Stretch(self.phase_at_start, self.segment, self.at_start, now, arrived))
        self.at_start = now
        self.segment = key
        self.phase_at_start = self.phase

    def _cached(self) -> tuple[int, ...]:
        return tuple([copy.storage.size_id for copy in self.cache.values() if copy.storage.uses == 0])

    # -- forward -----------------------------------------------------------------------------------------------

    def tensor(self, count: int, itemsize: int) -> Tensor:
        """A fresh tensor that needs no gradient."""
        return Tensor(self.new(count, itemsize), count, itemsize)

    def record(
        self, name: str, inputs: tuple[Tensor, ...], saved: tuple, backward: Callable, fits: tuple = ()
    ) -> Node | None:
        """Adds a node for an operation on `inputs`, unless none of them needs a gradient.

        Args:
            name: The operation, for people.
            inputs: Its differentiable operands; one edge each.
            saved: Storages that it keeps for backward, or sizes of what is there in any case (`Tensor.kept`).
            backward: Called with the gradient (a storage, or a list of them when there are several results);
                returns one storage or None for each input. It may refer to numbers only: a storage that it refers to
                would stay alive as long as the node.
            fits: For each input, the copies (values, bytes a value) by which its gradient is summed to the input's
                shape and cast to its precision, after the operation's own backward (engine.cpp, validate_outputs).
        """
        for operand in inputs:
            if operand.node is not None:
                break
        else:
            return None
        if self.recomputing:
            # The node exists since the first computation; this one only supplies the tensors that the node keeps.
            if saved:
                self._keep_again(saved)
            return RECOMPUTED
        edges = tuple([(operand.node, operand.slot) if operand.node is not None else None for operand in inputs])
        for edge in edges:
            if edge is not None:
                edge[0].pending += 1
        node = Node(name, edges, backward, saved)
        node.fits = fits
        self.sequence += 1
        node.sequence = self.sequence
        node.segment = self.segment
        frame = self.frame
        if frame is not None:
            # Under checkpointing a node keeps nothing yet, only the places of its tensors among those of the block.
            node.frame = frame
            node.saved = range(frame.count, frame.count + len(saved))
            frame.count += len(saved)
        elif self.moving:
            node.saved = self._moved(saved)
        else:
            self._keep(saved)
        return node

    def _moved(self, saved: tuple) -> tuple[int, ...]:
        """Moves storages to the host; returns the sizes of its copies."""
        sizes = [one.size_id if type(one) is Storage else self.size_id(*one) for one in saved if one is not None]
        self.held += [(len(self.live), size_id) for size_id in sizes]
        return tuple(sizes)

    def require_gradient(self, leaf: Tensor) -> None:
        """Makes an untrained tensor a leaf that gets a gradient; both live as long as the graph."""
        if self.recomputing:
            leaf.node = RECOMPUTED
            return
        leaf.node = Node("accumulating", (), None, (leaf.storage,))
        self.leaves.append(leaf.storage)
        self._keep((leaf.storage,))

    def _keep(self, saved: tuple) -> None:
        for storage in saved:
            if type(storage) is Storage:
                if storage.uses == 0:
                    if storage.kind == WEIGHT_COPY:
                        self.weight_copies.append((len(self.live), storage.size_id))
                    else:
                        self.held.append((len(self.live), storage.size_id))
                storage.uses += 1

    def _release(self, saved: tuple) -> None:
        for storage in saved:
            if type(storage) is Storage:
                storage.uses -= 1
                if storage.uses == 0:
                    if storage.kind == WEIGHT_COPY:
                        self.weight_copies.append((len(self.live), ~storage.size_id))
                    else:
                        self.held.append((len(self.live), ~storage.size_id))

    def _keep_again(self, saved: tuple) -> None:
        frame = self.frame
        self._keep(saved)
        frame.kept.extend(saved)
        if len(frame.kept) == frame.count:
            raise _RecomputationDone

    def checkpoint(self, block: Callable, *inputs: Tensor):
        """Runs a block so that only its inputs are kept; its other tensors are computed again in backward."""
        frame = self.frame = Frame(block, inputs)
        kept = tuple([tensor.storage for tensor in inputs if tensor is not None])
        self._keep(kept)
        try:
            return block(*inputs)
        finally:
            self.frame = None
            if not frame.count:  # backward needs nothing of it, as where nothing is trained up to its end
                self._release(kept)
                frame.inputs = ()

    def leave_autocast(self) -> None:
        """Drops autocast's cache; copies of weights that nodes keep stay until their backward."""
        self.cache = {}

    # -- backward ----------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Plays the backward pass from a loss. Gradients stay until `forget`."""
        self.phase = "backward"
        self.autocast = False
        seed = self.new(1, loss.itemsize)  # the gradient of the loss itself, a 1
        seed.holders = 1
        root = loss.node
        root.slots[0] = seed  # PyTorch holds it, and the loss, until the end of backward
        loss.node = None
        # A heap: among the nodes whose gradients have all arrived, the engine runs the one created last.
        ready = [(-root.sequence, root)]
        del root
        while ready:
            node = heapq.heappop(ready)[1]
            if node.segment != self.segment:
                self.enter(node.segment)
            self.name = node.name
            gradients = node.slots
            node.slots = None
            frame = node.frame
            # The first node of a checkpointed block that needs a kept tensor has the whole block computed again.
            if frame is not None and frame.kept is None and len(node.saved):
                self._recompute(frame)
                self.name = node.name
            results = self._run(node, gradients)
            # The node's own gradients are freed before its results are delivered; no name may keep them.
            for gradient in gradients:
                if gradient is not None:
                    gradient.holders -= 1
            del gradient
            gradients = None
            edges = node.edges
            node.edges = ()
            for position, edge in enumerate(edges):
                if edge is None:
                    continue
                gradient = results[position]
                results[position] = None
                target, slot = edge
                if gradient is not None:
                    self._deliver(target, slot, gradient, gradient in results)
                gradient = None
                target.pending -= 1
                if target.pending == 0:
                    if target.backward is None:
                        self._accumulate(target)
                    else:
                        heapq.heappush(ready, (-target.sequence, target))
            target = edge = edges = results = frame = None

    def _run(self, node: Node, gradients: list[Storage | None]) -> list[Storage | None]:
        """Runs a node's backward and releases what it keeps; returns one result for each edge."""
        _returned = [Storage(self, size_id) for size_id in node.saved] if self.moving else None
        results = node.backward(gradients[0] if len(gradients) == 1 else gradients)
        _returned = None
        # What a kernel computes for an operand without gradient is freed with it.
        results = [result if edge is not None else None for result, edge in zip(results, node.edges, strict=False)]
        if node.frame is not None:
            self._release_recomputed(node.frame, node)
        if node.fits:
            for position, copies in enumerate(node.fits):
                for count, itemsize in copies:
                    results[position] = self.new(count, itemsize)
        if self.moving:
            self.held += [(len(self.live), ~size_id) for size_id in node.saved]
        elif node.frame is None:
            self._release(node.saved)
        node.saved = ()
        return results

    def _deliver(self, target: Node, slot: int, gradient: Storage, shared: bool) -> None:
        """Adds a gradient to the gradient that waits at a node, if there is one (input_buffer.cpp).

        The sum takes new memory only if each of the two is also held elsewhere.
        """
        slots = target.slots
        waiting = slots[slot]
        if waiting is None:
            gradient.holders += 1
            slots[slot] = gradient
        elif waiting.holders == 1 and not (target.apart or waiting.viewed):
            # Only this slot holds the waiting gradient: the new one is added to it in place.
            return
        elif gradient.holders == 0 and not (shared or target.apart or gradient.viewed):
            # Nothing else holds the new gradient: the sum is made in it.
            waiting.holders -= 1
            gradient.holders = 1
            slots[slot] = gradient
        else:
            total = Storage(self, waiting.size_id)
            waiting.holders -= 1
            total.holders = 1
            slots[slot] = total

    def _accumulate(self, leaf: Node) -> None:
        """Makes a parameter's complete gradient its `.grad`, or adds it to that."""
        gradient = leaf.slots[0]
        leaf.slots = None
        if self.accumulating and not leaf.saved:
            return  # added in place to `.grad`, which the estimate counts from the start of the step
        if gradient.holders > 1:  # something else holds it, so PyTorch copies it instead of taking it over
            gradient.holders -= 1
            gradient = Storage(self, gradient.size_id)
        if leaf.saved:
            self.leaves.append(gradient)
            return
        if gradient.kind != GRADIENT:
            self.mark_gradient(gradient)
        if not self.updating:
            self.leaves.append(gradient)
        elif leaf.update_bytes:
            self.name = "update of a parameter"
            self.workspace(leaf.update_bytes)
        if self.arriving:
            self.enter(self.segment, gradient.size_id)

    def forget(self) -> None:
        """Drops the gradients, so that no reference cycle is left: the tape holds them, and they hold the tape."""
        self.leaves.clear()

    def mark_gradient(self, storage: Storage) -> None:
        """Counts a storage among the gradients of the parameters."""
        storage.kind = GRADIENT
        self.gradients.append((len(self.live), storage.size_id))

    def _recompute(self, frame: Frame) -> None:
        """Computes a checkpointed block again, up to the last tensor that backward needs."""
        frame.kept = []
        outer, self.frame = self.frame, frame
        cache, self.cache = self.cache, {}  # autocast is entered again, with an empty cache of weight copies
        self.recomputing = True
        self.autocast = self.autocast_in_forward
        try:
            frame.block(*[_detached(tensor) for tensor in frame.inputs])
        except _RecomputationDone:
            pass
        finally:
            self.recomputing = False
            self.autocast = False
            self.cache = cache
            self.frame = outer

    def _release_recomputed(self, frame: Frame, node: Node) -> None:
        for index in node.saved:
            storage = frame.kept[index]
            frame.kept[index] = None
            self._release((storage,))
        frame.count -= len(node.saved)
        if frame.count == 0 and frame.inputs:
            self._release(tuple([tensor.storage for tensor in frame.inputs if tensor is not None]))
            frame.inputs = ()


def _detached(tensor: Tensor | None) -> Tensor | None:
    """A tensor with the same storage for the second computation of a block, detached from the graph."""
    if tensor is None:
        return None
    return Tensor(tensor.storage, tensor.count, tensor.itemsize, RECOMPUTED if tensor.node is not None else None)
