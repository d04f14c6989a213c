"""Draws random setups of each kind of traced step: models of a few layers, of any sizes that the kernels take."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from calculator.families.registry import family_of
from calculator.parts.adapters import ALL_LINEAR, modules_of
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.step.resolve import resolve
from calculator.step.setups import DEEPSPEED, Setup, setup_from
from calculator.tape.eight_bit import SIDES_OF
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS

Draw = Callable[[random.Random], Setup]

DECODERS = ("llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe")
OTHERS = (
    "gemma", "olmo2", "olmo3", "starcoder2", "cohere", "cohere2", "qwen2_moe", "glm4_moe", "gpt_oss",
)  # fmt: skip
"""Model types of decoders that have draws of their own."""
GPTS = ("gpt2", "gptj")
SPARSE = ("mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe", "gpt_oss")
"""Model types with experts, of which fake tensors have a kernel in bfloat16 only."""
ADAPTED = ("llama", "qwen3", "mistral")
"""Decoders that have LoRA's adapters in some of the plain draws."""
ADAPTED_WITH_LIGER = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text")
UPDATED_IN_LOW_RANK = ("llama", "llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text")
OFFLOADED = ("llama", "qwen2", "qwen3", "mistral", "phi3")
DIVIDED = ("llama", "llama", "qwen3", "mistral", "phi3", "gemma2", "gemma3_text", "qwen3_moe", "gpt2", "gptj", "bert")
"""Model types of a step on several GPUs; the first is drawn twice as often."""
SOME_TARGETS = {
    "gpt2": ("c_proj", "attn.c_attn,mlp.c_proj"),
    "gptj": ("out_proj", "out_proj,fc_out"),
    "bert": ("attention.output.dense", "query,output.dense"),
    "t5": ("EncDecAttention.o", "q,v"),
}
"""One adapted module of a model type, and several."""
PRECISIONS = ("amp-bf16", "amp-fp16", "bf16", "fp16", "fp32")
OPTIMIZERS_OF_PICTURES = ("adamw", "adamw8bit", "lamb", "lamb8bit", "adafactor", "sgd")
LENGTHS = (16, 64, 96, 130, 250)
GPUS = (2, 3, 4, 8)
LONGEST_IN_16_BITS = 64
"""Tokens of a sequence in 16 bits on several GPUs; see `several_gpus`."""


def decoder(chance: random.Random, *, packed: bool = False, families: Sequence[str] = DECODERS) -> Setup:
    """Draws a decoder of today; some have adapters. With `packed`, sequences are packs of samples."""
    family = chance.choice(families)
    config = _fitted({"model_type": family, **_sizes(family, chance)}, chance)
    if family in ("mistral", "mixtral", "gemma2", "gemma3_text"):
        config["sliding_window"] = chance.choice((32, 96, 4096))
    values = {**_language(chance, config), "attention": chance.choice(("eager", "sdpa", "sdpa", "sdpa"))}
    values |= {"checkpointing": chance.choice((False, False, True)), "packed": packed}
    if family in ADAPTED and chance.random() < 0.4:
        values["lora_rank"] = chance.randint(1, 64)
        if values["precision"].startswith("amp-"):
            values["base_bits"] = chance.choice((16, 32))
    return _with_possible_attention(setup_from(values))


def packed(chance: random.Random) -> Setup:
    """Draws a decoder that reads packs of samples."""
    return decoder(chance, packed=True)


def other(family: str, chance: random.Random) -> Setup:
    """Draws a decoder of one of `OTHERS`; of each three, one has adapters."""
    config = _fitted({"model_type": family, **_sizes(family, chance), **_own(family, chance)}, chance)
    values = {**_language(chance, config), "attention": chance.choice(("eager", "sdpa", "sdpa"))}
    values |= {"checkpointing": chance.choice((False, False, True)), "dropout": chance.choice((0.0, 0.0, 0.1))}
    setup = _with_possible_attention(setup_from(values))
    if chance.random() < 2 / 3:
        return setup
    return (_adapt_attention if family in SPARSE else _adapt)(setup, chance)


