"""Training on several GPUs with DeepSpeed's ZeRO: what each holds when its own code divides state and gradients.

The rules are those of DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py) with its default settings, traced:

- the model's weights lie in one flat buffer, padded to twice the number of GPUs; in 16 bits, each GPU also keeps its
  share of them in 32 bits, which the optimizer updates as one tensor;
- when backward has made the first gradient, a bucket for 500 million values is allocated (`reduce_bucket_size`,
  `contiguous_gradients`), which is freed when backward ends;
- in stage 2, each complete gradient is copied into the bucket and freed. Before one that does not fit any more, the
  bucket is flattened into a copy and summed over the GPUs, and the gradients of this GPU's share go into a buffer. In
  stage 1, all gradients are whole until backward has ended; then they take the same way, in the order of the model;
- in the update, the gradients of the share are flattened, and then copied to 32 bits; before that, each is copied to 64
  bits for the norm to which all are clipped.

In stage 3 (runtime/zero/stage3.py and partitioned_param_coordinator.py), each parameter is divided by itself, and has a
block of its own when it is whole. What is whole at an instant depends on the order in which modules run; here it is
what DeepSpeed documents as its bound: parameters of at most 100,000 values are always whole, of all others as many as
reach 1 billion values (`stage3_max_live_parameters`): those that backward needs next, which are gathered long before.
They are freed when no layer before needs them. The bucket and a buffer for this GPU's gradients are there from the
beginning.

In stages 1 and 2, the last GPU is counted: in stage 2 its gradients come first. Parameters are one group of the
optimizer, as without weight decay; with several groups each is padded, and updated after the other.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from calculator.models.architecture import Architecture, ParameterTensor
from calculator.parts.optimizers import Optimizer
from calculator.parts.parameters import values_in_order
from calculator.step.fixed import FixedSizes
from calculator.step.timeline import PLACES, Instant, Options, Timeline, expanded, played, put_together, repeat
from calculator.tape.autograd import allocated_bytes
from calculator.tape.recording import Levels, Segment

LIVE_VALUES, PERSISTENT_VALUES = 1_000_000_000, 100_000
"""In stage 3, values that are whole at most, and those of a parameter that is never divided
(`stage3_max_live_parameters`, `stage3_param_persistence_threshold`)."""
BUCKET_VALUES = 500_000_000
"""Values of a bucket (`reduce_bucket_size`, runtime/zero/config.py)."""
NORM_BYTES = 8
"""Bytes of a value of a gradient whose norm is taken (runtime/zero/utils.py, get_norm_dtype)."""
SUMMING = "sum of the bucket over the GPUs"


@dataclass(frozen=True, slots=True)
class Zero:
    """Settings with which DeepSpeed divides a model."""

    stage: int
    gpus: int
    itemsize: int
    """Bytes of a value of the weights and gradients."""
    bucket: int = BUCKET_VALUES
    live: int = LIVE_VALUES
    persistent: int = PERSISTENT_VALUES


@dataclass(frozen=True, slots=True)
class _Share:
    """A GPU's share of the parameters: in stages 1 and 2 that of the last one."""

    flat: int
    """Values of the buffer for the weights: all parameters, padded so that the GPUs have equal shares; in stage 3, only
    this GPU's."""
    size: int
    """Values of the share."""
    whole: int
    """Values of the parameters of which it has at least a part."""
    largest: int
    """Values of its largest part of a parameter."""
    parts: int
    """Parameters of which it has at least a part."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The divided parameters of stage 3, which are gathered before backward needs them."""

    values: tuple[int, ...]
    """Values of the first 0, 1, 2, ... parameters, in the order of the model."""
    sizes: tuple[int, ...]
    """Bytes of their blocks when they are whole."""
    live: int
    """Values of the whole parameters from which on no other is gathered."""

    def gathered_bytes(self, needed: int) -> int:
        """Bytes of the whole parameters where the first ones, of `needed` values in all, are still to be used."""
        end = bisect_left(self.values, needed)
        begin = max(0, bisect_right(self.values, self.values[end] - self.live) - 1)
        return self.sizes[end] - self.sizes[begin]


