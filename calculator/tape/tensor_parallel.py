"""Tensor parallelism: several GPUs compute one micro-batch together, each with a part of every large matrix.

The plan is Megatron's (Shoeybi et al. 2019, arXiv:1909.08053, section 3), as `torch.distributed.tensor.parallel` does
on the models of transformers: queries, keys, values, gate and values of the feed-forward are divided by their outputs
(ColwiseParallel), the two output projections by their inputs (RowwiseParallel), embedding and head by the vocabulary
with `loss_parallel`. With "tensor-sequence", norms and residual sums have a part of the tokens each (SequenceParallel;
Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2).

What is alive when, by torch 2.13, distributed/tensor:

- a sum over the GPUs is made in a new tensor, of a result in forward, or of each input's gradient in backward; with
  parts of the tokens, it is made of a copy in which these lie one after the other, and the opposite, a gathering, is
  copied likewise (_functional_collectives.py, reduce_scatter_tensor, all_gather_tensor);
- the engine never adds gradients in place where they are DTensors (input_buffer.cpp, isTensorSubclassLike);
- the gradient of a divided embedding is whole on every GPU (_ops/_embedding_ops.py, embedding_dense_backward);
- the loss holds three tensors of the logits' size beside the log-softmax (parallel/loss.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from calculator.models.architecture import Architecture
from calculator.tape.autograd import RECOMPUTED, Matrix, Node, Parameter, Storage, Tensor, rounded
from calculator.tape.operations import Operations

TENSOR_SHARDINGS = ("tensor", "tensor-sequence")
_BY_OUTPUTS = ("attention.query.", "attention.key.", "attention.value.", "feed_forward.gate.", "feed_forward.in.")
_BY_INPUTS = ("attention.out.", "feed_forward.out.")


def undivided(architecture: Architecture, gpus: int) -> str:
    """Names a size of the model that these GPUs cannot divide evenly; empty if there is none."""
    sizes = {
        "heads": architecture.num_heads,
        "heads of keys": architecture.key_heads,
        "inner channels of the feed-forward": architecture.intermediate_size,
        "tokens of the vocabulary": architecture.vocab_size,
    }
    return next((f"{size} {name}" for name, size in sizes.items() if size % gpus), "")


@lru_cache(maxsize=256)
def part_of_model(architecture: Architecture, gpus: int) -> Architecture:
    """The model that one GPU computes: its part of heads, feed-forward and vocabulary."""
    return replace(
        architecture,
        num_heads=architecture.num_heads // gpus,
        num_key_value_heads=architecture.num_key_value_heads // gpus,
        intermediate_size=architecture.intermediate_size // gpus,
        vocab_size=architecture.vocab_size // gpus,
    )


class Part(Parameter):
    """A GPU's part of a parameter, or a whole parameter of a norm; see `part`."""

    __slots__ = ("way",)


def part(name: str, shape: tuple[int, ...], itemsize: int) -> Part:
    """A parameter of a divided layer.

    Args:
        name: The parameter's name in the family's `parameters`.
        shape: Shape of this GPU's part.
        itemsize: Bytes of a value.
    """
    made = Part(shape, itemsize)
    made.way = "inputs" if name.startswith(_BY_INPUTS) else "outputs"
    if "norm" in name:
        made.way = "" if name.startswith(_BY_OUTPUTS) else "tokens"
    return made