def gpt(chance: random.Random) -> Setup:
    """Draws GPT-2 or GPT-J."""
    return decoder(chance, families=GPTS)


def encoder(chance: random.Random) -> Setup:
    """Draws BERT or T5."""
    setup = decoder(chance, families=("bert",))
    if chance.random() < 0.6:
        two = several_gpus_t5(chance)
        setup = replace(setup, config=two.config, target_length=two.target_length)
    return _with_possible_attention(setup)


def deepseek(chance: random.Random) -> Setup:
    """Draws a model like DeepSeek-V3, with dense layers first and routed experts after them."""
    heads, groups = chance.choice((1, 2, 4, 6)), chance.choice((1, 2, 4))
    open_groups, of_one = chance.choice((1, groups)), chance.choice((2, 4))
    config = {
        "model_type": "deepseek_v3",
        "vocab_size": chance.choice((50, 300, 5000)),
        "hidden_size": 8 * chance.randint(4, 40),
        "intermediate_size": 8 * chance.randint(2, 100),
        "moe_intermediate_size": 8 * chance.randint(1, 60),
        "num_hidden_layers": chance.randint(1, 5),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "n_routed_experts": groups * of_one,
        "n_group": groups,
        "topk_group": open_groups,
        "num_experts_per_tok": chance.randint(1, min(4, open_groups * of_one)),
        "kv_lora_rank": 8 * chance.randint(2, 16),
        "q_lora_rank": chance.choice((None, 8 * chance.randint(2, 20))),
        "qk_rope_head_dim": chance.choice((8, 16, 32, 64)),
        "qk_nope_head_dim": chance.choice((8, 32, 64)),
        "v_head_dim": chance.choice((8, 24, 64)),
        "first_k_dense_replace": chance.randint(0, 2),
        "max_position_embeddings": 512,
        "n_shared_experts": chance.choice((1, 2)),
        "tie_word_embeddings": chance.random() < 0.3,
        "attention_bias": chance.random() < 0.3,
        "norm_topk_prob": chance.random() < 0.8,
        "rope_interleave": chance.random() < 0.8,
    }
    values = {**_language(chance, config), "attention": chance.choice(("eager", "sdpa")), "precision": "bf16"}
    values |= {"sequence_length": chance.randint(4, 200), "dropout": chance.choice((0.0, 0.0, 0.1))}
    return setup_from({**values, "checkpointing": chance.choice((False, False, True))})


def mixture_lora(chance: random.Random) -> Setup:
    """Draws a model with experts whose attention has adapters."""
    return _adapt_attention(decoder(chance, families=SPARSE), chance)


def deepseek_lora(chance: random.Random) -> Setup:
    """Draws a model like DeepSeek-V3 whose attention has adapters."""
    return replace(_adapt_attention(deepseek(chance), chance), lora_dropout=chance.choice((0.0, 0.0, 0.1)))


def gpt_lora(chance: random.Random) -> Setup:
    """Draws GPT-2 or GPT-J with adapters."""
    return _adapt(gpt(chance), chance)


def encoder_lora(chance: random.Random) -> Setup:
    """Draws BERT or T5 with adapters."""
    return _adapt(encoder(chance), chance)


def vit(chance: random.Random) -> Setup:
    """Draws a vision transformer for pictures of any size."""
    heads, width, layers = chance.choice((1, 2, 3, 6, 8)), chance.choice((8, 12, 16, 64)), chance.randint(1, 6)
    config = {
        "model_type": "vit",
        "hidden_size": heads * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": chance.randint(200, 900),
        "patch_size": chance.choice((4, 8, 14, 16, 32)),
        "num_channels": chance.choice((1, 3, 4)),
        "hidden_act": chance.choice(("gelu", "relu", "gelu_new")),
        "qkv_bias": chance.random() < 0.7,
        "num_labels": chance.choice((2, 10, 1000, 21843)),
    }
    config["image_size"] = chance.choice((chance.randint(32, 128), [chance.randint(32, 256), chance.randint(32, 256)]))
    return setup_from({"config": config, **_of_pictures(chance, layers), "attention": chance.choice(("sdpa", "eager"))})


