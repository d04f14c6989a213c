"""Sentences on the understood part of a question."""

from __future__ import annotations

from collections.abc import Mapping

from calculator.page.question.kinds import BATCH, COUNT, GPUS, LENGTH, MODELS, SAVING
from calculator.page.question.understood import Question
from calculator.parts.optimizers import OPTIMIZERS
from calculator.step.resolve import resolve
from calculator.step.setups import NOT_COUNTED, Setup
from calculator.units import show_count

WORDS_OF_VALUES = {
    "precision": {
        "amp-bf16": "16-bit autocast (bfloat16)",
        "amp-fp16": "16-bit autocast (float16)",
        "bf16": "everything in bfloat16",
        "fp16": "everything in float16",
        "fp32": "float32",
    },
    "sharding": {
        "zero-1": "ZeRO-1",
        "zero-2": "ZeRO-2 (FSDP2)",
        "zero-3": "ZeRO-3 (FSDP2)",
        "deepspeed-1": "DeepSpeed's ZeRO-1",
        "deepspeed-2": "DeepSpeed's ZeRO-2",
        "deepspeed-3": "DeepSpeed's ZeRO-3",
        "tensor": "tensor parallelism",
    },
    "attention": {"sdpa": "fused attention", "eager": "separate operations of attention"},
}
ASKED = {
    GPUS: "which GPU, how long and at what cost",
    MODELS: "which models fit",
    COUNT: "how many GPUs",
    LENGTH: "the longest sequence",
    BATCH: "the largest batch",
    SAVING: "what is saved",
}
"""Descriptions of the kinds of questions, other than whether a setup fits."""


def said(found: Question) -> str:
    """Says in a sentence what `understood` has found, with the names that the form uses.

    >>> from calculator.page.question.understood import understood
    >>> said(understood("gpt2 batch 4 t4 and quickly"))
    'Understood: gpt2, micro-batch of 4, 16-bit autocast (float16), GPU t4. Not understood: quickly.'
    """
    parts = [str(found.setup["model"])] if "model" in found.setup else []
    parts += ["generating text"] if found.generating and found.kind != MODELS else []
    parts += [ASKED[found.kind]] if found.kind in ASKED else []
    if found.kind == SAVING:  # its setup has none of the techniques
        parts += [", ".join(in_words(changes)) for changes in found.techniques]
    parts += in_words(found.setup, generating=found.generating)
    parts += [f"{name} in {kind}" for name, kind in found.stored.items()]
    parts += [f"{found.run['billions']} billion tokens to train on"] if "billions" in found.run else []
    parts += [f"{found.run['price']} an hour for a GPU"] if "price" in found.run else []
    if found.gpu:
        parts.append(f"GPU {found.gpu}")
    ignored = f" Not understood: {', '.join(found.ignored)}." if found.ignored else ""
    reasons = dict.fromkeys(NOT_COUNTED[word] for word in found.ignored if word in NOT_COUNTED)
    return " ".join([f"Understood: {', '.join(parts)}.{ignored}", *reasons, *found.notes])


def in_words(setup: Mapping[str, object], *, generating: bool = False) -> list[str]:
    """The fields of a setup, each as a few words."""
    parts = []
    if "lora_rank" in setup:
        how = "QLoRA" if setup.get("base_bits") == 4 else "LoRA"
        parts.append(f"{how} of rank {setup['lora_rank']}")
    if "optimizer" in setup:
        rank = f" of rank {setup['optimizer_rank']}" if "optimizer_rank" in setup else ""
        parts.append(OPTIMIZERS[setup["optimizer"]].title + rank)
    if "checkpointing" in setup:
        parts.append("checkpointing" if setup["checkpointing"] else "no checkpointing")
    if "optimizer_in_backward" in setup:
        parts.append("optimizer in backward")
    if "offload_optimizer" in setup:
        parts.append("optimizer on the host")
    if "loss" in setup:
        parts.append("Liger's loss in pieces")
    if "offload_activations" in setup:
        parts.append("activations on the host")
    if "fp8" in setup:
        parts.append("FP8")
    if "gpus" in setup:
        parts.append("1 GPU" if setup["gpus"] == 1 else f"{setup['gpus']} GPUs")
    if "packed" in setup:
        parts.append("packed samples")
    if "micro_batch_size" in setup:
        size = setup["micro_batch_size"]
        parts.append(("1 sequence" if size == 1 else f"{size} sequences") if generating else f"micro-batch of {size}")
    if "accumulation_steps" in setup:
        parts.append(f"{setup['accumulation_steps']} micro-batches per update")
    if "sequence_length" in setup:
        parts.append(f"{setup['sequence_length']} tokens")
    if "target_length" in setup:
        parts.append(f"{setup['target_length']} tokens of the decoder")
    if "image_size" in setup:
        parts.append(f"pictures of {setup['image_size']} pixels")
    return parts + [WORDS_OF_VALUES[name][setup[name]] for name in WORDS_OF_VALUES if name in setup]


def assumed(found: Question, setup: Setup) -> str:
    """A sentence on what a setup has that the question does not name.

    Args:
        found: The question, which is about training one model.
        setup: The setup by which it is answered.
    """
    parts = []
    if "micro_batch_size" not in found.setup:
        parts.append(f"micro-batch of {setup.micro_batch_size}")
    architecture = resolve(setup)
    if "sequence_length" not in found.setup and (architecture.diffuses or not architecture.fixed_length):
        parts.append(f"{show_count(setup.sequence_length or architecture.sequence_length)} tokens")
    if "optimizer" not in found.setup:
        parts.append(OPTIMIZERS[setup.optimizer].title)
    if setup.checkpointing and "checkpointing" not in found.setup:
        parts.append("checkpointing")
    return f"Not named, so as this page begins: {', '.join(parts)}." if parts else ""
