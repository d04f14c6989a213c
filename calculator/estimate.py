"""Setup -> Estimate: the memory of one training step on one device and its host. The parts add up by construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache

from calculator.architectures import PRESETS, Architecture, from_config
from calculator.autograd import Levels, allocated_bytes
from calculator.errors import BadSetup
from calculator.optimizers import ADAMW, IN_32_BIT, OPTIMIZERS, Optimizer
from calculator.parameters import FAMILIES, count_parameters, parameter_tensors, parameters_by_part
from calculator.timeline import Instant, Options, play

PRECISIONS = ("amp-bf16", "amp-fp16", "fp32", "bf16", "fp16")
ATTENTIONS = ("sdpa", "eager")
PCIE_BYTES_PER_SECOND = {3: 15_753_846_153, 4: 31_507_692_307, 5: 63_015_384_615}
"""16 lanes, one direction, 128b/130b coding (PCI-SIG base specifications 3.0, 4.0, 5.0)."""
CUDA_CONTEXT_BYTES = 500 * 2**20
"""The driver's own memory, not part of any figure that PyTorch reports: 300 MiB to 1 GiB by GPU and driver. Other
calculators take 650 MB (RahulSChand/gpu_poor, src/App.js) and 1000 MiB (furiousteabag/vram-calculator, README)."""
CUBLAS_WORKSPACE_BYTES = {"default": 8_519_680}
"""Workspace of cuBLAS, once per stream (pytorch, aten/src/ATen/cuda/CUDAContextLight.h, CUBLAS_WORKSPACE_CONFIG)."""

MIB = 2**20
SMALL_BLOCK, SMALL_SEGMENT = MIB, 2 * MIB
LARGE_BLOCK, LARGE_SEGMENT = 10 * MIB, 20 * MIB
SEGMENT_UNIT = 2 * MIB
"""Blocks up to `SMALL_BLOCK` share segments of `SMALL_SEGMENT`, those below `LARGE_BLOCK` segments of `LARGE_SEGMENT`;
larger ones have their own, in steps of `SEGMENT_UNIT` (pytorch, c10/cuda/CUDACachingAllocator.cpp, kSmallSize,
kSmallBuffer, kMinLargeAlloc, kLargeBuffer, kRoundLarge)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What is trained, and how. Every field is a flag of the command line and a key of a batch line."""

    model: str | None = None
    """Name of a preset (see `calculator.architectures.PRESETS`); None if `config` is given."""
    config: Mapping[str, object] | None = None
    """A Hugging Face `config.json` of a supported family, in place of `model`."""
    micro_batch_size: int = 1
    """B, sequences per forward pass on one device."""
    sequence_length: int | None = None
    """T, tokens a sequence; of the encoder, if there are two stacks. None: the model's own."""
    target_length: int | None = None
    """Tokens a sequence of the decoder, if there are two stacks. None: the model's own."""
    precision: str = "amp-bf16"
    """One of `PRECISIONS`; `amp-*` is autocast over 32-bit parameters, `bf16` and `fp16` are all of it."""
    attention: str = "sdpa"
    """"sdpa" (fused kernels) or "eager" (single operations)."""
    dropout: float | None = None
    """Dropout probability everywhere; None: the model's own."""
    checkpointing: bool | int = False
    """Whether each block is computed again in backward, or k for every k-th."""
    shared_groups: int | None = None
    """Distinct layer groups of each stack; None: the model's own."""
    reversible: bool | None = None
    """Whether layers are reversible; None: the model's own."""
    optimizer: str = "adamw"
    """One of `calculator.optimizers.OPTIMIZERS`."""
    optimizer_impl: str = "foreach"
    """Of AdamW: "foreach", "for-loop" or "fused"."""
    offload_optimizer: bool = False
    """Whether optimizer state, a 32-bit copy of the parameters and the update are on the host."""
    delta_rule: bool = False
    """Whether hivemind's delta rule keeps one more copy of the parameters on the host."""
    accumulation_steps: int = 1
    """Micro-batches per optimizer step on this device."""
    embeddings_32bit: bool = False
    """Whether 8-bit optimizers keep 32-bit state for embeddings, as transformers' Trainer makes bitsandbytes do."""
    pcie_generation: int = 3
    """Of the bus between host and device: 3, 4 or 5, 16 lanes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuMemory:
    """Bytes on the device at the peak of the step."""

    weights: int
    """Parameters and buffers."""
    gradients: int
    """Of the parameters, as far as they are there at the peak."""
    optimizer_state: int
    activations: int
    """Kept for backward, with the inputs and autocast's copies of weights."""
    temporary: int
    """What the operation at the peak works with."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.weights + self.gradients + self.optimizer_state + self.activations + self.temporary


@dataclass(frozen=True, kw_only=True, slots=True)
class HostMemory:
    """Bytes on the host, without the process itself and network buffers."""

    parameters: int
    """32-bit copy that the optimizer updates."""
    gradients: int
    """32-bit, averaged or accumulated."""
    optimizer_state: int
    delta_rule: int
    """One more copy of the parameters."""

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.parameters + self.gradients + self.optimizer_state + self.delta_rule


@dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The instant at which the device holds most."""

    phase: str
    """"forward", "backward" or "optimizer"."""
    instant: str
    """One sentence: when it is, and the largest parts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInstant:
    """The highest instant of one stretch of the step. The parts, as in `GpuMemory`, add up to `bytes`."""

    phase: str
    """"forward", "backward" or "optimizer"."""
    place: str
    """Where in the model, for people: "layer 12", "output head and loss"."""
    instant: str
    """The operation; empty where it is the place itself."""
    bytes: int
    """All that the device holds then."""
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    temporary: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """Bytes that cross the bus in one optimizer step."""

    bytes_per_step: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The answer to a setup. `as_dict` is its JSON form."""

    model: str
    parameters: int
    parameters_by_part: dict[str, int]
    gpu: GpuMemory
    saved_activations: int
    """Kept for backward at the end of forward, without autocast's copies of weights."""
    autocast_weight_copies: int
    """16-bit copies of weights kept for backward at the end of forward."""
    gradient_bytes: int
    """All gradients of the parameters on the device."""
    optimizer_state_bytes: int
    """Optimizer state on the device."""
    host: HostMemory
    peak: Peak
    timeline: tuple[StepInstant, ...]
    transfer: Transfer
    overhead: dict[str, int]
    """Not in `gpu.total`: what no figure of PyTorch's allocator contains."""
    notes: tuple[str, ...]
    """Sentences about what was counted in another way than the setup may suggest."""

    def as_dict(self) -> dict:
        """The result as plain data."""
        result = _plain(self)
        for name in ("gpu", "host"):
            part = result[name]
            result[name] = {**_plain(part), "total": part.total}
        for name in ("peak", "transfer"):
            result[name] = _plain(result[name])
        result["timeline"] = [_plain(instant) for instant in self.timeline]
        result["notes"] = list(self.notes)
        return result


