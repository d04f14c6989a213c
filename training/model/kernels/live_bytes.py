"""Count of the bytes that a computation holds, without memory and without arithmetic.

Tensors are PyTorch's fake ones (`FakeTensorMode`): they have a shape, a type and a device, but no content. So the code
of training runs unchanged, on models of any size, in the time that Python takes to go through it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # documented for users, though its module has an underscore
from torch.utils._python_dispatch import TorchDispatchMode

from calculator.tape.autograd import allocated_bytes


class LiveBytes(TorchDispatchMode):
    """Context that counts the bytes of tensors that operations have returned and that still exist."""

    def __init__(self):
        super().__init__()
        self._sizes: dict[int, int] = {}
        """Bytes of each storage, by its address."""

    def bytes_now(self) -> int:
        """Number of bytes that exist now."""
        return sum(self._sizes.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        for one in returned if isinstance(returned, tuple | list) else [returned]:
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                # A view, or the result of an operation in place, has a storage that is counted already.
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = allocated_bytes(storage.nbytes(), 1)
                    # PyTorch keeps a storage's Python object as long as the storage itself.
                    weakref.finalize(storage, self._sizes.pop, storage._cdata)
        return returned


@contextmanager
def fake_tensors(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Context that creates only fake tensors; yields fake parameters and buffers of the module, by their names.

    Tensors that are tied in the module are tied among the fake ones too. The module itself does not change.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        made: dict[int, Tensor] = {}

        def fake(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                made[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
            return made[id(tensor)]

        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        yield {name: fake(tensor) for name, tensor in named}
