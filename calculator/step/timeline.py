"""One training step, instant by instant: where the memory peak is, and why.

A short model with one layer of each distinct kind is played on a tape (`calculator.tape.autograd`), which gives the
change and the peak of each layer's forward and backward. The step is then assembled from as many of these as the model
has layers. What was played is kept as a recording: a setup with the same events, such as another batch or a wider
model of the family, is computed from it without playing it again.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import NamedTuple

from calculator.families.blocks.context import Context, Layer
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterGroup, ParameterTensor
from calculator.parts.adapters import NF4_BLOCK, Lora
from calculator.parts.optimizers import Optimizer
from calculator.parts.parameters import distinct_layers
from calculator.tape.autograd import Adapter, FrozenWeight, Matrix, Parameter
from calculator.tape.eight_bit import EightBitOperations
from calculator.tape.operations import Operations
from calculator.tape.recording import Levels, Recording, Segment
from calculator.tape.sizes import Formulas
from calculator.tape.tensor_parallel import DividedOperations, part


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Settings that decide the events of forward and backward."""

    batch: int
    length: int
    target_length: int
    autocast: bool
    itemsize: int
    half: str
    fused_attention: bool
    dropout: float
    attention_dropout: float
    checkpoint_every: int
    """k: every k-th layer is checkpointed; 0: none."""
    shared_groups: int
    reversible: bool
    accumulating: bool
    folded: bool = True
    """True if layers that cost the same are played once; otherwise every layer is played."""
    lora: Lora | None = None
    """Settings of the adapters; None: all parameters are trained."""
    together: int = 0
    """GPUs that compute a micro-batch together (tensor parallelism); 0: each computes its own."""
    moving: bool = False
    """True if the host keeps what is saved for backward."""
    loss: str = "whole"
    """See `calculator.step.setups.Setup`."""
    packed: bool = False
    """The same."""
    fp8: bool = False
    """The same."""
    stage: int = 0
    """Stage of DeepSpeed's ZeRO: a complete gradient ends a stretch, and is freed then from stage 2 on; 0: none."""
    updating: Optimizer | None = None
    """The optimizer, if it updates each parameter during backward."""
    by_tokens: bool = False
    """True if the GPUs of `together` also divide the tokens between matrices."""

    @property
    def lora_rank(self) -> int:
        """Rank of the adapters; 0 without any."""
        return self.lora.rank if self.lora else 0


class Instant(NamedTuple):
    """The highest instant of one stretch of the step."""

    phase: str
    """"forward" or "backward"; of a whole step also "optimizer"."""
    place: str
    """Place in the model, for people: "layer 12 of 24", "output head and loss"."""
    levels: Levels
    gathered: int = 0
    """The part of `levels.live` that is weights gathered from other GPUs."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Forward and backward of one micro-batch."""

    instants: tuple[Instant, ...]
    """The highest instant of each stretch, in order."""
    after_forward: Levels
    """Levels when forward has ended and only the loss is still referred to."""
    after_backward: Levels


PLACES = {
    "inputs": "embeddings",
    "between": "between encoder and decoder",
    "end of forward": "end of forward",
    "stack": "around the reversible layers",
    "handing over": "around the reversible layers",
    "head": "output head and loss",
}


@lru_cache(maxsize=4096)
def play(architecture: Architecture, options: Options) -> Timeline:
    """Plays forward and backward of one micro-batch."""
    return _put_together(*played(architecture, options))


def played(architecture: Architecture, options: Options) -> tuple[list[Segment], dict[str, Plan]]:
    """The stretches of a short model with one layer of each kind, and the layers of each stack that they stand for."""
    plans = {
        stack: _plan(
            architecture,
            stack=stack,
            layers=layers,
            checkpoint_every=options.checkpoint_every,
            shared_groups=options.shared_groups,
            reversible=options.reversible,
            folded=options.folded,
            adapted=options.lora is not None,
        )
        for stack, layers in _stacks(architecture)
    }
    return _segments(architecture, options, plans), plans


