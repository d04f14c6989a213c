"""GaLore and APOLLO: AdamW that keeps the moments of a projection of each matrix to few dimensions.

GaLore (Zhao et al. 2024, arXiv:2403.03507) projects a matrix's gradient to its first singular vectors, and projects
AdamW's update back. APOLLO (Zhu et al. 2024, arXiv:2412.05270) projects it by random numbers, and learns from AdamW's
update there only how much to scale the gradient: each row or column ("channel"), or with APOLLO-Mini the whole matrix.

The rules are those of galore-torch 1.0 (adamw.py, galore_projector.py) and apollo-torch 1.0.3 (apollo.py,
random_projector.py) with the settings of their examples: the linear modules of attention and feed-forward are
projected, along their shorter side (`proj_type="std"`), and everything else has plain AdamW. Every 200th update finds
new projections. It takes the most memory, so we count this update. GaLore in 8 bits is that of galore-torch over
bitsandbytes 0.50, which keeps the moments in R dimensions in 8 bits.

Letters: a matrix is (M, N), its shorter side K, the rank R.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from calculator.families.family import DECODER_MODULES
from calculator.models.architecture import ParameterTensor
from calculator.tape.autograd import allocated_bytes

DEFAULT_RANKS = {"galore": 128, "galore8bit": 128, "apollo": 256, "apollo-mini": 1}
"""Default ranks: GaLore's from transformers' Trainer, the others from apollo-torch 1.0.3's README."""
GALORE_PACKAGE, APOLLO_PACKAGE = "galore-torch 1.0", "apollo-torch 1.0.3"


def is_projected(tensor: ParameterTensor) -> bool:
    """Returns True for the matrix of a linear module of attention or feed-forward."""
    return tensor.name.endswith(".weight") and tensor.name.rpartition(".")[0] in DECODER_MODULES


def galore_state(tensor: ParameterTensor, itemsize: int, rank: int) -> int:
    """Bytes of a matrix's state, two moments in R dimensions and the projection; of another tensor's, two moments."""
    if not is_projected(tensor):
        return 2 * allocated_bytes(tensor.count, itemsize)
    shorter, longer = min(tensor.shape), max(tensor.shape)
    moments = 2 * allocated_bytes(longer * min(rank, shorter), itemsize)
    return moments + _projection_bytes(tensor, itemsize, rank)


def galore_8bit_state(tensor: ParameterTensor, itemsize: int, rank: int, moments: Callable[[int, int], int]) -> int:
    """Bytes of two moments, by bitsandbytes' rule for a number of values, and of a norm; of a matrix, the projection.

    galore-torch gives `percentile_clipping=100`, which bitsandbytes 0.50 takes for `max_unorm`: hence the norm.
    """
    norm = allocated_bytes(1, 4)
    if not is_projected(tensor):
        return moments(tensor.count, itemsize) + norm
    low = max(tensor.shape) * min(rank, *tensor.shape)
    return moments(low, itemsize) + norm + _projection_bytes(tensor, itemsize, rank)


def _projection_bytes(tensor: ParameterTensor, itemsize: int, rank: int) -> int:
    rows, columns = tensor.shape
    shorter = min(rows, columns)
    # Of 32-bit gradients, the projection is a view of all singular vectors, (K, N) or (M, K), so that it keeps them
    # whole; of others, it is cast, which makes it a tensor of its own.
    kept = shorter if itemsize == 4 else min(rank, shorter)
    return allocated_bytes(kept * (columns if rows >= columns else rows), itemsize)


def apollo_state(tensor: ParameterTensor, itemsize: int, rank: int) -> int:
    """Bytes of a matrix's state, as in `galore_state` with a norm in addition; of another tensor's, two moments."""
    if not is_projected(tensor):
        return 2 * allocated_bytes(tensor.count, itemsize)
    shorter, longer = min(tensor.shape), max(tensor.shape)
    moments = 2 * allocated_bytes(longer * rank, itemsize)
    return moments + allocated_bytes(shorter * rank, itemsize) + allocated_bytes(1, itemsize)


