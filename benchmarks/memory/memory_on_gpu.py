"""The calculator's estimates compared with a GPU: the memory that PyTorch allocates in training steps of real models.

    python benchmarks/memory/memory_on_gpu.py --csv benchmarks/results/memory_on_gpu.csv
    python benchmarks/memory/memory_on_gpu.py --dry-run  # on a CPU: takes and estimates the steps of small models

The cases are the combinations of family, precision, attention, checkpointing, optimizer, sharing and offload, and of
today's decoders and models of pictures with the techniques that people train them with, each with the largest
micro-batch that fits. Liger's loss and FP8 are taken if their packages are there (`pip install liger-kernel==0.8.5`;
`pip install --no-deps torchao==0.18.0`). A case is a training step after a warm-up step, so that the optimizer's state
exists. The program records `max_memory_allocated`, `max_memory_reserved` and the growth of the process, with the
versions and the card. With --dry-run the models are small, and instead of the peak it compares the memory that the step
leaves in use: parameters, gradients and optimizer state.
"""

from __future__ import annotations

import argparse
import csv
import gc
import itertools
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks.memory.models import build, can_run, dtype_of, inputs, loss_of, made_on
from benchmarks.memory.optimizers import optimizer_of
from benchmarks.record import error_percent, summary
from calculator import BadSetup, Setup, estimate
from calculator.choose.fit import FP8_CAPABILITY
from calculator.step.resolve import resolve

