"""Traces a training step on one GPU: real code on fake tensors, on a CUDA device that does nothing (`fake_cuda`).

The optimizer's state exists when the step starts. Operations are those of CUDA; what a kernel takes only while it runs
is added where it is large. Import this module before torch.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from unittest.mock import patch

from benchmarks.memory.tracing import fake_cuda

# isort: split
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.memory.models import build, dtype_of, half_of, loss_of, made_on, of_pictures
from benchmarks.memory.optimizers import OF_BITSANDBYTES, optimizer_of, run_bitsandbytes_without_kernels
from benchmarks.memory.tracing.held import Held, address_of, device_of, tensors_in, total
from benchmarks.memory.tracing.liger import without_kernels
from calculator.step.setups import Setup
from calculator.tape.autograd import rounded

PHASES = ("forward", "backward", "optimizer")
"""Parts of the step whose own peaks are recorded."""


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
        address = address_of(product)
        size, self.sizes[address] = self.sizes[address], 0
        self.now -= size
        return size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        on_gpu = func is torch.ops.aten._to_copy.default and device_of(returned) == "cuda"
        if on_gpu and address_of(args[0]) in self.weights:
            self.copies[address_of(returned)] = rounded(returned.untyped_storage().nbytes())
        if func is torch.ops.aten._to_copy.default and (device_of(args[0]), device_of(returned)) == ("cuda", "cpu"):
            self.on_host += rounded(returned.nbytes)
        return returned


def trace(setup: Setup) -> dict:
    """Counts what the device holds in a step of a setup."""
    fake_cuda.prepare()
    if setup.optimizer in (*OF_BITSANDBYTES, "galore8bit"):
        run_bitsandbytes_without_kernels()
    launches = without_kernels() if setup.loss == "liger" else nullcontext()
    with patch.object(fake_cuda, "packs_samples", [setup.packed]), launches:
        return _traced(setup)


def _traced(setup: Setup) -> dict:
    with FakeTensorMode(allow_non_fake_inputs=True):
        with made_on("cuda", dtype_of(setup)):
            model, given = build(setup), _inputs(setup)
        everything = list(model.parameters())
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        parameters = list(named.values())
        optimizer = optimizer_of(setup, named)
        held = OnGpu()
        for tensor in (*everything, *model.buffers(), *given.values()):
            held.follow(tensor)
        with held, _without_collection():
            _make_state(held, optimizer, parameters)
            held.weights = {address_of(parameter) for parameter in everything}
            loss, saved, copies = _forward(setup, held, model, given)
            held.phase = "backward"
            loss.backward()
            held.phase = "optimizer"
            gradients = total([p.grad for p in parameters if p.grad is not None], "cuda")
            if setup.optimizer_in_backward:
                gradients = optimizer.gradient_bytes
            else:
                optimizer.step()
    return {
        "parameters": sum(parameter.numel() for parameter in everything),
        "trained_parameters": sum(parameter.numel() for parameter in parameters),
        "saved_activations": saved,
        "autocast_weight_copies": copies,
        "gradient_bytes": gradients,
        "optimizer_state_bytes": total(tensors_in(dict(optimizer.state)), "cuda"),
        "host_total": held.on_host + _on_host(setup, optimizer),
        "peak": held.peak,
        "peak_phase": held.peak_phase,
        "peaks": {phase: held.peaks[phase] for phase in PHASES if phase in held.peaks},
    }


def _on_host(setup: Setup, optimizer) -> int:
    """Bytes of an optimizer on the host."""
    return total([*optimizer.on_host, *tensors_in(optimizer.state)], "cpu") if setup.offload_optimizer else 0


def _inputs(setup: Setup) -> dict[str, torch.Tensor]:
    """Makes what a step reads, on the default device: pictures; or token ids and labels, and positions of packs."""
    if setup.config.get("model_type", "vit") == "vit":
        return of_pictures(setup)
    read = dict.fromkeys(("input_ids", *(("position_ids",) if setup.packed else ())), setup.sequence_length)
    read["labels"] = setup.target_length or setup.sequence_length
    return {name: torch.zeros((setup.micro_batch_size, length), dtype=torch.long) for name, length in read.items()}


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
