"""Traces training steps of decoders, also on packs of samples, and counts what the device holds.

    python benchmarks/memory/decoder_steps.py --check steps/decoder_steps.json
    python benchmarks/memory/decoder_steps.py --packed --cases 80 --seed 2035 --json steps/packed_steps.json
    python benchmarks/memory/decoder_steps.py --mixtures --cases 40 --seed 1 --json steps/mixture_lora_steps.json
    python benchmarks/memory/decoder_steps.py --older --cases 60 --seed 1 --json steps/older_lora_steps.json
    python benchmarks/memory/decoder_steps.py --encoders --cases 80 --seed 3 --json steps/encoder_lora_steps.json
    python benchmarks/memory/decoder_steps.py --deepseek --adapters --cases 40 --json steps/deepseek_lora_steps.json
    python benchmarks/memory/decoder_steps.py --deepseek --divided --cases 50 --json steps/divided_deepseek_steps.json
    python benchmarks/memory/decoder_steps.py --divided --cases 80 --seed 1 --json steps/divided_adapter_steps.json

Real code of transformers and peft runs on a fake GPU, as in `picture_steps.py`. With `--packed`, each drawn sequence is
a pack of samples which see nothing of each other. A pack is told by its positions, which begin anew with each sample;
transformers then makes a mask, also for fused attention, which needs none otherwise.

With `--mixtures`, models have experts, and their attention has adapters. With `--deepseek`, they are like DeepSeek-V3;
with `--adapters` as well, their attention has adapters. With `--older`, they are GPT-2 and GPT-J with adapters, with
`--encoders` BERT and T5; with `--whole`, these have none. With `--divided`, all steps have adapters and are of several
GPUs, as in `sharded_steps.py`; with `--encoders` as well, they are of BERT and T5; with `--deepseek`, half of them have
adapters.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory import fake_cuda

# isort: split
import torch

from benchmarks.memory import picture_steps, sharded_steps
from calculator.parts.adapters import FAMILIES_WITH_ADAPTERS, modules_of
from calculator.step.setups import Setup, resolve, setup_from

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "phi3", "smollm3", "gemma2", "gemma3_text", "mixtral", "qwen3_moe")
OLDER = ("gpt2", "gptj")
"""Model types of which steps with adapters are drawn apart."""
ENCODERS = ("bert", "t5")
"""Model types of which steps with adapters are drawn apart, too."""
SPARSE = ("mixtral", "qwen3_moe")
"""Model types with experts, of which fake tensors have a kernel in bfloat16 only."""
ADAPTED = ("llama", "qwen3", "mistral")
"""Model types that may have LoRA's adapters."""
SOME_TARGETS = {
    "gpt2": ("c_proj", "attn.c_attn,mlp.c_proj"),
    "gptj": ("out_proj", "out_proj,fc_out"),
    "bert": ("attention.output.dense", "query,output.dense"),
    "t5": ("EncDecAttention.o", "q,v"),
}
PRECISIONS = ("amp-bf16", "amp-fp16", "bf16", "fp16", "fp32")
PHASES = ("forward", "backward", "optimizer")


def build(setup: Setup, change: Callable[[torch.nn.Module], None] = lambda model: None) -> torch.nn.Module:
    """The model of a setup, with adapters if it has any.

    Args:
        setup: What is trained.
        change: Changes the model before it gets them.
    """
    precision = setup.precision.removeprefix("amp-") if setup.base_bits == 16 else setup.precision
    # The padding of published models is no token of a small vocabulary; T5 puts it before what its decoder reads.
    config = {"pad_token_id": 0 if setup.config["model_type"] == "t5" else None, **setup.config}
    model = sharded_steps.build(replace(setup, precision=precision, config=config))
    change(model)
    if setup.lora_rank is None:
        return model
    keep_in_32_bits(model)
    if setup.checkpointing:
        model.enable_input_require_grads()
    return picture_steps.adapted(model, setup).train()


def keep_in_32_bits(model: torch.nn.Module) -> None:
    """Makes 32-bit what transformers loads so into a model in float16, which here is not loaded but made."""
    for name in getattr(model, "_keep_in_fp32_modules", None) or ():
        for path, module in model.named_modules():
            if path.rpartition(".")[2] == name and module.weight.dtype == torch.float16:
                module.weight = torch.nn.Parameter(module.weight.detach().float())


def inputs(setup: Setup) -> dict[str, torch.Tensor]:
    """Token ids and labels, and positions of packs, on the default device."""
    read = dict.fromkeys(("input_ids", *(("position_ids",) if setup.packed else ())), setup.sequence_length)
    read["labels"] = setup.target_length or setup.sequence_length
    return {name: torch.zeros((setup.micro_batch_size, length), dtype=torch.long) for name, length in read.items()}


def trace(setup: Setup, build: Callable[[Setup], torch.nn.Module] = build, **given: Callable) -> dict:
    """What the device holds in a step of a setup.

    Args:
        setup: What is trained.
        build: Makes the model.
        given: Further arguments of `picture_steps.trace`.
    """
    with patch.object(fake_cuda, "packs_samples", [setup.packed]):
        return picture_steps.trace(setup, build=build, inputs=inputs, phases=PHASES, **given)