class _Loop:
    """The local names of an update's loop over tensors, and the bytes of the tensor that each name keeps.

    A name keeps the previous parameter's tensor until this parameter's tensor is assigned to it; at that moment both
    exist. The optimizer's state is not counted.
    """

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}
        self.peak = 0

    def use(self, *sizes: int) -> None:
        """Counts tensors of these bytes, which exist together for a moment and which no name keeps."""
        self.peak = max(self.peak, sum(self.kept.values()) + sum(sizes))

    def assign(self, name: str, size: int, *beside: int) -> None:
        """Counts a new tensor, which `name` keeps from now on.

        Args:
            name: A local name of the loop.
            size: Bytes of the tensor.
            beside: Bytes of further tensors that exist at that moment and that no name keeps.
        """
        self.use(size, *beside)
        self.kept[name] = size


def galore_step(tensors: tuple[ParameterTensor, ...], itemsize: int, rank: int) -> int:
    """Temporary bytes of an update that decomposes every matrix again.

    Args:
        tensors: All trained tensors, in the order of the model.
        itemsize: Bytes of a value of the parameters.
        rank: Rank of the projections.
    """
    return _step(tensors, itemsize, lambda loop, tensor: _galore_update(loop, tensor, itemsize, rank))


def galore_8bit_step(tensors: tuple[ParameterTensor, ...], itemsize: int, rank: int, min_8bit_size: int) -> int:
    """Temporary bytes of an update in 8 bits; see `galore_step`.

    The package puts each matrix's projected gradient in place of the whole one, so that no later layer takes more than
    the first two.
    """
    loop = _Loop()
    in_order = list(_unrolled(tensors))
    for tensor in in_order:
        if not is_projected(tensor) and tensor.count < min_8bit_size:
            # The norm of a parameter, from a copy in 32 bits.
            loop.use(allocated_bytes(1, 4), allocated_bytes(tensor.count, 4) if itemsize != 4 else 0)
    for tensor in in_order:
        if is_projected(tensor):
            _galore_8bit_update(loop, tensor, itemsize, min(rank, *tensor.shape), min_8bit_size)
    return loop.peak


def _galore_8bit_update(loop: _Loop, tensor: ParameterTensor, itemsize: int, rank: int, min_8bit_size: int) -> None:
    whole = allocated_bytes(tensor.count, itemsize)
    low = allocated_bytes(max(tensor.shape) * rank, itemsize)
    _decompose(loop, tensor, itemsize, rank)
    loop.assign("grad", low)
    loop.use(whole)  # a copy of the parameter, whose place the projected one takes
    loop.kept["whole gradients"] = loop.kept.get("whole gradients", 0) + low - whole
    loop.kept["grad"] = 0  # it is now the parameter's own
    if max(tensor.shape) * rank < min_8bit_size:
        loop.use(low, allocated_bytes(1, 4), allocated_bytes(max(tensor.shape) * rank, 4) if itemsize != 4 else 0)
    loop.use(low, whole, whole)  # projected back, and scaled


def apollo_step(tensors: tuple[ParameterTensor, ...], itemsize: int, rank: int, *, by_channel: bool) -> int:
    """Temporary bytes of an update that draws every projection again; see `galore_step`."""
    return _step(tensors, itemsize, lambda loop, tensor: _apollo_update(loop, tensor, itemsize, rank, by_channel))


def _step(tensors: tuple[ParameterTensor, ...], itemsize: int, update: Callable[[_Loop, ParameterTensor], None]) -> int:
    """Plays an update of the parameters with plain AdamW, then of the projected matrices; returns its peak in bytes."""
    loop = _Loop()
    in_order = list(_unrolled(tensors))
    for tensor in in_order:
        if not is_projected(tensor):
            _plain_update(loop, allocated_bytes(tensor.count, itemsize))
    for tensor in in_order:
        if is_projected(tensor):
            update(loop, tensor)
    return loop.peak