def vit_lora(chance: random.Random) -> Setup:
    """Draws a vision transformer with adapters."""
    return _adapt_pictures(vit(chance), ("attention.q_proj", "attention.v_proj", "classifier"), chance)


def diffusion(chance: random.Random) -> Setup:
    """Draws a diffusion transformer: Flux or Stable Diffusion 3."""
    flux = chance.random() < 0.5
    heads, width = chance.choice((1, 2, 3, 6, 8)), chance.choice((8, 16, 24, 64))
    config = {
        "_class_name": "FluxTransformer2DModel" if flux else "SD3Transformer2DModel",
        "in_channels": chance.choice((4, 16, 64)),
        "attention_head_dim": width,
        "num_attention_heads": heads,
        "joint_attention_dim": chance.randint(8, 300),
        "pooled_projection_dim": chance.randint(8, 200),
        "image_size": [chance.randint(16, 320), chance.randint(16, 320)],
    }
    if flux:
        part = width // 8 * 2
        config |= {"num_layers": chance.randint(1, 4), "num_single_layers": chance.randint(1, 4)}
        config |= {"guidance_embeds": chance.random() < 0.7, "axes_dims_rope": [width - 2 * part, part, part]}
    else:
        layers = chance.randint(1, 5)
        config |= {"num_layers": layers, "caption_projection_dim": heads * width, "out_channels": 16}
        config |= {"sample_size": 16, "patch_size": 2, "pos_embed_max_size": chance.choice((20, 24))}
        config["qk_norm"] = chance.choice((None, None, "rms_norm"))
        config["dual_attention_layers"] = chance.choice(([], [], sorted(chance.sample(range(layers), 1))))
    return setup_from({"config": config, "sequence_length": chance.randint(1, 180), **_of_pictures(chance, layers=1)})


def diffusion_lora(chance: random.Random) -> Setup:
    """Draws a diffusion transformer with adapters."""
    setup = diffusion(chance)
    return _adapt_pictures(setup, [path for path in modules_of(resolve(setup)) if path.startswith("attn.to_")], chance)


def low_rank(chance: random.Random) -> Setup:
    """Draws a decoder that GaLore or APOLLO updates, whose attention runs in separate operations."""
    family = chance.choice(UPDATED_IN_LOW_RANK)
    values = _language(chance, _fitted({"model_type": family, **_sizes(family, chance)}, chance))
    values |= {"attention": "eager", "checkpointing": chance.choice((False, True))}
    optimizer, rank = chance.choice(("galore", "galore8bit", "apollo", "apollo-mini")), chance.choice((None, 1, 4))
    rank = chance.randint(1, 300) if chance.random() < 0.25 else rank
    return setup_from({**values, "optimizer": optimizer, "optimizer_rank": rank})


def muon(chance: random.Random) -> Setup:
    """Draws a decoder that Muon updates, which is counted in bfloat16 and in 32 bits."""
    setup = low_rank(chance)
    precision = "bf16" if setup.precision == "fp16" else setup.precision
    return replace(setup, optimizer="muon", optimizer_rank=None, precision=precision)


def in_backward(chance: random.Random) -> Setup:
    """Draws a step of another kind whose optimizer updates each parameter during backward."""
    setup = chance.choice(UPDATED_IN_BACKWARD)(chance)
    changes: dict[str, object] = {
        "optimizer_in_backward": True,
        "offload_optimizer": False,
        "optimizer_impl": "foreach",
    }
    if setup.precision == "amp-fp16":  # its scaler reads all gradients
        changes["precision"] = "amp-bf16"
    if setup.optimizer_rank is None and setup.optimizer not in DEFAULT_RANKS:
        changes["optimizer"] = chance.choice(OPTIMIZERS_OF_PICTURES)
    if changes.get("optimizer") == "adamw":
        changes["optimizer_impl"] = chance.choice(("foreach", "for-loop", "fused"))
    return replace(setup, **changes)


