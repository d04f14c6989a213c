"""Traces training steps of models of pictures as a GPU would run them, and counts what the device holds.

    python benchmarks/memory/picture_steps.py --check steps/picture_steps.json
    python benchmarks/memory/picture_steps.py --cases 30 --seed 1 --json steps/picture_steps.json

Real code of transformers runs on fake tensors, which have a size but no content, on a CUDA device that does nothing
(`fake_cuda`). The program follows every storage, rounded up to 512 bytes as CUDA's allocator does, through a step at
whose start the optimizer's state exists. Operations are those of CUDA; what a kernel takes only while it runs is added
where it is large.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.memory import fake_cuda  # before torch

# isort: split
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from benchmarks.memory.real_models import adapters_of, dtype_of, half_of, loss_of, of_pictures, train_adapters
from benchmarks.memory.sharded_steps import DROPOUTS, HALF, Held
from calculator.parts.adapters import ALL_LINEAR, modules_of
from calculator.step.setups import Setup, resolve, setup_from
from calculator.tape.autograd import rounded

OPTIMIZERS = ("adamw", "adamw8bit", "lamb", "lamb8bit", "adafactor", "sgd")
"""Optimizers of a traced step."""
FIGURES = (
    "parameters", "trained_parameters", "saved_activations", "autocast_weight_copies", "gradient_bytes",
    "optimizer_state_bytes", "host_total", "peak",
)  # fmt: skip


class OnGpu(Held):
    """Follows the storages on the GPU, and which of them are autocast's copies of weights."""

    def __init__(self) -> None:
        super().__init__(steps_on_device=True)
        self.weights: set[int] = set()
        self.copies: dict[int, int] = {}
        self.on_host = 0  # bytes of what the host keeps for backward

    def follow(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage at its present size from now on."""
        if device_of(tensor) == "cuda":
            super().follow(tensor)

    def _forget(self, address: int) -> None:
        super()._forget(address)
        self.copies.pop(address, None)

    def workspace_bytes(self, func, args: tuple) -> int:
        """Memory that the operation's kernel takes only while it runs; negative if the operation is made in place."""
        if fake_cuda.within_linear[0] and func is torch.ops.aten.add.Tensor:
            return -self._replaced(args[0])
        if func is torch.ops.aten.index_put.default and self.phase == "backward":
            return -self._replaced(args[0])  # of zeros, which only fake tensors copy (FunctionsManual, index_backward)
        return fake_cuda.workspace_bytes(func, args)

    def _replaced(self, product: torch.Tensor) -> int:
        """Counts a product no longer, because its sum with a bias is made in its memory; its bytes."""
        address = _address(product)
        size, self.sizes[address] = self.sizes[address], 0
        self.now -= size
        return size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        on_gpu = func is torch.ops.aten._to_copy.default and device_of(returned) == "cuda"
        if on_gpu and _address(args[0]) in self.weights:
            self.copies[_address(returned)] = rounded(returned.untyped_storage().nbytes())
        if func is torch.ops.aten._to_copy.default and (device_of(args[0]), device_of(returned)) == ("cuda", "cpu"):
            self.on_host += rounded(returned.nbytes)
        return returned


def device_of(tensor: torch.Tensor) -> str:
    """Where a tensor is, or claims to be."""
    return (tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device).type


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def build(setup: Setup) -> torch.nn.Module:
    """The model for a setup, in training mode, on the default device and with the default type."""
    config = dict(setup.config)
    kind = config.pop("_class_name", None)
    model = _of_diffusers(kind, config, setup) if kind else _of_transformers(config, setup)
    return model.train()


def _of_transformers(config: dict, setup: Setup) -> torch.nn.Module:
    import transformers
    from transformers.initialization import no_init_weights

    config.pop("model_type")
    made = transformers.ViTConfig(**config)
    if setup.dropout is not None:
        for name in DROPOUTS:
            setattr(made, name, setup.dropout)
    if setup.image_size is not None:
        made.image_size = setup.image_size
    made._attn_implementation = setup.attention
    # Its initial values would be drawn again until they are small enough, and fake tensors have none.
    with no_init_weights():
        model = transformers.ViTForImageClassification(made)
    if setup.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for index, layer in enumerate(model.vit.layers):
            layer.gradient_checkpointing = index % int(setup.checkpointing) == 0
    return model if setup.lora_rank is None else adapted(model, setup).train()


def _of_diffusers(kind: str, config: dict, setup: Setup) -> torch.nn.Module:
    import diffusers

    config.pop("image_size", None)
    model = getattr(diffusers, kind)(**config)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(torch.get_default_dtype()))
    if setup.checkpointing:
        model.enable_gradient_checkpointing()
    return model if setup.lora_rank is None else adapted(model, setup)