SIZES = {
    "bert": {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072},
    "gpt2": {"n_embd": 768, "n_layer": 6, "n_head": 12, "n_positions": 1024},
    "gptj": {"n_embd": 1024, "n_layer": 4, "n_head": 8, "rotary_dim": 64, "n_positions": 1024, "vocab_size": 50_400}
    | {"tie_word_embeddings": False},
    "t5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 12}
    | {"decoder_start_token_id": 0},
}
"""Real widths and vocabularies, but few layers, so that a case takes seconds."""
SMALL = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    | {"vocab_size": 200, "max_position_embeddings": 16},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 200},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "n_positions": 16, "vocab_size": 200}
    | {"tie_word_embeddings": False},
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    | {"vocab_size": 200, "n_positions": 16, "decoder_start_token_id": 0},
}
"""Small models of the same families, for a CPU."""
_NARROW = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 2048}
_WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32_000, **_NARROW}
_EXPERTS = {"hidden_size": 512, "vocab_size": 32_000, **_NARROW}
_LATENT = {
    "num_key_value_heads": 8, "head_dim": 32, "q_lora_rank": 192, "kv_lora_rank": 128, "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 64, "v_head_dim": 64, "first_k_dense_replace": 1, "n_routed_experts": 16, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 4, "n_shared_experts": 1,
}  # fmt: skip
DECODERS = {
    "llama": _WIDE,
    "qwen3": {**_WIDE, "head_dim": 128, "vocab_size": 151_936},
    "phi3": {**_WIDE, "pad_token_id": 0},
    "gemma2": {**_WIDE, "head_dim": 128, "pad_token_id": 0},
    "gemma3_text": {**_WIDE, "head_dim": 128, "pad_token_id": 0},
    "mixtral": {**_EXPERTS, "intermediate_size": 1024},
    "qwen3_moe": {**_EXPERTS, "head_dim": 64, "intermediate_size": 1024, "num_experts": 16, "num_experts_per_tok": 4}
    | {"moe_intermediate_size": 256},
    "deepseek_v3": {**_EXPERTS, **_LATENT, "intermediate_size": 1024, "moe_intermediate_size": 256},
}
"""Today's decoders, of real widths but few layers."""
SMALL_DECODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 200,
    "num_key_value_heads": 1, "max_position_embeddings": 16, "head_dim": 16,
}  # fmt: skip
SMALL_LATENT = {
    "num_key_value_heads": 2, "head_dim": 8, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "moe_intermediate_size": 16,
}  # fmt: skip
TECHNIQUES = (
    {}, {"optimizer": "adamw8bit"}, {"optimizer": "adafactor"}, {"optimizer": "muon"}, {"loss": "liger"},
    {"lora_rank": 16}, {"lora_rank": 16, "loss": "liger"}, {"lora_rank": 16, "base_bits": 4},
    {"lora_rank": 16, "base_bits": 4, "rest_32bit": True}, {"fp8": True}, {"offload_activations": True},
    {"offload_optimizer": True},
)  # fmt: skip
"""What a decoder is trained with, besides precision, attention and checkpointing; AdamW if no optimizer is named."""
_PICTURE = {"image_size": 512}
PICTURES = {
    "vit": {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12}
    | {"intermediate_size": 3072, "image_size": 224},
    "sd3": {"_class_name": "SD3Transformer2DModel", "num_layers": 4, "num_attention_heads": 16, **_PICTURE}
    | {"caption_projection_dim": 1024},
    "flux": {"_class_name": "FluxTransformer2DModel", "num_layers": 2, "num_single_layers": 4, **_PICTURE}
    | {"num_attention_heads": 8, "guidance_embeds": True},
}
"""Models of pictures, of real widths but few layers."""
SMALL_PICTURES = {
    "vit": {**PICTURES["vit"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32}
    | {"intermediate_size": 64},
    "sd3": {**PICTURES["sd3"], "num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, "image_size": 64}
    | {"caption_projection_dim": 16, "joint_attention_dim": 24, "pooled_projection_dim": 20, "sample_size": 16},
    "flux": {**PICTURES["flux"], "num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "image_size": 64}
    | {"attention_head_dim": 16, "axes_dims_rope": [4, 6, 6], "joint_attention_dim": 24, "pooled_projection_dim": 20},
}
PICTURE_TECHNIQUES = (
    {}, {"optimizer": "adamw8bit"}, {"optimizer": "adafactor"}, {"lora_rank": 16}, {"lora_rank": 16, "base_bits": 16},
    {"offload_optimizer": True},
)  # fmt: skip
"""What a model of pictures is trained with."""
CUDA_ONLY = ("adamw8bit", "lamb8bit", "lion8bit", "paged-adamw8bit")
COLUMNS = (
    "card", "cuda", "torch", "transformers", "model", "precision", "attention", "checkpointing", "optimizer",
    "optimizer_impl", "shared_groups", "offload_optimizer", "offload_activations", "loss", "lora_rank",
    "base_bits", "rest_32bit", "fp8",
    "micro_batch_size", "sequence_length", "predicted_peak", "measured_peak", "measured_reserved", "peak_error_percent",
    "predicted_left", "measured_left", "left_error_percent", "predicted_host", "host_growth",
)  # fmt: skip


def matrix(*, small: bool, usable_bytes: int, cases: int | None, seed: int = 0) -> list[Setup]:
    """The setups, each with the largest micro-batch of 1, 2, 4, 8 and 16 that fits.

    Args:
        small: Small models for a CPU; without optimizers that need CUDA.
        usable_bytes: Memory of the card; a setup may take four fifths of it.
        cases: How many setups to draw at random; None: all.
        seed: Of that draw.
    """
    sizes = SMALL if small else SIZES
    optimizers = [("adamw", impl) for impl in ("foreach", "for-loop", "fused")]
    optimizers += [(name, "foreach") for name in ("adafactor", "sgd", *CUDA_ONLY)]
    setups = []
    for family, precision, attention, checkpointing, (optimizer, impl), groups, offload in itertools.product(
        sizes, ("fp32", "amp-bf16", "bf16"), ("eager", "sdpa"), (False, True), optimizers, (None, 2), (False, True)
    ):
        # The code of GPT-J has no fused attention.
        if (offload and optimizer != "adamw") or (family == "gptj" and attention == "sdpa"):
            continue
        if small and optimizer in CUDA_ONLY:
            continue
        setup = Setup(
            config={"model_type": family, **sizes[family]}, precision=precision, attention=attention, dropout=0.1,
            checkpointing=checkpointing, optimizer=optimizer, optimizer_impl=impl, shared_groups=groups,
            offload_optimizer=offload, sequence_length=16 if small else 512, target_length=_target(family, small),
        )  # fmt: skip
        setups += list(_sized(setup, usable_bytes))[-1:]
    setups += decoders(small=small, usable_bytes=usable_bytes) + pictures(small=small, usable_bytes=usable_bytes)
    if cases is not None and cases < len(setups):
        setups = random.Random(seed).sample(setups, cases)
    return setups


def decoders(*, small: bool, usable_bytes: int) -> list[Setup]:
    """Those of today's decoders; without Liger's loss and FP8 where their packages or the GPU are not there."""
    setups = []
    for family, precision, attention, checkpointing, changes in itertools.product(
        DECODERS, ("fp32", "amp-bf16", "bf16"), ("eager", "sdpa"), (False, True), TECHNIQUES
    ):
        # The code of Gemma 2 has no fused attention.
        if (family == "gemma2" and attention == "sdpa") or (small and changes.get("optimizer") in CUDA_ONLY):
            continue
        sizes = DECODERS[family]
        if small:
            sizes = {**sizes, **SMALL_DECODER} | (SMALL_LATENT if family == "deepseek_v3" else {})
        setup = Setup(
            config={"model_type": family, **sizes}, precision=precision, attention=attention, dropout=0.0,
            checkpointing=checkpointing, sequence_length=16 if small else 1024, **changes,
        )  # fmt: skip
        if can_run(setup, on_gpu=not small):
            setups += list(_sized(setup, usable_bytes))[-1:]
    return setups


def pictures(*, small: bool, usable_bytes: int) -> list[Setup]:
    """Those of models of pictures."""
    setups = []
    for config, precision, attention, checkpointing, changes in itertools.product(
        (SMALL_PICTURES if small else PICTURES).values(), ("fp32", "amp-bf16", "bf16"), ("eager", "sdpa"),
        (False, True), PICTURE_TECHNIQUES,
    ):  # fmt: skip
        is_vit = "model_type" in config
        if (small and changes.get("optimizer") in CUDA_ONLY) or not (is_vit or attention == "sdpa"):
            continue
        setup = Setup(
            config=config, precision=precision, attention=attention, checkpointing=checkpointing,
            dropout=0.1 if is_vit else None, sequence_length=None if is_vit else (16 if small else 128), **changes,
        )  # fmt: skip
        setups += list(_sized(setup, usable_bytes))[-1:]
    return setups


def _target(family: str, small: bool) -> int | None:
    return (16 if small else 128) if family == "t5" else None


def _sized(setup: Setup, usable_bytes: int) -> Iterator[Setup]:
    from dataclasses import replace

    for size in (1, 2, 4, 8, 16):
        larger = replace(setup, micro_batch_size=size)
        try:
            result = estimate(larger)
        except BadSetup:
            return
        if result.gpu.total + result.overhead["total"] < 0.8 * usable_bytes:
            yield larger


def take_steps(setup: Setup, device: str, before_last: Callable[[], None]) -> tuple[int, int]:
    """Takes two training steps; returns the bytes in use after them on the device and on the host.

    Args:
        setup: What to train.
        device: "cpu" or "cuda".
        before_last: Called between the steps, so that a peak can be measured without that of the first step.
    """
    with made_on(device, dtype_of(setup)):
        model = build(setup)
    given, everything = inputs(setup, device), list(model.parameters())
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    parameters, optimizer = list(named.values()), optimizer_of(setup, named)
    moving = torch.autograd.graph.save_on_cpu() if setup.offload_activations else nullcontext()
    half = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(setup.precision)
    for last in (False, True):
        if last:
            for parameter in parameters:
                parameter.grad = None
            before_last()
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None), moving:
            loss = loss_of(model, given)
        loss.backward()
        optimizer.step()
    left = [*everything, *_constants_of(everything), *(parameter.grad for parameter in parameters)]
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
        and (name != "step" or setup.optimizer_impl == "fused" or setup.offload_optimizer)
    ]
    if setup.offload_optimizer:
        return _allocated(left), _allocated(optimizer.on_host + states)
    return _allocated(left + states), 0


def _constants_of(parameters: Iterable) -> Iterator:
    """The tensors with which bitsandbytes turns weights in 4 bits into numbers again."""
    for parameter in parameters:
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            yield from (tensor for tensor in (state.absmax, state.code, state.offset) if tensor is not None)
            state = state.state2


def _allocated(tensors: Iterable) -> int:
    """Bytes of the storages of some tensors, in blocks of 512 as PyTorch's allocator rounds; shared ones count once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum((size + 511) // 512 * 512 for size in storages.values())


def judge(setup: Setup, device: str) -> dict:
    """One row of the table: predicted and measured bytes of a setup."""
    on_gpu = device == "cuda"
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
    torch.manual_seed(0)
    growth = _resident()

    def before_last() -> None:
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    left, host = take_steps(setup, device, before_last)
    answer = estimate(setup)
    expected = answer.gpu.weights + answer.gradient_bytes + answer.optimizer_state_bytes - _buffers(setup)
    row = {name: getattr(setup, name) for name in COLUMNS if hasattr(setup, name)}
    row |= _versions(on_gpu) | {"model": name_of(setup)}
    row |= {
        "predicted_peak": answer.gpu.total,
        "predicted_left": expected,
        "measured_left": left,
        "left_error_percent": round(error_percent(expected, left), 4),
        # Activations on the host are gone after the step.
        "predicted_host": answer.host.total - answer.host.activations,
        "host_growth": _resident() - growth if on_gpu else host,
    }
    if on_gpu:
        peak = torch.cuda.max_memory_allocated()
        row |= {
            "measured_peak": peak,
            "measured_reserved": torch.cuda.max_memory_reserved(),
            "peak_error_percent": round(error_percent(answer.gpu.total, peak), 4),
        }
    return row


def name_of(setup: Setup) -> str:
    """The model type of a setup's config, or the class of a diffusion model."""
    return setup.config.get("model_type") or setup.config["_class_name"]


def _buffers(setup: Setup) -> int:
    from calculator.families.registry import family_of

    architecture = resolve(setup)
    return family_of(architecture).buffer_bytes(architecture, 4 if setup.precision == "fp32" else 2)


def _resident() -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _versions(on_gpu: bool) -> dict[str, str]:
    import transformers

    card = torch.cuda.get_device_name() if on_gpu else f"none ({platform.machine()})"
    return {
        "card": card,
        "cuda": str(torch.version.cuda or "none"),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main(arguments: list[str] | None = None) -> int:
    """Runs the cases, prints the error of each, and writes the CSV if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every case")
    parser.add_argument("--cases", type=int, default=200, metavar="N", help="number of cases, drawn at random (200)")
    parser.add_argument("--dry-run", action="store_true", help="small models on the CPU; no peak is measured")
    parser.add_argument("--list", action="store_true", help="print the number of cases, and end")
    flags = parser.parse_args(arguments)
    usable = 16 * 2**30
    if not flags.dry_run and not flags.list:
        if not torch.cuda.is_available():
            parser.exit(2, "PyTorch finds no NVIDIA GPU here; use --dry-run to try the program on a CPU.\n")
        usable = torch.cuda.mem_get_info()[0]
    setups = matrix(small=flags.dry_run, usable_bytes=usable, cases=flags.cases)
    if not flags.dry_run and not flags.list and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        setups = [setup for setup in setups if not setup.fp8]
    if flags.list:
        print(f"{len(setups)} cases")
        return 0
    figure = "left_error_percent" if flags.dry_run else "peak_error_percent"
    rows = []
    for number, setup in enumerate(setups, 1):
        row = judge(setup, "cpu" if flags.dry_run else "cuda")
        rows.append(row)
        words = [row["model"], setup.precision, setup.attention, setup.optimizer, setup.optimizer_impl]
        words += ["checkpointing"] * bool(setup.checkpointing) + ["shared"] * bool(setup.shared_groups)
        words += ["offload"] * setup.offload_optimizer + ["activations on the host"] * setup.offload_activations
        words += [f"{setup.base_bits} bits"] * bool(setup.base_bits) + ["32-bit rest"] * setup.rest_32bit
        words += ["LoRA"] * bool(setup.lora_rank) + ["Liger"] * (setup.loss == "liger") + ["FP8"] * setup.fp8
        print(f"{number:>4}/{len(setups)} {' '.join(words):<64}{row[figure]:>+10.3f} %", flush=True)
        if flags.csv:
            _write(flags.csv, rows)
    found = summary([row[figure] for row in rows])
    what = "memory in use after a step" if flags.dry_run else "peak"
    print(f"Errors of the {what}:")
    print(f"median {found['median']:.3f} %, 95th percentile {found['p95']:.3f} %, worst {found['worst']:.3f} %")
    return 0


def _write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    raise SystemExit(main())
