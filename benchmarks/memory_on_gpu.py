"""The calculator's estimates compared with a GPU: the memory that PyTorch allocates in training steps of real models.

    python benchmarks/memory_on_gpu.py --csv benchmarks/results/memory_on_gpu.csv
    python benchmarks/memory_on_gpu.py --dry-run          # on a CPU: takes and estimates the steps of small models

The cases are the combinations of family, precision, attention, checkpointing, optimizer, sharing and offload, and of
today's decoders with the techniques that people train them with, each with the largest micro-batch that fits. Liger's
loss is taken if the package is there (`pip install liger-kernel`). A case is a training step after a warm-up step, so
that the optimizer's state exists. The program records `max_memory_allocated`, `max_memory_reserved` and the growth of
the process, with the versions and the card. With --dry-run the models are small, and instead of the peak it compares
the memory that the step leaves in use: parameters, gradients and optimizer state.
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib.util
import itertools
import platform
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import error_percent, summary  # noqa: E402

from calculator import BadSetup, Setup, estimate  # noqa: E402
from calculator.fit_report import LOSS_OF_LIGER  # noqa: E402
from calculator.setups import resolve  # noqa: E402

SIZES = {
    "bert": {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 3072},
    "gpt2": {"n_embd": 768, "n_layer": 6, "n_head": 12, "n_positions": 1024},
    "gptj": {"n_embd": 1024, "n_layer": 4, "n_head": 8, "rotary_dim": 64, "n_positions": 1024, "vocab_size": 50_400},
    "t5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 4, "num_decoder_layers": 4, "num_heads": 12},
}
"""Real widths and vocabularies, but few layers, so that a case takes seconds."""
SMALL = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    | {"vocab_size": 200, "max_position_embeddings": 16},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 200},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 2, "rotary_dim": 8, "n_positions": 16, "vocab_size": 200},
    "t5": {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2}
    | {"vocab_size": 200, "n_positions": 16},
}
"""Small models of the same families, for a CPU."""
_NARROW = {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 4, "max_position_embeddings": 2048}
_WIDE = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 32_000, **_NARROW}
_EXPERTS = {"hidden_size": 512, "vocab_size": 32_000, **_NARROW}
DECODERS = {
    "llama": _WIDE,
    "qwen3": {**_WIDE, "head_dim": 128, "vocab_size": 151_936},
    "phi3": {**_WIDE, "pad_token_id": 0},
    "gemma2": {**_WIDE, "head_dim": 128, "pad_token_id": 0},
    "gemma3_text": {**_WIDE, "head_dim": 128, "pad_token_id": 0},
    "mixtral": {**_EXPERTS, "intermediate_size": 1024},
    "qwen3_moe": {**_EXPERTS, "head_dim": 64, "intermediate_size": 1024, "num_experts": 16, "num_experts_per_tok": 4}
    | {"moe_intermediate_size": 256},
}
"""Today's decoders, of real widths but few layers."""
SMALL_DECODER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 200,
    "num_key_value_heads": 1, "max_position_embeddings": 16, "head_dim": 16,
}  # fmt: skip
TECHNIQUES = (
    {}, {"optimizer": "adamw8bit"}, {"optimizer": "adafactor"}, {"optimizer": "muon"}, {"loss": "liger"},
    {"lora_rank": 16}, {"lora_rank": 16, "loss": "liger"}, {"offload_activations": True}, {"offload_optimizer": True},
)  # fmt: skip
"""What a decoder is trained with, besides precision, attention and checkpointing; AdamW if no optimizer is named."""
CUDA_ONLY = ("adamw8bit", "lamb8bit", "lion8bit", "paged-adamw8bit")
COLUMNS = (
    "card", "cuda", "torch", "transformers", "model", "precision", "attention", "checkpointing", "optimizer",
    "optimizer_impl", "shared_groups", "offload_optimizer", "offload_activations", "loss", "lora_rank",
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
        if offload and optimizer != "adamw":
            continue
        if small and optimizer in CUDA_ONLY:
            continue
        setup = Setup(
            config={"model_type": family, **sizes[family]}, precision=precision, attention=attention, dropout=0.1,
            checkpointing=checkpointing, optimizer=optimizer, optimizer_impl=impl, shared_groups=groups,
            offload_optimizer=offload, sequence_length=16 if small else 512, target_length=_target(family, small),
        )  # fmt: skip
        setups += list(_sized(setup, usable_bytes))[-1:]
    setups += _decoders(small=small, usable_bytes=usable_bytes)
    if cases is not None and cases < len(setups):
        setups = random.Random(seed).sample(setups, cases)
    return setups


def _decoders(*, small: bool, usable_bytes: int) -> list[Setup]:
    """Those of today's decoders; without Liger's loss, whose kernels need a GPU, if the package is not there."""
    liger = not small and importlib.util.find_spec("liger_kernel") is not None
    setups = []
    for family, precision, attention, checkpointing, changes in itertools.product(
        DECODERS, ("fp32", "amp-bf16", "bf16"), ("eager", "sdpa"), (False, True), TECHNIQUES
    ):
        # The code of Gemma 2 has no fused attention.
        if (family == "gemma2" and attention == "sdpa") or (changes.get("loss") == "liger" and not liger):
            continue
        if small and changes.get("optimizer") in CUDA_ONLY:
            continue
        sizes = {**DECODERS[family], **SMALL_DECODER} if small else DECODERS[family]
        setup = Setup(
            config={"model_type": family, **sizes}, precision=precision, attention=attention, dropout=0.0,
            checkpointing=checkpointing, sequence_length=16 if small else 1024, **changes,
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


def build(setup: Setup, device: str):
    """The real model of a setup, on a device, in training mode."""
    import torch
    import transformers

    if setup.config["model_type"] in DECODERS:
        return _decoder(setup, device)
    classes = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "gptj": (transformers.GPTJConfig, transformers.GPTJForCausalLM),
        "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    }
    values = {key: value for key, value in setup.config.items() if key != "model_type"}
    family = setup.config["model_type"]
    config_class, model_class = classes[family]
    dropouts = {
        "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
        "t5": ("dropout_rate",),
    }.get(family, ("resid_pdrop", "attn_pdrop", "embd_pdrop"))
    more = {"gptj": {"tie_word_embeddings": False}, "t5": {"decoder_start_token_id": 0, "feed_forward_proj": "relu"}}
    config = config_class(**values, **dict.fromkeys(dropouts, setup.dropout), **more.get(family, {}), use_cache=False)
    config._attn_implementation = "eager" if family == "gptj" else setup.attention
    with torch.device(device):
        model = model_class(config).to(torch.bfloat16 if setup.precision == "bf16" else torch.float32)
    if setup.shared_groups:
        _share(model, family, setup.shared_groups)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _decoder(setup: Setup, device: str):
    """The real model of one of `DECODERS`, with adapters and Liger's loss if the setup has them."""
    import torch
    import transformers

    values = {**setup.config, "attention_dropout": 0.0, "use_cache": False}
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    config._attn_implementation = setup.attention
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16 if setup.precision == "bf16" else torch.float32
        )
    if setup.loss == "liger":
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model, **LOSS_OF_LIGER)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if setup.lora_rank is not None:
        from peft import LoraConfig, get_peft_model

        if setup.checkpointing:
            model.enable_input_require_grads()
        rank, targets = setup.lora_rank, setup.lora_targets
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if setup.precision == "bf16" and ".lora_" in name:
                parameter.data = parameter.data.bfloat16()
    return model.train()