@lru_cache(maxsize=256)
def _ahead(architecture: Architecture, zero: Zero) -> _Ahead:
    divided = [count for count in values_in_order(architecture) if count > zero.persistent]
    # Each GPU's part of a parameter is equally long.
    blocks = (allocated_bytes(-(-count // zero.gpus) * zero.gpus, zero.itemsize) for count in divided)
    return _Ahead(tuple(accumulate(divided, initial=0)), tuple(accumulate(blocks, initial=0)), zero.live)


@lru_cache(maxsize=256)
def _share(architecture: Architecture, gpus: int, stage: int) -> _Share:
    counts = values_in_order(architecture)
    if stage == 3:
        own = [-(-count // gpus) for count in counts]
        return _Share(sum(own), sum(own), sum(own), max(own), len(own))
    flat = -(-sum(counts) // (2 * gpus)) * 2 * gpus
    size, left = flat // gpus, sum(counts)
    begin = flat - size
    whole = largest = parts = 0
    for count in reversed(counts):
        if left <= begin:
            break
        whole, parts = whole + count, parts + 1
        largest = max(largest, min(count, left - begin))
        left -= count
    return _Share(flat, size, whole, largest, parts)


@lru_cache(maxsize=256)
def sizes_with_deepspeed(architecture: Architecture, zero: Zero, optimizer: Optimizer) -> FixedSizes:
    """Sizes that depend only on the parameters, on the last GPU."""
    share = _share(architecture, zero.gpus, zero.stage)
    part = ParameterTensor("share", "", (share.size,), 1)
    weights, master = allocated_bytes(share.flat, zero.itemsize), allocated_bytes(share.size, 4)
    if zero.stage == 3:
        whole = [count for count in values_in_order(architecture) if count <= zero.persistent]
        weights += sum(allocated_bytes(count, zero.itemsize) for count in whole)
    state = optimizer.state_bytes(part, 4)
    complete = sum(values_in_order(architecture)) if zero.stage == 1 else share.whole
    return FixedSizes(
        values=share.size,
        frozen_bytes=0,
        trained_bytes=weights + master,
        gradient_bytes=allocated_bytes(complete, zero.itemsize),
        copy_bytes=0,
        state_bytes=state,
        host_state_bytes=0,
        paged_bytes=0,
        step_bytes=_step_bytes(share, zero, optimizer.step_bytes(part, 4)),
        unused_bytes=0,
    )


def _step_bytes(share: _Share, zero: Zero, update: int) -> int:
    """The most that an update takes beside the gradients of the share.

    It frees them before the optimizer runs, except in stage 3, where their buffer stays.
    """
    gradients, copy = allocated_bytes(share.whole, zero.itemsize), allocated_bytes(share.size, 4)
    norms = allocated_bytes(1, NORM_BYTES) * share.parts + allocated_bytes(share.largest, NORM_BYTES)
    flattened = allocated_bytes(share.size, zero.itemsize)
    in_32_bits = flattened + (copy if zero.itemsize != 4 else 0)
    return max(norms, in_32_bits, copy + update - (0 if zero.stage == 3 else gradients))


@lru_cache(maxsize=4096)
def play_with_deepspeed(architecture: Architecture, options: Options, zero: Zero) -> Timeline:
    """Plays forward and backward of one micro-batch on the last of several GPUs; see `timeline.play`."""
    segments, plans = played(architecture, options)
    instants: list[Instant] = []
    # The norm of the last update's gradients is there; in backward, the loss divided by the micro-batches, and scaled.
    number = Levels(live=allocated_bytes(1, 4))
    begin = number
    if zero.stage == 3:
        share = _share(architecture, zero.gpus, 3)
        there = allocated_bytes(zero.bucket, zero.itemsize) + allocated_bytes(share.size, zero.itemsize)
        begin += Levels(live=there, gradients=there)
    after_forward = put_together("forward", segments, plans, begin, instants)
    step = _Backward(architecture, zero, after_forward + number + number, instants)
    instants[:] = [step.with_gathered(instant) for instant in instants]
    pieces: dict[object, list[Segment]] = {}
    keys: dict[object, object] = {}
    for segment in segments:
        if segment.phase == "backward":
            key = segment.key[0] if isinstance(segment.key, tuple) else segment.key
            # The stretches of the first occurrence, which its gradients end: others are equal.
            if keys.setdefault(key, segment.key) == segment.key:
                pieces.setdefault(key, []).append(segment)
    for key, first, last in expanded(pieces, plans, reverse=True):
        step.run(pieces[key], key, first, last)
    after_backward = step.end(architecture) - number - number
    return Timeline(tuple(instants), after_forward, after_backward)


class _Backward:
    """Goes through backward with the bucket beside what the tape holds.

    Within a stretch, such as a layer, levels are relative to its beginning. Only the highest instant is kept, and its
    levels are made at the end: a large model has a thousand gradients.

    Args:
        architecture: The model.
        zero: How it is divided.
        level: Where backward begins.
        instants: Those so far, to which others are added.
    """

    def __init__(self, architecture: Architecture, zero: Zero, level: Levels, instants: list[Instant]) -> None:
        self.zero = zero
        self.share = _share(architecture, zero.gpus, zero.stage)
        self.counts = values_in_order(architecture)
        self.total = sum(self.counts)
        self.level = level
        self.instants = instants
        self.bucket = 0 if zero.stage < 3 else allocated_bytes(zero.bucket, zero.itemsize)
        """Bytes of the bucket, once it exists."""
        self.ahead = _ahead(architecture, zero) if zero.stage == 3 else None
        self.needed = self.ahead.values[-1] if self.ahead else 0
        """Values of the divided parameters that the rest of backward needs, in stage 3."""
        self.filled = 0
        """Values in the bucket."""
        self.sent = 0
        """Values that have been summed over the GPUs."""
        self.kept = 0
        """Bytes of this GPU's gradients, once they have their own buffer."""
        self.beside = 0
        """Bytes of a gradient that is larger than the bucket and waits for its sum."""
        self.now = Levels()
        """The tape's present level in a stretch."""
        self.added = 0
        """Bytes of gradients that DeepSpeed has added in a stretch."""
        self.highest = _NOTHING
        """The highest instant of a stretch."""

    def run(self, pieces: list[Segment], key: object, first: int, last: int) -> None:
        """Goes through a run of equal layers, from `first` to `last`, or through another stretch."""
        whole = _joined(pieces)
        levels = [*accumulate((piece.change for piece in pieces), initial=_NO_LEVELS)]
        ends = [(piece.peak, piece.arrived) for piece in pieces]
        steps = [(before, after, *end) for before, after, end in zip(levels, levels[1:], ends, strict=False)]
        # Values of the whole parameters that stage 3 frees, since their gradients have arrived.
        freed = sum(arrived for _, arrived in ends if arrived > self.zero.persistent)
        step = 1 if last >= first else -1
        index, left = first, abs(last - first) + 1
        while left:
            # As many layers at once as send nothing.
            if self.zero.stage == 3:
                quiet = 0
            elif not whole.arrived or (self.zero.stage == 1 and self.bucket):
                quiet = left
            else:
                quiet = min(left, max(0, (self.zero.bucket - self.filled) // whole.arrived)) if self.bucket else 0
            if quiet:
                end = index + step * (quiet - 1)
                self.level = repeat(self.instants, whole, key, self.level, index, end)
                self.filled += quiet * whole.arrived if self.zero.stage > 1 else 0
                index, left = end + step, left - quiet
                continue
            for before, after, peak, arrived in steps:
                self._note(before, peak)
                self.now = after
                if arrived:
                    self._arrive(arrived)
            self._leave(_place(key, index))
            self.needed -= freed
            index, left = index + step, left - 1

    def with_gathered(self, instant: Instant) -> Instant:
        """The instant with the parameters that are whole in stage 3."""
        gathered = self.ahead.gathered_bytes(self.needed) if self.ahead else 0
        levels = instant.levels
        return instant._replace(levels=levels._replace(live=levels.live + gathered), gathered=gathered)

    def end(self, architecture: Architecture) -> Levels:
        """Sends what is left, and frees the bucket; returns the level after backward."""
        if self.zero.stage == 1:
            self.highest, self.added = _sums_after_backward(architecture, self.zero)
        else:
            self.send()
        self._leave("end of backward")
        if self.zero.stage < 3:
            self.level -= Levels(live=self.bucket, gradients=self.bucket)
        return self.level

    def send_all(self) -> None:
        """Sends all gradients in the order of the model, as stage 1 does after backward."""
        freed = 0  # bytes of gradients that are in the bucket now
        for count in self.counts:
            if self.filled + count > self.zero.bucket:
                self.added -= freed
                self.send()
                freed = 0
            self.filled += count
            freed += allocated_bytes(count, self.zero.itemsize) if count <= self.zero.bucket else 0
        self.added -= freed
        self.send()

    def _arrive(self, count: int) -> None:
        """A gradient is complete."""
        if not self.bucket:
            self.bucket = allocated_bytes(self.zero.bucket, self.zero.itemsize)
            self.added += self.bucket
            self._note(self.now, _NO_LEVELS)
        zero = self.zero
        if zero.stage == 1:
            return
        # The bucket is sent before if it has no room.
        if self.filled + count > zero.bucket:
            self.send()
        self.filled += count
        if count > zero.bucket:
            self.beside = allocated_bytes(count, zero.itemsize)
            self.added += self.beside

    def send(self) -> None:
        """Sums the bucket over the GPUs, and moves this GPU's gradients out of it."""
        if not self.filled:
            return
        # What belongs to one GPU is summed where it lies.
        copy = allocated_bytes(self.filled, self.zero.itemsize) if self.zero.stage == 3 or self._is_shared() else 0
        self._note(self.now, _SUMMED, copy)
        self.sent += self.filled
        if self.zero.stage < 3 and not self.kept and (self.zero.stage > 1 or self.sent > self.total - self.share.whole):
            self.kept = allocated_bytes(self.share.whole, self.zero.itemsize)
            self.added += self.kept
            self._note(self.now, _SUMMED)
        self.added -= self.beside
        self.filled = self.beside = 0

    def _is_shared(self) -> bool:
        """Returns True if the bucket's gradients belong to several GPUs: they are consecutive parameters."""
        first, last = self.sent, self.sent + self.filled - 1
        if self.zero.stage > 1:  # in backward, from the last parameter on
            first, last = self.total - 1 - last, self.total - 1 - first
        return first // self.share.size != last // self.share.size

    def _note(self, level: Levels, above: Levels, copy: int = 0) -> None:
        """Keeps an instant, `above` a level of the stretch and with a copy, if it is the highest so far."""
        live = level.live + above.live + self.added + copy
        if live > self.highest[0]:
            self.highest = (live, level, above, self.added)

    def _leave(self, place: str) -> None:
        """Adds the highest instant of the stretch, which ends."""
        live, level, above, added = self.highest
        gathered = self.ahead.gathered_bytes(self.needed) if self.ahead else 0
        begin, now = self.level, self.now
        # Written out for speed, as in `timeline.repeat`.
        levels = Levels(
            begin.live + live + gathered,
            begin.activations + level.activations + above.activations,
            begin.weight_copies + level.weight_copies + above.weight_copies,
            begin.gradients + level.gradients + above.gradients + added,
            begin.cached + level.cached + above.cached,
            above.instant,
        )
        self.instants.append(Instant("backward", place, levels, gathered))
        self.level = Levels(
            begin.live + now.live + self.added,
            begin.activations + now.activations,
            begin.weight_copies + now.weight_copies,
            begin.gradients + now.gradients + self.added,
            begin.cached + now.cached,
        )
        self.now, self.added, self.highest = _NO_LEVELS, 0, _NOTHING


_NO_LEVELS, _SUMMED = Levels(), Levels(instant=SUMMING)
_NOTHING = (-math.inf, _NO_LEVELS, _NO_LEVELS, 0)


@lru_cache(maxsize=256)
def _sums_after_backward(architecture: Architecture, zero: Zero) -> tuple[tuple, int]:
    """The highest instant when stage 1 sums all gradients, and the bytes that this adds, relative to its beginning."""
    sums = _Backward(architecture, zero, _NO_LEVELS, [])
    sums.send_all()
    return sums.highest, sums.added


def _place(key: object, index: int) -> str:
    return f"{key[0].removesuffix('s')} {index + 1}" if isinstance(key, tuple) else PLACES[key]


def _joined(pieces: list[Segment]) -> Segment:
    """One stretch in place of several that follow each other."""
    level = peak = Levels()
    for piece in pieces:
        if (level + piece.peak).live > peak.live or not peak.instant:
            peak = level + piece.peak
        level += piece.change
    arrived = sum(piece.arrived for piece in pieces)
    return Segment(pieces[0].phase, pieces[0].key, level, peak, arrived)
