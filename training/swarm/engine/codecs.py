"""Codecs of tensors between peers: large ones in the recipe's codec, small ones in 16 bits.

hivemind's uniform 8-bit codec spreads 256 values over six standard deviations of a whole part and clips values outside:
good for weights, bad for gradients, whose tails are heavy. The block-wise codec has one scale per 512 values and is
dense near zero (Dettmers et al. 2021, arXiv:2110.02861): a test compares both errors.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from hivemind.compression import (
    CompressionBase,
    CompressionInfo,
    Float16Compression,
    NoCompression,
    SizeAdaptiveCompression,
    Uniform8BitQuantization,
)
from hivemind.proto import runtime_pb2
from torch import Tensor

from calculator.swarm.exchange import BLOCK_SIZE
from training.optim.eight_bit import blockwise
from training.swarm.config import Codec


class BlockwiseCodec(CompressionBase):
    """Block-wise dynamic 8-bit codec, which replaces hivemind's codec of that kind on the wire.

    hivemind's own needs bitsandbytes, sends its table with every part, and turns a NaN into a number. Here, a block
    that holds a NaN or an infinity arrives as NaN throughout. A message consists of the blocks' scales and the codes.

    Args:
        native: Use the compiled loops if there are any.
    """

    compression_type = runtime_pb2.BLOCKWISE_8BIT

    def __init__(self, *, native: bool = True):
        self._form = {"block_size": BLOCK_SIZE, "signed": True, "native": native}

    def compress(self, tensor: Tensor, info: CompressionInfo, allow_inplace: bool = False) -> runtime_pb2.Tensor:
        """Encodes a tensor as its blocks' scales and codes.

        Raises:
            ValueError: For a tensor of integers, such as an optimizer's 8-bit state.
        """
        if not tensor.is_floating_point():
            raise ValueError(f"{type(self).__name__} stores floating-point tensors, not {tensor.dtype}")
        # The search for faulty blocks and the quantization write to the values; the caller's tensor must stay as it is.
        given = tensor.detach().to(torch.float32).contiguous().view(-1)
        shared_memory = given.data_ptr() == tensor.data_ptr()
        values = given.clone() if shared_memory and not allow_inplace else given
        codes = torch.empty(values.numel(), dtype=torch.uint8)
        scales = torch.empty(blockwise.block_count(values.numel(), BLOCK_SIZE))
        faulty = _faulty_blocks(values)
        blockwise.quantize(values, codes, scales, **self._form)
        # A block without its infinity would look sound at the other side, and be averaged. With this scale all of it
        # arrives as NaN, which every reader checks for.
        scales[faulty] = torch.nan
        return runtime_pb2.Tensor(
            compression=self.compression_type,
            buffer=scales.numpy().tobytes() + codes.numpy().tobytes(),
            size=tensor.shape,
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
        )

    def extract(self, serialized_tensor: runtime_pb2.Tensor) -> Tensor:
        """Decodes a message.

        Raises:
            ValueError: If the message is not as long as its shape says, or not of floating-point numbers.
        """
        shape, buffer = torch.Size(serialized_tensor.size), bytearray(serialized_tensor.buffer)
        size = math.prod(shape)
        blocks = blockwise.block_count(size, BLOCK_SIZE)
        dtype = getattr(torch, serialized_tensor.dtype, None)
        if len(buffer) != 4 * blocks + size or not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(
                f"{len(buffer)} bytes of {serialized_tensor.dtype} do not make a tensor of shape {tuple(shape)}"
            )
        scales = torch.from_numpy(np.frombuffer(buffer, count=blocks, dtype=np.float32))
        codes = torch.from_numpy(np.frombuffer(buffer, offset=4 * blocks, count=size, dtype=np.uint8))
        values = torch.empty(size)
        blockwise.dequantize(codes, scales, values, **self._form)
        return values.view(shape).to(dtype).requires_grad_(serialized_tensor.requires_grad)

    def estimate_compression_ratio(self, info: CompressionInfo) -> float:
        """Ratio of a value's size on the wire to its size in memory; hivemind sizes the parts of tensors by it."""
        return (8 + 32 / BLOCK_SIZE) / torch.finfo(info.descriptor.dtype).bits


def _faulty_blocks(values: Tensor) -> Tensor:
    """Returns the indices of the blocks with non-finite values, and sets these values to 0."""
    if bool(values.dot(values).isfinite()):  # fast check; large finite squares may overflow, then we check each value
        return torch.empty(0, dtype=torch.int64)
    places = values.isfinite().logical_not_().nonzero().view(-1)
    values[places] = 0
    return (places // BLOCK_SIZE).unique()


def exchange_codec(threshold: int, large: Codec) -> CompressionBase:
    """Returns the codec of gradients or parameters: `large` for large tensors, 16 bits for others (paper, section 3.3).

    Args:
        threshold: Tensors with at least this many values are large.
        large: Codec of large tensors.
    """
    if large in ("float16", "float32"):
        return Float16Compression() if large == "float16" else NoCompression()
    codec = Uniform8BitQuantization() if large == "uniform8" else BlockwiseCodec()
    return SizeAdaptiveCompression(threshold=threshold, less=Float16Compression(), greater_equal=codec)


_CODECS = {
    codec.compression_type: codec
    for codec in (NoCompression(), Float16Compression(), Uniform8BitQuantization(), BlockwiseCodec())
}
"""Codecs by their numbers in messages. In hivemind's own table, its own block-wise codec is in the place of ours."""


def encode(tensor: Tensor, compression: int = runtime_pb2.NONE) -> runtime_pb2.Tensor:
    """Returns a message with the tensor, encoded by the codec of the number `compression`."""
    return _CODECS[compression].compress(tensor, CompressionInfo.from_tensor(tensor))


def decode(message: runtime_pb2.Tensor) -> Tensor:
    """Decodes the tensor in a message.

    hivemind passes the name of the message's data type to NumPy. NumPy also knows "S100000", a text of 100,000 bytes,
    and would make gigabytes of a message of some kilobytes.

    Raises:
        ValueError: If the codec is not one of ours, or the message does not hold numbers.
    """
    codec = _CODECS.get(message.compression)
    if codec is None or not isinstance(getattr(torch, message.dtype, None), torch.dtype):
        raise ValueError(f"a tensor of type {message.dtype!r:.40} in codec {message.compression} cannot be read")
    return codec.extract(message).requires_grad_(message.requires_grad)