def _share(model, family: str, groups: int) -> None:
    """Gives layer i the parameters of layer i mod `groups`.

    The first layer of a T5 stack has a table of positions that others lack; it keeps it.
    """
    stacks = {
        "bert": lambda: [model.bert.encoder.layer],
        "gpt2": lambda: [model.transformer.h],
        "gptj": lambda: [model.transformer.h],
        "t5": lambda: [model.encoder.block, model.decoder.block],
    }[family]()
    for layers in stacks:
        for index, layer in enumerate(layers):
            owner = layers[index % groups]
            if owner is layer:
                continue
            modules = dict(owner.named_modules())
            for name, module in layer.named_modules():
                for parameter in list(module._parameters):
                    if module._parameters[parameter] is not None:
                        module._parameters[parameter] = modules[name]._parameters[parameter]


def make_optimizer(setup: Setup, parameters: Iterable):
    """The optimizer of a setup."""
    import torch

    parameters = list(parameters)
    if setup.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters, lr=1e-4, foreach=setup.optimizer_impl == "foreach", fused=setup.optimizer_impl == "fused"
        )
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
    if setup.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    import bitsandbytes

    classes = {
        "adamw8bit": bitsandbytes.optim.AdamW8bit,
        "paged-adamw8bit": bitsandbytes.optim.PagedAdamW8bit,
        "lamb8bit": bitsandbytes.optim.LAMB8bit,
        "lion8bit": bitsandbytes.optim.Lion8bit,
    }
    return classes[setup.optimizer](parameters, lr=1e-4)


