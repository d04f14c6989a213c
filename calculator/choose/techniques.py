"""The ways to save memory: what each changes in a setup, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from calculator.choose.devices import Device
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture
from calculator.parts.optimizers import OPTIMIZERS
from calculator.step.resolve import resolve
from calculator.step.setups import DEEPSPEED, DIVIDED, OPTIMIZERS_OF_MATRICES, SHARDINGS, Setup
from calculator.tape.tensor_parallel import undivided

FORWARD_SHARE = 1 / 3
"""Forward's share of a step's computation; backward is twice forward (Kaplan et al. 2020, arXiv:2001.08361, section
2.1)."""
SAME, SMALLER_PASSES, BUS, BUS_IN_PASSES, OTHER_TRAINING, ADAPTERS, OTHER_DATA, OTHER_MODEL = range(8)
"""Costs of a technique, beginning with the least: nothing, passes that use the GPU less well, transfers over the bus
once per update, transfers in each pass, another rounding or optimizer, adapters beside a frozen model, less context per
sample, and another model."""
LORA_RANK = 16
"""The advised rank of adapters. It decides little: the published gains end between 8 and 64 (Dettmers et al. 2023,
arXiv:2305.14314, appendix A.1)."""
SHORTER = ((7, 8), (3, 4), (1, 2), (1, 4), (1, 8))
"""Fractions of a sequence's length that are tried."""
SHORTEST = 64
"""The shortest sequences that are advised."""


SHARDED = {
    "zero-1": ("a divided optimizer state (ZeRO-1)", ""),
    "zero-2": ("FSDP2 without resharding (ZeRO-2)", ""),
    "zero-3": ("FSDP2 (ZeRO-3)", "half as much traffic again between the GPUs"),
}
"""Title and caveat of each sharding. A gathering and a sum of shares cost as much traffic as the sum that every GPU
gets without sharding; "zero-3" gathers twice (Rajbhandari et al. 2020, arXiv:1910.02054, section 7)."""


TOGETHER = {"tensor": "tensor parallelism", "tensor-sequence": "tensor and sequence parallelism"}
"""Ways in which all GPUs compute each sample together."""


@dataclass(frozen=True, slots=True)
class Technique:
    """One way to save memory."""

    title: str
    changes: dict[str, object]
    rank: int = SAME
    extra_computation: float = 0.0
    """Recomputation as a share of a step's computation."""
    level: float = 0.0
    """Rank among the techniques of a choice: a higher level saves more; the setup's own technique has 0."""
    caveat: str = ""
    """The change that the technique makes to the training."""
    offloaded_caveat: str = ""
    """The caveat if the host makes the update and the caveat differs; empty otherwise."""


def choices(setup: Setup, device: Device) -> Iterator[list[Technique | None]]:
    """Yields for each choice of the setup the techniques that could replace it, by rising savings;
    None keeps the choice.

    Sharing weights is offered only for models without published weights, because published weights would not fit.
    """
    architecture = resolve(setup)
    yield [None, *_precisions(setup, architecture, device)]
    if setup.attention == "eager" and architecture.fusable and not family_of(architecture).attention_note:
        yield [None, Technique("fused attention", {"attention": "sdpa"})]
    if setup.fp8:
        caveat = "slower than FP8 on large matrices"
        yield [None, Technique("matrix products in 16 bits", {"fp8": False}, level=1, caveat=caveat)]
    yield [None, *_losses(setup, architecture, device)]
    yield [None, *_optimizers(setup, architecture)]
    yield [None, *_smaller_passes(setup)]
    if not setup.offload_optimizer and not setup.optimizer.startswith("paged") and not device.unified:
        yield [None, Technique("optimizer on the host", {"offload_optimizer": True}, BUS)]
    yield [None, *_recomputing(setup, architecture), *_moving(setup, architecture, device)]
    if setup.gpus > 1 and not device.unified:
        yield [None, *_sharded(setup, architecture, device)]
    yield [None, *_adapters(setup, architecture)]
    yield [None, *_shorter(setup, architecture)]
    shared = setup.shared_groups or architecture.shared_groups
    if not architecture.released and not shared and architecture.num_layers > 4:
        caveat = "another model: the layers of a group share their weights"
        yield [
            None,
            Technique("4 groups of layers that share weights", {"shared_groups": 4}, OTHER_MODEL, 0, 1, caveat),
        ]