def adapted(model: torch.nn.Module, setup: Setup) -> torch.nn.Module:
    """A frozen model with LoRA's adapters, as the examples of diffusers make it."""
    model.requires_grad_(False)
    # PyTorch cannot move a module of fake tensors, and peft makes each where it belongs.
    with patch.object(torch.nn.Module, "to", lambda module, *args, **kwargs: module):
        model.add_adapter(adapters_of(setup))
    train_adapters(model, setup)
    return model


class Offloaded:
    """An optimizer on the host, which keeps copies of parameters and gradients there in 32 bits."""

    def __init__(self, setup: Setup, parameters: list[torch.nn.Parameter]) -> None:
        self.on_gpu = parameters
        self.copies = [torch.nn.Parameter(torch.empty(p.shape, dtype=torch.float32)) for p in parameters]
        for copy in self.copies:
            copy.grad = torch.zeros_like(copy)
        self.optimizer = make_optimizer(setup, self.copies)
        self.state = self.optimizer.state

    @torch.no_grad()
    def step(self) -> None:
        """Takes the gradients to the host, and what they change back."""
        for copy, parameter in zip(self.copies, self.on_gpu, strict=True):
            copy.grad.copy_(parameter.grad)
        self.optimizer.step()
        for copy, parameter in zip(self.copies, self.on_gpu, strict=True):
            parameter.copy_(copy)

    @property
    def host_bytes(self) -> int:
        """Copies, gradients and state."""
        kept = [tensor for copy in self.copies for tensor in (copy, copy.grad)]
        return total([*kept, *tensors_in(self.state)], "cpu")


def make_optimizer(setup: Setup, parameters: list[torch.nn.Parameter]):
    """The optimizer of a setup."""
    if setup.optimizer == "adamw":
        implementation = setup.optimizer_impl
        return torch.optim.AdamW(
            parameters, lr=1e-4, foreach=implementation == "foreach", fused=implementation == "fused"
        )
    if setup.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True)
    if setup.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    return _of_bitsandbytes(setup.optimizer, parameters)


def _of_bitsandbytes(name: str, parameters: list[torch.nn.Parameter]):
    """An optimizer of bitsandbytes: its own code, without launches of kernels and without values."""
    import bitsandbytes
    from bitsandbytes import functional

    bitsandbytes.optim.optimizer.sync_gpu = lambda tensor: None
    functional.is_on_gpu = lambda tensors: True
    functional.create_dynamic_map = lambda *args, **kwargs: torch.zeros(256, device="cpu")
    original = functional.optimizer_update_32bit

    def update(name, gradient, parameter, *args, max_unorm=0.0, **kwargs):
        if max_unorm > 0:
            torch.norm(parameter.data.float())  # it would be passed on as a number, which a fake tensor has not
        original(name, gradient, parameter, *args, max_unorm=0.0, **kwargs)

    if not hasattr(original, "faked"):
        update.faked = True
        functional.optimizer_update_32bit = update
    kinds = {"adamw8bit": "AdamW8bit", "lamb": "LAMB", "lamb8bit": "LAMB8bit"}
    return getattr(bitsandbytes.optim, kinds[name])(parameters, lr=1e-4)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors within nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def total(tensors: Iterator[torch.Tensor] | list[torch.Tensor], device: str) -> int:
    """Bytes of the storages of tensors on a device, each once."""
    sizes = {_address(t): rounded(t.untyped_storage().nbytes()) for t in tensors if device_of(t) == device}
    return sum(sizes.values())


def trace(
    setup: Setup,
    *,
    build: Callable = build,
    inputs: Callable = of_pictures,
    make_optimizer: Callable = make_optimizer,
    phases: tuple[str, ...] = ("forward", "backward"),
) -> dict:
    """What the device holds in a step of a setup.

    Args:
        setup: What is trained.
        build: Makes the model of a setup.
        inputs: Makes what a step of a setup reads.
        make_optimizer: Makes the optimizer of a setup for some parameters.
        phases: Parts of the step whose own peaks are told.
    """
    fake_cuda.prepare()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            torch.set_default_dtype(dtype_of(setup))
            model, given = build(setup), inputs(setup)
            torch.set_default_dtype(torch.float32)
        everything = list(model.parameters())
        parameters = [parameter for parameter in everything if parameter.requires_grad]
        optimizer = (Offloaded if setup.offload_optimizer else make_optimizer)(setup, parameters)
        held = OnGpu()
        for tensor in (*everything, *model.buffers(), *given.values()):
            held.follow(tensor)
        held.weights = {_address(parameter) for parameter in everything}
        with held, _without_collection():
            _make_state(held, optimizer, parameters)
            loss, saved, copies = _forward(setup, held, model, given)
            held.phase = "backward"
            loss.backward()
            held.phase = "optimizer"
            gradients = total([p.grad for p in parameters if p.grad is not None], "cuda")
            optimizer.step()
    return {
        "parameters": sum(parameter.numel() for parameter in everything),
        "trained_parameters": sum(parameter.numel() for parameter in parameters),
        "saved_activations": saved,
        "autocast_weight_copies": copies,
        "gradient_bytes": gradients,
        "optimizer_state_bytes": total(tensors_in(dict(optimizer.state)), "cuda"),
        "host_total": (optimizer.host_bytes if setup.offload_optimizer else 0) + held.on_host,
        "peak": held.peak,
        "peak_phase": held.peak_phase,
        "peaks": {phase: held.peaks[phase] for phase in phases},
    }