def _plain(record: object) -> dict:
    """Names and values of a dataclass (unlike `asdict`, without copies of what is in them)."""
    return {name: getattr(record, name) for name in record.__slots__}


def estimate(setup: Setup) -> Estimate:
    """The memory of one training step.

    Raises:
        BadSetup: If the setup names something unknown or a combination that cannot exist.

    >>> result = estimate(Setup(model="gpt2", precision="fp32", attention="eager"))
    >>> result.parameters, result.gpu.total == max(instant.bytes for instant in result.timeline)
    (124439808, True)
    """
    architecture = resolve(setup)
    shared = architecture.shared_groups if setup.shared_groups is None else setup.shared_groups
    itemsize = 2 if setup.precision in ("bf16", "fp16") else 4
    optimizer = ADAMW[setup.optimizer_impl] if setup.optimizer == "adamw" else OPTIMIZERS[setup.optimizer]
    fixed = _fixed(architecture, shared, itemsize, optimizer, setup.embeddings_32bit)
    timeline = play(architecture, _options(setup, architecture, shared, itemsize))

    inputs = _input_bytes(setup, architecture)
    state = 0 if setup.offload_optimizer else fixed.state_bytes
    weights = fixed.weight_bytes + _buffer_bytes(setup, architecture)
    accumulated = fixed.weight_bytes if setup.accumulation_steps > 1 else 0
    step = 0 if setup.offload_optimizer else fixed.step_bytes
    after = timeline.after_backward
    # the loss stays until the step is over
    updating = Instant(
        "optimizer",
        "the update",
        Levels(fixed.weight_bytes + step + after.live - after.gradients, 0, 0, fixed.weight_bytes),
    )
    instants = [_accumulating(instant, accumulated) for instant in timeline.instants] + [updating]
    highest = max(instants, key=lambda instant: instant.levels.live)
    gpu = _gpu(highest.levels, weights, state, inputs)
    return Estimate(
        model=architecture.name,
        parameters=count_parameters(architecture, shared),
        parameters_by_part=parameters_by_part(architecture, shared),
        gpu=gpu,
        saved_activations=timeline.after_forward.activations,
        autocast_weight_copies=timeline.after_forward.weight_copies,
        gradient_bytes=fixed.weight_bytes,
        optimizer_state_bytes=state,
        host=_host(setup, fixed, optimizer),
        peak=Peak(phase=highest.phase, instant=_sentence(highest, gpu)),
        timeline=tuple([_step_instant(instant, weights, state, inputs) for instant in instants]),
        transfer=_transfer(setup, fixed),
        overhead=_overhead(fixed),
        notes=_notes(setup, architecture),
    )


