"""Checks of a setup: refuses combinations of fields that are impossible, or whose memory is not counted."""

from __future__ import annotations

from calculator.errors import BadSetup
from calculator.families.blocks.attention import WIDEST_FLASH_HEAD
from calculator.families.lengths import most_tokens
from calculator.families.registry import FAMILIES, family_of, models_with
from calculator.models.architecture import Architecture
from calculator.parts.adapters import ALL_LINEAR, chosen_modules, modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import OPTIMIZERS
from calculator.parts.parameters import odd_matrix
from calculator.step.setups import (
    ADAPTER_BITS,
    ADAPTER_FIELDS,
    BASE_BITS,
    DEEPSPEED,
    DEFAULTS,
    MOST_GPUS,
    MOST_RANK,
    NOT_COUNTED,
    OPTIMIZERS_OF_MATRICES,
    SHARDED_OPTIMIZERS,
    SHARDINGS,
    WHOLE_MODEL,
    Setup,
    shown,
)
from calculator.tape.eight_bit import SIDES_OF
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS, undivided


def _untraced(sentence: str) -> BadSetup:
    """The error for a combination that can exist, but whose steps were never compared with PyTorch."""
    return BadSetup(f"{sentence} Such steps were not traced.")


def _of_another_family(technique: str, architecture: Architecture, has: str, instead: str) -> BadSetup:
    """The error for a technique that is counted only for families whose attribute `has` is true."""
    counted = models_with(lambda family: getattr(family, has))
    return _untraced(f"{technique} is counted for {counted}; {architecture.name} is of another family, so {instead}.")


def _check_adapters(setup: Setup, architecture: Architecture) -> None:
    if setup.lora_rank is None:
        for name in ADAPTER_FIELDS:
            if getattr(setup, name) != DEFAULTS[name]:
                raise BadSetup(f"{name} is for LoRA; give lora_rank as well, or omit {name}.")
        return
    if family_of(architecture).modules is None:
        raise _of_another_family("LoRA", architecture, "modules", "omit lora_rank")
    whole("lora_rank", setup.lora_rank, 1, MOST_RANK)
    _check_targets(setup, architecture)
    probability("lora_dropout", setup.lora_dropout)
    if setup.base_bits == 8:
        raise BadSetup(
            "base_bits 8 is not counted: bitsandbytes keeps the columns of outliers beside 8-bit weights, and how many "
            "there are depends on the data; choose 16 or 4."
        )
    if setup.base_bits == 4 and not family_of(architecture).in_4_bits:
        raise _untraced(f"QLoRA is not counted for {architecture.name}; choose LoRA with base_bits 16 or 32.")
    for name, accepted in (("base_bits", BASE_BITS), ("adapter_bits", ADAPTER_BITS)):
        value = getattr(setup, name)
        if value is not None:
            one_of(name, value, accepted)
            whole(name, value, min(accepted), max(accepted))  # 16.0 equals 16, but it is no number of bits
    for name in ("rest_32bit", "lora_freeze_a"):
        if not isinstance(getattr(setup, name), bool):
            raise BadSetup(f"{name} is true or false, not {shown(getattr(setup, name))}.")
    if setup.rest_32bit and setup.base_bits != 4:
        raise BadSetup("rest_32bit is for a model in 4 bits; give base_bits 4 as well, or omit rest_32bit.")
    if setup.shared_groups or architecture.shared_groups:
        raise BadSetup("LoRA trains a model as it is published, whose layers share no weights; omit shared_groups.")
    _check_base_precision(setup)


def _check_targets(setup: Setup, architecture: Architecture) -> None:
    modules = modules_of(architecture)
    if not isinstance(setup.lora_targets, str):
        raise BadSetup(
            f"lora_targets is a text such as {','.join(list(modules)[:2])}, not {shown(setup.lora_targets)}."
        )
    try:
        chosen_modules(architecture, setup.lora_targets)
    except KeyError:
        raise BadSetup(
            f"lora_targets is {ALL_LINEAR}, or some of {', '.join(modules)} with commas between them, not "
            f"{shown(setup.lora_targets)}."
        ) from None