def fitted(config: dict, chance: random.Random) -> dict:
    """A config of random sizes as the kernels and the model type need it."""
    family = config["model_type"]
    if family in SPARSE:  # the kernel of experts reads rows of 16 bytes
        config["intermediate_size"] = 8 * chance.randint(2, 100)
    if family in ("gemma2", "gemma3_text", "smollm3"):
        config["pad_token_id"] = 0
    if family == "qwen2":
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return config


def can_trace(setup: Setup) -> bool:
    """Whether fake tensors have kernels for a setup: of experts, in bfloat16 only."""
    return setup.precision == "bf16" or resolve(setup).family not in ("mixture", "deepseek")


def draw(chance: random.Random, *, packed: bool, families: Sequence[str] = FAMILIES) -> Setup:
    """A random setup: a decoder of a few layers, some of them with adapters."""
    family = chance.choice(families)
    config = fitted({"model_type": family, **sharded_steps.random_sizes(family, chance)}, chance)
    if family in ("mistral", "mixtral", "gemma2", "gemma3_text"):
        config["sliding_window"] = chance.choice((32, 96, 4096))
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.choice((16, 64, 96, 130, 250)),
        "precision": chance.choice(PRECISIONS),
        "attention": chance.choice(("eager", "sdpa", "sdpa", "sdpa")),
        "dropout": 0.0,
        "checkpointing": chance.choice((False, False, True)),
        "optimizer": chance.choice(("adamw", "adamw8bit", "sgd")),
        "packed": packed,
    }
    if family in SPARSE:
        values["precision"] = "bf16"
    if family in ADAPTED and chance.random() < 0.4:
        values["lora_rank"] = chance.randint(1, 64)
        if values["precision"].startswith("amp-"):
            values["base_bits"] = chance.choice((16, 32))
    setup = setup_from(values)
    return setup if resolve(setup).fusable else replace(setup, attention="eager")


def draw_deepseek(chance: random.Random) -> Setup:
    """A random setup of DeepSeek-V3, with dense layers first and routed experts after them."""
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
    values = {
        "config": config,
        "micro_batch_size": chance.randint(1, 4),
        "sequence_length": chance.randint(4, 200),
        "precision": "bf16",
        "attention": chance.choice(("eager", "sdpa")),
        "dropout": chance.choice((0.0, 0.0, 0.1)),
        "checkpointing": chance.choice((False, False, True)),
        "optimizer": chance.choice(("adamw", "adamw8bit", "sgd")),
    }
    return setup_from(values)


def draw_adapted_mixture(chance: random.Random) -> Setup:
    """A random setup of a model with experts, of which attention has adapters."""
    while True:
        setup = draw(chance, packed=False)
        if setup.config["model_type"] in SPARSE:
            break
    return with_adapters_of_attention(setup, chance)


def draw_adapted_deepseek(chance: random.Random) -> Setup:
    """A random setup of DeepSeek-V3, of which attention has adapters."""
    setup = with_adapters_of_attention(draw_deepseek(chance), chance)
    return replace(setup, lora_dropout=chance.choice((0.0, 0.0, 0.1)))


def with_adapters_of_attention(setup: Setup, chance: random.Random) -> Setup:
    """The same, frozen and with adapters beside all modules that may have one, or beside two."""
    names = list(modules_of(resolve(setup)))  # peft's "all-linear" means the experts, too
    targets = chance.choice((names, names, chance.sample(names, 2)))
    values = {"lora_rank": chance.randint(1, 64), "lora_targets": ",".join(targets)}
    values |= {"lora_freeze_a": chance.random() < 0.2, "adapter_bits": chance.choice((16, 32))}
    return replace(setup, **values)


def draw_older(chance: random.Random) -> Setup:
    """A random setup of GPT-2 or GPT-J."""
    return draw(chance, packed=False, families=OLDER)


def draw_adapted_older(chance: random.Random) -> Setup:
    """The same with adapters."""
    return with_adapters(draw_older(chance), chance)


def draw_encoder(chance: random.Random) -> Setup:
    """A random setup of BERT or T5."""
    setup = draw(chance, packed=False, families=("bert",))
    if chance.random() < 0.6:
        two = sharded_steps.draw_two_stacks(chance)
        setup = replace(setup, config=two.config, target_length=two.target_length)
    return setup if resolve(setup).fusable else replace(setup, attention="eager")


def draw_adapted_encoder(chance: random.Random) -> Setup:
    """The same with adapters."""
    return with_adapters(draw_encoder(chance), chance)


def with_adapters(setup: Setup, chance: random.Random) -> Setup:
    """The same, frozen and with adapters beside all or some modules."""
    names = list(modules_of(resolve(setup)))
    values = {
        "lora_rank": chance.randint(1, 64),
        "lora_targets": chance.choice(("all-linear", "all-linear", ",".join(chance.sample(names, 2)))),
        "lora_dropout": chance.choice((0.0, 0.0, 0.1)),
        "lora_freeze_a": chance.random() < 0.2,
        "dropout": chance.choice((0.0, 0.0, 0.1)),
    }
    return replace(setup, **values, **draw_bits(setup, chance))