GIVEN_BY_SETUP = ("batch", "length", "target_length", "lora_rank")
GIVEN_BY_MODEL = (
    "hidden_size",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_positions",
    "token_types",
    "rotary_dim",
    "sliding_window",
    "num_experts",
    "experts_per_token",
    "expert_size",
    "shared_experts",
    "shared_size",
    "expert_groups",
    "open_groups",
    "query_rank",
    "latent_dim",
    "value_dim",
    "relative_buckets",
    "image_vocab_size",
    "image_height",
    "image_width",
    "patch_size",
    "channels",
    "num_labels",
    "output_channels",
    "text_width",
    "pooled_width",
    "position_grid",
)
"""Sizes that are free in a recording; everything else is part of the key under which `_recordings` keeps it."""
RECORDINGS = 16
"""Recordings kept under one key; they differ in what their sizes decide, such as whether the batch is above 1."""


def _segments(architecture: Architecture, options: Options, plans: dict[str, Plan]) -> list[Segment]:
    """The stretches of a short model with one layer of each kind, from a recording if there is one."""
    given = [getattr(options, name) for name in GIVEN_BY_SETUP]
    given += [getattr(architecture, name) for name in GIVEN_BY_MODEL]
    recordings = _recordings(
        _without_sizes(architecture), _without_lengths(options), tuple([plan.course for plan in plans.values()])
    )
    for recording in recordings:
        segments = recording.segments(given)
        if segments is not None:
            return segments
    recording = _record(architecture, options, plans, Formulas(given))
    # At the front, because the next setup is most likely a neighbour of this one.
    recordings.insert(0, recording)
    del recordings[RECORDINGS:]
    return recording.segments(given)


@lru_cache(maxsize=512)
def _recordings(architecture: Architecture, options: Options, courses: tuple) -> list[Recording]:
    """The list of recordings under one key, newest first; the cache hands out the same list again, to be extended."""
    return []


@lru_cache(maxsize=1024)
def _without_sizes(architecture: Architecture) -> Architecture:
    """The part of a model that decides the events of its step:
    everything except sizes, and except a length that is not fixed."""
    fixed = {} if architecture.text_length else {"sequence_length": 0}
    no_counts = dict(name="", num_layers=0, num_decoder_layers=0, target_length=0, dropout=0, attention_dropout=0)
    return replace(architecture, **dict.fromkeys(GIVEN_BY_MODEL, 0), **no_counts, **fixed)


def _without_lengths(options: Options) -> Options:
    """The options without lengths, which do not change the events, and with dropout reduced to on or off."""
    return Options(
        batch=0,
        length=0,
        target_length=0,
        autocast=options.autocast,
        itemsize=options.itemsize,
        half=options.half,
        fused_attention=options.fused_attention,
        dropout=float(options.dropout > 0),
        attention_dropout=float(options.attention_dropout > 0),
        checkpoint_every=0,  # the plans say which layers are checkpointed
        shared_groups=0,
        reversible=options.reversible,
        accumulating=options.accumulating,
        lora=options.lora and _without_rank(options.lora),
        together=options.together,
        by_tokens=options.by_tokens,
        moving=options.moving,
        loss=options.loss,
        packed=options.packed,
        fp8=options.fp8,
        updating=options.updating,
        stage=options.stage,
    )


@lru_cache(maxsize=64)
def _without_rank(lora: Lora) -> Lora:
    return replace(lora, rank=0, dropout=float(lora.dropout > 0))


def _stacks(architecture: Architecture) -> Iterator[tuple[str, int]]:
    if architecture.num_decoder_layers:
        yield "encoder", architecture.num_layers
        yield "decoder", architecture.num_decoder_layers
    else:
        yield "layers", architecture.num_layers


@dataclass(frozen=True)
class Plan:
    """Plan of a stack: groups of layers with equal costs, and the layers that are played."""

    keys: tuple[tuple, ...]
    """One key for each layer; layers with the same key have the same events."""
    groups: tuple[int, ...]
    """For each layer, the number of the group that shares its weights."""
    played: tuple[int, ...]
    """Layers that are played: at least one for each key, and the first and the last layer that use its weights."""
    runs: tuple[tuple[tuple, int, int], ...]
    """Key, first and last layer of each run of layers with the same key, in order."""

    @cached_property
    def course(self) -> tuple:
        """For each layer that is played, its key and the first played layer with the same weights."""
        owners: dict[int, int] = {}
        return tuple(
            [
                (self.keys[index], owners.setdefault(self.groups[index], place))
                for place, index in enumerate(self.played)
            ]
        )