class DividedOperations(Operations):
    """The operations of one of the GPUs.

    Args:
        gpus: Number of GPUs that compute together.
        by_tokens: Whether norms and residual sums have a part of the tokens each.
        arguments: See `calculator.tape.autograd.Tape`.
    """

    def __init__(self, *arguments: object, gpus: int, by_tokens: bool, **named: object) -> None:
        super().__init__(*arguments, **named)
        self.gpus = gpus
        self.by_tokens = by_tokens
        self.apart = False
        self.rows = 0

    def record(self, *arguments: object) -> Node | None:
        """Records as `Tape.record` does, but adds gradients of DTensors apart."""
        node = super().record(*arguments)
        if self.apart and node is not None and node is not RECOMPUTED:
            node.apart = True
        return node

    def entered(self, x: Tensor) -> Tensor:
        """Gathers all tokens of a divided layer's input."""
        if not self.by_tokens:
            return x
        count, whole, itemsize = x.count, x.count * self.gpus, x.itemsize

        def backward(grad: Storage) -> tuple:
            return (self._copied(whole, count, itemsize),)

        self.apart = True
        node = self.record("gathering of the tokens", (x,), (), backward)
        self.apart = False
        self.name = "gathering of the tokens"
        return Tensor(self._copied(whole, whole, itemsize), whole, itemsize, node)

    def linear(self, x: Tensor, weight: Matrix, *others: object, **named: object) -> Tensor:
        """A product with a part of a matrix, and the sums over the GPUs that belong to it."""
        if weight.way == "inputs":
            return self._summed(super().linear(x, weight, *others, **named))
        if not self.by_tokens:
            count, itemsize = x.count, x.itemsize
            total = "sum of a gradient over the GPUs"
            x = Tensor(
                x.storage, count, itemsize, self.record(total, (x,), (), lambda grad: (self.new(count, itemsize),))
            )
        result = super().linear(x, weight, *others, **named)
        self.rows = result.count // weight.shape[0]
        return result

    def _summed(self, x: Tensor) -> Tensor:
        count, itemsize, name = x.count, x.itemsize, "sum over the GPUs"
        if not self.by_tokens:
            node = self.record(name, (x,), (), _pass_on)
            self.name = name
            return Tensor(self.new(count, itemsize), count, itemsize, node)

        def backward(grad: Storage) -> tuple:
            return (self._copied(count, count, itemsize),)

        node = self.record(name, (x,), (), backward)
        self.name = name
        own = count // self.gpus
        return Tensor(self._copied(count, own, itemsize), own, itemsize, node)

    def _copied(self, between: int, count: int, itemsize: int) -> Storage:
        """The result of a gathering or sum of tokens; while it is made, a copy in another order exists too."""
        in_other_order = self.new(between, itemsize)
        result = self.new(count, itemsize)
        del in_other_order
        return result

    def rms_norm(self, x: Tensor, weight: Matrix) -> Tensor:
        """RMS norm of this GPU's tokens."""
        if not self.by_tokens or weight.way != "tokens":
            return super().rms_norm(x, weight)
        self.apart = True
        x = Tensor(x.storage, x.count, x.itemsize, self.record("RMS norm", (x,), (), _pass_on))
        result = super().rms_norm(x, weight)
        self.apart = False
        return result

    def embedding(self, weight: Matrix, count: int, indices: Storage | None = None) -> Tensor:
        """Rows of this GPU's part of the table, zeros for the others': keeps its indices, and a mask until the sum."""
        result, itemsize, total = count * weight.shape[1], weight.itemsize, weight.count * self.gpus
        self.name = "embedding"
        mask = self.new(count, 1)
        self.workspace(rounded(8 * count))
        own = self.new(count, 8)
        node = self.record("embedding", (weight,), (own,), lambda grad: (self.new(total, itemsize),))
        del own
        summed = self._summed(Tensor(self.new(result, itemsize), result, itemsize, node))
        del mask
        return summed

    def cross_entropy(self, logits: Tensor, labels: Storage | None, label_count: int = 0) -> Tensor:
        """Log-softmax and loss over all GPUs' parts of the vocabulary (loss_parallel)."""
        count, itemsize, rows = logits.count, logits.itemsize, self.rows
        self.name = "log-softmax of the logits"
        largest = self.new(rows, itemsize)
        shifted = self.new(count, itemsize)
        del largest
        self.workspace(rounded(count * itemsize))
        chances = Tensor(self.new(count, itemsize), count, itemsize)
        del shifted
        chances.node = self.record("log-softmax of the logits", (logits,), (chances.storage,), _pass_on)

        def backward(grad: Storage) -> tuple:
            zeros = self.new(count, itemsize)
            exponential = self.new(count, itemsize)
            difference = self.new(count, itemsize)
            del exponential
            result = self.new(count, itemsize)
            del zeros, difference
            return (result,)

        self.name = "loss"
        loss = Tensor(self.new(1, itemsize), 1, itemsize)
        weight = self.new(1, itemsize)
        loss.node = self.record("loss", (chances,), (chances.storage, labels, weight), backward)
        return loss


def _pass_on(grad: Storage) -> tuple:
    return (grad,)