def offloaded(chance: random.Random) -> Setup:
    """Draws a decoder without checkpointing that keeps on the host what backward needs."""
    setup = low_rank(chance)
    while setup.config["model_type"] not in OFFLOADED:
        setup = low_rank(chance)
    changes = {"optimizer": chance.choice(("adamw", "adamw8bit", "sgd")), "attention": "eager"}
    if resolve(setup).key_heads == resolve(setup).num_heads:
        changes["attention"] = chance.choice(("eager", "sdpa"))
    return replace(setup, optimizer_rank=None, checkpointing=False, offload_activations=True, **changes)


def liger(chance: random.Random) -> Setup:
    """Draws a decoder with a large vocabulary and a loss in pieces; half of them have adapters."""
    family = chance.choice(DECODERS)
    config = _fitted({"model_type": family, **_sizes(family, chance), **_large_vocabulary(chance)}, chance)
    values = _language(chance, config)
    values |= {"attention": "eager", "checkpointing": chance.choice((False, True)), "loss": "liger"}
    if family in ADAPTED_WITH_LIGER and chance.random() < 0.5:
        values |= {"lora_rank": chance.randint(1, 64), "lora_dropout": chance.choice((0.0, 0.1))}
        if values["precision"].startswith("amp-"):
            values["base_bits"] = chance.choice((16, 32))
    setup = setup_from(values)
    if resolve(setup).key_heads == resolve(setup).num_heads and resolve(setup).fusable:
        setup = replace(setup, attention=chance.choice(("eager", "sdpa")))
    return setup


def deepseek_liger(chance: random.Random) -> Setup:
    """Draws a model like DeepSeek-V3 with a loss in pieces; half of them have adapters."""
    setup = chance.choice((deepseek, deepseek_lora))(chance)
    return replace(setup, config=setup.config | _large_vocabulary(chance), loss="liger")


def fp8(chance: random.Random) -> Setup:
    """Draws a dense decoder with matrices that FP8 can multiply."""
    while True:
        setup = decoder(chance, packed=chance.random() < 0.2)
        if setup.config["model_type"] not in SPARSE and setup.lora_rank is None:
            break
    sizes = {"hidden_size", "intermediate_size", "head_dim"} & setup.config.keys()
    config = {
        name: -(-value // SIDES_OF) * SIDES_OF if name in sizes else value for name, value in setup.config.items()
    }
    if "head_dim" not in config or config["model_type"] == "qwen2":  # a head's share of the hidden state
        config["hidden_size"] = SIDES_OF * config["num_attention_heads"] * chance.randint(1, 4)
        if "head_dim" in config:
            config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    length, precision = chance.choice((16, 64, 96, 128, 256)), chance.choice(("bf16", "amp-bf16"))
    return replace(setup, config=config, fp8=True, precision=precision, sequence_length=length)


def several_gpus(chance: random.Random) -> Setup:
    """Draws a model of any language family on several GPUs.

    Attention runs in separate operations, since the fused kernels of CPUs keep other tensors than those of GPUs. The
    softmax of scores of 16 bits keeps others, too, so sequences in 16 bits are short.
    """
    family = chance.choice(DIVIDED)
    sharding = chance.choice(("none", "zero-1", "zero-2", "zero-2", "zero-3", "zero-3", "zero-3"))
    precision = chance.choice(("fp32", "bf16", "amp-bf16", "amp-fp16"))
    # Without FSDP2, this precision is autocast, which casts other operations on a CPU than on a GPU.
    if sharding in ("none", "zero-1"):
        precision = precision.removeprefix("amp-").replace("fp16", "fp32")
    # PyTorch multiplies groups of rows by their expert's weights in bfloat16 only.
    if family == "qwen3_moe" and precision != "amp-bf16":
        precision = "bf16"
    config = {"model_type": family, **_sizes(family, chance)}
    if chance.random() < 0.4:  # the output head takes more than all layers
        config["vocab_size"] = chance.randint(9000, 40_000)
    layers = config.get("num_hidden_layers") or config["n_layer"]
    values = {
        "config": config,
        "micro_batch_size": chance.randint(2, 5),
        "sequence_length": chance.choice(LENGTHS if precision == "fp32" else (16, 32, LONGEST_IN_16_BITS)),
        "precision": precision,
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, False, True, chance.randint(1, layers))),
        "sharding": sharding,
    }
    return setup_from(values | _divided(chance, ("adamw", "adamw", "adamw", "sgd")))


