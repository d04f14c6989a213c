"""Rules of memory: bytes that each operation allocates, keeps for backward, and allocates again in backward.

The rules are those of PyTorch 2.13 on CUDA: tools/autograd/derivatives.yaml says what an operation keeps,
aten/src/ATen/autocast_mode.h what autocast casts. An operation that keeps only its operands is recorded before its
result is allocated, one that keeps its result after that. The order matters where a checkpointed block is computed
again: that stops at the last tensor that is kept, so a last operation that keeps only operands does not run again.

Lengths: B micro-batch, T tokens, D hidden, N heads, H head width, F feed-forward, V vocabulary. A tensor has a number
of values, not a shape: nothing else affects memory.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.tape.autograd import WEIGHT_COPY, FrozenWeight, Matrix, Parameter, Storage, Tape, Tensor, rounded


class Operations(Tape):
    """The operations that the families are written in; see `calculator.tape.autograd.Tape`."""

    # -- casts -------------------------------------------------------------------------------------------------

    def cast(self, x: Tensor, itemsize: int, name: str = "cast") -> Tensor:
        """A copy in another precision; nothing is kept for backward. The same precision costs nothing."""
        if x.itemsize == itemsize:
            return x
        count, before = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(count, before),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def lowered(self, x: Tensor) -> Tensor:
        """An operand of a matrix product: 16 bit under autocast, which caches the copies of parameters only."""
        if not self.autocast or x.itemsize == 2:
            return x
        if not isinstance(x, Matrix):
            return self.cast(x, 2, "casting to 16 bit")
        # A cached copy lives until autocast is left even if no node keeps it: an estimate without the cache would
        # free it right after the product, and cast a shared weight once for each layer.
        copy = self.cache.get(id(x))
        if copy is None:
            copy = self.cast(x, 2, "casting a weight to 16 bit")
            copy.storage.kind = WEIGHT_COPY
            if isinstance(x, Parameter):
                self.cache[id(x)] = copy
        return copy

    def raised(self, x: Tensor) -> Tensor:
        """An operand of an operation that autocast runs in 32 bit."""
        return self.cast(x, 4, "casting to 32 bit") if self.autocast else x

    def _raised_weight(self, weight: Matrix) -> Tensor:
        """A parameter's copy in 32 bits for an operation that autocast runs in 32 bits."""
        copy = self.raised(weight)
        if copy is not weight:
            copy.storage.kind = WEIGHT_COPY
        return copy

    def weight_in_32_bits(self, weight: Matrix, name: str) -> Matrix:
        """A weight, or its copy in 32 bits."""
        if weight.itemsize == 4:
            return weight
        copy = self.cast(weight, 4, name)
        copy.storage.kind = WEIGHT_COPY
        return Matrix(copy.storage, copy.count, 4, copy.node, weight.shape)

    # -- matrix products ---------------------------------------------------------------------------------------

    def patches(self, x: Tensor, weight: Matrix, bias: Matrix, rows: int, name: str = "patches") -> Tensor:
        """A convolution whose windows do not overlap, with `rows` results per channel: keeps its input and weight.

        cuDNN's backward copies a gradient that lies in another memory order, as that of tokens does (pytorch,
        aten/src/ATen/native/cudnn/ConvShared.cpp, cudnn_convolution_backward). The workspace that cuDNN itself chooses
        is not counted.
        """
        bias = self.lowered(bias)
        weight = self.lowered(weight)
        x = self.lowered(x)
        itemsize, count = x.itemsize, rows * bias.count
        weight_count, bias_count = weight.count, bias.count

        def backward(grad: Storage) -> tuple:
            to_weight, to_bias = self.new(weight_count, itemsize), self.new(bias_count, itemsize)
            if rows > 1:
                self.workspace(rounded(count * itemsize))
            return to_weight, to_bias

        node = self.record(name, (weight, bias), (x.kept, weight.kept), backward)
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def entered(self, x: Tensor) -> Tensor:
        """The input of a layer that GPUs divide; x itself if one GPU computes the whole layer
        (`calculator.tape.tensor_parallel`)."""
        return x

    def linear(self, x: Tensor, weight: Matrix, bias: Matrix | None = None, name: str = "linear") -> Tensor:
        """y = x Wᵀ (+ b) with W stored as (out, in): keeps x and the copy of W that it used."""
        if type(weight) is FrozenWeight:
            return self._frozen_linear(x, weight, bias, name)
        return self._plain_linear(x, weight, bias, name)

    def _plain_linear(self, x: Tensor, weight: Matrix, bias: Matrix | None, name: str) -> Tensor:
        outer, inner = weight.shape
        if self.autocast:
            if bias is not None:
                bias = self.lowered(bias)
            weight = self.lowered(weight)
            x = self.lowered(x)
        return self._product(x, weight, bias, inner, outer, name)

    def linear_of_part(self, x: Tensor, weight: Matrix, bias: Matrix) -> Tensor:
        """`linear` for an x whose values do not lie side by side: a copy of x is kept, and b is added in place
        (pytorch, aten/src/ATen/native/Linear.cpp, linear)."""
        if type(weight) is FrozenWeight:
            return self._frozen_linear(x, weight, bias, "linear", plain=self._plain_linear_of_part, of_part=True)
        return self._plain_linear_of_part(x, weight, bias, "linear")

    def _plain_linear_of_part(self, x: Tensor, weight: Matrix, bias: Matrix | None, name: str) -> Tensor:
        outer, inner = weight.shape
        if bias is not None:
            bias = self.lowered(bias)
        weight = self.lowered(weight)
        # A batched product with a weight that is not trained reads x as it is (LinearAlgebra.cpp, should_fold).
        x = self.copy(x) if weight.node is not None else x
        product = self._product(x, weight, None, inner, outer, name)
        if bias is None or bias.node is None:
            return product
        fits = ((), ((outer, product.itemsize),))
        node = self.record(name, (product, bias), (), lambda grad: (grad, grad), fits)
        return Tensor(product.storage, product.count, product.itemsize, node)

    def addmm(self, x: Tensor, weight: Matrix, bias: Matrix, name: str = "linear") -> Tensor:
        """y = x W + b with W stored as (in, out), as in GPT-2; like `linear`, but autocast casts in another order."""
        if type(weight) is FrozenWeight:
            return self._frozen_linear(x, weight, bias, name, plain=self._plain_addmm)
        return self._plain_addmm(x, weight, bias, name)

    def _plain_addmm(self, x: Tensor, weight: Matrix, bias: Matrix, name: str) -> Tensor:
        inner, outer = weight.shape
        if self.autocast:
            weight = self.lowered(weight)
            x = self.lowered(x)
            bias = self.lowered(bias)
        return self._product(x, weight, bias, inner, outer, name)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None, inner: int, outer: int, name: str) -> Tensor:
        itemsize = x.itemsize
        count, weight_count = x.count, weight.count
        x_needs_gradient, trained = x.node is not None, weight.node is not None
        biased = bias is not None and bias.node is not None

        def backward(grad: Storage) -> tuple:
            to_x = self.new(count, itemsize) if x_needs_gradient else None
            if to_x is not None:
                to_x.viewed = True  # of x's shape: the product itself has a row for each token
            to_weight = self.new(weight_count, itemsize) if trained else None
            return (to_x, to_weight, grad) if biased else (to_x, to_weight)

        operands = (x, weight, bias) if biased else (x, weight)
        fits = ((), (), ((outer, itemsize),)) if biased else ()
        weight_kept = weight.kept if x_needs_gradient else None
        # A frozen weight needs no gradient, so that its input is not kept.
        saved = (x.kept, weight_kept) if trained else (weight_kept,)
        node = self.record(name, operands, saved, backward, fits)
        self.name = name
        result = count // inner * outer
        return Tensor(self.new(result, itemsize), result, itemsize, node)

    def _frozen_linear(
        self,
        x: Tensor,
        weight: FrozenWeight,
        bias: FrozenWeight | None,
        name: str,
        *,
        plain: Callable[[Tensor, Matrix, Matrix | None, str], Tensor] | None = None,
        of_part: bool = False,
    ) -> Tensor:
        """A linear layer that is not trained, and its adapter if it has one (peft 0.21, lora/layer.py, lora/bnb.py).

        result + B(A(dropout(x))) * scaling; names hold what the variables and calls of the real code hold.

        Args:
            x: The input.
            weight: The layer's weight.
            bias: The layer's bias.
            name: Name of the operation.
            plain: The layer without an adapter; None: `linear`'s.
            of_part: Whether x's values do not lie side by side, see `linear_of_part`. A cast and dropout copy them.
        """
        quantized = weight.scales is not None
        base = self._dequantizing_linear if quantized else plain or self._plain_linear
        result = base(x, weight, bias, name)
        adapter = weight.adapter
        if adapter is None:
            return result
        itemsize = result.itemsize
        if quantized:
            result = self.copy(result)
        # Under autocast, only the adapter of a quantized layer leaves the cast of its input to autocast.
        if not (quantized and self.autocast):
            of_part = of_part and x.itemsize == adapter.a.itemsize
            x = self.cast(x, adapter.a.itemsize, "adapter")
        dropped = self.dropout(x, adapter.dropout)
        of_part = of_part and not (adapter.dropout or (self.autocast and x.itemsize == 4))
        low = (self._plain_linear_of_part if of_part else self._plain_linear)(dropped, adapter.a, None, "adapter")
        del dropped
        high = self._plain_linear(low, adapter.b, None, "adapter")
        del low
        scaled = self.scale(high, "adapter")
        del high
        if quantized and not self.autocast:
            scaled = self.cast(scaled, itemsize, "adapter")
        result = self.add(result, scaled, "adapter")
        del scaled
        return self.cast(result, itemsize, "adapter")

    def _dequantizing_linear(self, x: Tensor, weight: FrozenWeight, bias: FrozenWeight | None, name: str) -> Tensor:
        """A product with a weight of 4 bits: keeps nothing (bitsandbytes 0.50, Linear4bit.forward, MatMul4Bit).

        Forward and backward each make the whole weight in 16 bits, and before that its 32-bit scales
        (backends/cuda/ops.py, _dequant_linear_fallback; functional.py, dequantize_4bit).
        """
        before, (outer, inner) = x.itemsize, weight.shape
        x = self.cast(x, 2, name)
        count, weight_count, scales = x.count, weight.count, weight.scales

        def backward(grad: Storage) -> tuple:
            absmax = self.new(scales, 4)
            dequantized = self.new(weight_count, 2)
            del absmax
            to_x = self.new(count, 2)
            del dequantized
            return (to_x,)

        node = self.record(name, (x,), (), backward)
        self.name = f"{name}, dequantizing its weight"
        without_mean = self.new(scales, 4)
        absmax = self.new(scales, 4)
        dequantized = self.new(weight_count, 2)
        result = count // inner * outer
        product = Tensor(self.new(result, 2), result, 2, node)
        del without_mean, absmax, dequantized
        return self.cast(product, before, name)

    def matmul(
        self, a: Tensor, b: Tensor, count: int, name: str, *, copy: tuple[bool, bool] = (False, False)
    ) -> Tensor:
        """A batched product of two activations with `count` values: keeps both.

        Args:
            copy: Which operands cannot be viewed as three-dimensional tensors and are copied first.
        """
        b = self.lowered(b)
        a = self.lowered(a)
        if copy[0]:
            a = self.copy(a)
        if copy[1]:
            b = self.copy(b)
        itemsize = a.itemsize
        for_a, for_b = a.node is not None, b.node is not None
        a_count, b_count = a.count, b.count

        def backward(grad: Storage) -> tuple:
            to_b = self.new(b_count, itemsize) if for_b else None
            to_a = self.new(a_count, itemsize) if for_a else None
            return to_a, to_b

        node = self.record(name, (a, b), (a.kept if for_b else None, b.kept if for_a else None), backward)
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    # -- elementwise -------------------------------------------------------------------------------------------

    def add(self, a: Tensor, b: Tensor, name: str = "residual sum") -> Tensor:
        """a + b, with b broadcast if it is smaller: keeps nothing. Both get one gradient, summed to b's shape for b."""
        itemsize = max(a.itemsize, b.itemsize)
        count = a.count
        fits = (_fit(a, count, itemsize), _fit(b, count, itemsize))
        b_needs_gradient = b.node is not None
        node = self.record(
            name, (a, b), (), lambda grad: (grad, grad if b_needs_gradient else None), fits if fits != _NOTHING else ()
        )
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def add_constant(self, x: Tensor, name: str = "adding a constant", itemsize: int = 0) -> Tensor:
        """x plus a number, or a tensor without gradient (a mask) of `itemsize` bytes a value: keeps nothing."""
        itemsize = max(x.itemsize, itemsize)
        node = self.record(name, (x,), (), _pass_on, (_fit(x, x.count, itemsize),))
        self.name = name
        return Tensor(self.new(x.count, itemsize), x.count, itemsize, node)

    def subtract(self, a: Tensor, b: Tensor, name: str) -> Tensor:
        """a - b, with b broadcast if it is smaller: keeps nothing; b's gradient is negative."""
        count, itemsize = a.count, a.itemsize
        fits = ((), _fit(b, count, itemsize))
        node = self.record(
            name, (a, b), (), lambda grad: (grad, self.new(count, itemsize)), fits if fits != _NOTHING else ()
        )
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def written(self, whole: Tensor, x: Tensor, name: str) -> Tensor:
        """A tensor after x has been copied into some of its channels (autograd's CopySlices).

        Backward copies the whole gradient, and x's part of it; if the other channels need a gradient, it also makes
        zeros that it writes into x's.
        """
        count, itemsize = whole.count, whole.itemsize
        part, before, based = x.count, x.itemsize, whole.node is not None

        def backward(grad: Storage) -> tuple:
            result = self.new(count, itemsize)
            to_x = self.new(part, itemsize)
            zeros = self.new(part, itemsize) if based else None
            if before != itemsize:
                to_x = self.new(part, before)
            del zeros
            return (result if based else None), to_x

        node = self.record(name, (whole, x), (), backward)
        self.name = name
        return Tensor(whole.storage, count, itemsize, node)

    def scale(self, x: Tensor, name: str = "scaling") -> Tensor:
        """x times a number: keeps nothing."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(count, itemsize),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def multiply(self, a: Tensor, b: Tensor, name: str = "product") -> Tensor:
        """a * b, with the smaller one broadcast: each is kept if the other needs a gradient."""
        itemsize = max(a.itemsize, b.itemsize)
        count = max(a.count, b.count)
        for_a, for_b = a.node is not None, b.node is not None

        def backward(grad: Storage) -> tuple:
            return (self.new(count, itemsize) if for_a else None, self.new(count, itemsize) if for_b else None)

        saved = (a.kept if for_b else None, b.kept if for_a else None)
        node = self.record(name, (a, b), saved, backward, (_fit(a, count, itemsize), _fit(b, count, itemsize)))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def power(self, x: Tensor, name: str = "power") -> Tensor:
        """x ** n: keeps x; backward computes x ** (n - 1), n times that, and the product. 32 bit under autocast."""
        x = self.raised(x)
        count, itemsize = x.count, x.itemsize

        def backward(grad: Storage) -> tuple:
            power = self.new(count, itemsize)
            scaled = self.new(count, itemsize)
            result = self.new(count, itemsize)
            del power, scaled
            return (result,)

        node = self.record(name, (x,), (x.kept,), backward)
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def elementwise(self, x: Tensor, name: str) -> Tensor:
        """A function whose backward needs its result (tanh, relu, sigmoid): keeps the result."""
        count, itemsize = x.count, x.itemsize
        self.name = name
        result = Tensor(self.new(count, itemsize), count, itemsize)
        result.node = self.record(name, (x,), (result.storage,), lambda grad: (self.new(count, itemsize),))
        return result

    def smooth(self, x: Tensor, name: str) -> Tensor:
        """A function whose backward needs its operand (GELU, SiLU) as one kernel: keeps x."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (x.kept,), lambda grad: (self.new(count, itemsize),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def gelu_new(self, x: Tensor) -> Tensor:
        """GELU by tanh, in separate operations (transformers, NewGELUActivation), each of which keeps its own tensors.

        0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
        """
        return self.multiply(
            self.scale(x, "GELU"),
            self.add_constant(
                self.elementwise(
                    self.scale(self.add(x, self.scale(self.power(x, "GELU"), "GELU"), "GELU"), "GELU"), "GELU"
                ),
                "GELU",
            ),
            "GELU",
        )

    def activation(self, x: Tensor, kind: str) -> Tensor:
        """One of the activations that an architecture may name."""
        if kind == "gelu_new":
            return self.gelu_new(x)
        return self.elementwise(x, "ReLU") if kind == "relu" else self.smooth(x, "SiLU" if kind == "silu" else "GELU")

    def dropout(self, x: Tensor, probability: float) -> Tensor:
        """Keeps a mask of one byte per value; with probability 0 it does nothing at all."""
        if probability == 0:
            return x
        count, itemsize = x.count, x.itemsize
        self.name = "dropout"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        mask = self.new(count, 1)
        result.node = self.record("dropout", (x,), (mask,), lambda grad: (self.new(count, itemsize),))
        return result

    def copy(self, x: Tensor, name: str = "contiguous copy") -> Tensor:
        """A contiguous copy: keeps nothing, and its gradient is passed on without a copy."""
        node = self.record(name, (x,), (), _pass_on)
        self.name = name
        return Tensor(self.new(x.count, x.itemsize), x.count, x.itemsize, node)

    def view(self, x: Tensor, name: str = "contiguous copy of a gradient") -> Tensor:
        """A view in forward; its gradient arrives in another memory order and is copied."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(count, itemsize),))
        return Tensor(x.storage, count, itemsize, node)

    def split(self, x: Tensor, parts: int) -> list[Tensor]:
        """Equal views of one storage; backward joins their gradients into one tensor."""
        return self.pieces(x, *[x.count // parts] * parts)

    def pieces(self, x: Tensor, *counts: int) -> list[Tensor]:
        """Views of one storage with these numbers of values; backward joins their gradients into one tensor."""
        count, itemsize = x.count, x.itemsize
        node = self.record("joining gradients", (x,), (), lambda grads: (self.new(count, itemsize),))
        if node is not None and not self.recomputing:
            node.slots = [None] * len(counts)
        return [Tensor(x.storage, part, itemsize, node, slot) for slot, part in enumerate(counts)]

    def part(self, x: Tensor, count: int) -> Tensor:
        """A view of some channels; backward writes its gradient into zeros of the whole tensor's size."""
        whole, itemsize = x.count, x.itemsize
        node = self.record("gradient of a part", (x,), (), lambda grad: (self.new(whole, itemsize),))
        return Tensor(x.storage, count, itemsize, node)

    def rows(self, table: Parameter, rows: int) -> Matrix:
        """A view of some rows of a parameter; backward writes its gradient into zeros of the whole parameter's size."""
        shape = (rows, *table.shape[1:])
        count = table.count // table.shape[0] * rows
        return Matrix(None, count, table.itemsize, self.part(table, count).node, shape)

    def expanded(self, x: Tensor, times: int) -> Tensor:
        """A view that shows x several times; the gradients are summed."""
        count, itemsize = x.count, x.itemsize
        node = self.record("repeating keys and values", (x,), (), lambda grad: (self.new(count, itemsize),))
        return Tensor(x.storage, count * times, itemsize, node)

    def repeated(self, x: Tensor, times: int, name: str = "repeating keys and values") -> Tensor:
        """Copies of x beside each other: keeps nothing; the gradients of the copies are summed."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(count, itemsize),))
        self.name = name
        return Tensor(self.new(count * times, itemsize), count * times, itemsize, node)

    def join(self, a: Tensor, b: Tensor, name: str = "joining") -> Tensor:
        """Concatenates two tensors (cat, stack): a copy that keeps nothing; both gradients are views of one."""
        count, itemsize = a.count + b.count, max(a.itemsize, b.itemsize)
        # The gradients are views, which are cast if the operand was.
        fits = tuple([((x.count, x.itemsize),) if x.itemsize != itemsize else () for x in (a, b)])

        def backward(grad: Storage) -> tuple:
            grad.viewed = True
            return grad, grad

        node = self.record(name, (a, b), (), backward, fits if fits != _NOTHING else ())
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    # -- normalisation -----------------------------------------------------------------------------------------

    def layer_norm(self, x: Tensor, weight: Matrix, bias: Matrix) -> Tensor:
        """Keeps x and two 32-bit numbers per row; runs in 32 bits under autocast."""
        x, weight, bias = self.raised(x), self._raised_weight(weight), self._raised_weight(bias)
        trained = weight.node is not None
        for_x = x.node is not None
        count, itemsize, width = x.count, x.itemsize, weight.count
        rows = count // width
        self.name = "layer norm"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        mean, deviation = self.new(rows, 4), self.new(rows, 4)
        result.node = self.record(
            "layer norm",
            (x, weight, bias),
            (x.storage, mean, deviation, weight.kept, bias.kept),
            lambda grad: (
                self.new(count, itemsize) if for_x else None,
                *(self.new(width, itemsize) if trained else None for _ in range(2)),
            ),
        )
        return result

    def bare_layer_norm(self, x: Tensor, width: int, *, scattered: bool = False) -> Tensor:
        """A layer norm without parameters: keeps x and two 32-bit numbers per row; in 32 bits under autocast.

        Args:
            x: Rows of `width` values.
            width: D.
            scattered: Whether x's values do not lie side by side, so that the kernel copies them, forward and backward
                (pytorch, aten/src/ATen/native/cuda/layer_norm_kernel.cu, layer_norm_cuda).
        """
        raised = self.raised(x)
        scattered, x = scattered and raised is x, raised
        count, itemsize = x.count, x.itemsize
        rows, copied = count // width, rounded(count * itemsize)

        def backward(grad: Storage) -> tuple:
            result = self.new(count, itemsize)
            if scattered:
                self.workspace(copied)
            return (result,)

        self.name = "layer norm"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        mean, deviation = self.new(rows, 4), self.new(rows, 4)
        if scattered:
            self.workspace(copied)
        result.node = self.record("layer norm", (x,), (x.kept, mean, deviation), backward)
        return result

    def fused_rms_norm(self, x: Tensor, weight: Parameter, *, scattered: bool = False) -> Tensor:
        """`torch.nn.RMSNorm`: keeps x and a 32-bit number per row; runs in 32 bits under autocast.

        Args:
            x: Rows as wide as `weight`.
            weight: H.
            scattered: Whether the gradient's values do not lie side by side, so that the kernel copies them.
        """
        x, weight = self.raised(x), self.raised(weight)
        if weight.storage is not None:
            weight.storage.kind = WEIGHT_COPY
        count, itemsize, width = x.count, x.itemsize, weight.count

        def backward(grad: Storage) -> tuple:
            results = self.new(count, itemsize), self.new(width, itemsize)
            if scattered:
                self.workspace(rounded(count * itemsize))
            return results

        self.name = "RMS norm"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        deviation = self.new(count // width, 4)
        result.node = self.record("RMS norm", (x, weight), (x.kept, weight.kept, deviation), backward)
        return result

    def rms_norm(self, x: Tensor, weight: Parameter, *, late: bool = False) -> Tensor:
        """RMS norm in separate 32-bit operations (transformers, LlamaRMSNorm): keeps x and its normalized form.

        Args:
            x: Rows as wide as `weight`.
            weight: H.
            late: Whether x is multiplied by the weight before it is cast back (OLMo 2).
        """
        itemsize, rows = x.itemsize, x.count // weight.count
        x = self.cast(x, 4, "RMS norm")
        variance = self.mean(self.power(x, "RMS norm"), rows)
        x = self.multiply(x, self.reciprocal_root(self.add_constant(variance, "RMS norm")), "RMS norm")
        if late:
            return self.cast(self.multiply(weight, x, "RMS norm"), itemsize, "RMS norm")
        return self.multiply(weight, self.cast(x, itemsize, "RMS norm"), "RMS norm")

    def t5_norm(self, x: Tensor, weight: Parameter) -> Tensor:
        """T5's RMS norm: only the variance is computed from a copy in 32 bits (T5LayerNorm); keeps that and x too."""
        rows = x.count // weight.count
        variance = self.mean(self.power(self.cast(x, 4, "RMS norm"), "RMS norm"), rows)
        x = self.multiply(x, self.reciprocal_root(self.add_constant(variance, "RMS norm")), "RMS norm")
        if weight.itemsize == 2:
            x = self.cast(x, 2, "RMS norm")
        return self.multiply(weight, x, "RMS norm")

    def mean(self, x: Tensor, rows: int) -> Tensor:
        """A mean over each of `rows` rows: keeps nothing; backward expands its gradient to the rows."""
        count, itemsize = x.count, x.itemsize
        node = self.record("mean", (x,), (), lambda grad: (self.new(count, itemsize),))
        self.name = "mean"
        return Tensor(self.new(rows, itemsize), rows, itemsize, node)

    def reciprocal_root(self, x: Tensor) -> Tensor:
        """1 / sqrt(x): keeps its result y; backward computes y ** 3, then -1/2 of that, then the product with the
        gradient."""
        count, itemsize = x.count, x.itemsize

        def backward(grad: Storage) -> tuple:
            cube = self.new(count, itemsize)
            halved = self.new(count, itemsize)
            result = self.new(count, itemsize)
            del cube, halved
            return (result,)

        self.name = "reciprocal root"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        result.node = self.record("reciprocal root", (x,), (result.storage,), backward)
        return result

    def clamp(self, x: Tensor, variable: list[Tensor]) -> Tensor:
        """x between two bounds that are tensors: keeps x and the bounds (0-dimensional).

        Args:
            x: Tensor to clamp.
            variable: Holder of the upper bound, until the caller drops it.
        """
        count, itemsize = x.count, x.itemsize
        infinite = self.tensor(count, 1)
        upper = self.tensor(1, itemsize)
        del infinite
        variable[:] = [upper]
        lower = self.tensor(1, itemsize)

        def backward(grad: Storage) -> tuple:
            masks = (self.new(count, 1), self.new(count, 1), self.new(count, 1))
            result = self.new(count, itemsize)
            del masks
            return (result,)

        node = self.record("clamping", (x,), (x.kept, lower.kept, upper.kept), backward)
        self.name = "clamping"
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def clipped(self, x: Tensor, name: str = "clipping", *, bounds: int = 2) -> Tensor:
        """x between two numbers, or below one: keeps x; backward makes a mask of a byte for each value and bound, and
        a 0."""
        count, itemsize = x.count, x.itemsize

        def backward(grad: Storage) -> tuple:
            zero = self.new(1, itemsize)
            masks = [self.new(count, 1) for _ in range(bounds)]
            result = self.new(count, itemsize)
            del zero, masks
            return (result,)

        node = self.record(name, (x,), (x.kept,), backward)
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def where(self, x: Tensor, condition: Storage, name: str) -> Tensor:
        """x where a condition holds, a constant elsewhere: keeps the condition."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (condition,), lambda grad: (self.new(count, itemsize),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    # -- mixtures of experts -----------------------------------------------------------------------------------

    def gathered(self, x: Tensor, count: int, indices: Storage, name: str) -> Tensor:
        """Rows of x by their indices, which are kept; backward adds the gradient to zeros of x's size."""
        before, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (indices,), lambda grad: (self.new(before, itemsize),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def largest(self, x: Tensor, count: int) -> tuple[Tensor, Storage]:
        """The `count` largest values and their 64-bit indices, which are kept; backward as for `gathered`."""
        before, itemsize = x.count, x.itemsize
        self.name = "choosing experts"
        result = Tensor(self.new(count, itemsize), count, itemsize)
        indices = self.new(count, 8)
        result.node = self.record("choosing experts", (x,), (indices,), lambda grad: (self.new(before, itemsize),))
        return result, indices

    def summed(self, x: Tensor, count: int, name: str, itemsize: int = 0) -> Tensor:
        """Sums of groups of values: keeps nothing; backward shows each gradient several times, without a copy."""
        itemsize = max(x.itemsize, itemsize if self.autocast else 0)
        node = self.record(name, (x,), (), _pass_on)
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    def highest(self, x: Tensor, rows: int, name: str) -> Tensor:
        """The largest value of each row: keeps its index; backward writes the gradient into zeros of x's size."""
        before, itemsize = x.count, x.itemsize
        self.name = name
        result = Tensor(self.new(rows, itemsize), rows, itemsize)
        index = self.new(rows, 8)
        result.node = self.record(name, (x,), (index,), lambda grad: (self.new(before, itemsize),))
        return result

    def spread(self, x: Tensor, name: str) -> Tensor:
        """A view whose gradient arrives expanded and is copied."""
        count, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(count, itemsize),))
        return Tensor(x.storage, count, itemsize, node)

    def divided(self, x: Tensor, divisor: Tensor, name: str) -> Tensor:
        """x divided in place by a smaller tensor: keeps a copy of x, and the divisor."""
        count, itemsize = x.count, x.itemsize
        divisors = divisor.count

        def backward(grad: Storage) -> tuple:
            to_x = self.new(count, itemsize)
            quotient = self.new(count, itemsize)
            negative = self.new(count, itemsize)
            product = self.new(count, itemsize)
            del quotient, negative, product
            return to_x, self.new(divisors, itemsize)

        self.name = name
        copy = self.new(count, itemsize)
        node = self.record(name, (x, divisor), (copy, divisor.kept), backward)
        return Tensor(x.storage, count, itemsize, node)

    def grouped_product(
        self, x: Tensor, weight: Parameter, offsets: Storage, name: str, *, transposed: bool = False
    ) -> Tensor:
        """Rows of x, sorted by expert, times the matrix of their expert: keeps x and the offsets of the experts' rows.

        All experts together take as much memory however tokens are distributed among them (pytorch, _grouped_mm). If
        the experts are frozen, x is not kept.

        Args:
            x: Rows, sorted by expert.
            weight: The matrices of all experts, each stored as (out, in).
            offsets: Ends of the experts' rows.
            name: Name of the operation.
            transposed: Whether the matrices are stored as (in, out).
        """
        x = self.cast(x, weight.itemsize, name)
        itemsize, count, weight_count = x.itemsize, x.count, weight.count
        _experts, outer, inner = weight.shape
        if transposed:
            outer, inner = inner, outer
        x_needs_gradient, trained = x.node is not None, weight.node is not None

        def backward(grad: Storage) -> tuple:
            to_weight = self.new(weight_count, itemsize) if trained else None
            return self.new(count, itemsize) if x_needs_gradient else None, to_weight

        node = self.record(name, (x, weight), (x.kept if trained else None, offsets), backward)
        self.name = name
        result = count // inner * outer
        return Tensor(self.new(result, itemsize), result, itemsize, node)

    def added_in_place(self, x: Tensor, bias: Tensor, name: str) -> Tensor:
        """x + a bias as large, in x's memory: keeps nothing."""
        node = self.record(name, (x, bias), (), lambda grad: (grad, grad))
        return Tensor(x.storage, x.count, x.itemsize, node)

    def padded(self, x: Tensor, count: int, name: str) -> Tensor:
        """x with its rows padded to `count` values in total: keeps nothing."""
        before, itemsize = x.count, x.itemsize
        node = self.record(name, (x,), (), lambda grad: (self.new(before, itemsize),))
        self.name = name
        return Tensor(self.new(count, itemsize), count, itemsize, node)

    # -- embeddings and loss -----------------------------------------------------------------------------------

    def embedding(self, weight: Matrix, count: int, indices: Storage | None = None) -> Tensor:
        """`count` rows of a table: keeps the indices (None: the model's inputs, which are counted elsewhere)."""
        result = count * weight.shape[1]
        itemsize = weight.itemsize
        total = weight.count
        node = self.record("embedding", (weight,), (indices or (count, 8),), lambda grad: (self.new(total, itemsize),))
        self.name = "embedding"
        return Tensor(self.new(result, itemsize), result, itemsize, node)

    def cross_entropy(self, logits: Tensor, labels: Storage | None, label_count: int = 0) -> Tensor:
        """Log-softmax in the logits' precision, then the mean over the labels, in 32 bits under autocast.

        Both operations keep the log-softmax: one tensor, or two if their precisions differ. Of the labels' storage,
        `label_count` are kept.
        """
        count, itemsize = logits.count, logits.itemsize
        self.name = "log-softmax of the logits"
        chances = Tensor(self.new(count, itemsize), count, itemsize)
        chances.node = self.record(
            "log-softmax of the logits", (logits,), (chances.storage,), lambda grad: (self.new(count, itemsize),)
        )
        chances = self.raised(chances)
        loss_itemsize = chances.itemsize
        self.name = "loss"
        loss = Tensor(self.new(1, loss_itemsize), 1, loss_itemsize)
        weight = self.new(1, loss_itemsize)
        kept_labels = (label_count, 8) if self.moving else labels
        loss.node = self.record(
            "loss", (chances,), (chances.storage, kept_labels, weight), lambda grad: (self.new(count, loss_itemsize),)
        )
        return loss

    def squared_error(self, x: Tensor, target: Tensor) -> Tensor:
        """The mean of squared differences, of values in 32 bits: keeps both.

        The kernel makes all squares before it sums them (pytorch, aten/src/ATen/native/BinaryOps.cpp, mse_loss_out).
        """
        count = x.count
        node = self.record("loss", (x,), (x.kept, target.kept), lambda grad: (self.new(count, 4),))
        self.name = "loss"
        loss = Tensor(self.new(1, 4), 1, 4, node)
        self.workspace(rounded(4 * count))
        return loss

    # -- attention ---------------------------------------------------------------------------------------------

    def softmax(self, x: Tensor, *, raised: bool = False) -> Tensor:
        """Keeps its result, in 32 bits under autocast or if `raised` asks for them.

        Backward holds grad * result in addition to its own result.

        CUDA's kernel reads float16 and writes 32 bits, and vice versa in backward, so float16 needs no cast; bfloat16
        is cast first (pytorch, aten/src/ATen/native/SoftMax.cpp, softmax).
        """
        count, before = x.count, x.itemsize
        raised = raised or self.autocast
        if raised and not (self.half == "fp16" and before == 2):
            x = self.cast(x, 4, "casting to 32 bit")
            before = x.itemsize
        itemsize = 4 if raised else before
        self.name = "softmax of the attention scores"

        def backward(grad: Storage) -> tuple:
            result = self.new(count, before)
            self.workspace(rounded(count * itemsize))
            return (result,)

        result = Tensor(self.new(count, itemsize), count, itemsize)
        result.node = self.record("softmax of the attention scores", (x,), (result.storage,), backward)
        return result

    def masked_softmax(self, x: Tensor, keys: int) -> Tensor:
        """Softmax of 32-bit values that gives 0 for a row whose values are all masked (pytorch,
        transformers/attention.cpp,
        _safe_softmax): besides its result, it holds the softmax, a byte for each value and one for each row."""
        count = x.count
        self.name = "softmax of the attention scores"

        def backward(grad: Storage) -> tuple:
            result = self.new(count, 4)
            self.workspace(rounded(4 * count))
            return (result,)

        result = Tensor(self.new(count, 4), count, 4)
        self.workspace(rounded(4 * count) + rounded(count) + rounded(count // keys))
        result.node = self.record("softmax of the attention scores", (x,), (result.storage,), backward)
        return result

    def fused_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sums: int,
        forward_bytes: int = 0,
        backward_bytes: tuple[int, ...],
        result_count: int = 0,
        bias: Tensor | None = None,
        bias_count: int = 0,
        bias_allocated: int = 0,
        copies: int = 0,
    ) -> Tensor:
        """One kernel: keeps its operands, its result and one 32-bit number for each row (log-sum-exp).

        Args:
            sums: Number of 32-bit numbers that the kernel keeps.
            forward_bytes: Bytes that forward takes beside its result; see `calculator.tape.attention_kernels`.
            backward_bytes: Bytes that backward takes beside its results, at each of its instants.
            result_count: Values of the result, if values are not as wide as queries.
            bias: Bias that is added to the scores, shared by all sequences.
            bias_count: Values of the bias, expanded to all heads: a view, but a copy on the host has all of them.
            bias_allocated: Values of its gradient, whose rows are padded to a multiple of 16.
            copies: Number of tensors, of the result and its gradient, that backward copies because their heads do not
                lie beside each other (pytorch, attention_backward.cu, _flash_attention_backward).
        """  # fmt: skip
        itemsize = query.itemsize
        counts = (query.count, key.count, value.count)
        biased = bias is not None and bias.node is not None
        copied = copies * rounded(query.count * itemsize)

        def backward(grad: Storage) -> tuple:
            results = [self.new(count, itemsize) for count in counts]
            if biased:
                results.append(self.new(bias_allocated, itemsize))
            for size in backward_bytes:
                self.workspace(size + copied)
            return tuple(results)

        self.name = "fused attention"
        count = result_count or query.count
        result = Tensor(self.new(count, itemsize), count, itemsize)
        kept_sums = self.new(sums, 4)
        random_state = (self.new(1, 8), self.new(1, 8))
        if forward_bytes:
            self.workspace(forward_bytes)
        kept = (query.kept, key.kept, value.kept, result.storage, kept_sums, *random_state)
        operands, fits = (query, key, value), ()
        if bias is not None:
            kept += ((bias_count, itemsize) if self.moving else bias.storage,)
            operands += (bias,)
            fits = ((), (), (), _fit(bias, bias_count, itemsize))
        result.node = self.record("fused attention", operands, kept, backward, fits)
        return result


_NOTHING = ((), ())


def _fit(operand: Tensor, count: int, itemsize: int) -> tuple:
    """The copies that convert a gradient of `count` values to the operand's shape, then to its precision."""
    if operand.node is None or (operand.count == count and operand.itemsize == itemsize):
        return ()
    summed = ((operand.count, itemsize),) if operand.count != count else ()
    return summed + (((operand.count, operand.itemsize),) if operand.itemsize != itemsize else ())


def _pass_on(grad: Storage) -> tuple:
    return (grad,)