@lru_cache(maxsize=1024)
def _plan(
    architecture: Architecture,
    *,
    stack: str,
    layers: int,
    checkpoint_every: int,
    shared_groups: int,
    reversible: bool,
    folded: bool,
    adapted: bool,
) -> Plan:
    """Groups the layers of a stack by cost, and chooses those that are played.

    A key holds the layer's place where that matters (the first layer makes or keeps what others share), whether it is
    checkpointed, whether it is the first or the last layer to use its weights, and its attention mask. Autocast makes
    the 16-bit copy of a weight at its first use; backward allocates the gradient at its last one.
    """
    groups = _groups(architecture, shared_groups, layers)
    last_use = {group: index for index, group in enumerate(groups)}
    first_use = {group: index for index, group in reversed(list(enumerate(groups)))}
    every = checkpoint_every
    period = math.lcm(every or 1, len(architecture.attention_cycle) or 1)
    # Whether a copy of a shared weight is kept depends on which earlier layers with that weight were checkpointed, so
    # hardly two layers are alike: play all of them.
    whole = not folded or (every > 1 and len(last_use) < layers)
    kinds = [architecture.attention_kind(index) for index in range(layers)]
    keys = []
    for index, group in enumerate(groups):
        uses = (first_use[group] == index, last_use[group] == index)
        checkpointed = bool(every) and index % every == 0
        last = index == layers - 1
        if whole:
            place = index
        elif every > 1:
            # A block's last tensors may still be alive when the next block begins, so each layer is played between
            # its real neighbours.
            place = index if index < 2 * period or last else (2 * period, index % period)
        elif architecture.num_decoder_layers:
            place = (min(index, 2 if every else 1), last)
        elif architecture.diffuses:
            # The first layers of a kind read what another kind has made, and the last one is read by another kind.
            run = [i for i, kind in enumerate(kinds) if kind == kinds[index]]
            place = (min(run.index(index), 1 + bool(every)), index == run[-1])
        elif family_of(architecture).shares_tables:
            # The first layer of a kind is the first to keep its mask and rotary tables, and the last to release them.
            # With adapters it may be the second layer: the first one's queries may need no gradient.
            place = kinds.index(kinds[index]) == index if index > 1 or not adapted else f"layer {index}"
        else:
            # With adapters, the first layer's input needs no gradient, and the second one frees what the first keeps.
            differ = every or reversible or adapted or family_of(architecture).holds_embeddings
            place = min(index, 2 if adapted else 1) if differ else 0
        keys.append((stack, place, checkpointed, uses, kinds[index]))
    if whole:
        played = set(range(layers))
    elif every > 1:
        tail = layers - 2 * period - layers % period
        played = {index for index in range(layers) if index < 2 * period or index >= tail}
    else:
        played = _representatives(keys, groups, first_use, last_use)
    return Plan(tuple(keys), groups, tuple(sorted(played)), _runs(keys))


def _runs(keys: list[tuple]) -> tuple[tuple[tuple, int, int], ...]:
    """Computes `Plan.runs`: key, first and last layer of each run of layers with equal keys."""
    runs = []
    for key, run in groupby(range(len(keys)), key=keys.__getitem__):
        indices = list(run)
        runs.append((key, indices[0], indices[-1]))
    return tuple(runs)


def _representatives(keys: list[tuple], groups: tuple[int, ...], first_use: dict, last_use: dict) -> set[int]:
    """One layer for each key, and for each of them the first and the last layer that use its weights."""
    played: set[int] = set()
    for key in dict.fromkeys(keys):
        candidates = [index for index, other in enumerate(keys) if other == key]
        used = {groups[index] for index in played}
        chosen = next((index for index in candidates if groups[index] in used), candidates[0])
        played |= {chosen, first_use[groups[chosen]], last_use[groups[chosen]]}
    return played