def deepspeed(chance: random.Random) -> Setup:
    """Draws a model of any language family on several GPUs that DeepSpeed divides."""
    setup = chance.choice((several_gpus, several_gpus, several_gpus_t5))(chance)
    precision = "amp-bf16" if setup.config["model_type"] == "qwen3_moe" else chance.choice(("amp-bf16", "fp32"))
    sharding = chance.choice(DEEPSPEED)
    return _short_in_16_bits(replace(setup, sharding=sharding, precision=precision, accumulation_steps=1))


def several_gpus_t5(chance: random.Random) -> Setup:
    """Draws T5 with FSDP2. Its output head is tied, as transformers makes it where there are no weights."""
    config = {
        "model_type": "t5",
        "d_model": 8 * chance.randint(4, 30),
        "d_kv": chance.choice((8, 16, 24)),
        "d_ff": 8 * chance.randint(8, 60),
        "num_layers": chance.randint(1, 4),
        "num_decoder_layers": chance.randint(1, 4),
        "num_heads": chance.choice((2, 4, 8)),
        "vocab_size": chance.randint(60, 900),
        "decoder_start_token_id": 0,
        "feed_forward_proj": chance.choice(("relu", "gated-gelu")),
    }
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice((16, 32, 64, 100)),
        "target_length": chance.choice((16, 24, 64)),
        "precision": chance.choice(("fp32", "bf16", "amp-bf16")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, True)),
        "optimizer": chance.choice(("adamw", "sgd")),
        "accumulation_steps": chance.choice((1, 1, 2)),
        "gpus": chance.choice(GPUS),
        "sharding": chance.choice(("zero-2", "zero-3")),
    }
    return _short_in_16_bits(setup_from(values))


def several_gpus_lora(chance: random.Random) -> Setup:
    """Draws a decoder with adapters on several GPUs."""
    while True:
        setup = several_gpus(chance)
        model = resolve(setup)
        wanted = family_of(model).modules is not None and model.family not in ("bert", "t5")
        if wanted and not (setup.sharding == "none" and chance.random() < 0.5):
            return _adapt_divided(setup, chance)


def several_gpus_encoder_lora(chance: random.Random) -> Setup:
    """Draws BERT or T5 with adapters on several GPUs."""
    if chance.random() < 0.6:
        setup = replace(several_gpus_t5(chance), precision=chance.choice(PRECISIONS))
        if chance.random() < 0.2:  # a CPU's autocast casts other operations than a GPU's
            setup = replace(setup, sharding="zero-1", precision=chance.choice(("fp32", "bf16")))
        return _adapt_divided(_short_in_16_bits(setup), chance)
    while True:
        setup = several_gpus(chance)
        if resolve(setup).family == "bert" and not (setup.sharding == "none" and chance.random() < 0.5):
            return _adapt_divided(setup, chance)


def several_gpus_deepseek(chance: random.Random) -> Setup:
    """Draws a model like DeepSeek-V3 on several GPUs; half of them have adapters. See `several_gpus` for attention."""
    setup = chance.choice((deepseek, deepseek_lora))(chance)
    values = {
        "micro_batch_size": chance.randint(2, 5),
        "sequence_length": chance.choice((16, 32, LONGEST_IN_16_BITS)),
        "attention": "eager",
        "dropout": 0.0,
        "lora_dropout": 0.0,
        "sharding": chance.choice(("none", "zero-1", "zero-2", "zero-2", "zero-3", "zero-3", "zero-3")),
    }
    values |= _divided(chance, ("adamw", "adamw", "sgd"))
    # With FSDP2, this precision keeps the weights in 32 bits and gathers them in 16.
    if setup.lora_rank is None and values["sharding"] in ("zero-2", "zero-3") and chance.random() < 0.4:
        values["precision"] = "amp-bf16"
    return replace(setup, **values)


def several_gpus_liger(chance: random.Random) -> Setup:
    """Draws a decoder with FSDP2 and a loss in pieces."""
    while True:
        setup = several_gpus(chance)
        if setup.config["model_type"] in DECODERS and setup.sharding in ("zero-2", "zero-3"):
            return replace(setup, loss="liger")


