"""The calculator's input: a model and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from calculator.errors import BadSetup
from calculator.models.names import preset_of
from calculator.parts.adapters import ALL_LINEAR
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS

PRECISIONS = ("amp-bf16", "amp-fp16", "fp32", "bf16", "fp16")
ATTENTIONS = ("sdpa", "eager")
BASE_BITS, ADAPTER_BITS = (4, 16, 32), (16, 32)
MOST_RANK = 65_536
"""Adapters of a higher rank are refused; the matrices beside which they stand are narrower."""
DEEPSPEED = ("deepspeed-1", "deepspeed-2", "deepspeed-3")
"""Stages of DeepSpeed's ZeRO."""
SHARDINGS = ("none", "zero-1", "zero-2", "zero-3", *TENSOR_SHARDINGS, *DEEPSPEED)
WHOLE_MODEL = ("none", "zero-1")
"""Shardings with which each GPU has all weights."""
DIVIDED = ("zero-2", "zero-3")
"""Shardings of FSDP2."""
MOST_GPUS = 65_536
OPTIMIZERS_OF_MATRICES = (*DEFAULT_RANKS, "muon")
"""Optimizers with a special rule for a layer's matrices."""
LOSSES = ("whole", "liger", "trainer")
SHARDED_OPTIMIZERS = ("adamw", "sgd")
"""Optimizers of `torch.optim`, which update the shards of FSDP2 as they are."""
ADAPTER_FIELDS = ("lora_targets", "lora_dropout", "lora_freeze_a", "base_bits", "adapter_bits", "rest_32bit")
"""Fields that mean something only with `lora_rank`."""
_COMPILED = (
    "torch.compile is not counted: what a compiled step keeps depends on how its operations are fused, for which there "
    "is no rule here; every answer is that of a step without it."
)
_IN_8_BIT = (
    "FP8 is the field fp8: true for torchao's linear layers, beside the precision of all else, bf16 or amp-bf16."
)
_LIGER = (
    "Of Liger's kernels, the fused linear cross-entropy is counted, as the loss liger; what its norms, activations and "
    "rotary embeddings keep is not."
)
_CUT_CROSS_ENTROPY = (
    "Cut Cross-Entropy is not counted, which makes a block of logits at a time within its kernels; the loss liger is "
    "another one in pieces."
)
_MUON_IN_8_BIT = (
    "8-bit Muon is not counted: neither PyTorch 2.13 nor bitsandbytes 0.50 has one; muon keeps its momentum in the "
    "precision of the weights."
)
_LOMO = (
    "LOMO keeps no state and updates in backward: it takes what sgd with optimizer_in_backward does, less the state, "
    "which is SGD's momentum."
)
_PACKED = "Packing is the field packed: true if each sequence is a pack of samples."
NOT_COUNTED = {
    **dict.fromkeys(("compile", "compiled", "compiling", "torch_compile", "torch.compile", "inductor"), _COMPILED),
    **dict.fromkeys(("fp8", "float8", "torchao", "fp8_training", "float8_training"), _IN_8_BIT),
    **dict.fromkeys(("liger", "use_liger_kernel", "liger_kernel"), _LIGER),
    **dict.fromkeys(("cut_cross_entropy", "cce"), _CUT_CROSS_ENTROPY),
    **dict.fromkeys(("muon8bit", "muon-8bit", "8bit-muon"), _MUON_IN_8_BIT),
    **dict.fromkeys(("lomo", "adalomo"), _LOMO),
    **dict.fromkeys(("packing", "sequence_packing"), _PACKED),
}
"""Techniques that people ask for, and the reason why each is not counted."""
PCIE_BYTES_PER_SECOND = {3: 15_753_846_153, 4: 31_507_692_307, 5: 63_015_384_615}
"""16 lanes, one direction, 128b/130b coding (PCI-SIG base specifications 3.0, 4.0, 5.0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """A model and how it is trained. Every field is a flag of the command line and a key of a batch line."""

    model: str | None = None
    """Name of a preset, or of a model with its sizes (see `calculator.models.names`); None if `config` is given."""
    config: Mapping[str, object] | None = None
    """A Hugging Face `config.json` of a supported family, in place of `model`."""
    micro_batch_size: int = 1
    """B, sequences per forward pass on one device."""
    sequence_length: int | None = None
    """T, tokens per sequence; of the encoder, if there are two stacks; of the text, if it is a diffusion model. None:
    the model's own length."""
    image_size: int | None = None
    """Pixels of a picture's side, of models of pictures; None: the model's own. ViT is built for this size; of a
    diffusion model, it is the size of a picture that its latents decode to."""
    target_length: int | None = None
    """Tokens per sequence of the decoder, if there are two stacks. None: the model's own length."""
    precision: str = "amp-bf16"
    """One of `PRECISIONS`; `amp-*` is autocast over 32-bit parameters, with `bf16` and `fp16` everything is 16-bit."""
    attention: str = "sdpa"
    """"sdpa" (fused kernels) or "eager" (separate operations)."""
    dropout: float | None = None
    """Dropout probability everywhere; None: the model's own."""
    checkpointing: bool | int = False
    """True if each block is computed again in backward, or k for every k-th block."""
    shared_groups: int | None = None
    """Distinct layer groups of each stack; None: the model's own."""
    reversible: bool | None = None
    """True if layers are reversible; None: the model's own."""
    optimizer: str = "adamw"
    """One of `calculator.parts.optimizers.OPTIMIZERS`."""
    optimizer_impl: str = "foreach"
    """AdamW's implementation: "foreach", "for-loop" or "fused"."""
    optimizer_rank: int | None = None
    """Dimensions to which GaLore and APOLLO project a matrix's gradient; None: 128, 256 and, for APOLLO-Mini, 1."""
    optimizer_in_backward: bool = False
    """True if a hook updates each parameter as soon as backward has made its gradient, and then frees that gradient."""
    loss: str = "whole"
    """One of `LOSSES`: whether there are all logits at once ("whole", as transformers makes them), or those of some
    tokens at a time, by Liger's fused linear cross-entropy ("liger") or as this trainer does ("trainer")."""
    packed: bool = False
    """True if each sequence is a pack of samples, whose positions begin anew, and which see nothing of each other."""
    fp8: bool = False
    """True if the layers' matrix products are in FP8 (torchao's `convert_to_float8_training`, without the head)."""
    offload_activations: bool = False
    """True if the host keeps what is saved for backward (torch.autograd.graph.save_on_cpu)."""
    offload_optimizer: bool = False
    """True if the host keeps the optimizer state and a 32-bit copy of the parameters and makes the update."""
    delta_rule: bool = False
    """True if hivemind's delta rule keeps one more copy of the parameters on the host."""
    accumulation_steps: int = 1
    """Micro-batches per optimizer step on this device."""
    embeddings_32bit: bool = False
    """True if 8-bit optimizers keep 32-bit state for embeddings, as transformers' Trainer makes bitsandbytes do."""
    pcie_generation: int = 3
    """Generation of the PCIe bus between host and device, with 16 lanes: 3, 4 or 5."""
    gpus: int = 1
    """GPUs that train together, each on its own micro-batches."""
    sharding: str = "none"
    """One of `SHARDINGS`: what the GPUs divide among them. "zero-1": the optimizer's state; "zero-2": also gradients
    and, outside of the step, weights; "zero-3": the same, and each layer's weights are gathered only while it runs;
    "tensor": they compute each micro-batch together, every matrix divided; "tensor-sequence": also norms by tokens.
    "zero-1" is DistributedDataParallel with ZeroRedundancyOptimizer, "zero-2" and "zero-3" are FSDP2; "deepspeed-1" to
    "deepspeed-3" are DeepSpeed's own stages, with its default buckets."""
    lora_rank: int | None = None
    """Rank of LoRA's adapters, beside which the model is frozen; None: all parameters are trained."""
    lora_targets: str = ALL_LINEAR
    """The linear modules that have an adapter, by their names in transformers ("q_proj,v_proj"), or "all-linear"."""
    lora_dropout: float | None = 0.0
    """Dropout probability of the adapters' inputs; None: 0."""
    lora_freeze_a: bool = False
    """True if only the adapters' second matrices, B, are trained."""
    base_bits: int | None = None
    """Bits of the frozen weights: 32, 16 or 4 (QLoRA: linear layers in NF4); None: those of `precision`."""
    adapter_bits: int | None = None
    """Bits of the adapters, 32 or 16; None: 16 if everything is 16-bit, else 32, as peft makes them."""
    rest_32bit: bool = False
    """True if a 4-bit model has its embeddings, norms and head in 32 bits, as `prepare_model_for_kbit_training` makes
    them."""


DEFAULTS = {field.name: field.default for field in fields(Setup)}
"""Default of each field of a setup."""


def setup_from(values: Mapping[str, object]) -> Setup:
    """A setup from plain data, such as a line of JSON.

    Raises:
        BadSetup: If a key is unknown.
    """
    if not isinstance(values, Mapping):
        raise BadSetup(f"A setup is an object with keys such as model and precision, not {shown(values)}.")
    unknown = [key for key in values if key not in DEFAULTS]
    if unknown:
        if unknown[0] in NOT_COUNTED:
            raise BadSetup(f"{NOT_COUNTED[unknown[0]]} Omit {unknown[0]}.")
        raise BadSetup(f"Unknown key {shown(unknown[0])}; a setup may have: {', '.join(DEFAULTS)}.")
    return Setup(**values)


WITH_PICTURES = ("gemma-3-4b", "gemma-3-12b", "gemma-3-27b")
"""Presets of text models that are published as a part of one that sees pictures."""


def sees_pictures(setup: Setup) -> bool:
    """Returns True if the published model reads pictures or sounds with parts that are not counted."""
    return preset_of(setup.model) in WITH_PICTURES or "text_config" in (setup.config or {})


def shown(value: object) -> str:
    """A value as a message shows it, with at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