def _check_base_precision(setup: Setup) -> None:
    """Refuses frozen weights that their layer's input does not match."""
    if setup.precision == "fp32" and setup.base_bits not in (None, 32):
        raise BadSetup(f"precision fp32 needs base_bits 32; for {setup.base_bits} bits choose amp-bf16 or bf16.")
    if setup.precision == "fp32" and setup.adapter_bits == 16:
        raise BadSetup("precision fp32 needs adapter_bits 32; for 16 bits choose amp-bf16 or bf16.")
    if setup.precision in ("bf16", "fp16") and setup.base_bits == 32:
        raise BadSetup(f"precision {setup.precision} makes everything 16-bit; choose base_bits 16 or 4, or amp-bf16.")
    if setup.precision in ("bf16", "fp16") and setup.rest_32bit:
        raise BadSetup(f"precision {setup.precision} makes everything 16-bit; omit rest_32bit, or choose amp-bf16.")


def shortest_sequence(setup: Setup) -> int:
    """The fewest tokens per sequence that a language model's setup may have."""
    return 2 if setup.packed or setup.lora_rank is not None else 1


def check_lengths(setup: Setup, architecture: Architecture) -> None:
    longest = most_tokens(architecture)
    if architecture.fixed_length and not architecture.diffuses:
        longest = architecture.sequence_length
        if setup.sequence_length not in (None, longest):
            by = "the size of its pictures" if architecture.patch_size else "its text length and image grid"
            raise BadSetup(f"sequence_length of {architecture.name} is fixed at {longest} by {by}; omit it.")
    if setup.sequence_length is not None:
        whole("sequence_length", setup.sequence_length, 1, longest)
    alone = 1 in (setup.sequence_length, longest) and family_of(architecture).generates
    if alone and shortest_sequence(setup) > 1:
        raise BadSetup(
            "A sequence of one token has no next one to learn, and is not counted with packs or LoRA; give a "
            "sequence_length of 2 or more."
        )
    if setup.target_length is not None:
        if not architecture.num_decoder_layers:
            raise BadSetup(
                f"target_length is for models with an encoder and a decoder (T5); {architecture.name} has one stack."
            )
        whole("target_length", setup.target_length, 1, 1_000_000)


def _check_combinations(setup: Setup, architecture: Architecture) -> None:
    if not (setup.reversible is None or isinstance(setup.reversible, bool)):
        raise BadSetup(f"reversible is null, true or false, not {shown(setup.reversible)}.")
    reversible = architecture.reversible if setup.reversible is None else setup.reversible
    if reversible and not family_of(architecture).reversible:
        families = " and ".join(family.name for family in FAMILIES.values() if family.reversible)
        raise BadSetup(f"Reversible layers exist for the {families} family only, not for {architecture.name}.")
    if reversible and setup.checkpointing:
        raise BadSetup("Reversible layers keep no activations, so checkpointing adds nothing; choose one of the two.")
    if setup.delta_rule and not setup.offload_optimizer:
        raise BadSetup("delta_rule adds a copy to the offloaded optimizer's memory; it needs offload_optimizer.")
    if setup.optimizer.startswith("paged") and setup.offload_optimizer:
        raise BadSetup("A paged optimizer moves its own state to the host; it cannot be offloaded as well.")
    if setup.optimizer_impl != "foreach" and setup.optimizer != "adamw":
        raise BadSetup(f"optimizer_impl is for the optimizer adamw; {setup.optimizer} has one implementation.")


def _check_optimizers_of_matrices(setup: Setup, architecture: Architecture) -> None:
    """Refuses setups that GaLore, APOLLO and Muon cannot train, or that are not counted with them."""
    if setup.optimizer_rank is not None:
        if setup.optimizer not in DEFAULT_RANKS:
            raise BadSetup(f"optimizer_rank is for {', '.join(DEFAULT_RANKS)}; {setup.optimizer} has none, so omit it.")
        whole("optimizer_rank", setup.optimizer_rank, 1, MOST_RANK)
    if setup.optimizer not in OPTIMIZERS_OF_MATRICES:
        return
    title = OPTIMIZERS[setup.optimizer].title
    if not family_of(architecture).matrix_optimizers:
        raise _of_another_family(title, architecture, "matrix_optimizers", "choose the optimizer adafactor")
    if setup.lora_rank is not None:
        raise BadSetup(
            f"{title} takes the gradients of whole matrices, which LoRA freezes; omit lora_rank, or choose adamw."
        )
    if setup.offload_optimizer:
        raise BadSetup(f"{title} is counted on the GPU only: it keeps no copies on the host; omit offload_optimizer.")
    if setup.sharding != "none":
        raise _untraced(
            f"{title} takes a matrix's whole gradient, and sharding {setup.sharding} is not counted with it; choose "
            "sharding none, or adamw."
        )
    if setup.shared_groups or architecture.shared_groups:
        raise _untraced(f"{title} is not counted for layers that share weights; omit shared_groups.")
    if setup.optimizer == "muon" and setup.precision == "fp16":
        raise BadSetup("Muon computes in bfloat16, and is not counted for weights in float16; choose precision bf16.")