def setup_from(values: Mapping[str, object]) -> Setup:
    """A setup from plain data, such as a line of JSON.

    Raises:
        BadSetup: If a key is unknown.
    """
    if not isinstance(values, Mapping):
        raise BadSetup(f"A setup is an object with keys such as model and precision, not {_shown(values)}.")
    known = [field.name for field in fields(Setup)]
    unknown = [key for key in values if key not in known]
    if unknown:
        raise BadSetup(f"Unknown key {_shown(unknown[0])}; a setup may have: {', '.join(known)}.")
    return Setup(**values)


def resolve(setup: Setup) -> Architecture:
    """The model of a setup, after every field was checked.

    Raises:
        BadSetup: If a field is out of range or a combination cannot exist; the message says what is accepted.
    """
    if setup.config is not None:
        if setup.model is not None:
            raise BadSetup("Give either model or config, not both.")
        architecture = from_config(setup.config)
    else:
        _one_of("model", setup.model, tuple(PRESETS))
        architecture = PRESETS[setup.model]
    _one_of("precision", setup.precision, PRECISIONS)
    _one_of("attention", setup.attention, ATTENTIONS)
    _one_of("optimizer", setup.optimizer, tuple(OPTIMIZERS))
    _one_of("optimizer_impl", setup.optimizer_impl, tuple(ADAMW))
    _one_of("pcie_generation", setup.pcie_generation, tuple(PCIE_BYTES_PER_SECOND))
    _whole("micro_batch_size", setup.micro_batch_size, 1, 1_000_000)
    _whole("accumulation_steps", setup.accumulation_steps, 1, 1_000_000)
    longest = architecture.max_positions or 1_000_000
    if architecture.family == "text-to-image":
        longest = architecture.sequence_length
        if setup.sequence_length not in (None, longest):
            raise BadSetup(
                f"sequence_length of {architecture.name} is fixed at {longest} by its text length and image grid; "
                f"leave it out."
            )
    if setup.sequence_length is not None:
        _whole("sequence_length", setup.sequence_length, 1, longest)
    if setup.target_length is not None:
        if not architecture.num_decoder_layers:
            raise BadSetup(
                f"target_length is for models with a decoder of their own (T5); {architecture.name} has none."
            )
        _whole("target_length", setup.target_length, 1, 1_000_000)
    _probability("dropout", setup.dropout)
    for name in ("offload_optimizer", "delta_rule", "embeddings_32bit"):
        if not isinstance(getattr(setup, name), bool):
            raise BadSetup(f"{name} is true or false, not {_shown(getattr(setup, name))}.")
    layers = architecture.num_layers
    if architecture.num_decoder_layers:
        layers = min(layers, architecture.num_decoder_layers)
    if not isinstance(setup.checkpointing, bool):
        _whole("checkpointing", setup.checkpointing, 1, layers, or_else="false, true, or k for every k-th block")
    if setup.shared_groups is not None:
        _whole("shared_groups", setup.shared_groups, 1, layers)
    _check_combinations(setup, architecture)
    return architecture


def _check_combinations(setup: Setup, architecture: Architecture) -> None:
    if setup.reversible not in (None, True, False):
        raise BadSetup(f"reversible is null, true or false, not {_shown(setup.reversible)}.")
    reversible = architecture.reversible if setup.reversible is None else setup.reversible
    if reversible and architecture.family != "text-to-image":
        raise BadSetup(f"Reversible layers exist for the text-to-image family only, not for {architecture.name}.")
    if reversible and setup.checkpointing:
        raise BadSetup(
            "Reversible layers keep no activations, so checkpointing cannot be added; choose one of the two."
        )
    if setup.delta_rule and not setup.offload_optimizer:
        raise BadSetup("delta_rule is a copy beside the offloaded optimizer; it needs offload_optimizer.")
    if setup.optimizer.startswith("paged") and setup.offload_optimizer:
        raise BadSetup("A paged optimizer moves its own state to the host; it cannot be offloaded as well.")
    if setup.optimizer_impl != "foreach" and setup.optimizer != "adamw":
        raise BadSetup(f"optimizer_impl is for the optimizer adamw; {setup.optimizer} has one implementation.")


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Sizes that follow from the parameters alone."""

    values: int
    tensors: int
    weight_bytes: int
    copy_bytes: int
    """A 32-bit copy of all parameters."""
    state_bytes: int
    host_state_bytes: int
    """State of the same optimizer when it updates the 32-bit copy on the host."""
    paged_bytes: int
    step_bytes: int
    unused_bytes: int
    """What the weights leave unused of the allocator's segments."""


