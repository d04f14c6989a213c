"""Resolves a setup: checks every field, and finds the model, optimizer and adapters that they name."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.models.architectures import Architecture, from_config
from calculator.models.names import preset
from calculator.models.picture_models import LARGEST_PICTURE, with_picture
from calculator.parts.adapters import Lora, chosen_modules
from calculator.parts.optimizers import ADAMW, OPTIMIZERS, Optimizer, chosen
from calculator.step.checks import CHECKS, check_lengths, one_of, probability, whole
from calculator.step.setups import ATTENTIONS, LOSSES, PCIE_BYTES_PER_SECOND, PRECISIONS, Setup, shown

SWITCHES = (
    "packed",
    "fp8",
    "offload_activations",
    "offload_optimizer",
    "optimizer_in_backward",
    "delta_rule",
    "embeddings_32bit",
)
"""Fields that are true or false whatever else is chosen."""
MOST_PASTED_LAYERS = 500
"""The most layers of a pasted model, for which the browser still answers within about a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Checked setup, with the model, optimizer and adapters that its fields name."""

    setup: Setup
    architecture: Architecture
    shared_groups: int
    """Distinct layer groups of each stack; 0 where every layer has its own weights."""
    optimizer: Optimizer
    lora: Lora | None
    """The adapters; None if all parameters are trained."""


def training_of(setup: Setup) -> Training:
    """Resolves all fields of a setup.

    Raises:
        BadSetup: See `resolve`.
    """
    architecture = resolve(setup)
    return Training(
        setup=setup,
        architecture=architecture,
        shared_groups=architecture.shared_groups if setup.shared_groups is None else setup.shared_groups,
        optimizer=chosen(setup.optimizer, implementation=setup.optimizer_impl, rank=setup.optimizer_rank),
        lora=lora_of(setup, architecture),
    )


def resolve(setup: Setup) -> Architecture:
    """Checks every field of a setup and returns its model.

    Raises:
        BadSetup: If a field is out of range or a combination is impossible; the message says what is accepted.
    """
    if setup.config is not None:
        if setup.model is not None:
            raise BadSetup("Give either model or config, not both.")
        architecture = from_config(setup.config)
    else:
        architecture = preset(setup.model)
    family = family_of(architecture)
    if family.forward is None:
        raise BadSetup(
            f"Training of {architecture.name} is not counted: {family.why_untrained}. "
            "`python -m calculator inference --config FILE` counts the weights and the cache."
        )
    architecture = _with_pictures(setup, architecture)
    one_of("precision", setup.precision, PRECISIONS)
    one_of("attention", setup.attention, ATTENTIONS)
    one_of("loss", setup.loss, LOSSES)
    one_of("optimizer", setup.optimizer, tuple(OPTIMIZERS))
    one_of("optimizer_impl", setup.optimizer_impl, tuple(ADAMW))
    one_of("pcie_generation", setup.pcie_generation, tuple(PCIE_BYTES_PER_SECOND))
    whole("micro_batch_size", setup.micro_batch_size, 1, 1_000_000)
    whole("accumulation_steps", setup.accumulation_steps, 1, 1_000_000)
    check_lengths(setup, architecture)
    probability("dropout", setup.dropout)
    for name in SWITCHES:
        if not isinstance(getattr(setup, name), bool):
            raise BadSetup(f"{name} is true or false, not {shown(getattr(setup, name))}.")
    layers = architecture.num_layers
    if architecture.num_decoder_layers:
        layers = min(layers, architecture.num_decoder_layers)
    if not isinstance(setup.checkpointing, bool):
        whole("checkpointing", setup.checkpointing, 1, layers, or_else="false, true, or k for every k-th block")
    if setup.shared_groups is not None:
        whole("shared_groups", setup.shared_groups, 1, layers)
        if architecture.mixed:
            raise BadSetup(f"Layers of {architecture.name} have different weights; omit shared_groups.")
    for check in CHECKS:
        check(setup, architecture)
    return architecture


def itemsize_of(setup: Setup) -> int:
    """Bytes of a value of the weights, unless LoRA freezes them."""
    return 2 if setup.precision in ("bf16", "fp16") else 4


def lora_of(setup: Setup, architecture: Architecture) -> Lora | None:
    """Adapters of a checked setup; None if all parameters are trained."""
    if setup.lora_rank is None:
        return None
    family, pure = family_of(architecture), setup.precision in ("bf16", "fp16")
    bits = setup.base_bits or (16 if pure else 32)
    in_float16 = bits == 16 and setup.precision.endswith("fp16")
    return Lora(
        rank=setup.lora_rank,
        targets=chosen_modules(architecture, setup.lora_targets),
        dropout=setup.lora_dropout or 0.0,
        adapter_itemsize=(setup.adapter_bits or (16 if pure else 32)) // 8,
        base_bits=bits,
        rest_itemsize=4 if bits == 32 or setup.rest_32bit else 2,
        freeze_a=setup.lora_freeze_a,
        input_first=family.input_first,
        in_32_bits=family.in_32_bits if in_float16 else frozenset(),
    )


def _with_pictures(setup: Setup, architecture: Architecture) -> Architecture:
    """The model for the setup's pictures."""
    if setup.image_size is None:
        return architecture
    if not architecture.patch_size:
        raise BadSetup(f"image_size is for models of pictures, which {architecture.name} is not; omit it.")
    whole("image_size", setup.image_size, 1, LARGEST_PICTURE)
    return with_picture(architecture, setup.image_size, setup.image_size)


def plain(setup: Setup) -> Setup:
    """The same model, batch and lengths without any memory-saving technique: 32 bits, separate operations, AdamW."""
    architecture = resolve(setup)
    layers = min(architecture.num_layers, architecture.num_decoder_layers or architecture.num_layers)
    return Setup(
        model=setup.model,
        config=setup.config,
        micro_batch_size=setup.micro_batch_size,
        sequence_length=setup.sequence_length,
        image_size=setup.image_size,
        target_length=setup.target_length,
        dropout=setup.dropout,
        accumulation_steps=setup.accumulation_steps,
        pcie_generation=setup.pcie_generation,
        gpus=setup.gpus,
        precision="fp32",
        attention="eager",
        shared_groups=layers if architecture.shared_groups else None,
        reversible=False if family_of(architecture).reversible else None,
    )


def check_layers(setup: Setup, model: Architecture) -> None:
    """Refuses a pasted model that is so deep that the browser would compute for minutes."""
    layers = max(model.num_layers, model.num_decoder_layers)
    if setup.config is not None and layers > MOST_PASTED_LAYERS:
        raise BadSetup(f"The model has {layers} layers; this page answers for at most {MOST_PASTED_LAYERS}.")
