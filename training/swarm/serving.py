"""The state on its way from a donor's trainer to a newcomer: encoded at once, and copied no more than that needs.

The trainer's process holds the state, the averager's process sends it. hivemind passes tensors between the two, which
are copied into shared memory one by one, and encodes them then, one by one as they are sent; here what is sent is
written into one piece of shared memory, and a newcomer gets its first byte sooner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.proto import runtime_pb2
from hivemind.utils.streaming import split_for_streaming
from torch import Tensor

Head = tuple[bytes, int]
"""A tensor's message without its bytes, and how many these are."""


def pack(
    tensors: Sequence[Tensor], infos: Sequence[CompressionInfo], codec: CompressionBase
) -> tuple[Tensor, list[Head]]:
    """The tensors' bytes as they travel, one tensor behind the other in shared memory, and their heads.

    The codec must not need more bytes than the tensors have.
    """
    storage = torch.UntypedStorage._new_shared(max(sum(tensor.nbytes for tensor in tensors), 1))
    memory = torch.empty(0, dtype=torch.uint8).set_(storage)
    written, heads, end = memory.numpy(), [], 0
    for tensor, info in zip(tensors, infos, strict=True):
        message = codec.compress(tensor, info, allow_inplace=False)
        data = np.frombuffer(message.buffer, dtype=np.uint8)
        written[end : end + len(data)] = data
        end += len(data)
        message.ClearField("buffer")
        heads.append((message.SerializeToString(), len(data)))
    return memory, heads


def unpack(memory: Tensor, heads: Sequence[Head]) -> Iterator[runtime_pb2.Tensor]:
    """The messages of all tensors, each in parts that fit into a stream."""
    read, end = memory.numpy(), 0
    for head, size in heads:
        message = runtime_pb2.Tensor.FromString(head)
        begin, end = end, end + size
        message.buffer = read[begin:end].tobytes()
        yield from split_for_streaming(message)