@lru_cache(maxsize=1024)
def _fixed(
    architecture: Architecture, shared_groups: int, itemsize: int, optimizer: Optimizer, embeddings_32bit: bool
) -> _Fixed:
    values = tensors = weights = copies = host = paged = whole = largest = 0
    previous = small = medium = unused = 0
    state = optimizer.shared_bytes
    host = optimizer.shared_bytes
    for tensor in parameter_tensors(architecture, shared_groups):
        times, count = tensor.copies, tensor.count
        block = allocated_bytes(count, itemsize)
        values += times * count
        tensors += times
        weights += times * block
        if block <= SMALL_BLOCK:
            small += times * block
        elif block < LARGE_BLOCK:
            medium += times * block
        else:
            unused += times * (-block % SEGMENT_UNIT)
        copies += times * allocated_bytes(count, 4)
        chosen, size = optimizer, itemsize
        if embeddings_32bit and optimizer.name in IN_32_BIT and tensor.is_embedding:
            chosen, size = IN_32_BIT[optimizer.name], 4
        state += times * chosen.state_bytes(tensor, size)
        host += times * chosen.state_bytes(tensor, 4)
        if chosen.paged is not None:
            paged += times * (chosen.paged.bytes_of(count, size) - chosen.state_bytes(tensor, size))
        step = optimizer.step_bytes(tensor, itemsize)
        whole += times * step
        largest = max(largest, step + max(previous, optimizer.later_bytes(tensor, itemsize)))
        previous = optimizer.kept_bytes(tensor, itemsize)
    if optimizer.step_counters:
        host += tensors * allocated_bytes(1, 4)
    unused += -small % SMALL_SEGMENT + -medium % LARGE_SEGMENT
    step_bytes = whole if optimizer.whole_step else largest
    return _Fixed(values, tensors, weights, copies, state, host, paged, step_bytes, unused)


def _options(setup: Setup, architecture: Architecture, shared: int, itemsize: int) -> Options:
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
        shared_groups=shared,
        reversible=architecture.reversible if setup.reversible is None else setup.reversible,
        accumulating=setup.accumulation_steps > 1,
    )


def _input_bytes(setup: Setup, architecture: Architecture) -> int:
    """Token ids and labels, 64-bit integers."""
    length = setup.sequence_length or architecture.sequence_length
    ids = allocated_bytes(setup.micro_batch_size * length, 8)
    if architecture.family == "text-to-image":
        text = allocated_bytes(setup.micro_batch_size * architecture.text_length, 8)
        return text + allocated_bytes(setup.micro_batch_size * (length - architecture.text_length), 8)
    labels = setup.target_length or architecture.target_length or length
    return ids + allocated_bytes(setup.micro_batch_size * labels, 8)


def _buffer_bytes(setup: Setup, architecture: Architecture) -> int:
    """Tables that are part of the model but not trained."""
    return FAMILIES[architecture.family].buffer_bytes(architecture, 4 if setup.precision == "fp32" else 2)


def _accumulating(instant: Instant, accumulated: int) -> Instant:
    if not accumulated:
        return instant
    levels = instant.levels
    return Instant(
        instant.phase,
        instant.place,
        Levels(levels.live + accumulated, levels.activations, levels.weight_copies, accumulated, levels.instant),
    )


def _gpu(levels: Levels, weights: int, state: int, inputs: int) -> GpuMemory:
    kept = levels.activations + levels.weight_copies
    return GpuMemory(
        weights=weights,
        gradients=levels.gradients,
        optimizer_state=state,
        activations=inputs + kept,
        temporary=levels.live - kept - levels.gradients,
    )