class _without_collection:
    """Within `with`, Python frees only what nothing refers to: its collector would free cycles at any moment."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *exception: object) -> None:
        gc.enable()


def _make_state(held: Held, optimizer, parameters: list[torch.nn.Parameter]) -> None:
    """The optimizer's state, which its first step makes."""
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    for tensor in tensors_in(dict(optimizer.state)):
        held.follow(tensor)
    for parameter in parameters:
        parameter.grad = None
    held.peak = 0


def _forward(setup: Setup, held: OnGpu, model: torch.nn.Module, given: dict) -> tuple[torch.Tensor, int, int]:
    """The loss, the bytes that are kept for backward, and those of autocast's copies of weights beside them."""
    before = held.now
    held.phase = "forward"
    moving = torch.autograd.graph.save_on_cpu() if setup.offload_activations else nullcontext()
    with torch.autocast("cuda", dtype=half_of(setup), enabled=setup.precision.startswith("amp-")), moving:
        loss = loss_of(model, given)
    copies = sum(held.copies.values())
    return loss, held.now - before - copies - rounded(loss.nbytes), copies


def draw(chance: random.Random) -> Setup:
    """A random setup: a model of a few layers for pictures of any size."""
    heads, width = chance.choice((1, 2, 3, 6, 8)), chance.choice((8, 12, 16, 64))
    layers = chance.randint(1, 6)
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
    return setup_from({"config": config, **_training(chance, layers), "attention": chance.choice(("sdpa", "eager"))})


def draw_diffusion(chance: random.Random) -> Setup:
    """A random setup: a diffusion transformer of a few layers for pictures of any size."""
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
    values = {"config": config, "sequence_length": chance.randint(1, 180), **_training(chance, layers=1)}
    return setup_from(values)


def draw_adapted(chance: random.Random) -> Setup:
    """The same, frozen and with LoRA's adapters."""
    setup = draw_diffusion(chance)
    usual = [path for path in modules_of(resolve(setup)) if path.startswith("attn.to_")]
    return with_adapters(setup, usual, chance)


def with_adapters(setup: Setup, usual: Sequence[str], chance: random.Random) -> Setup:
    """The same, frozen and with adapters beside all modules, the usual ones or a few."""
    paths = list(modules_of(resolve(setup)))
    some = chance.sample(paths, min(3, len(paths)))
    half = setup.precision in HALF
    values = {
        "lora_rank": chance.choice((1, 4, 8, 16, 33)),
        "lora_targets": chance.choice((ALL_LINEAR, ",".join(usual), ",".join(some))),
        "lora_dropout": chance.choice((0.0, 0.0, 0.1)),
        "lora_freeze_a": chance.random() < 0.2,
        "base_bits": 16 if half else 32 if setup.precision == "fp32" else chance.choice((16, 16, 32)),
    }
    values["adapter_bits"] = 32 if setup.precision == "fp32" else chance.choice((16, 32))
    return replace(setup, **values)


def draw_adapted_vit(chance: random.Random) -> Setup:
    """A random setup of ViT, frozen and with LoRA's adapters."""
    return with_adapters(draw(chance), ("attention.q_proj", "attention.v_proj", "classifier"), chance)


def _training(chance: random.Random, layers: int) -> dict:
    """How a drawn model is trained."""
    values = {
        "micro_batch_size": chance.choice((1, 1, 2, 3, 4, 7)),
        "precision": chance.choice(("amp-bf16", "amp-bf16", "amp-fp16", "bf16", "fp16", "fp32")),
        "checkpointing": chance.choice((False, False, True, chance.randint(1, layers))),
        "optimizer": chance.choice(OPTIMIZERS),
        "offload_optimizer": chance.random() < 0.2,
    }
    if values["optimizer"] == "adamw":
        values["optimizer_impl"] = "for-loop" if values["offload_optimizer"] else chance.choice(("foreach", "for-loop"))
    return values


