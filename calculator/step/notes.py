"""Sentences about what is counted differently than a setup may suggest."""

from __future__ import annotations

from collections.abc import Iterator

from calculator.families.lengths import beyond_training
from calculator.families.registry import family_of
from calculator.models.architecture import Architecture
from calculator.models.architectures import quantization_of
from calculator.models.names import named
from calculator.parts.adapters import Lora
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.resolve import Training, itemsize_of
from calculator.step.setups import DEEPSPEED, DIVIDED, Setup, sees_pictures
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS
from calculator.units import show_bytes

FUSED_4BIT_TOKENS = 1536
"""Rows up to which a kernel may read 4-bit weights as they are (bitsandbytes 0.50, backends/cuda/ops.py,
_gemm_4bit_custom_max_m)."""


def notes_of(training: Training, buckets: int) -> tuple[str, ...]:
    """All sentences about a setup.

    Args:
        training: The checked setup.
        buckets: Bytes in which DistributedDataParallel sends gradients to other GPUs.
    """
    setup, architecture = training.setup, training.architecture
    return (
        *_model_notes(setup, architecture),
        *_adapter_notes(setup, architecture, training.lora),
        *_text_notes(setup, architecture),
        *_low_rank_notes(setup),
        *_update_notes(setup),
        *_group_notes(setup, architecture, buckets),
    )


def _in_32_bits(architecture: Architecture) -> str:
    """Names of the modules that transformers keeps in 32 bits."""
    family = family_of(architecture)
    return ", ".join(name for own, name in family.modules(architecture).items() if own in family.in_32_bits)


def _model_notes(setup: Setup, architecture: Architecture) -> tuple[str, ...]:
    family, notes = family_of(architecture), []
    if not architecture.fusable and setup.attention == "sdpa":
        notes.append(f"The code of {architecture.name} has no fused attention: its separate operations are counted.")
    if family.in_32_bits and setup.precision == "fp16" and setup.lora_rank is None:
        notes.append(
            "The estimate is that of a model whose weights are all in float16, as half() makes them. With "
            f"dtype=float16, transformers loads the modules {_in_32_bits(architecture)} in 32 bits, which takes more."
        )
    if architecture.num_experts:
        notes.append(
            "Tokens are sorted by expert, so that the most uneven routing takes as much memory as an even one "
            "(transformers' grouped_mm)."
        )
    if sentence := beyond_training(architecture, setup.sequence_length or 0):
        notes.append(sentence)
    if method := quantization_of(setup.config):
        notes.append(
            f"The config says that its weights are quantized ({method}). That is not read: weights count in the "
            "precision that is asked for."
        )
    if (name := setup.model and named(setup.model)) and name.quantization:
        bits = "; --lora-rank 16 --base-bits 4 counts them in 4 bits" if name.bits == 4 else ""
        notes.append(
            f"The name says that its weights are quantized ({name.quantization}). Weights count in the precision that "
            f"is asked for{bits}."
        )
    if sees_pictures(setup):
        notes.append("Only the text model is counted, not what reads pictures or sounds for it.")
    if family.attention_note and (family.own_trainer or setup.attention == "eager"):
        notes.append(family.attention_note)
    if architecture.reversible if setup.reversible is None else setup.reversible:
        notes.append("Reversible layers are counted as recomputing all activations (activation budget 0).")
    if architecture.diffuses:
        notes.append("Of the pipeline, only the transformer is counted, not what encodes texts and pictures.")
    if setup.offload_optimizer:
        notes.append(
            "While the optimizer is created, its gradients take host memory for a moment. The trainer returns this "
            "memory to the system; other programs may keep up to 4 bytes per parameter of it "
            "(benchmarks/memory/memory_on_host.py)."
        )
    if setup.shared_groups is not None and not architecture.own_last_layer:
        notes.append("Layers i and j share all weights if i mod shared_groups equals j mod shared_groups.")
    return tuple(notes)


def _adapter_notes(setup: Setup, architecture: Architecture, lora: Lora | None) -> Iterator[str]:
    if lora is None:
        return
    yield "LoRA as peft computes it: the model is frozen, so that a layer without adapters keeps no input for backward."
    if lora.in_32_bits:
        yield (
            f"The modules {_in_32_bits(architecture)} are in 32 bits, as transformers loads them where the others are "
            "in float16."
        )
    if architecture.num_experts:
        yield (
            "Only the linear modules of attention have adapters. By all-linear, peft also means the router and the "
            "experts of a mixture, which it makes anew in every pass; that is not counted."
        )
    if architecture.num_labels:
        trained = "is trained through its own adapter" if "head" in lora.targets else "stays as it is"
        yield f"The classifier {trained}; a whole new one beside the adapters (peft's modules_to_save) is not counted."
    tokens = setup.micro_batch_size * (setup.sequence_length or architecture.sequence_length)
    if lora.base_bits == 4 and tokens <= FUSED_4BIT_TOKENS:
        yield (
            f"With at most {FUSED_4BIT_TOKENS} tokens in a pass, bitsandbytes may multiply without making a weight's "
            "16-bit copy in forward, depending on the GPU; the copy is counted."
        )