def _check_optimizer_in_backward(setup: Setup, architecture: Architecture) -> None:
    """Refuses what needs all gradients at once, or is not counted with updates during backward."""
    if not setup.optimizer_in_backward:
        return
    if setup.accumulation_steps > 1:
        raise BadSetup(
            "With optimizer_in_backward, each micro-batch updates the weights and frees its gradients; choose "
            "accumulation_steps 1."
        )
    if setup.precision == "amp-fp16":
        raise BadSetup(
            "The scaled loss of amp-fp16 needs all gradients before an update: each is searched for infinities; choose "
            "amp-bf16, or omit optimizer_in_backward."
        )
    if setup.offload_optimizer or setup.gpus > 1 or family_of(architecture).own_trainer:
        raise _untraced(
            "optimizer_in_backward is counted for the models of transformers and diffusers on one GPU, whose optimizer "
            "is there too; omit offload_optimizer and gpus, or optimizer_in_backward."
        )
    if setup.optimizer == "muon" or setup.fp8:
        raise _untraced("optimizer_in_backward is not counted with Muon and FP8; omit one of the two.")


def _check_diffusion(setup: Setup, architecture: Architecture) -> None:
    """Refuses setups that diffusers cannot run for a diffusion model."""
    if not architecture.diffuses:
        return
    if setup.dropout:
        raise BadSetup(f"diffusers builds {architecture.name} without dropout; omit dropout.")
    if setup.checkpointing > 1:
        raise BadSetup(
            f"diffusers checkpoints all blocks of a model or none; checkpointing of {architecture.name} is true or "
            f"false, not {setup.checkpointing}."
        )


def _check_offloaded_activations(setup: Setup, architecture: Architecture) -> None:
    if not setup.offload_activations:
        return
    if not family_of(architecture).offload_activations:
        raise _of_another_family("offload_activations", architecture, "offload_activations", "choose checkpointing")
    if setup.checkpointing:
        raise _untraced("offload_activations is counted without checkpointing; omit one of the two.")
    if setup.lora_rank is not None or setup.sharding != "none" or setup.shared_groups or architecture.shared_groups:
        raise _untraced("offload_activations is not counted with LoRA, sharding and shared layers; omit these.")


def _check_loss(setup: Setup, architecture: Architecture) -> None:
    if setup.loss == "whole":
        return
    family = family_of(architecture)
    if setup.loss == "liger" and not family.liger:
        raise _of_another_family("The loss liger", architecture, "liger", "choose the loss whole")
    if setup.loss == "trainer" and not family.generates:
        raise BadSetup(
            f"The loss trainer is that of language models that continue text; {architecture.name} is another model, so "
            "choose the loss whole."
        )
    if setup.offload_activations:
        raise _untraced(f"The loss {setup.loss} is not counted with offload_activations; omit one of the two.")
    if setup.sharding in TENSOR_SHARDINGS or (setup.loss == "trainer" and setup.sharding not in WHOLE_MODEL):
        raise _untraced(
            f"The loss {setup.loss} is not counted with sharding {setup.sharding}, which divides the output head; "
            "choose another sharding, or none."
        )


def _check_packs(setup: Setup, architecture: Architecture) -> None:
    if not setup.packed:
        return
    if not family_of(architecture).packs:
        instead = "give one sample's length as the sequence length"
        raise _of_another_family("packed", architecture, "packs", instead)
    if setup.offload_activations or setup.sharding in TENSOR_SHARDINGS:
        raise _untraced("packed is not counted with offload_activations and tensor parallelism; omit one of the two.")