def tensor_parallel(chance: random.Random) -> Setup:
    """Draws a decoder with tensor parallelism."""
    gpus, kind = chance.choice((2, 4)), chance.choice(("llama", "llama", "mistral", "qwen2", "qwen3"))
    heads, width = chance.choice((4, 8, 12)), chance.choice((16, 24, 40))
    config = {
        "model_type": kind,
        "vocab_size": gpus * chance.randint(30, 2000),
        "hidden_size": heads * 8 * chance.randint(1, 6),
        "intermediate_size": gpus * chance.randint(40, 400),
        "num_hidden_layers": chance.randint(1, 6),
        "num_attention_heads": heads,
        "num_key_value_heads": chance.choice((4, heads)),
        "head_dim": width,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    if kind == "qwen2":
        config["hidden_size"], config["head_dim"] = heads * width, width
    if kind == "mistral":
        config["sliding_window"] = None
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 5),
        "sequence_length": chance.choice((16, 64, 96, 132, 248)),
        "precision": chance.choice(("fp32", "bf16")),
        "attention": "eager",
        "dropout": 0.0,
        "checkpointing": chance.choice((False, False, True)),
        "optimizer": "adamw",
        "gpus": gpus,
        "sharding": chance.choice(TENSOR_SHARDINGS),
    }
    return setup_from(values)


UPDATED_IN_BACKWARD: tuple[Draw, ...] = (
    decoder, gpt, encoder, deepseek, vit, diffusion, low_rank, liger, offloaded, gpt_lora, encoder_lora, vit_lora,
)  # fmt: skip
"""Kinds of steps that are also drawn with an optimizer in backward."""
ONE_GPU: dict[str, tuple[Draw, int]] = {
    "decoders": (decoder, 80),
    **{family: (partial(other, family), 15) for family in OTHERS},
    "deepseek": (deepseek, 40),
    "gpt": (gpt, 40),
    "encoders": (encoder, 40),
    "gpt-lora": (gpt_lora, 40),
    "encoders-lora": (encoder_lora, 40),
    "mixtures-lora": (mixture_lora, 30),
    "deepseek-lora": (deepseek_lora, 30),
    "packed": (packed, 40),
    "vit": (vit, 40),
    "vit-lora": (vit_lora, 30),
    "diffusion": (diffusion, 40),
    "diffusion-lora": (diffusion_lora, 40),
    "low-rank": (low_rank, 30),
    "muon": (muon, 30),
    "in-backward": (in_backward, 40),
    "offloaded": (offloaded, 30),
    "liger": (liger, 30),
    "deepseek-liger": (deepseek_liger, 20),
    "fp8": (fp8, 30),
}
"""Kinds of steps on one GPU: how to draw one, and how many to draw when all kinds are drawn anew."""
SEVERAL_GPUS: dict[str, tuple[Draw, int]] = {
    "several-gpus": (several_gpus, 40),
    "several-gpus-t5": (several_gpus_t5, 20),
    "deepspeed": (deepspeed, 30),
    "several-gpus-lora": (several_gpus_lora, 40),
    "several-gpus-deepseek": (several_gpus_deepseek, 20),
    "several-gpus-encoders-lora": (several_gpus_encoder_lora, 20),
    "several-gpus-liger": (several_gpus_liger, 20),
    "tensor-parallel": (tensor_parallel, 20),
}
"""The same of steps on one of several GPUs."""


def _language(chance: random.Random, config: dict) -> dict:
    """How a language model is trained, besides attention and checkpointing."""
    return {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice(LENGTHS),
        "precision": "bf16" if config["model_type"] in SPARSE else chance.choice(PRECISIONS),
        "dropout": 0.0,
        "optimizer": chance.choice(("adamw", "adamw8bit", "sgd")),
    }