def _groups(architecture: Architecture, shared_groups: int, layers: int) -> tuple[int, ...]:
    """For each layer, the group whose weights it uses; see `calculator.parts.parameters.distinct_layers`."""
    distinct = distinct_layers(architecture, layers, shared_groups)
    if shared_groups and architecture.own_last_layer:
        return (*(index % (distinct - 1) for index in range(layers - 1)), distinct - 1)
    return tuple(index % distinct for index in range(layers))


def _record(architecture: Architecture, options: Options, plans: dict[str, Plan], formulas: Formulas) -> Recording:
    """Plays a short model with one layer of each kind."""
    kind = Operations
    if options.together:
        kind = partial(DividedOperations, gpus=options.together, by_tokens=options.by_tokens)
    elif options.fp8:
        kind = EightBitOperations
    tape = kind(
        formulas,
        itemsize=options.itemsize,
        autocast=options.autocast,
        half=options.half,
        accumulating=options.accumulating,
        moving=options.moving,
        updating=options.updating is not None or options.stage > 1,
        arriving=options.stage > 0,
    )
    lengths = dict(zip(GIVEN_BY_SETUP, formulas.given, strict=False))
    architecture = replace(
        architecture, **dict(zip(GIVEN_BY_MODEL, formulas.given[len(GIVEN_BY_SETUP) :], strict=True))
    )
    one = part if options.together else partial(_whole, optimizer=options.updating)
    making = partial(_made, itemsize=options.itemsize, lora=options.lora, rank=lengths.pop("lora_rank"), one=one)
    outside, stacks = _weighted(architecture, plans, making)
    context = Context(
        tape=tape,
        architecture=architecture,
        **lengths,
        fused_attention=options.fused_attention,
        dropout=options.dropout,
        attention_dropout=options.attention_dropout,
        half=options.half,
        reversible=options.reversible,
        loss=options.loss,
        packed=options.packed,
        weights=outside,
        stacks=stacks,
    )
    collecting = gc.isenabled()
    gc.disable()  # reference counts free all that is made here; the collector would only cost a tenth of the time
    try:
        _play_through(context)
    finally:
        if collecting:
            gc.enable()
    return Recording(tape, formulas)


def _weighted(
    architecture: Architecture, plans: dict[str, Plan], making: Callable[[ParameterGroup], dict[str, Matrix]]
) -> tuple[dict[str, Matrix], dict[str, list[Layer]]]:
    """The parameters outside of the layers, and the played layers of each stack with theirs."""
    outside: dict[str, Matrix] = {}
    stacks = {
        stack: [Layer((plan.keys[index], index), {}, plan.keys[index][2], plan.keys[index][4]) for index in plan.played]
        for stack, plan in plans.items()
    }
    for group in family_of(architecture).parameters(architecture):
        if not group.stack:
            outside |= making(group)
            continue
        plan = plans[group.stack]
        shared: dict[int, dict[str, Matrix]] = {}
        for index, layer in zip(plan.played, stacks[group.stack], strict=True):
            if group.only not in layer.kind:
                continue
            owner = plan.groups[index] if group.shareable else index
            if owner not in shared:
                shared[owner] = making(group)
            layer.weights.update(shared[owner])
    return outside, stacks


def _play_through(context: Context) -> None:
    tape = context.tape
    tape.enter("inputs")
    loss, logits = family_of(context.architecture).forward(context)
    tape.enter("end of forward")
    tape.leave_autocast()
    del logits
    tape.phase = "backward"
    tape.enter("head")
    tape.backward(loss)
    tape.enter(None)
    tape.forget()


def _whole(name: str, shape: tuple[int, ...], itemsize: int, optimizer: Optimizer | None) -> Parameter:
    """Makes a parameter, which this optimizer updates during backward, if there is one."""
    update = optimizer.alone_bytes(ParameterTensor(name, "", shape, 1), itemsize) if optimizer else 0
    return Parameter(shape, itemsize, update)