def _precisions(setup: Setup, architecture: Architecture, device: Device) -> Iterator[Technique]:
    half = "bf16" if device.bfloat16 else "fp16"
    if setup.precision == "fp32":
        yield Technique(f"16-bit autocast ({half})", {"precision": f"amp-{half}"}, level=1)
    if setup.precision in ("bf16", "fp16") or family_of(architecture).own_trainer:
        return
    scaled = "" if half == "bf16" else "; float16 needs a scaled loss"
    yield Technique(
        f"weights and gradients in 16 bits ({half})",
        {"precision": half},
        OTHER_TRAINING,
        level=2,
        caveat=f"updates that are small beside their weight are rounded away{scaled}",
        offloaded_caveat=f"gradients of 16 bits, though the host updates weights of 32{scaled}",
    )


def _losses(setup: Setup, architecture: Architecture, device: Device) -> Iterator[Technique]:
    """Yields Liger's loss, whose products are counted as on GPUs that have bfloat16 (compute capability 8.0)."""
    counted = family_of(architecture).liger and setup.sharding not in TOGETHER
    if counted and device.bfloat16 and setup.loss == "whole" and not (setup.offload_activations or device.unified):
        yield Technique("a loss in pieces", {"loss": "liger"}, level=1, caveat="the package liger-kernel")


def _optimizers(setup: Setup, architecture: Architecture) -> Iterator[Technique]:
    if setup.optimizer == "adamw" and setup.optimizer_impl != "fused" and not setup.offload_optimizer:
        yield Technique("fused update", {"optimizer_impl": "fused"}, level=1)
    eight_bit = {"adamw": "adamw8bit", "lamb": "lamb8bit", "lion": "lion8bit"}.get(setup.optimizer)
    # `optimizer_impl` goes back to its default: any other is refused for optimizers but AdamW.
    if eight_bit:
        yield Technique("8-bit optimizer state", {"optimizer": eight_bit, "optimizer_impl": "foreach"}, level=2)
    if setup.optimizer.startswith("adamw") and not family_of(architecture).own_trainer:
        changes = {"optimizer": "adafactor", "optimizer_impl": "foreach"}
        caveat = "another optimizer, which needs its own learning rate"
        yield Technique("Adafactor", changes, OTHER_TRAINING, level=3, caveat=caveat)
        # It takes less than Adafactor if weights are in 16 bits, and more if they are in 32. APOLLO of a higher rank
        # and GaLore make nothing fit that it does not.
        counted = family_of(architecture).matrix_optimizers and setup.lora_rank is None and setup.sharding == "none"
        if counted and not setup.offload_optimizer and not setup.shared_groups:
            changes = {**changes, "optimizer": "apollo-mini"}
            caveat = "another optimizer (package apollo-torch), which needs its own learning rate"
            yield Technique("APOLLO-Mini", changes, OTHER_TRAINING, level=3, caveat=caveat)


def _smaller_passes(setup: Setup) -> Iterator[Technique]:
    size, steps = setup.micro_batch_size, setup.accumulation_steps
    while size % 2 == 0:
        size, steps = size // 2, steps * 2
        changes = {"micro_batch_size": size, "accumulation_steps": steps}
        title = f"micro-batches of {size}, accumulated over {steps}"
        yield Technique(title, changes, SMALLER_PASSES, level=steps)


def _recomputing(setup: Setup, architecture: Architecture) -> Iterator[Technique]:
    reversible = architecture.reversible if setup.reversible is None else setup.reversible
    if reversible or setup.checkpointing is True or setup.checkpointing == 1:
        return
    layers = min(architecture.num_layers, architecture.num_decoder_layers or architecture.num_layers)
    # Without checkpointing, as if the interval were longer than the stack.
    every = int(setup.checkpointing) or layers + 1
    for k, title in ((4, "checkpointing every 4th block"), (2, "checkpointing every 2nd block")):
        if k < min(every, layers) and not architecture.diffuses:
            yield _again(title, {"checkpointing": k}, FORWARD_SHARE / k)
    yield _again("checkpointing", {"checkpointing": True}, FORWARD_SHARE)
    if family_of(architecture).reversible:
        yield _again("reversible layers", {"reversible": True, "checkpointing": False}, FORWARD_SHARE)


def _moving(setup: Setup, architecture: Architecture, device: Device) -> Iterator[Technique]:
    """Activations on the host, in place of checkpointing: PCI Express takes longer to move them than a GPU to compute
    them again, but not even the inputs of the blocks stay on the GPU."""
    plain = setup.lora_rank is None and setup.sharding == "none" and setup.loss == "whole" and not setup.packed
    shared = setup.shared_groups or architecture.shared_groups
    counted = family_of(architecture).offload_activations and plain and not shared
    if counted and not setup.offload_activations and not device.unified:
        changes = {"offload_activations": True, "checkpointing": False}
        yield Technique("activations on the host", changes, BUS_IN_PASSES, level=1)


