"""Plays the step of a checked setup: the memory of the device at each instant, and the sizes that do not change."""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculator.families.family import Batch
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture
from calculator.parts.adapters import Lora, adapter_tensors
from calculator.parts.parameters import parameter_tensors
from calculator.step.fixed import FixedSizes, sizes_of_model, sizes_of_shards, with_largest_state
from calculator.step.gpus.deepspeed import Zero, play_with_deepspeed, sizes_with_deepspeed
from calculator.step.gpus.sharding import Course, gradient_bytes, play_sharded
from calculator.step.resolve import Training, itemsize_of
from calculator.step.setups import DEEPSPEED, DIVIDED, Setup
from calculator.step.timeline import Options, Timeline, play
from calculator.tape.autograd import allocated_bytes
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS, part_of_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """One step on the device, before anything is added up."""

    fixed: FixedSizes
    timeline: Timeline
    """Everything but weights that the device always holds, optimizer state and inputs."""
    gradient_bytes: int
    """All gradients of the parameters on the device."""
    input_bytes: int
    """Inputs and labels of one micro-batch."""
    buffer_bytes: int
    """Tables that belong to the model but are not trained."""
    moved_bytes: int
    """Activations that the host keeps."""


def played(training: Training) -> Played:
    """Plays forward and backward of one micro-batch."""
    setup, architecture, lora = training.setup, training.architecture, training.lora
    itemsize = itemsize_of(setup)
    options = _options(training, lora.rest_itemsize if lora else itemsize)
    course = _course(setup, itemsize, lora)
    if setup.sharding in DEEPSPEED:
        fixed, timeline, gradients = _with_deepspeed(training, options)
    elif course:
        fixed, timeline, gradients = _divided(training, options, course)
    else:
        fixed, timeline, gradients = _whole(training, options, lora.adapter_itemsize if lora else itemsize)
    timeline, moved = _activations_moved(setup, timeline)
    return Played(
        fixed=fixed,
        timeline=timeline,
        gradient_bytes=gradients,
        input_bytes=_input_bytes(setup, architecture),
        buffer_bytes=_buffer_bytes(setup, architecture),
        moved_bytes=moved,
    )


def _divided(training: Training, options: Options, course: Course) -> tuple[FixedSizes, Timeline, int]:
    """Sizes, step and gradients where FSDP2 divides the weights."""
    architecture, lora = training.architecture, training.lora
    # The whole gradients of a micro-batch are always new ones; only their sums are added to those of earlier ones.
    options = replace(options, accumulating=False, autocast=False)
    if course.cast:
        cast = {"adapter_itemsize": course.cast, "rest_itemsize": course.cast, "base_bits": 16}
        gathered = lora and replace(lora, **cast, in_32_bits=frozenset())
        options = replace(options, itemsize=course.cast, lora=gathered)
    fixed = sizes_of_shards(architecture, course.gpus, course.stored, training.optimizer, lora)
    # The gradients of a layer are parts of one block.
    return fixed, play_sharded(architecture, options, course), gradient_bytes(architecture, course)


def _with_deepspeed(training: Training, options: Options) -> tuple[FixedSizes, Timeline, int]:
    """Sizes, step and gradients where DeepSpeed divides state and gradients; 16 bits are those of the weights."""
    setup, architecture = training.setup, training.architecture
    itemsize = 2 if setup.precision.startswith("amp-") else 4
    zero = Zero(stage=int(setup.sharding[-1]), gpus=setup.gpus, itemsize=itemsize)
    options = replace(options, autocast=False, itemsize=itemsize, stage=zero.stage)
    fixed = sizes_with_deepspeed(architecture, zero, training.optimizer)
    return fixed, play_with_deepspeed(architecture, options, zero), fixed.gradient_bytes


