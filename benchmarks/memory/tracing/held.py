"""Follows every storage of a training step, rounded up to 512 bytes as CUDA's allocator does."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from calculator.tape.autograd import rounded


class Held(TorchDispatchMode):
    """Within `with`, follows every storage; `peak` is the most that existed after an operation.

    Args:
        steps_on_device: Whether the optimizer's counts of steps are on the GPU, as those of a fused one are.
    """

    def __init__(self, *, steps_on_device: bool) -> None:
        super().__init__()
        self.steps_on_device = steps_on_device
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0
        self.phase = self.peak_phase = ""
        self.peaks: dict[str, int] = {}  # of each phase
        self.paused = False

    def follow(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage at its present size from now on."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self.sizes:
            # PyTorch keeps a storage's Python object as long as the storage itself.
            weakref.finalize(storage, self._forget, address)
        size = 0 if self._is_on_host(tensor) else rounded(storage.nbytes())
        self.now += size - self.sizes.get(address, 0)
        self.sizes[address] = size

    def _forget(self, address: int) -> None:
        self.now -= self.sizes.pop(address)

    def _is_on_host(self, tensor: torch.Tensor) -> bool:
        """True if it is a count of steps or a number that Python has made, which an optimizer keeps on the host."""
        return self.phase == "optimizer" and not tensor.dim() and not self.steps_on_device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
        from torch.distributed.tensor import DTensor

        if DTensor in types or AsyncCollectiveTensor in types:
            return NotImplemented  # its own dispatch calls the operation on the local tensors, which comes here again
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]  # as on a GPU; for fake tensors, PyTorch makes another one
        if self.paused:
            return func(*args, **(kwargs or {}))
        in_place = self._would_be_in_place(func, args)
        returned = func(*args, **(kwargs or {}))
        for tensor in returned if isinstance(returned, tuple | list) else (returned,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.sizes:
                self.follow(tensor)
        now = self.now + self.workspace_bytes(func, args)
        now -= rounded(returned.untyped_storage().nbytes()) if in_place else 0
        self.peaks[self.phase] = max(now, self.peaks.get(self.phase, 0))
        if now > self.peak:
            self.peak, self.peak_phase = now, self.phase
        return returned

    def workspace_bytes(self, func, args: tuple) -> int:
        """Memory that the operation's kernel takes only while it runs on a GPU, as in `fake_cuda.workspace_bytes`: the
        product of a softmax's gradient and its result."""
        return rounded(args[0].nbytes) if func is torch.ops.aten._softmax_backward_data.default else 0

    def _would_be_in_place(self, func, args: tuple) -> bool:
        """True if the engine adds two gradients in place, which it never does with fake tensors (input_buffer.cpp).

        It does so if nothing else holds one of the two, neither the tensor nor, through another tensor, its memory.
        With those of this call, such a tensor has four references and its memory two.
        """
        if func is not torch.ops.aten.add.Tensor or self.phase != "backward" or torch.is_grad_enabled():
            return False
        tensors = [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
        return any(
            tensor._use_count() == 4 and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) == 2
            for tensor in tensors
        )


def device_of(tensor: torch.Tensor) -> str:
    """Where a tensor is, or claims to be."""
    return (tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device).type


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
    sizes = {address_of(t): rounded(t.untyped_storage().nbytes()) for t in tensors if device_of(t) == device}
    return sum(sizes.values())


def address_of(tensor: torch.Tensor) -> int:
    """Identifies a tensor's storage."""
    return tensor.untyped_storage()._cdata