def _of_pictures(chance: random.Random, layers: int) -> dict:
    """How a model of pictures is trained."""
    values = {
        "micro_batch_size": chance.choice((1, 1, 2, 3, 4, 7)),
        "precision": chance.choice(("amp-bf16", "amp-bf16", "amp-fp16", "bf16", "fp16", "fp32")),
        "checkpointing": chance.choice((False, False, True, chance.randint(1, layers))),
        "optimizer": chance.choice(OPTIMIZERS_OF_PICTURES),
        "offload_optimizer": chance.random() < 0.2,
    }
    if values["optimizer"] == "adamw":
        values["optimizer_impl"] = "for-loop" if values["offload_optimizer"] else chance.choice(("foreach", "for-loop"))
    return values


def _divided(chance: random.Random, optimizers: Sequence[str]) -> dict:
    """The optimizer, the accumulated micro-batches and the GPUs of a divided step."""
    values = {"optimizer": chance.choice(optimizers), "accumulation_steps": chance.choice((1, 1, 2))}
    if values["optimizer"] == "adamw":
        values["optimizer_impl"] = chance.choice(("foreach", "for-loop", "fused"))
    return values | {"gpus": chance.choice(GPUS)}


def _adapt(setup: Setup, chance: random.Random) -> Setup:
    """Freezes the model, with adapters beside all or two modules."""
    names = list(modules_of(resolve(setup)))
    values = {
        "lora_rank": chance.randint(1, 64),
        "lora_targets": chance.choice(("all-linear", "all-linear", ",".join(chance.sample(names, 2)))),
        "lora_dropout": chance.choice((0.0, 0.0, 0.1)),
        "lora_freeze_a": chance.random() < 0.2,
        "dropout": chance.choice((0.0, 0.0, 0.1)),
    }
    return replace(setup, **values, **_bits(setup, chance))


def _adapt_attention(setup: Setup, chance: random.Random) -> Setup:
    """Freezes a model with experts, with adapters beside all modules that may have one, or beside two."""
    names = list(modules_of(resolve(setup)))  # peft's "all-linear" means the experts, too
    targets = chance.choice((names, names, chance.sample(names, 2)))
    values = {"lora_rank": chance.randint(1, 64), "lora_targets": ",".join(targets)}
    values |= {"lora_freeze_a": chance.random() < 0.2, "adapter_bits": chance.choice((16, 32))}
    return replace(setup, **values)


def _adapt_divided(setup: Setup, chance: random.Random) -> Setup:
    """Freezes a model on several GPUs, with adapters beside all modules, one or several."""
    kind = setup.config["model_type"]
    one, several = SOME_TARGETS.get(kind, ("o_proj", "q_proj,o_proj" if kind in SPARSE else "o_proj,down_proj"))
    every = ",".join(modules_of(resolve(setup)))  # of a mixture, peft's "all-linear" means more
    values = {
        "lora_rank": chance.randint(1, 64),
        "lora_targets": chance.choice((every, every, one, several)),
        "lora_freeze_a": chance.random() < 0.2,
    }
    return replace(setup, **values, **_bits(setup, chance))


def _adapt_pictures(setup: Setup, usual: Sequence[str], chance: random.Random) -> Setup:
    """Freezes a model of pictures, with adapters beside all modules, the usual ones or a few."""
    paths = list(modules_of(resolve(setup)))
    some = chance.sample(paths, min(3, len(paths)))
    half = setup.precision in ("bf16", "fp16")
    values = {
        "lora_rank": chance.choice((1, 4, 8, 16, 33)),
        "lora_targets": chance.choice((ALL_LINEAR, ",".join(usual), ",".join(some))),
        "lora_dropout": chance.choice((0.0, 0.0, 0.1)),
        "lora_freeze_a": chance.random() < 0.2,
        "base_bits": 16 if half else 32 if setup.precision == "fp32" else chance.choice((16, 16, 32)),
    }
    values["adapter_bits"] = 32 if setup.precision == "fp32" else chance.choice((16, 32))
    return replace(setup, **values)


def _bits(setup: Setup, chance: random.Random) -> dict[str, int]:
    """Draws the bits of the frozen weights or of the adapters, whichever the precision leaves open."""
    if setup.precision.startswith("amp-"):
        return {"base_bits": chance.choice((16, 32))}
    return {} if setup.precision == "fp32" else {"adapter_bits": chance.choice((16, 32))}