def _text_notes(setup: Setup, architecture: Architecture) -> Iterator[str]:
    """Notes on the loss in pieces and its GPUs, and on the mask of packs."""
    if setup.loss == "liger":
        yield (
            "The loss in pieces is Liger's fused linear cross-entropy, on GPUs of Ampere (2020) and newer. Forward "
            "makes the gradients of the output head and of its input, and keeps them in place of logits."
        )
    if setup.fp8:
        yield (
            "FP8 is torchao's, with one scale for each tensor, and without torch.compile, which fuses its casts: a "
            "compiled step is not counted. The output head stays as it is. The kernels need a GPU of Ada or Hopper "
            "(2022) or newer."
        )
    if setup.packed and setup.attention == "sdpa" and architecture.fusable:
        yield (
            "Of packs, fused attention needs a mask, which each layer turns into numbers anew and keeps for backward. "
            "The package flash-attn needs none: count its packs as one longer sequence that is not packed."
        )


def _low_rank_notes(setup: Setup) -> Iterator[str]:
    """Notes on the counted update of GaLore and APOLLO, and on its unknown part."""
    if setup.optimizer not in DEFAULT_RANKS:
        return
    yield (
        "The matrices of attention and feed-forward are projected, everything else has plain AdamW. Counted is every "
        "200th update, which finds new projections and takes the most."
    )
    if setup.optimizer.startswith("galore"):
        yield "The workspace that cuSOLVER takes to decompose a matrix, one at a time, is not known and not counted."
        if itemsize_of(setup) == 4:
            yield (
                "Of gradients in 32 bits, galore-torch keeps all singular vectors of a matrix, not only those of the "
                "rank; with precision bf16 or fp16 it does not."
            )


def _update_notes(setup: Setup) -> Iterator[str]:
    if setup.optimizer_in_backward:
        yield (
            "Each parameter has an optimizer of its own, which a hook runs in backward (register_post_accumulate_grad_"
            "hook, as torchtune, LOMO and layer-wise GaLore do); the gradients are the largest one's. Their norm over "
            "all parameters cannot be clipped."
        )


def _group_notes(setup: Setup, architecture: Architecture, buckets: int) -> Iterator[str]:
    """Notes on the memory that is counted on each of several GPUs."""
    if setup.gpus == 1:
        return
    if setup.sharding in ("none", "zero-1"):
        yield (
            f"Each GPU has the whole model. Of its gradients, {show_bytes(buckets)} are the buckets in which "
            "DistributedDataParallel sends them; gradient_as_bucket_view=True would save these."
        )
    if setup.sharding == "zero-1":
        yield "ZeroRedundancyOptimizer deals out whole parameters; counted is the GPU with the largest state."
    if setup.sharding in TENSOR_SHARDINGS:
        yield (
            "The GPUs compute each micro-batch together (Megatron's division, by torch.distributed.tensor.parallel). "
            "PyTorch makes the embedding's gradient whole on every GPU."
        )
    if setup.sharding in DEEPSPEED:
        yield from _deepspeed_notes(setup)
    if setup.sharding in DIVIDED:
        yield (
            "This is PyTorch's FSDP2; DeepSpeed's stages take other memory (sharding deepspeed-2 for its ZeRO-2). "
            "FSDP2 divides every layer, and the rest of the model, by rows; counted is the first GPU, whose shares are "
            "the largest. Weights include those that are gathered at the peak."
        )
        if setup.gpus > architecture.num_experts > 0:
            yield (
                f"transformers keeps a layer's {architecture.num_experts} experts in one tensor, of which FSDP2 gives "
                f"each GPU at least one: gathered, they take as much as {setup.gpus} experts."
            )
        if setup.precision.startswith("amp-"):
            half = "bfloat16" if setup.precision.endswith("bf16") else "float16"
            yield (
                f"Mixed precision is FSDP2's own: weights are gathered in {half}, without autocast, and gradients are "
                "summed over the GPUs in 32 bits."
            )
    yield "NCCL's own buffers are not counted: some hundred MiB on each GPU."


def _deepspeed_notes(setup: Setup) -> Iterator[str]:
    yield (
        "DeepSpeed has its default buckets of 500 million values, which are as large in backward of a small model. For "
        '"auto", transformers\' Trainer sets reduce_bucket_size to hidden_size squared, which is less. Counted is the '
        "last GPU, whose gradients are complete first."
    )
    if setup.sharding == "deepspeed-3":
        yield (
            "In stage 3, up to 1 billion values are whole at once (stage3_max_live_parameters); of a small model, all. "
            "Lower limits take less, and more traffic between the GPUs."
        )
    if setup.precision != "fp32":
        half = "bfloat16" if setup.precision.endswith("bf16") else "float16"
        yield (
            f"Mixed precision is DeepSpeed's own: all weights and gradients are in {half}, without autocast, and each "
            "GPU has its share of the weights in 32 bits too."
        )
