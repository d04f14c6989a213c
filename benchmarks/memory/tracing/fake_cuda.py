"""Fake tensors on "cuda" in a PyTorch without CUDA: autograd, autocast, and attention by the kernels of CUDA.

Import it before torch, which asks only once whether there is a device. It needs a C++ compiler and the CPU build of
PyTorch.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from calculator.tape.autograd import rounded

SOURCE = Path(__file__).with_suffix(".cpp")
BUILD = Path(__file__).resolve().parents[3] / "build"


def _load() -> None:
    """Compiles the device that does nothing, once for each version of torch, and loads it with torch's libraries."""
    if "torch" in sys.modules:
        raise SystemExit("Import fake_cuda before torch.")
    version = metadata.version("torch")
    if not version.endswith("+cpu"):
        raise SystemExit(f"Steps are traced with the CPU build of torch, not {version}; see constraints/.")
    torch = Path(importlib.util.find_spec("torch").origin).parent
    library = BUILD / f"fake_cuda-{version}.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        BUILD.mkdir(exist_ok=True)
        # Programs that start together must not load what another one is still writing.
        written = library.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "g++"), "-O1", "-std=c++20", "-shared", "-fPIC", f"-I{torch}/include"]
        links = [f"-L{torch}/lib", "-ltorch_cpu", "-lc10"]
        subprocess.run([*command, SOURCE, "-o", written, *links], check=True)
        written.replace(library)
    for needed in (*sorted(torch.glob("lib/lib*omp*.so*")), torch / "lib/libc10.so", torch / "lib/libtorch_cpu.so"):
        ctypes.CDLL(str(needed), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


_load()

import torch
import torch.nn.functional as F

attention_of_torch, linear_of_torch = F.scaled_dot_product_attention, F.linear
within_linear = [False]
"""True if a linear layer runs. It adds its bias in place where its input does not lie side by side, but not for fake
tensors (pytorch, aten/src/ATen/native/Linear.cpp)."""
packs_samples = [False]
"""True if sequences are packs of samples, as their positions would say if they had values."""
KERNELS: list[torch.library.Library] = []
"""What is registered with torch's dispatcher; it is withdrawn when nothing refers to it."""


def prepare() -> None:
    """Lets autocast run for "cuda", chooses kernels of attention as CUDA does, and keeps transformers from tracing."""
    import torch.cuda.amp.common
    import transformers.masking_utils
    import transformers.utils.import_utils

    torch.set_num_threads(1)
    _give_cuda_its_kernels()
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    torch.cuda.get_device_capability = lambda device=None: (8, 0)
    F.scaled_dot_product_attention = attention
    F.linear = linear
    # It would make masks for traced tensors that it does not make for real ones, and read their values.
    transformers.utils.import_utils.is_fake_tensor = lambda tensor: False
    transformers.masking_utils.find_packed_sequence_indices = numbers_of_samples


def numbers_of_samples(position_ids):
    """To which sample of its pack each token belongs, if there are packs (transformers, find_packed_sequence_indices).

    That code reads whether there are, after the same operations.
    """
    first = position_ids[:, :1] - 1
    numbers = (torch.diff(position_ids, prepend=first, dim=-1) != 1).cumsum(-1)
    return numbers if packs_samples[0] else None


def _give_cuda_its_kernels() -> None:
    """Names operations for which CUDA has one kernel (pytorch, native_functions.yaml).

    The CPU's build, which knows none of CUDA, would run separate operations. Fake tensors never call what is registered
    here.
    """
    if not KERNELS:
        KERNELS.append(torch.library.Library("aten", "IMPL"))
        for name in ("_fused_rms_norm", "silu_backward"):
            KERNELS[0].impl(name, lambda *args: None, "CUDA")


def linear(*args, **kwargs):
    """`F.linear`, marked as running."""
    within_linear[0] = True
    try:
        return linear_of_torch(*args, **kwargs)
    finally:
        within_linear[0] = False


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """`scaled_dot_product_attention` of tensors on CUDA, by the kernel that CUDA's dispatcher takes.

    Flash attention for 16 bits without a mask, the memory-efficient kernel for what it can read, which is no shared
    heads (`enable_gqa`), else separate operations (pytorch, sdp_utils.cpp); cuDNN's kernel, which some GPUs prefer,
    keeps about as much as flash attention.
    """
    if torch.is_autocast_enabled("cuda"):
        lowered = torch.get_autocast_dtype("cuda")
        query, key, value = (x.to(lowered) for x in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(lowered)
    width = query.shape[-1]
    with torch.autocast("cuda", enabled=False):
        bias = None if attn_mask is None else _bias(attn_mask, query)
        if bias is None and query.itemsize == 2 and width == value.shape[-1] <= 256:
            return _flash(query, key, value, dropout_p, is_causal, scale or width**-0.5)
        if width % (4 if query.itemsize == 4 else 8) == 0 and not enable_gqa:
            needed = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
            bias = None if bias is None else _aligned(bias).expand(*query.shape[:3], key.shape[2])
            kernel = torch.ops.aten._scaled_dot_product_efficient_attention
            return kernel(query, key, value, bias, needed, dropout_p, is_causal, scale=scale)[0]
        given = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return attention_of_torch(query, key, value, bias, **given)


def _bias(mask, query):
    """A mask of truths as numbers that are added to the scores (pytorch, attention.cpp, convert_boolean_attn_mask)."""
    if mask.dtype != torch.bool:
        return mask
    zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device)
    return torch.where(mask.logical_not(), torch.full_like(zero, -torch.inf), zero)


def _aligned(bias):
    """In memory whose rows are multiples of 16 (pytorch, attention.cpp, pad_bias)."""
    length = bias.shape[-1]
    return F.pad(bias, (0, -length % 16))[..., :length] if length % 16 else bias


def _flash(query, key, value, dropout: float, causal: bool, scale: float):
    width = query.shape[-1]
    missing = -width % 8
    if missing:
        query, key, value = (F.pad(x, (0, missing)) for x in (query, key, value))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    return kernel(query, key, value, dropout, causal, False, scale=scale)[0][..., :width]


def workspace_bytes(func, args: tuple) -> int:
    """Memory that a CUDA kernel allocates and frees within one operation, as far as it is large.

    The sources are those of `calculator.tape.operations`: softmax backward's product, what a softmax that gives 0 for
    rows without any value makes besides its result, attention's sums in 32 bits,
    squares of which a loss is the mean, the copy in which a matrix is decomposed, and copies of operands that lie in
    another memory order.
    """
    aten = torch.ops.aten
    if func in (aten._softmax.default, aten._log_softmax.default):
        return _copied(args[0])
    if func is aten._log_softmax_backward_data.default:
        return _copied(args[0]) + _copied(args[1])
    if func is aten._safe_softmax.default:
        # The softmax itself, a byte for each value that is minus infinity, and one for each row of such values.
        return sum(rounded(size) for size in (args[0].nbytes, args[0].numel(), args[0].numel() // args[0].shape[-1]))
    if func is aten._softmax_backward_data.default:
        return rounded(args[0].nbytes) + _copied(args[1])
    if func in (aten.convolution_backward.default, aten.native_layer_norm.default, aten._fused_rms_norm.default):
        return _copied(args[0])
    if func is aten._linalg_svd.default:
        # A copy to overwrite, and a number for its success; cuSOLVER's workspace is not known.
        return rounded(args[0].nbytes) + rounded(4)
    if func is aten.mse_loss.default:
        return rounded(args[0].nbytes)
    if func in (aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default):
        return _copied(args[0]) + _copied(args[1])
    if func is aten._scaled_dot_product_efficient_attention.default:
        return _efficient_forward(*args[:3])
    if func is aten._scaled_dot_product_efficient_attention_backward.default:
        return _copied(args[0].transpose(1, 2)) + _efficient_backward(*args[1:4])
    if func is aten._scaled_dot_product_flash_attention_backward.default:
        # The kernel reads the gradient and its result with their heads beside each other.
        return _copied(args[0].transpose(1, 2)) + _copied(args[4].transpose(1, 2)) + _flash_backward(*args[1:3])
    return 0


def _flash_backward(query, key) -> int:
    """Bytes of flash attention (flash_api.cpp, mha_bwd): dq_accum, softmax_d, and dk_expanded and dv_expanded."""
    batch, heads, length, width = query.shape
    length += -length % 128
    width += -width % (32 if width <= 128 else 64)
    # Gradients of keys and values for each query head, which are then summed.
    shared = 0 if key.shape[1] == heads else 2 * rounded(key.nbytes // key.shape[1] * heads)
    return rounded(4 * batch * heads * length * width) + rounded(4 * batch * heads * length) + shared


def _efficient_forward(query, key, value) -> int:
    """Bytes of the memory-efficient kernel (attention.cu): output_accum, for heads above 128 in 16 bits."""
    widest = max(query.shape[3], value.shape[3])
    return rounded(2 * query.nbytes // query.shape[3] * value.shape[3]) if query.itemsize == 2 and widest > 128 else 0


def _efficient_backward(query, key, value) -> int:
    """Bytes of the memory-efficient kernel (attention_backward.cu; kernel_backward.h, workspace_size).

    They are delta and the workspace. The kernel is the one that cutlassB.h takes for compute capability 8.0.
    """
    batch, heads, queries, width = query.shape
    keys, of_values = value.shape[2:]
    in_16_bits, widest = query.itemsize == 2, max(width, of_values)
    tall = 128 if widest > 64 else 64
    wide = 128 if in_16_bits and 64 < widest <= 128 else 64
    delta = rounded(4 * batch * heads * queries)
    # Each block of the queries' gradient has a lock, a counter and two numbers that align it.
    elements = -(-queries // tall) * -(-width // wide) * (4 + tall * wide)
    if in_16_bits and widest > 128:  # gradients of keys and values do not fit into registers
        splits = max(1, min(-(-keys // wide), 200 // (batch * heads)))
        elements += splits * wide * sum(-(-one // tall) * tall for one in (width, of_values))
    taken = delta + rounded(4 * batch * heads * elements)
    if in_16_bits:
        return taken
    # delta is a sum of a whole product, copied where it does not lie by head.
    copy = delta if heads > 1 and queries > 1 else 0
    return max(taken, rounded(4 * batch * heads * queries * of_values) + delta + copy)


def _copied(tensor) -> int:
    return 0 if tensor.is_contiguous() else rounded(tensor.nbytes)