def _check_heads(setup: Setup, architecture: Architecture) -> None:
    """Refuses heads that no fused kernel reads: PyTorch then attends in separate 32-bit operations."""
    if setup.attention != "sdpa" or not architecture.fusable or setup.precision == "fp32":
        return
    length, width = setup.sequence_length or architecture.sequence_length, architecture.head_dim
    slides = any("sliding" in kind for kind in architecture.attention_cycle)
    has_mask = setup.packed or architecture.relative_buckets or (slides and architecture.sliding_window <= length)
    if width > WIDEST_FLASH_HEAD or (width % 8 and (has_mask or architecture.value_dim not in (0, width))):
        raise _untraced(
            f"No fused kernel reads heads of {width} values in 16 bits here: they have {WIDEST_FLASH_HEAD} at most, "
            "and a multiple of 8 with packs, windows, T5's bias or values of another width. Choose attention eager."
        )


def _check_fp8(setup: Setup, architecture: Architecture) -> None:
    if not setup.fp8:
        return
    if not family_of(architecture).fp8:
        raise _of_another_family("fp8", architecture, "fp8", "omit fp8")
    if setup.precision not in ("bf16", "amp-bf16"):
        raise BadSetup(
            f"fp8 stands beside the precision bf16 or amp-bf16, not {setup.precision}; choose one of the two."
        )
    if setup.lora_rank is not None or setup.gpus > 1 or setup.offload_activations:
        raise _untraced("fp8 is not counted with LoRA, several GPUs and offload_activations; omit these, or fp8.")
    if setup.loss == "trainer":
        raise BadSetup("This project's trainer, whose loss you chose, has no FP8; choose the loss whole or liger.")
    if setup.shared_groups or architecture.shared_groups:
        raise _untraced("fp8 is not counted for layers that share weights; omit shared_groups, or fp8.")
    tokens = setup.micro_batch_size * (setup.sequence_length or architecture.sequence_length)
    if tokens % SIDES_OF:
        raise BadSetup(
            f"FP8 multiplies {SIDES_OF} tokens at a time, and micro_batch_size times sequence_length is {tokens}; "
            f"choose a multiple of {SIDES_OF}, or omit fp8."
        )
    if odd := odd_matrix(architecture):
        raise BadSetup(f"FP8 multiplies matrices whose sides are multiples of 16, not {odd}; omit fp8.")


def _check_sharding(setup: Setup, architecture: Architecture) -> None:
    """Refuses setups that FSDP2 and ZeroRedundancyOptimizer cannot run, or that are not counted with them."""
    whole("gpus", setup.gpus, 1, MOST_GPUS)
    one_of("sharding", setup.sharding, SHARDINGS)
    if setup.sharding == "none":
        return
    if setup.gpus == 1:
        raise BadSetup(f"sharding {setup.sharding} divides memory among several GPUs; give gpus 2 or more.")
    if setup.offload_optimizer:
        raise BadSetup("A sharded optimizer works on its GPU; omit offload_optimizer, or choose sharding none.")
    if setup.optimizer not in SHARDED_OPTIMIZERS:
        raise _untraced(
            f"Sharding is counted with the optimizers {' and '.join(SHARDED_OPTIMIZERS)}, not {setup.optimizer}; "
            "choose one of these, or sharding none."
        )
    if setup.sharding == "zero-1":
        return
    if setup.sharding in TENSOR_SHARDINGS:
        _check_tensor_parallel(setup, architecture)
        return
    if setup.sharding in DEEPSPEED:
        _check_deepspeed(setup, architecture)
        return
    _check_divided_adapters(setup)
    if setup.shared_groups or architecture.shared_groups:
        raise BadSetup("FSDP2 refuses layers that share weights; omit shared_groups, or choose sharding zero-1.")
    if architecture.fixed_length:
        raise _untraced(f"FSDP2 is not counted for {architecture.name}; choose sharding zero-1 or none.")


