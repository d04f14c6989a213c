"""Sizes that depend only on the parameters: weights, gradients, the optimizer's state and its update."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from calculator.models.architecture import Architecture, ParameterTensor
from calculator.parts.adapters import Lora, adapter_tensors, frozen_blocks
from calculator.parts.optimizers import IN_32_BIT, Optimizer
from calculator.parts.parameters import parameter_tensors
from calculator.step.gpus.sharding import frozen_shards, largest_part, shards
from calculator.tape.autograd import allocated_bytes

SMALL_BLOCK, SMALL_SEGMENT = 1 << 20, 2 << 20
LARGE_BLOCK, LARGE_SEGMENT = 10 << 20, 20 << 20
SEGMENT_UNIT = 2 << 20
"""The allocator puts blocks up to `SMALL_BLOCK` into segments of `SMALL_SEGMENT`, and those below `LARGE_BLOCK` into
segments of `LARGE_SEGMENT`; each larger block has a segment of its own, rounded up to `SEGMENT_UNIT` (pytorch,
c10/cuda/CUDACachingAllocator.cpp, kSmallSize, kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge)."""


@dataclass(frozen=True, slots=True)
class FixedSizes:
    """Sizes that depend only on the parameters."""

    values: int
    """Trained parameters."""
    frozen_bytes: int
    """Parameters that LoRA does not train."""
    trained_bytes: int
    gradient_bytes: int
    """All gradients, which have the shapes and types of the trained parameters; or the largest one, if backward updates
    each parameter."""
    copy_bytes: int
    """A 32-bit copy of all that is trained."""
    state_bytes: int
    host_state_bytes: int
    """State of the same optimizer when it updates the 32-bit copy on the host."""
    paged_bytes: int
    step_bytes: int
    """Bytes that the update after backward takes for a moment."""
    unused_bytes: int
    """The part of the allocator's segments that weights and gradients leave unused."""


@lru_cache(maxsize=1024)
def sizes_of_shards(
    architecture: Architecture, gpus: int, itemsize: int, optimizer: Optimizer, lora: Lora | None
) -> FixedSizes:
    """The sizes of the first GPU's shares."""
    divided = frozen_shards(architecture, gpus, lora) if lora else ()
    frozen = [(tensor.copies, allocated_bytes(tensor.count, size)) for tensor, size in divided]
    return sizes_of(shards(architecture, gpus, lora), frozen, itemsize, optimizer, again=lora is not None)


@lru_cache(maxsize=1024)
def with_largest_state(
    fixed: FixedSizes, tensors: tuple[ParameterTensor, ...], gpus: int, itemsize: int, optimizer: Optimizer
) -> FixedSizes:
    """Sizes with the optimizer state of the GPU that keeps the most of it."""
    part = sizes_of(largest_part(tensors, gpus, optimizer, itemsize), [], itemsize, optimizer)
    return replace(fixed, state_bytes=part.state_bytes, step_bytes=part.step_bytes)


@lru_cache(maxsize=1024)
def sizes_of_model(
    architecture: Architecture,
    shared_groups: int,
    itemsize: int,
    optimizer: Optimizer,
    embeddings_32bit: bool,
    lora: Lora | None,
    in_backward: bool,
) -> FixedSizes:
    model = parameter_tensors(architecture, shared_groups)
    trained = adapter_tensors(architecture, lora) if lora else model
    frozen = [(tensor.copies, block) for tensor in model for block in frozen_blocks(tensor, lora)] if lora else []
    how = {"embeddings_32bit": embeddings_32bit, "again": lora is not None, "in_backward": in_backward}
    return sizes_of(trained, frozen, itemsize, optimizer, **how)


def sizes_of(
    trained: tuple[ParameterTensor, ...],
    frozen: list[tuple[int, int]],
    itemsize: int,
    optimizer: Optimizer,
    *,
    embeddings_32bit: bool = False,
    again: bool = False,
    in_backward: bool = False,
) -> FixedSizes:
    """Sizes of trained tensors beside frozen ones, given as pairs: a number of equal blocks, and their bytes.

    With `in_backward`, each tensor has an optimizer of its own, which updates it during backward.
    """
    blocks = [(tensor.copies, allocated_bytes(tensor.count, itemsize)) for tensor in trained]
    values = tensors = copies = paged = shared = state = host = 0
    for tensor in trained:
        times, count = tensor.copies, tensor.count
        values += times * count
        tensors += times
        copies += times * allocated_bytes(count, 4)
        if tensor.count >= optimizer.eight_bit_from:
            shared = shared + times * optimizer.shared_bytes if in_backward else optimizer.shared_bytes
        chosen, size = optimizer, itemsize
        if embeddings_32bit and optimizer.name in IN_32_BIT and tensor.is_embedding:
            chosen, size = IN_32_BIT[optimizer.name], 4
        state += times * chosen.state_bytes(tensor, size)
        host += times * chosen.state_bytes(tensor, 4)
        if chosen.paged is not None:
            paged += times * (chosen.paged.bytes_of(count, size) - chosen.state_bytes(tensor, size))
    if optimizer.step_counters:
        host += tensors * allocated_bytes(1, 4)
    gradients = [(1, max(block for _, block in blocks))] if in_backward else blocks
    return FixedSizes(
        values=values,
        frozen_bytes=sum(times * block for times, block in frozen),
        trained_bytes=sum(times * block for times, block in blocks),
        gradient_bytes=sum(times * block for times, block in gradients),
        copy_bytes=copies,
        state_bytes=state + shared,
        host_state_bytes=host + shared,
        paged_bytes=paged,
        step_bytes=0 if in_backward else _step_bytes(trained, optimizer, itemsize, again=again),
        unused_bytes=_unused_bytes(frozen + blocks) + _unused_bytes(gradients),
    )


def _step_bytes(trained: tuple[ParameterTensor, ...], optimizer: Optimizer, itemsize: int, *, again: bool) -> int:
    """Temporary bytes of the update.

    Args:
        trained: Trained tensors in the order of the model.
        optimizer: The optimizer that makes the update.
        itemsize: Bytes of a value of the parameters.
        again: Whether the first tensor's next copy follows the last tensor, as a layer's adapters follow those of the
            layer before.
    """
    if optimizer.all_step_bytes:
        return optimizer.all_step_bytes(trained, itemsize)
    steps = [optimizer.step_bytes(tensor, itemsize) for tensor in trained]
    if optimizer.whole_step:
        return sum(tensor.copies * step for tensor, step in zip(trained, steps, strict=True))
    # An optimizer that loops over tensors keeps the last one's temporary under its local name until the next one's is
    # assigned to it, so the two exist at once: the order of the tensors decides the peak.
    largest, previous = 0, 0
    if again and trained[0].copies > 1:
        previous = optimizer.kept_bytes(trained[-1], itemsize)
    for tensor, step in zip(trained, steps, strict=True):
        largest = max(largest, step + max(previous, optimizer.later_bytes(tensor, itemsize)))
        previous = optimizer.kept_bytes(tensor, itemsize)
    return largest


def _unused_bytes(blocks: list[tuple[int, int]]) -> int:
    """Bytes that blocks leave unused in segments; each pair is a number of equal blocks, and their bytes."""
    small = medium = unused = 0
    for times, block in blocks:
        if block <= SMALL_BLOCK:
            small += times * block
        elif block < LARGE_BLOCK:
            medium += times * block
        else:
            unused += times * (-block % SEGMENT_UNIT)
    return unused + -small % SMALL_SEGMENT + -medium % LARGE_SEGMENT