def _step_instant(instant: Instant, weights: int, state: int, inputs: int) -> StepInstant:
    levels = instant.levels
    kept = levels.activations + levels.weight_copies
    return StepInstant(
        phase=instant.phase,
        place=instant.place,
        instant=levels.instant,
        bytes=weights + state + inputs + levels.live,
        weights=weights,
        gradients=levels.gradients,
        optimizer_state=state,
        activations=inputs + kept,
        temporary=levels.live - kept - levels.gradients,
    )


def plain(setup: Setup) -> Setup:
    """The same model, batch and lengths without any technique: 32 bit, single operations, AdamW, nothing saved."""
    architecture = resolve(setup)
    layers = min(architecture.num_layers, architecture.num_decoder_layers or architecture.num_layers)
    text_to_image = architecture.family == "text-to-image"
    return Setup(
        model=setup.model,
        config=setup.config,
        micro_batch_size=setup.micro_batch_size,
        sequence_length=setup.sequence_length,
        target_length=setup.target_length,
        dropout=setup.dropout,
        accumulation_steps=setup.accumulation_steps,
        pcie_generation=setup.pcie_generation,
        precision="fp32",
        attention="eager",
        shared_groups=layers if architecture.shared_groups else None,
        reversible=False if text_to_image else None,
    )


def _host(setup: Setup, fixed: _Fixed, optimizer: Optimizer) -> HostMemory:
    if not setup.offload_optimizer:
        return HostMemory(parameters=0, gradients=0, optimizer_state=fixed.paged_bytes, delta_rule=0)
    return HostMemory(
        parameters=fixed.copy_bytes,
        gradients=fixed.copy_bytes,
        optimizer_state=fixed.host_state_bytes,
        delta_rule=fixed.copy_bytes if setup.delta_rule else 0,
    )


def _transfer(setup: Setup, fixed: _Fixed) -> Transfer:
    """Gradients down and parameters up, in the device's precision."""
    moved = 2 * fixed.weight_bytes if setup.offload_optimizer else 0
    return Transfer(bytes_per_step=moved, seconds=moved / PCIE_BYTES_PER_SECOND[setup.pcie_generation])


def _overhead(fixed: _Fixed) -> dict[str, int]:
    """Beside PyTorch's allocated memory; of the segments, those of weights and gradients."""
    parts = {
        "cuda_context": CUDA_CONTEXT_BYTES,
        "cublas_workspace": CUBLAS_WORKSPACE_BYTES["default"],
        "allocator_rounding": 2 * fixed.unused_bytes,
    }
    return {**parts, "total": sum(parts.values())}


def _notes(setup: Setup, architecture: Architecture) -> tuple[str, ...]:
    notes = []
    if architecture.family == "gptj" and setup.attention == "sdpa":
        notes.append("The code of GPT-J has no fused attention: its single operations are counted.")
    if architecture.family == "text-to-image":
        notes.append("The run's model has its own attention: eager and sdpa make no difference.")
        if architecture.reversible if setup.reversible is None else setup.reversible:
            notes.append("Reversible layers are counted with all activations computed again (activation budget 0).")
    if setup.offload_optimizer:
        notes.append(
            "Making the optimizer takes gradients for a moment; the trainer gives that host memory back, others may "
            "keep up to 4 bytes a parameter of it (benchmarks/memory_on_host.py)."
        )
    shared = setup.shared_groups is not None and architecture.family != "text-to-image"
    if shared:
        notes.append("Layers i and j share all weights where i mod shared_groups equals j mod shared_groups.")
    return tuple(notes)


def _sentence(instant: Instant, gpu: GpuMemory) -> str:
    parts = sorted(_plain(gpu).items(), key=lambda part: -part[1])
    largest = " and ".join(f"{name.replace('_', ' ')} ({size / 2**30:.2f} GiB)" for name, size in parts[:2])
    if instant.phase == "optimizer":
        when = "In the optimizer's update"
    else:
        what = f", at the {instant.levels.instant}" if instant.levels.instant else ""
        when = f"In {instant.phase}, {instant.place}{what}"
    return f"{when}; the largest parts are {largest}."


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _one_of(name: str, value: object, accepted: tuple) -> None:
    if isinstance(value, bool) or value not in accepted:
        raise BadSetup(f"{name} is one of {', '.join(map(str, accepted))}, not {_shown(value)}.")


def _whole(name: str, value: object, least: int, most: int, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        accepted = f"a whole number from {least} to {most}"
        raise BadSetup(f"{name} is {or_else + ', ' if or_else else ''}{accepted}, not {_shown(value)}.")


def _probability(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1):
        raise BadSetup(f"{name} is null or a number from 0 to below 1, not {_shown(value)}.")