def _check_deepspeed(setup: Setup, architecture: Architecture) -> None:
    if setup.precision in ("bf16", "fp16"):
        raise BadSetup(
            f"DeepSpeed keeps weights in 32 bits beside those in 16; its {setup.precision} is precision "
            f"amp-{setup.precision} here, without autocast."
        )
    if setup.lora_rank is not None or setup.accumulation_steps > 1:
        raise _untraced(
            "DeepSpeed is counted for training whole models without accumulation; omit lora_rank and "
            "accumulation_steps, or choose sharding zero-2 or zero-3 (FSDP2)."
        )
    if setup.shared_groups or architecture.shared_groups or architecture.fixed_length or setup.loss == "trainer":
        raise _untraced(
            f"DeepSpeed is not counted for {architecture.name} with these settings; choose a language model of "
            "transformers whose layers have weights of their own, or another sharding."
        )


def _check_divided_adapters(setup: Setup) -> None:
    """Refuses adapters beside which FSDP2 cannot divide the frozen weights, or is not counted."""
    if setup.base_bits == 4:
        raise BadSetup(
            "FSDP2 loses what bitsandbytes needs to read 4-bit weights (bitsandbytes' issue 1945); choose base_bits "
            "16, or sharding zero-1 or none."
        )
    if setup.adapter_bits == 16 and setup.precision.startswith("amp-"):
        raise BadSetup(
            f"With precision {setup.precision}, FSDP2 casts adapters of 32 bits itself; omit adapter_bits, or choose "
            "precision bf16 or fp16."
        )


def _check_tensor_parallel(setup: Setup, architecture: Architecture) -> None:
    if setup.lora_rank is not None:
        raise BadSetup(
            "Tensor parallelism is counted as torchtitan divides Llama, which has no adapters; omit lora_rank, or "
            "choose sharding zero-3."
        )
    joined = architecture.joined_projections or architecture.output_bias or architecture.feed_forward_bias
    if not family_of(architecture).tensor_parallel or joined:
        raise _untraced(
            f"Tensor parallelism is counted for Llama, Mistral, Qwen2 and Qwen3 without biases after a sum; "
            f"{architecture.name} is another model, so choose sharding zero-3."
        )
    if setup.shared_groups:
        raise _untraced("Tensor parallelism is not counted for layers that share weights; omit shared_groups.")
    odd = undivided(architecture, setup.gpus)
    length = setup.sequence_length or architecture.sequence_length
    if not odd and setup.sharding == "tensor-sequence" and length % setup.gpus:
        odd = f"{length} tokens of a sequence"
    if odd:
        raise BadSetup(f"{setup.gpus} GPUs cannot divide {odd} evenly; choose other gpus, or sharding zero-3.")
    if setup.precision.startswith("amp"):
        raise _untraced("Tensor parallelism is counted without autocast; choose precision bf16, fp16 or fp32.")
    if setup.accumulation_steps > 1:
        raise _untraced("Tensor parallelism is counted without accumulation; choose accumulation_steps 1.")
    if setup.optimizer != "adamw":
        raise _untraced(f"Tensor parallelism is counted with the optimizer adamw, not {setup.optimizer}.")
    if architecture.tied_embeddings:
        raise _untraced(
            f"Tensor parallelism is not counted where head and embedding share a matrix, as in {architecture.name}; "
            "choose sharding zero-3."
        )


def one_of(name: str, value: object, accepted: tuple) -> None:
    # bool first: true equals 1, so it would be accepted as a number.
    if isinstance(value, bool) or value not in accepted:
        if isinstance(value, str) and value in NOT_COUNTED:
            raise BadSetup(f"{name} cannot be {shown(value)}. {NOT_COUNTED[value]}")
        raise BadSetup(f"{name} is one of {', '.join(map(str, accepted))}, not {shown(value)}.")


def whole(name: str, value: object, least: int, most: int, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        accepted = f"a whole number from {least} to {most}"
        raise BadSetup(f"{name} is {or_else + ', ' if or_else else ''}{accepted}, not {shown(value)}.")


def probability(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1):
        raise BadSetup(f"{name} is null or a number from 0 to below 1, not {shown(value)}.")


CHECKS = (
    _check_combinations,
    _check_optimizers_of_matrices,
    _check_optimizer_in_backward,
    _check_diffusion,
    _check_sharding,
    _check_offloaded_activations,
    _check_loss,
    _check_packs,
    _check_heads,
    _check_fp8,
    _check_adapters,
)