def _sharded(setup: Setup, architecture: Architecture, device: Device) -> Iterator[Technique]:
    """Shardings that divide more among the GPUs than the setup's own."""
    present = SHARDINGS.index(setup.sharding)
    for level, (name, (title, caveat)) in enumerate(SHARDED.items(), 1):
        if level > present:
            yield Technique(title, {"sharding": name}, level=level, caveat=caveat)
    if undivided(architecture, setup.gpus) or setup.lora_rank is not None:
        return
    # Tensor parallelism is counted without autocast, and each GPU computes a part of every sample.
    changes: dict[str, object] = {}
    caveat = "all GPUs compute each sample together, with sums within every layer, which need a link such as NVLink"
    rank = SAME
    if setup.precision.startswith("amp-"):
        changes["precision"] = "bf16" if device.bfloat16 else "fp16"
        caveat, rank = f"{caveat}; weights and gradients in 16 bits, which round small updates away", OTHER_TRAINING
    for level, (name, title) in enumerate(TOGETHER.items(), len(SHARDED) + 1):
        if level > present:
            yield Technique(title, {"sharding": name, **changes}, rank, level=level, caveat=caveat)


def _adapters(setup: Setup, architecture: Architecture) -> Iterator[Technique]:
    """LoRA and QLoRA, for models of which trained weights are published."""
    family = family_of(architecture)
    if family.modules is None or not architecture.released:
        return
    rounded = "the frozen weights are rounded to 4 bits"
    if setup.lora_rank is None:
        caveat = "only adapters are trained, beside the frozen model"
        changes, instead = _beside_adapters(setup, (*TOGETHER, *DEEPSPEED))
        title = f"LoRA of rank {LORA_RANK}"
        yield Technique(title + instead, {**changes, "base_bits": 16}, ADAPTERS, level=1, caveat=caveat)
        if family.in_4_bits:
            title = f"QLoRA of rank {LORA_RANK} (a 4-bit model)"
            caveat = f"{caveat}, whose weights are rounded to 4 bits"
            # FSDP2 cannot divide 4-bit weights.
            changes, instead = _beside_adapters(setup, (*TOGETHER, *DEEPSPEED, *DIVIDED))
            yield Technique(title + instead, {**changes, "base_bits": 4}, ADAPTERS, level=2, caveat=caveat)
        return
    if setup.base_bits in (None, 32) and setup.precision.startswith("amp-"):
        yield Technique("frozen weights in 16 bits", {"base_bits": 16}, OTHER_TRAINING, level=1)
    if setup.base_bits != 4 and family.in_4_bits:
        yield Technique("frozen weights in 4 bits (QLoRA)", {"base_bits": 4}, ADAPTERS, level=2, caveat=rounded)


def _beside_adapters(setup: Setup, shardings: Iterable[str]) -> tuple[dict[str, object], str]:
    """Changes that LoRA needs, and a description of the techniques that it replaces because they exclude each other."""
    changes: dict[str, object] = {"lora_rank": LORA_RANK}
    instead = []
    if setup.optimizer in OPTIMIZERS_OF_MATRICES:
        instead.append(OPTIMIZERS[setup.optimizer].title)
        changes |= {"optimizer": "adamw", "optimizer_rank": None}
    if setup.sharding in shardings:
        instead.append("a divided model")
        changes["sharding"] = "none"
    if setup.offload_activations:
        instead.append("activations on the host")
        changes["offload_activations"] = False
    if setup.fp8:
        instead.append("FP8")
        changes["fp8"] = False
    return changes, f" in place of {' and '.join(instead)}" if instead else ""


def _again(title: str, changes: dict[str, object], share: float) -> Technique:
    return Technique(title, changes, extra_computation=share, level=share)


@lru_cache(maxsize=64)
def _lengths(length: int) -> tuple[int, ...]:
    """Shorter lengths that are tried, multiples of 8 because other lengths make kernels slower."""
    tried = [length * part // whole // 8 * 8 for part, whole in SHORTER]
    return tuple(dict.fromkeys(size for size in tried if SHORTEST <= size < length))


def _shorter(setup: Setup, architecture: Architecture) -> Iterator[Technique]:
    """Shorter sequences, where the model's length is not fixed; both stacks keep their proportion."""
    if architecture.fixed_length:
        return
    own = setup.sequence_length or architecture.sequence_length
    target = setup.target_length or architecture.target_length
    for length in _lengths(own):
        changes = {"sequence_length": length} | ({"target_length": target * length // own} if target else {})
        caveat = f"samples of {own} tokens must be cut"
        yield Technique(f"sequences of {length} tokens", changes, OTHER_DATA, level=own - length, caveat=caveat)
