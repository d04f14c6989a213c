"""Linear layers whose products are in FP8, as torchao's `convert_to_float8_training` makes them of `torch.nn.Linear`.

Weights, results and gradients keep their precision. A layer keeps its input unchanged; operands of products, in forward
and again in backward, are cast to 8 bits just before (torchao 0.18, float8/float8_linear.py,
matmul_with_hp_or_float8_args), with one scale for a whole tensor, the default.
The output head is left out, as in torchao's own example.

This is what PyTorch runs without torch.compile. A cast then holds three copies of 32 bits one after the other, two of
them at a time; torch.compile fuses them.
"""

from __future__ import annotations

from math import gcd

from calculator.tape.autograd import Matrix, Storage, Tensor
from calculator.tape.operations import Operations

SIDES_OF = 16
"""Number of which both sides of a matrix, and the tokens of a pass, must be multiples (pytorch,
aten/src/ATen/native/cuda/Blas.cpp, _scaled_mm)."""
HEAD = "output head"


def tokens_at_once(others: int) -> int:
    """The least number whose product with `others` is a possible number of tokens.

    >>> tokens_at_once(1), tokens_at_once(24), tokens_at_once(4096)
    (16, 2, 1)
    """
    return SIDES_OF // gcd(SIDES_OF, others)


class EightBitOperations(Operations):
    """PyTorch's operations, whose linear layers multiply in FP8."""

    def _plain_linear(self, x: Tensor, weight: Matrix, bias: Matrix | None, name: str) -> Tensor:
        """y = x Wᵀ (+ b): keeps x; W is read again in backward.
        Names hold the tensors that torchao's variables hold."""
        if name == HEAD:
            return super()._plain_linear(x, weight, bias, name)
        if self.autocast:
            x = self.cast(x, 2, name)
        outer, inner = weight.shape
        count, itemsize = x.count, x.itemsize
        weight_count, weight_itemsize = weight.count, weight.itemsize
        result = count // inner * outer
        for_x = x.node is not None

        def backward(grad: Storage) -> tuple:
            _gradient = self._in_8_bit(result, itemsize)
            _weight = self._in_8_bit(weight_count, weight_itemsize)
            # The kernel reads its second operand by columns; the weight's transpose is copied into this order.
            copy, scales = self.new(weight_count, 1), self._inverses()
            to_x = self.new(count, itemsize)
            to_x.viewed = True
            del copy, scales
            _again = self._in_8_bit(result, itemsize)
            _input = self._in_8_bit(count, itemsize)
            # Both operands lie in the other order.
            copies, scales = (self.new(result, 1), self.new(count, 1)), self._inverses()
            to_weight = self.new(weight_count, itemsize)
            del copies, scales
            return (to_x if for_x else None, to_weight)

        fits = ((), ((weight_count, weight_itemsize),)) if weight_itemsize != itemsize else ()
        self.name = f"{name}, in 8 bits"
        operands = self._in_8_bit(count, itemsize), self._in_8_bit(weight_count, weight_itemsize)
        scales = self._inverses()
        product = Tensor(self.new(result, itemsize), result, itemsize)
        del operands, scales
        # A Function of Python keeps its operands when its forward has ended (pytorch, torch/csrc/autograd/
        # python_function.cpp, process_outputs), so that a checkpointed block's last layer is multiplied again, too.
        product.node = self.record(name, (x, weight), (x.kept, weight.kept), backward, fits)
        return product if bias is None else self.add(product, self.cast(bias, itemsize, name), name)

    def _in_8_bit(self, count: int, itemsize: int) -> tuple[Storage, Storage]:
        """A tensor's copy in 8 bits and its scale (float8_utils.py, tensor_to_scale; float8_training_tensor.py)."""
        magnitudes = self.new(count, itemsize)
        largest = self.new(1, itemsize)
        del magnitudes
        wide, clamped = self.new(1, 8), self.new(1, 8)
        quotient = self.new(1, 8)
        del clamped
        scale = self.new(1, 4)
        del quotient, wide, largest
        raised = self.new(count, 4) if itemsize != 4 else None
        scaled = self.new(count, 4)
        del raised
        saturated = self.new(count, 4)
        bits = self.new(count, 1)
        del saturated, scaled
        return bits, scale

    def _inverses(self) -> tuple[Storage, Storage]:
        """Makes the inverse scales of a product's two operands (float8_ops.py, addmm_float8_unwrapped)."""
        return self.new(1, 4), self.new(1, 4)