def _unrolled(tensors: Iterable[ParameterTensor]) -> Iterator[ParameterTensor]:
    """Yields the tensors outside of the layers, and those of two layers; the second stands for all later layers."""
    for copies, group in groupby(tensors, key=lambda tensor: tensor.copies):
        yield from list(group) * min(copies, 2)


def _plain_update(loop: _Loop, size: int) -> None:
    """Counts AdamW's update of one tensor: the root of the second moment, and the first moment divided by it."""
    loop.kept["grad"] = 0  # the parameter's own gradient
    loop.assign("denom", size)
    loop.assign("norm_grad", size)


def _galore_update(loop: _Loop, tensor: ParameterTensor, itemsize: int, rank: int) -> None:
    whole = allocated_bytes(tensor.count, itemsize)
    rank = min(rank, *tensor.shape)
    low = allocated_bytes(max(tensor.shape) * rank, itemsize)
    loop.kept["grad"] = 0
    _decompose(loop, tensor, itemsize, rank)
    loop.assign("grad", low)
    loop.assign("denom", low)
    loop.assign("norm_grad", low)
    loop.assign("norm_grad", whole, whole)  # projected back, and scaled


def _decompose(loop: _Loop, tensor: ParameterTensor, itemsize: int, rank: int) -> None:
    """Counts the search for a new projection. The previous projection still exists; the state's bytes include it.

    cuSOLVER overwrites the matrix that it decomposes and reports success in a number, so PyTorch passes it a copy and
    allocates that number (pytorch, aten/src/ATen/native/cuda/linalg/BatchLinearAlgebraLib.cpp, svd_cusolver).
    cuSOLVER's own workspace is not known.
    """
    rows, columns = tensor.shape
    shorter = min(rows, columns)
    matrix = allocated_bytes(tensor.count, 4)
    copy = matrix if itemsize == 2 else 0
    factors = (allocated_bytes(rows * shorter, 4), allocated_bytes(shorter, 4), allocated_bytes(shorter * columns, 4))
    loop.use(copy, matrix, allocated_bytes(1, 4), *factors)
    # The package also computes the factor that it does not use: the other singular vectors times their values.
    other = allocated_bytes(rank * (rows if rows >= columns else columns), 4)
    loop.use(copy, *factors, allocated_bytes(rank * rank, 4), other)
    if itemsize == 2:
        loop.use(copy, *factors, other, allocated_bytes(rank * shorter, 2))


def _apollo_update(loop: _Loop, tensor: ParameterTensor, itemsize: int, rank: int, by_channel: bool) -> None:
    whole, longer = allocated_bytes(tensor.count, itemsize), max(tensor.shape)
    low, number = allocated_bytes(longer * rank, itemsize), allocated_bytes(1, itemsize)
    loop.kept["grad"] = 0
    _draw(loop, tensor, itemsize, rank)
    loop.assign("grad", low)
    loop.assign("denom", low)
    loop.assign("norm_grad", low)
    norm = allocated_bytes(longer if by_channel else 1, itemsize)
    loop.assign("grad_scaling_factor", norm, norm, norm)
    loop.assign("scaled_grad", whole)
    # From here on, the limiter of an update that has grown by more than 1 % (arXiv:2410.01623).
    loop.assign("scaled_grad_norm", number)
    loop.assign("limiter", number, number)
    loop.assign("scaled_grad", whole)
    loop.use(number)  # the next update's norm to compare with
    loop.kept["norm_grad"] = 0  # another name of the scaled gradient


def _draw(loop: _Loop, tensor: ParameterTensor, itemsize: int, rank: int) -> None:
    """Counts the draw of a new projection in 32 bits, and its division by the root of the rank."""
    count = min(tensor.shape) * rank
    # Of a gradient in 16 bits, the package makes a 32-bit copy, of which it uses only the shape.
    copy = allocated_bytes(tensor.count, 4) if itemsize == 2 else 0
    loop.use(copy, allocated_bytes(count, 4), allocated_bytes(count, 4))