def _whole(training: Training, options: Options, trained_itemsize: int) -> tuple[FixedSizes, Timeline, int]:
    """Sizes, step and gradients where each GPU has all weights, or a part of every matrix."""
    setup, architecture, lora = training.setup, training.architecture, training.lora
    shared, optimizer = training.shared_groups, training.optimizer
    if setup.sharding in TENSOR_SHARDINGS:
        architecture = part_of_model(architecture, setup.gpus)
        options = replace(options, together=setup.gpus, by_tokens=setup.sharding == "tensor-sequence")
    fixed = sizes_of_model(
        architecture, shared, trained_itemsize, optimizer, setup.embeddings_32bit, lora, setup.optimizer_in_backward
    )
    gradients = fixed.gradient_bytes
    more = family_of(architecture).more_gradient_bytes
    if more and lora is None and not setup.optimizer_in_backward:
        gradients += more(architecture, setup.micro_batch_size, trained_itemsize)
    if options.together:
        # The embedding's gradient is whole on every GPU.
        table = architecture.vocab_size * architecture.hidden_size
        gradients += allocated_bytes(table * setup.gpus, trained_itemsize) - allocated_bytes(table, trained_itemsize)
    if setup.sharding == "zero-1":
        trained = adapter_tensors(architecture, lora) if lora else parameter_tensors(architecture, shared)
        fixed = with_largest_state(fixed, trained, setup.gpus, trained_itemsize, optimizer)
    return fixed, play(architecture, options), gradients


def _course(setup: Setup, itemsize: int, lora: Lora | None) -> Course | None:
    """FSDP2's way to divide the model; None if the setup does not use it."""
    if setup.sharding not in DIVIDED:
        return None
    return Course(
        gpus=setup.gpus,
        reshard=setup.sharding == "zero-3",
        stored=lora.adapter_itemsize if lora else itemsize,
        cast=2 if setup.precision.startswith("amp-") else None,
        accumulating=setup.accumulation_steps > 1,
        lora=lora,
        waits=lora is not None and not setup.checkpointing,
    )


def _options(training: Training, itemsize: int) -> Options:
    setup, architecture = training.setup, training.architecture
    return Options(
        batch=setup.micro_batch_size,
        length=setup.sequence_length or architecture.sequence_length,
        target_length=setup.target_length or architecture.target_length,
        autocast=setup.precision.startswith("amp-"),
        itemsize=itemsize,
        half="" if setup.precision == "fp32" else setup.precision.removeprefix("amp-"),
        fused_attention=setup.attention == "sdpa",
        dropout=architecture.dropout if setup.dropout is None else setup.dropout,
        attention_dropout=architecture.attention_dropout if setup.dropout is None else setup.dropout,
        checkpoint_every=int(setup.checkpointing),
        shared_groups=training.shared_groups,
        reversible=architecture.reversible if setup.reversible is None else setup.reversible,
        accumulating=setup.accumulation_steps > 1,
        moving=setup.offload_activations,
        loss=setup.loss,
        packed=setup.packed,
        fp8=setup.fp8,
        lora=training.lora,
        updating=training.optimizer if setup.optimizer_in_backward else None,
    )


def _itemsize_without_adapters(setup: Setup) -> int:
    return 2 if setup.base_bits == 16 else itemsize_of(setup)


def _input_bytes(setup: Setup, architecture: Architecture) -> int:
    batch = Batch(
        samples=setup.micro_batch_size,
        length=setup.sequence_length or architecture.sequence_length,
        target_length=setup.target_length or architecture.target_length,
        packed=setup.packed,
        itemsize=_itemsize_without_adapters(setup),
    )
    return family_of(architecture).input_bytes(architecture, batch)


def _buffer_bytes(setup: Setup, architecture: Architecture) -> int:
    """Bytes of tables that belong to the model but are not trained."""
    itemsize = 4 if setup.precision == "fp32" else 2
    if architecture.diffuses:
        itemsize = _itemsize_without_adapters(setup)
    return family_of(architecture).buffer_bytes(architecture, itemsize)


def _activations_moved(setup: Setup, timeline: Timeline) -> tuple[Timeline, int]:
    """The step as the GPU sees it, and the bytes of activations that the host keeps, if it does."""
    if not setup.offload_activations:
        return timeline, 0
    moved = timeline.after_forward.activations
    instants = [i._replace(levels=i.levels._replace(activations=0, weight_copies=0)) for i in timeline.instants]
    after = timeline.after_forward._replace(activations=0, weight_copies=0)
    return Timeline(tuple(instants), after, timeline.after_backward), moved