def recorded(path: Path) -> Iterator[tuple[Setup, dict | None]]:
    """Setups of a record, each with what it says."""
    for step in json.loads(path.read_text(encoding="utf-8")):
        yield setup_from(step["setup"]), step


def main(arguments: list[str] | None = None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each, and writes them if asked."""
    parser = parser_of(__doc__)
    for flag, drawn, words in (
        ("--diffusion", draw_diffusion, "draw diffusion transformers instead of ViT"),
        ("--lora", draw_adapted, "draw diffusion transformers with LoRA's adapters"),
        ("--vit-lora", draw_adapted_vit, "draw ViT with LoRA's adapters"),
    ):
        parser.add_argument(flag, dest="draw", action="store_const", const=drawn, default=draw, help=words)
    flags = parser.parse_args(arguments)
    draw_and_trace(flags, flags.draw, trace)


def parser_of(description: str) -> argparse.ArgumentParser:
    """A parser with the flags that the programs have in common which draw, trace and check steps."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=40, help="steps to draw (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--check", type=Path, metavar="FILE", help="trace the steps of this record again instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the steps")
    return parser


def draw_and_trace(
    flags: argparse.Namespace,
    draw: Callable[[random.Random], Setup],
    trace: Callable[[Setup], dict],
    can_trace: Callable[[Setup], bool] = lambda setup: True,
) -> None:
    """Traces the steps of a record again whose optimizers are among `OPTIMIZERS`, or drawn ones; see `trace_all`.

    Args:
        flags: Those of `parser_of`.
        draw: Makes a setup of a source of random numbers.
        trace: What the device holds in a step of a setup.
        can_trace: Whether it can trace a step of a record.
    """
    chance = random.Random(flags.seed)
    pairs = ((draw(chance), None) for _ in range(flags.cases))
    if flags.check:
        known = recorded(flags.check)
        pairs = ((setup, step) for setup, step in known if setup.optimizer in OPTIMIZERS and can_trace(setup))
    trace_all(pairs, trace, flags.json)


def trace_all(pairs: Iterable[tuple[Setup, dict | None]], trace: Callable[[Setup], dict], path: Path | None) -> None:
    """Traces steps; prints the differences of the calculator, or of a record, from each.

    Args:
        pairs: Setups, each with what a record says; None: it is compared with the calculator.
        trace: What the device holds in a step of a setup.
        path: To which the steps are written, the whole record after each step; None: they are not.
    """
    steps = []
    for setup, known in pairs:
        step = {"setup": written(setup), "held_out": True, **trace(setup)}
        steps.append(step)
        print(compared(setup, step, known), flush=True)
        if path is not None:
            lines = ",\n".join(json.dumps(step) for step in steps)
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(steps)} steps traced")


def compared(setup: Setup, step: dict, known: dict | None) -> str:
    """The differences from a traced step: of a record, or else of the calculator."""
    if known is None:
        from calculator.step.estimate import estimate

        answer = estimate(setup)
        known = {name: getattr(answer, name, None) for name in FIGURES}
        known |= {"host_total": answer.host.total, "peak": answer.gpu.total, "peak_phase": answer.peak.phase}
        known["peaks"] = {
            phase: max(instant.bytes for instant in answer.timeline if instant.phase == phase)
            for phase in step["peaks"]
        }
    known = {"trained_parameters": known["parameters"], **known}
    differences = {name: known[name] - step[name] for name in FIGURES if known[name] != step[name]}
    if known["peak_phase"] != step["peak_phase"]:
        differences["peak_phase"] = f"{known['peak_phase']} instead of {step['peak_phase']}"
    for phase, bytes_then in known.get("peaks", {}).items():
        if bytes_then != step["peaks"][phase]:
            differences[f"peak in {phase}"] = bytes_then - step["peaks"][phase]
    shown = {key: value for key, value in step["setup"].items() if key != "config"}
    kind = setup.config.get("model_type") or setup.config["_class_name"]
    return f"{differences or 'equal'}; peak {step['peak']:,} in {step['peak_phase']}: {kind} {shown}"


def written(setup: Setup) -> dict:
    """The fields of a setup that differ from their defaults."""
    always = ("precision", "attention", "optimizer", "checkpointing", "offload_optimizer")
    return {
        field.name: getattr(setup, field.name)
        for field in fields(Setup)
        if getattr(setup, field.name) != field.default or field.name in always
    }


if __name__ == "__main__":
    main()