def _made(group: ParameterGroup, itemsize: int, lora: Lora | None, rank: int, one: Callable) -> dict[str, Matrix]:
    if lora is None:
        return {name: one(name, shape, itemsize) for name, shape in group.shapes.items()}
    return {name: _frozen(name, shape, lora, rank, one) for name, shape in group.shapes.items()}


def _frozen(name: str, shape: tuple[int, ...], lora: Lora, rank: int, one: Callable) -> FrozenWeight:
    adapter = None
    if lora.has_adapter(name):
        inner, outer = lora.widths(shape)
        a, size = (rank, inner), lora.adapter_itemsize
        a = FrozenWeight(a, size) if lora.freeze_a else one(name, a, size)
        adapter = Adapter(a, one(name, (outer, rank), size), lora.dropout)
    scales = -(-shape[0] * shape[1] // NF4_BLOCK) if lora.is_quantized(name) else None
    return FrozenWeight(shape, lora.itemsize(name), scales, adapter)


def _put_together(segments: list[Segment], plans: dict[str, Plan]) -> Timeline:
    """The whole model's step from the segments of the short model's."""
    instants: list[Instant] = []
    after_forward = put_together("forward", segments, plans, Levels(), instants)
    after_backward = put_together("backward", segments, plans, after_forward, instants)
    return Timeline(tuple(instants), after_forward, after_backward)


def put_together(
    phase: str, segments: list[Segment], plans: dict[str, Plan], level: Levels, instants: list[Instant]
) -> Levels:
    """Adds the instants of the whole model's forward or backward, which begins at a level; returns its last level."""
    course: dict[object, Segment] = {}
    for segment in segments:
        if segment.phase == phase:
            # The first one with a key: others with the same key are equal.
            course.setdefault(segment.key[0] if isinstance(segment.key, tuple) else segment.key, segment)
    for key, first, last in expanded(course, plans, reverse=phase == "backward"):
        if key not in course:  # layers before all adapters have no backward
            continue
        level = repeat(instants, course[key], key, level, first, last)
        if key in ("end of forward", "handing over"):
            level = _all_dropped(level, course[key].change)
    return level


def _all_dropped(level: Levels, change: Levels) -> Levels:
    """Frees all cached copies of weights, or all gradients, where the short model freed those of its few layers."""
    cached = level.cached if change.cached < 0 else 0
    gradients = level.gradients if change.gradients < 0 else 0
    return level - Levels(live=cached + gradients, cached=cached, gradients=gradients)


def expanded(course: dict, plans: dict[str, Plan], *, reverse: bool) -> Iterator[tuple[object, int, int]]:
    """Keys of the whole step in the order in which they run, each with the first and the last layer of a run."""
    seen = set()
    for key in course:
        if not isinstance(key, tuple):
            yield key, 0, 0
        elif key[0] not in seen:
            seen.add(key[0])
            runs = plans[key[0]].runs
            if reverse:
                yield from ((kind, last, first) for kind, first, last in reversed(runs))
            else:
                yield from runs


def repeat(instants: list[Instant], segment: Segment, key: object, level: Levels, first: int, last: int) -> Levels:
    """Adds a run of equal segments, one for each layer from `first` to `last`.

    Each has the same peak above its own start. So where a layer adds memory (forward), the last layer's peak is the
    highest; where a layer frees memory (backward), the first one's.
    """
    phase, _, change, peak, _ = segment
    before_last = level
    if first != last:
        times = abs(last - first)
        # Written out for speed: an estimate does this for each run of layers.
        live, activations, weight_copies, gradients, cached, _ = level
        before_last = Levels(
            live + change.live * times,
            activations + change.activations * times,
            weight_copies + change.weight_copies * times,
            gradients + change.gradients * times,
            cached + change.cached * times,
        )
    index, base = (last, before_last) if change.live > 0 else (first, level)
    place = f"{key[0].removesuffix('s')} {index + 1}" if isinstance(key, tuple) else PLACES[key]
    instants.append(Instant(phase, place, base + peak))
    return before_last + change