def draw_divided(chance: random.Random, *, encoders: bool) -> Setup:
    """A random setup with adapters on several GPUs: of BERT and T5, or of decoders."""
    while True:
        setup = sharded_steps.draw(chance)
        family = resolve(setup).family
        wanted = family == "bert" if encoders else family in FAMILIES_WITH_ADAPTERS and family not in ENCODERS
        if wanted and not (setup.sharding == "none" and chance.random() < 0.5):
            break
    if encoders and chance.random() < 0.6:
        setup = replace(sharded_steps.draw_two_stacks(chance), precision=chance.choice(PRECISIONS))
        if chance.random() < 0.2:  # a CPU's autocast casts other operations than a GPU's
            setup = replace(setup, sharding="zero-1", precision=chance.choice(("fp32", "bf16")))
        setup = sharded_steps.short_in_16_bits(setup)
    kind = setup.config["model_type"]
    one, several = SOME_TARGETS.get(kind, ("o_proj", "q_proj,o_proj" if kind in SPARSE else "o_proj,down_proj"))
    every = ",".join(modules_of(resolve(setup)))  # of a mixture, peft's "all-linear" means more
    values = {
        "lora_rank": chance.randint(1, 64),
        "lora_targets": chance.choice((every, every, one, several)),
        "lora_freeze_a": chance.random() < 0.2,
    }
    return replace(setup, **values, **draw_bits(setup, chance))


def draw_divided_deepseek(chance: random.Random) -> Setup:
    """A random setup like DeepSeek-V3 on several GPUs, half of them with adapters beside attention.

    Without dropout, and with attention in separate operations; see `sharded_steps.draw`.
    """
    setup = chance.choice((draw_deepseek, draw_adapted_deepseek))(chance)
    values = {
        "micro_batch_size": chance.randint(2, 5),
        "sequence_length": chance.choice((16, 32, sharded_steps.LONGEST_IN_16_BITS)),
        "attention": "eager",
        "dropout": 0.0,
        "lora_dropout": 0.0,
        "optimizer": chance.choice(("adamw", "adamw", "sgd")),
        "accumulation_steps": chance.choice((1, 1, 2)),
        "gpus": chance.choice(sharded_steps.SIZES),
        "sharding": chance.choice(("none", "zero-1", "zero-2", "zero-2", "zero-3", "zero-3", "zero-3")),
    }
    if values["optimizer"] == "adamw":
        values["optimizer_impl"] = chance.choice(("foreach", "for-loop", "fused"))
    # With FSDP2, this precision keeps the weights in 32 bits and gathers them in 16.
    if setup.lora_rank is None and values["sharding"] in ("zero-2", "zero-3") and chance.random() < 0.4:
        values["precision"] = "amp-bf16"
    return replace(setup, **values)


def draw_bits(setup: Setup, chance: random.Random) -> dict[str, int]:
    """Bits of the frozen weights or of the adapters, whichever its precision leaves open."""
    if setup.precision.startswith("amp-"):
        return {"base_bits": chance.choice((16, 32))}
    return {} if setup.precision == "fp32" else {"adapter_bits": chance.choice((16, 32))}


def main(arguments: list[str] | None = None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each, and writes them if asked."""
    parser = picture_steps.parser_of(__doc__)
    parser.add_argument("--packed", action="store_true", help="draw packs of samples")
    parser.add_argument("--mixtures", action="store_true", help="draw models with experts and adapters")
    parser.add_argument("--deepseek", action="store_true", help="draw models like DeepSeek-V3")
    parser.add_argument("--adapters", action="store_true", help="with --deepseek: draw them with adapters")
    parser.add_argument("--older", action="store_true", help="draw GPT-2 and GPT-J with adapters")
    parser.add_argument("--encoders", action="store_true", help="draw BERT and T5 with adapters")
    parser.add_argument("--whole", action="store_true", help="draw these older models without adapters")
    parser.add_argument("--divided", action="store_true", help="draw adapters, or DeepSeek, on several GPUs")
    flags = parser.parse_args(arguments)
    if flags.divided:
        chance = random.Random(flags.seed)
        drawn = draw_divided_deepseek if flags.deepseek else partial(draw_divided, encoders=flags.encoders)
        trace_divided = partial(sharded_steps.trace, build=build)
        sharded_steps.trace_all((drawn(chance) for _ in range(flags.cases)), trace_divided, flags.json)
        return
    drawn = partial(draw, packed=flags.packed)
    if flags.mixtures:
        drawn = draw_adapted_mixture
    elif flags.deepseek:
        drawn = draw_adapted_deepseek if flags.adapters else draw_deepseek
    elif flags.older:
        drawn = draw_older if flags.whole else draw_adapted_older
    elif flags.encoders:
        drawn = draw_encoder if flags.whole else draw_adapted_encoder
    picture_steps.draw_and_trace(flags, drawn, trace, can_trace)


if __name__ == "__main__":
    main()