def _with_possible_attention(setup: Setup) -> Setup:
    return setup if resolve(setup).fusable else replace(setup, attention="eager")


def _short_in_16_bits(setup: Setup) -> Setup:
    short = setup.precision == "fp32" or setup.sequence_length <= LONGEST_IN_16_BITS
    return setup if short else replace(setup, sequence_length=LONGEST_IN_16_BITS)


def _large_vocabulary(chance: random.Random) -> dict[str, int]:
    return {"vocab_size": chance.choice((50, 300, 2000, 9000, chance.randint(50, 30000)))}


def _fitted(config: dict, chance: random.Random) -> dict:
    """Changes a config of random sizes as the kernels and the model type need it."""
    family = config["model_type"]
    if family in SPARSE:  # the kernel of experts reads rows of 16 bytes
        config["intermediate_size"] = 8 * chance.randint(2, 100)
    if family in ("gemma2", "gemma3_text", "smollm3"):
        config["pad_token_id"] = 0
    if family == "qwen2":
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return config


def _sizes(family: str, chance: random.Random) -> dict:
    heads, width = chance.choice((2, 4, 6)), chance.choice((16, 24, 40, 64))
    layers, inner = chance.randint(1, 6), chance.randint(100, 1500)
    sizes = {"vocab_size": chance.randint(50, 9000)}
    if family in GPTS:
        sizes |= {"n_embd": heads * width, "n_head": heads, "n_layer": layers, "n_positions": 256, "n_inner": inner}
        return sizes | ({"rotary_dim": 8, "tie_word_embeddings": False} if family == "gptj" else {})
    sizes |= {
        "hidden_size": heads * width if family in ("bert", "phi3", "cohere2") else heads * 8 * chance.randint(1, 8),
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 256,
    }
    if family == "bert":
        return sizes
    sizes["num_key_value_heads"] = chance.choice([k for k in (1, 2, heads) if heads % k == 0])
    sizes["tie_word_embeddings"] = chance.random() < 0.5
    if family == "phi3":
        return sizes | {"pad_token_id": 0}
    sizes["head_dim"] = width
    if family == "qwen3_moe":
        sizes |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 8 * chance.randint(2, 40)}
    return sizes | ({"sliding_window": None} if family == "mistral" else {})


def _own(family: str, chance: random.Random) -> dict:
    """Draws the settings that only one of `OTHERS` has."""
    window, biased = {"sliding_window": chance.choice((1, 32, 96, 4096))}, {"attention_bias": chance.random() < 0.3}
    experts = {"num_experts_per_tok": chance.randint(1, 3), "moe_intermediate_size": 8 * chance.randint(2, 40)}
    if family == "starcoder2":
        return {"use_bias": chance.random() < 0.6} | (window if chance.random() < 0.5 else {})
    if family == "qwen2_moe":
        experts |= {"num_experts": chance.randint(3, 8), "shared_expert_intermediate_size": chance.randint(20, 500)}
        experts |= {"decoder_sparse_step": chance.choice((1, 1, 2)), "norm_topk_prob": chance.random() < 0.5}
        slides = {"use_sliding_window": chance.random() < 0.5, "max_window_layers": chance.randint(1, 6)}
        return experts | window | slides | {"qkv_bias": chance.random() < 0.6}
    if family == "glm4_moe":
        groups, of_one = chance.choice((1, 1, 2)), chance.randint(3, 5)
        experts |= {"n_routed_experts": groups * of_one, "n_group": groups, "topk_group": chance.randint(1, groups)}
        experts |= {"n_shared_experts": chance.choice((1, 2)), "first_k_dense_replace": chance.randint(0, 2)}
        return experts | biased | {"use_qk_norm": chance.random() < 0.5, "norm_topk_prob": chance.random() < 0.7}
    if family == "gpt_oss":
        return {"num_local_experts": chance.randint(3, 8), **experts, **window, "attention_bias": chance.random() < 0.7}
    if family == "cohere":
        return biased | {"use_qk_norm": chance.random() < 0.5}
    return biased | (window if family in ("olmo3", "cohere2") else {})