class Muon:
    """PyTorch's Muon of the hidden matrices, and its AdamW of all else.

    Args:
        named: All parameters, by their names in the model.
    """

    def __init__(self, named: dict) -> None:
        import torch

        hidden = {name for name, parameter in named.items() if parameter.ndim == 2 and not _is_outside(name)}
        self.muon = torch.optim.Muon([named[name] for name in named if name in hidden])
        # "foreach" is its default for tensors on a GPU, but not for fake ones.
        self.adamw = torch.optim.AdamW([named[name] for name in named if name not in hidden], foreach=True)

    def step(self) -> None:
        """Updates the matrices, then all else."""
        self.muon.step()
        self.adamw.step()

    @property
    def state(self) -> dict:
        """The state of each parameter."""
        return {**self.muon.state, **self.adamw.state}


def _is_outside(name: str) -> bool:
    return "embed" in name or "lm_head" in name


class Offloaded:
    """An optimizer on the host over 32-bit copies; the device keeps parameters and gradients."""

    def __init__(self, setup: Setup, parameters: Iterable) -> None:
        import torch

        self.on_device = list(parameters)
        self.copies = [torch.nn.Parameter(p.detach().to("cpu", torch.float32, copy=True)) for p in self.on_device]
        for copy in self.copies:
            copy.grad = torch.zeros_like(copy)
        self.optimizer = make_optimizer(setup, self.copies)

    @property
    def state(self) -> dict:
        """The state of the optimizer on the host."""
        return self.optimizer.state

    def step(self) -> None:
        """Copies gradients to the host, updates the copies there, and copies them back to the device."""
        import torch

        with torch.no_grad():
            for copy, parameter in zip(self.copies, self.on_device, strict=True):
                copy.grad.copy_(parameter.grad)
            self.optimizer.step()
            for copy, parameter in zip(self.copies, self.on_device, strict=True):
                parameter.copy_(copy)


def take_steps(setup: Setup, device: str, before_last: Callable[[], None]) -> tuple[int, int]:
    """Takes two training steps; returns the bytes in use after them on the device and on the host.

    Args:
        setup: What to train.
        device: "cpu" or "cuda".
        before_last: Called between the steps, so that a peak can be measured without that of the first step.
    """
    import torch

    architecture = resolve(setup)
    model = build(setup, device)
    everything = list(model.parameters())
    parameters = [parameter for parameter in everything if parameter.requires_grad]
    if setup.optimizer == "muon":
        optimizer = Muon(dict(model.named_parameters()))
    else:
        optimizer = (Offloaded if setup.offload_optimizer else make_optimizer)(setup, parameters)
    shape = (setup.micro_batch_size, setup.sequence_length)
    target = (setup.micro_batch_size, setup.target_length or setup.sequence_length)
    ids = torch.randint(architecture.vocab_size, shape, device=device)
    labels = torch.randint(architecture.vocab_size, target, device=device)
    moving = torch.autograd.graph.save_on_cpu() if setup.offload_activations else nullcontext()
    half = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(setup.precision)
    for last in (False, True):
        if last:
            for parameter in parameters:
                parameter.grad = None
            before_last()
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None), moving:
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
    left = [*everything, *(parameter.grad for parameter in parameters)]
    states = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
        and (name != "step" or setup.optimizer_impl == "fused" or setup.offload_optimizer)
    ]
    if setup.offload_optimizer:
        copies = [value for copy in optimizer.copies for value in (copy, copy.grad)]
        return _allocated(left), _allocated(copies + states)
    return _allocated(left + states), 0


def _allocated(tensors: Iterable) -> int:
    """Bytes of the storages of some tensors, in blocks of 512 as PyTorch's allocator rounds; shared ones count once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum((size + 511) // 512 * 512 for size in storages.values())


def judge(setup: Setup, device: str) -> dict:
    """One row of the table: predicted and measured bytes of a setup."""
    import torch

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
    row |= _versions(on_gpu) | {"model": setup.config["model_type"]}
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


def _buffers(setup: Setup) -> int:
    from calculator.parameters import FAMILIES

    architecture = resolve(setup)
    return FAMILIES[architecture.family].buffer_bytes(architecture, 4 if setup.precision == "fp32" else 2)


def _resident() -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def _versions(on_gpu: bool) -> dict[str, str]:
    import torch
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
        import torch

        if not torch.cuda.is_available():
            parser.exit(2, "PyTorch finds no NVIDIA GPU here; use --dry-run to try the program on a CPU.\n")
        usable = torch.cuda.mem_get_info()[0]
    setups = matrix(small=flags.dry_run, usable_bytes=usable, cases=flags.cases)
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
        words += ["LoRA"] * bool(setup.lora_rank) + ["Liger"] * (setup.loss == "liger")
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
