"""Muon: steps of the layers' matrices have equal lengths in all directions (Jordan 2024, Liu et al. 2025).

The rules are those of torch 2.13 (optim/_muon.py), whose Muon takes matrices only; AdamW updates all else, as its
documentation advises: vectors, embeddings and the output head. Muon goes from matrix to matrix, and its Newton-Schulz
iterations compute in bfloat16.
"""

from __future__ import annotations

from calculator.models.architecture import ParameterTensor
from calculator.tape.autograd import allocated_bytes


def is_hidden(tensor: ParameterTensor) -> bool:
    """Returns True if Muon updates the tensor; `training.optim.groups` has the same rule."""
    outside = tensor.is_embedding or tensor.name.startswith(("head.weight", "router"))
    return len(tensor.shape) == 2 and not outside


def muon_state(tensor: ParameterTensor, itemsize: int) -> int:
    """Bytes of one momentum of a hidden matrix, or of AdamW's two moments of all else."""
    return (1 if is_hidden(tensor) else 2) * allocated_bytes(tensor.count, itemsize)


def muon_step(tensors: tuple[ParameterTensor, ...], itemsize: int) -> int:
    """Bytes that an update takes temporarily: Muon's largest matrix, or AdamW's roots of all second moments after it.

    Args:
        tensors: All trained tensors.
        itemsize: Bytes of a value of the parameters; of two, they are bfloat16.
    """
    matrices = [_iteration(tensor, itemsize) for tensor in tensors if is_hidden(tensor)]
    others = sum(t.copies * allocated_bytes(t.count, itemsize) for t in tensors if not is_hidden(t))
    return max([*matrices, others])


def _iteration(tensor: ParameterTensor, itemsize: int) -> int:
    """Bytes of Nesterov's momentum and of the iterations, each of which makes two squares and the next matrix.

    The second iteration's first square, X Xᵀ, is made while both of the first exist.
    """
    matrix, square = allocated_bytes(tensor.count, 2), allocated_bytes(min(tensor.shape) ** 2, 2)
    return allocated_bytes(tensor.count, itemsize) + matrix + max(2 * square + matrix, 3 * square)
