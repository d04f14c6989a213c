"""Counts the bytes that a computation holds at each of its operations, without memory and without arithmetic.

Tensors are PyTorch's fake ones (`FakeTensorMode`): they have a shape, a type and a device, but no content. So the same
code runs as in training, on models of any size, in the time that Python takes to go through it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # documented for users, though its module has an underscore
from torch.utils._python_dispatch import TorchDispatchMode

from calculator.tape.autograd import allocated_bytes


@dataclass(slots=True)
class Block:
    """Memory of one or more tensors. Operations are numbered in the order of their beginning."""

    bytes: int
    birth: int
    """The operation that returned it."""
    death: int | None = None
    """The first operation that ran without it; None: it still exists."""


class LiveBytes(TorchDispatchMode):
    """Within `with`, notes each operation that returns new memory, and when that memory is freed."""

    def __init__(self):
        super().__init__()
        self.operations: list[str] = []
        """Names of the operations, such as `aten.mm`."""
        self.blocks: list[Block] = []
        self._known: dict[int, Block] = {}

    def block(self, tensor: Tensor) -> Block | None:
        """The memory of a tensor; None if no operation here has returned it."""
        return self._known.get(tensor.untyped_storage()._cdata)

    def bytes_now(self) -> int:
        """Bytes that exist now."""
        return sum(block.bytes for block in self._known.values())

    def held(self, blocks: Iterable[Block]) -> list[int]:
        """Bytes that these blocks hold while each operation runs."""
        changes = [0] * (len(self.operations) + 1)
        for block in blocks:
            changes[block.birth] += block.bytes
            if block.death is not None:
                changes[block.death] -= block.bytes
        return list(accumulate(changes[:-1]))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, Tensor):
            self._note(func, (returned,))
        elif isinstance(returned, tuple | list):
            self._note(func, [one for one in returned if isinstance(one, Tensor)])
        return returned

    def _note(self, func, tensors: Iterable[Tensor]) -> None:
        number, new = len(self.operations), False
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage._cdata
            # A view, or an operation in place.
            if address in self._known:
                continue
            new, block = True, Block(bytes=allocated_bytes(storage.nbytes(), 1), birth=number)
            self._known[address] = block
            self.blocks.append(block)
            # PyTorch keeps a storage's Python object as long as the storage itself.
            weakref.finalize(storage, self._freed, address, block)
        if new:
            self.operations.append(str(func.overloadpacket))

    def _freed(self, address: int, block: Block) -> None:
        del self._known[address]
        block.death = len(self.operations)


@contextmanager
def fake_tensors(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """A world of fake tensors on the CPU, and the module's parameters and buffers there, by their names.

    Tensors that are tied in the module are tied in the result. What the module was does not change.
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
