"""The run's own text-to-image transformer (training/model/transformer.py), reversible or not.

Its blocks have hand-written backward passes (training/model/blocks.py): each block is one node of the graph, which
keeps what the code saves. The reversible stack is a single node, which keeps its two streams.

Additional lengths: X text tokens with the bos, I image tokens, G side of the image's square.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt

from calculator.families.blocks.context import Context, Layer
from calculator.families.family import Batch, Family
from calculator.models.architecture import Architecture, ParameterGroup, ParameterTensor
from calculator.tape.autograd import Parameter, Storage, Tensor, allocated_bytes, rounded
from calculator.tape.operations import Operations

BAND_ROWS = 4
"""Image rows that a full or convolution-like layer processes at once, if the grid is large; the model (training/model/
attention.py) uses both values."""
DENSE_GRID = 12
"""Up to this grid, one band is the whole image: computing masked scores costs less there than more calls."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of the tokens: bos and text, then the image row by row."""

    text: int
    """X, text tokens with the bos."""
    grid: int
    """G, side of the square of image tokens."""

    @property
    def image(self) -> int:
        """I, image tokens."""
        return self.grid**2

    @property
    def length(self) -> int:
        """T, the bos and all tokens; the last predicts nothing."""
        return self.text + self.image

    def bands(self, kind: str, reach: int) -> list[tuple[int, int]]:
        """The numbers of queries and keys of each band of image rows; empty for row and column layers."""
        if kind in ("row", "column"):
            return []
        rows = self.grid if self.grid <= DENSE_GRID else BAND_ROWS
        seen = self.grid if kind == "full" else reach
        bands = []
        for start in range(0, self.grid, rows):
            stop = min(start + rows, self.grid)
            bands.append(((stop - start) * self.grid, (stop - max(0, start - seen + 1)) * self.grid))
        return bands


def layout(a: Architecture) -> Layout:
    """The layout of an architecture's samples."""
    return Layout(a.text_length + 1, isqrt(a.sequence_length - a.text_length))


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers, those that layers share, and those that each layer has for itself."""
    d, f, inner = a.hidden_size, a.intermediate_size, a.num_heads * a.head_dim
    text_rows = a.vocab_size - a.image_vocab_size
    outside = {
        "norm.weight": (d,),
        "norm.bias": (d,),
        "embedding.output": (a.vocab_size, d),
        "head.bias": (a.vocab_size,),
    }
    if not a.tied_embeddings:
        outside |= {"embedding.text": (text_rows, d), "embedding.image": (a.image_vocab_size, d)}
    shared = {
        "attention.qkv": (3 * inner, d),
        "attention.out.weight": (d, inner),
        "attention.out.bias": (d,),
        "feed_forward.inner.weight": (2 * f, d),
        "feed_forward.inner.bias": (2 * f,),
        "feed_forward.out.weight": (d, f),
        "feed_forward.out.bias": (d,),
    }
    own = {
        f"{block}.{name}": (d,)
        for block in ("attention", "feed_forward")
        for name in ("norm.weight", "norm.bias", "scale")
    }
    return [ParameterGroup("", outside), ParameterGroup("layers", shared), ParameterGroup("layers", own, False)]


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the prepared masks of each kind of attention and of the table of rotations.

    Args:
        a: The model.
        itemsize: Bytes of a value in the precision in which the blocks compute.
    """
    place = layout(a)
    total = allocated_bytes(3 * place.length * (a.head_dim // 2), 8)
    for kind in {*a.attention_cycle, a.last_attention}:
        total += allocated_bytes(place.text**2, itemsize) + allocated_bytes(place.image, itemsize)
        for queries, keys in place.bands(kind, a.conv_kernel_size):
            total += allocated_bytes(queries * keys, itemsize)
    return total


def forward(c: Context) -> tuple[Tensor, None]:
    """One forward pass to the loss; the logits are not held."""
    t, a = c.tape, c.architecture
    place = layout(a)
    tied: list[Storage] = []
    hidden = _embedded(c, place, tied)
    hidden = _reversible_stack(c, place, hidden) if c.reversible else _sequential_stack(c, place, hidden)
    t.enter("head")
    hidden = t.layer_norm(hidden, c.weights["norm.weight"], c.weights["norm.bias"])
    labels = t.tensor(c.batch * a.text_length, 8)
    return t.scale(t.scale(_losses(c, place, hidden, labels.storage, tied), "loss"), "loss"), None


def _losses(c: Context, place: Layout, hidden: Tensor, labels: Storage, tied: list[Storage]) -> Tensor:
    """Both cross entropies as one node (training/model/vocabulary.py), which turns its logits into their gradient.

    Args:
        c: The forward pass that is played.
        place: The order of the tokens.
        hidden: The output of the last norm.
        labels: Labels of the text; those of the image are the inputs.
        tied: Receives the gradient of the output matrix for the embedding, if they are tied.
    """
    t, a = c.tape, c.architecture
    itemsize, low, width = t.itemsize, 2 if t.autocast else t.itemsize, a.hidden_size
    text_rows, mixed = a.vocab_size - a.image_vocab_size, low != t.itemsize
    parts = ((a.text_length, text_rows), (place.image, a.image_vocab_size))
    t.name = "output head and loss"
    kept: list[Storage | None] = []
    for tokens, rows in parts:
        # The tokens of one sample are a view of the norm's output; of several samples, they are copied.
        own = c.batch > 1 or mixed
        inputs = t.new(c.batch * tokens * width, low) if own else hidden.storage
        # 16-bit copies of matrix and bias, which only the product needs.
        lowered = (t.new(rows * width, low), t.new(rows, low)) if mixed else ()
        logits = t.new(c.batch * tokens * rows, low)
        del lowered
        # Logits are normalized in the weights' precision; the 16-bit ones are freed.
        if mixed:
            logits = t.new(c.batch * tokens * rows, itemsize)
        kept += [inputs, logits, t.new(c.batch * tokens, itemsize)]
    del inputs, logits
    count = hidden.count

    def backward(grad: Storage) -> tuple:
        to_hidden, matrix = t.new(count, itemsize), t.new(a.vocab_size * width, itemsize)
        to_bias = t.new(a.vocab_size, itemsize)
        for tokens, rows in parts:
            lowered = (t.new(c.batch * tokens * rows, low), t.new(rows * width, low)) if mixed else ()
            _to_inputs = t.new(c.batch * tokens * width, low)
            del lowered
            if mixed:
                # The product before it is copied to `matrix` in the weights' precision; freed at once.
                t.new(rows * width, low)
        if not a.tied_embeddings:
            return to_hidden, matrix, to_bias
        t.mark_gradient(matrix)
        tied.append(matrix)
        return to_hidden, to_bias

    outputs = (
        (c.weights["head.bias"],) if a.tied_embeddings else (c.weights["embedding.output"], c.weights["head.bias"])
    )
    node = t.record("output head and loss", (hidden, *outputs), (*kept, labels), backward)
    return Tensor(t.new(1, itemsize), 1, itemsize, node)


def _embedded(c: Context, place: Layout, tied: list[Storage]) -> Tensor:
    t, a = c.tape, c.architecture
    if not a.tied_embeddings:
        ids = t.tensor(c.batch * place.text, 8)
        text = t.embedding(c.weights["embedding.text"], c.batch * place.text, ids.storage)
        return t.join(text, t.embedding(c.weights["embedding.image"], c.batch * place.image), "embedding")
    ids = t.tensor(c.batch * place.length, 8)
    count = c.batch * place.length * a.hidden_size
    t.name = "embedding"
    # `pop`: the head, whose backward comes first, has left the gradient of the matrix there.
    node = t.record("embedding", (c.weights["embedding.output"],), (ids.storage,), lambda grad: (tied.pop(),))
    return Tensor(t.new(count, t.itemsize), count, t.itemsize, node)


# -- stacks ----------------------------------------------------------------------------------------------------


def _sequential_stack(c: Context, place: Layout, hidden: Tensor) -> Tensor:
    """An ordinary stack: each block is a node and adds its output to the residual stream."""
    t = c.tape
    for layer in c.stacks["layers"]:
        t.enter(layer.key)
        for block in (_Attention(c, place, layer), _FeedForward(c, place, layer)):
            run = _run_block_again if layer.checkpointed else _run_block
            hidden = t.add(hidden, run(c, block, hidden))
    return hidden


def _run_block(c: Context, block: _Block, hidden: Tensor) -> Tensor:
    """A block as one node that keeps what its backward needs."""
    out, saved = block.forward(hidden.storage)
    node = c.tape.record(block.name, (hidden, *block.weights), saved, lambda grad: block.backward())
    return Tensor(out, hidden.count, hidden.itemsize, node)


def _run_block_again(c: Context, block: _Block, hidden: Tensor) -> Tensor:
    """A block as one node that keeps its input and is computed again in backward (activation checkpointing)."""
    node = c.tape.record(block.name, (hidden, *block.weights), (hidden.storage,), lambda grad: block.again())
    return Tensor(block.forward(hidden.storage)[0], hidden.count, hidden.itemsize, node)


def _reversible_stack(c: Context, place: Layout, hidden: Tensor) -> Tensor:
    """All layers as one node, which keeps the two streams after the last layer and computes earlier ones from them."""
    t = c.tape
    layers = c.stacks["layers"]
    blocks = [(layer, _Attention(c, place, layer), _FeedForward(c, place, layer)) for layer in layers]
    weights = list({id(weight): weight for layer in layers for weight in layer.weights.values()}.values())
    first = second = hidden.storage
    for layer, attention, feed_forward in blocks:
        t.enter(layer.key)
        first = attention.forward(second)[0]
        second = feed_forward.forward(first)[0]
    t.enter("stack")
    count, itemsize = hidden.count, hidden.itemsize
    result = t.new(count, itemsize)
    node = t.record(
        "reversible layers",
        (hidden, *weights),
        (first, second),
        lambda grad: _backward_of_stack(t, blocks, weights, count, itemsize),
    )
    return Tensor(result, count, itemsize, node)


def _backward_of_stack(t: Operations, blocks: list, weights: list[Parameter], count: int, itemsize: int) -> tuple:
    """Reverses one layer after the other; the node returns the gradients of all weights at its end."""
    # Clones: the streams that the node keeps must not change.
    _streams = (t.new(count, itemsize), t.new(count, itemsize))
    gradients = (t.new(count, itemsize), t.new(count, itemsize))
    collected: dict[int, Storage] = {}
    for layer, attention, feed_forward in reversed(blocks):
        t.enter(layer.key)
        for block in (feed_forward, attention):
            _step_back(t, block, collected)
    t.enter("handing over")
    return (gradients[0], *(collected[id(weight)] for weight in weights))


def _step_back(t: Operations, block: _Block, collected: dict[int, Storage]) -> None:
    """Computes a block again and runs its backward; gradients of shared weights are added in place to earlier ones."""
    t.name = block.name
    # The input counts as nothing: it is one of the streams, which are counted already.
    _out, _saved = block.forward(t.nothing())
    own = block.backward()
    for weight, gradient in zip(block.weights, own[1:], strict=True):
        if id(weight) not in collected:
            collected[id(weight)] = gradient
            t.mark_gradient(gradient)


# -- blocks ----------------------------------------------------------------------------------------------------


class _Block(ABC):
    """A residual branch with a hand-written backward (training/model/blocks.py).

    Norms, inputs and outputs have the precision of the weights. In between, a block computes in 16 bits under autocast.
    """

    name = ""
    part = ""

    def __init__(self, c: Context, place: Layout, layer: Layer) -> None:
        self.tape = c.tape
        self.architecture = c.architecture
        self.place = place
        self.batch = c.batch
        self.kind = layer.kind
        self.itemsize = c.tape.itemsize
        self.inner_itemsize = 2 if c.tape.autocast else c.tape.itemsize
        self.weights = [weight for name, weight in layer.weights.items() if name.startswith(self.part)]
        self.stream = c.batch * place.length * c.architecture.hidden_size

    @abstractmethod
    def forward(self, hidden: Storage) -> tuple[Storage, tuple]:
        """The branch's output, and what `backward` needs."""

    @abstractmethod
    def backward(self) -> tuple[Storage, ...]:
        """Gradients for the input and for `weights`."""

    def again(self) -> tuple[Storage, ...]:
        """`backward` preceded by the forward pass that it needs; the input is counted elsewhere."""
        _out, _saved = self.forward(self.tape.nothing())
        return self.backward()

    def new(self, count: int) -> Storage:
        """A storage for `count` values in the precision of the weights."""
        return self.tape.new(count, self.itemsize)

    def made(self, count: int) -> Storage:
        """A storage for `count` values in the precision in which the block computes."""
        return self.tape.new(count, self.inner_itemsize)

    @property
    def mixed(self) -> bool:
        """Returns True if the block computes in another precision than that of its weights."""
        return self.itemsize != self.inner_itemsize

    def lowered(self, count: int) -> Storage | None:
        """A copy of `count` values of a weight in the block's precision, if that differs from the weight's."""
        return self.made(count) if self.mixed else None

    def norm(self) -> tuple[Storage, Storage, Storage]:
        """Layer norm and token shift: the shifted values, and two 32-bit numbers per token."""
        rows = self.batch * self.place.length
        normed = self.new(self.stream)
        statistics = (self.tape.new(rows, 4), self.tape.new(rows, 4))
        # The cast to 16 bits frees the norm's own result.
        if self.mixed:
            normed = self.made(self.stream)
        shifted = self.made(self.stream)
        del normed
        return shifted, *statistics

    def norm_backward(self) -> tuple[Storage, Storage, Storage]:
        """Gradients of the input and of the norm's weight and bias, from the gradient of the shifted values."""
        width = self.architecture.hidden_size
        shifted = self.made(self.stream)
        if self.mixed:
            raised = self.new(self.stream)
        results = (self.new(self.stream), self.new(width), self.new(width))
        if self.mixed:
            del raised
        del shifted
        return results

    def scaled_output(self, inner: int) -> Storage:
        """The product with the output matrix times the layer scale, cast to the precision of the weights."""
        width = self.architecture.hidden_size
        scaled = self.scaled_weight(inner)
        bias = self.new(width)
        if self.mixed:
            bias = self.made(width)
        out = self.made(self.stream)
        del scaled, bias
        return self.new(self.stream) if self.mixed else out

    def scaled_weight(self, inner: int) -> Storage:
        """The output matrix times the layer scale."""
        scaled = self.new(self.architecture.hidden_size * inner)
        return self.made(self.architecture.hidden_size * inner) if self.mixed else scaled

    def weight_gradient(self, count: int) -> Storage:
        """The product of gradient and inputs, in the precision of the weights."""
        result = self.new(count)
        if self.mixed:
            self.made(count)
        return result

    def output_backward(self, inner: int) -> tuple[Storage, Storage, Storage]:
        """Gradients for output weight, output bias and layer scale."""
        width = self.architecture.hidden_size
        scaled, bias = self.weight_gradient(width * inner), self.new(width)
        product = self.new(width * inner)
        scale = self.new(width)
        del product
        results = (self.new(width * inner), self.new(width), scale)
        del scaled, bias
        return results


class _FeedForward(_Block):
    """GEGLU feed-forward."""

    name = "feed-forward"
    part = "feed_forward"

    def forward(self, hidden: Storage) -> tuple[Storage, tuple]:
        """See `_Block`."""
        a = self.architecture
        inner = self.batch * self.place.length * a.intermediate_size
        kept = self.norm()
        _weight = self.lowered(2 * a.intermediate_size * a.hidden_size)
        _bias = self.lowered(2 * a.intermediate_size)
        values, gates = self.made(inner), self.made(inner)
        gate = self.made(inner)
        product = self.made(inner)
        out = self.scaled_output(a.intermediate_size)
        return out, (kept[0], hidden, *kept[1:], values, gates, gate, product)

    def backward(self) -> tuple[Storage, ...]:
        """See `_Block`."""
        a = self.architecture
        inner, matrix = self.batch * self.place.length * a.intermediate_size, a.intermediate_size * a.hidden_size
        _flat = self.lowered(self.stream)
        scaled = self.scaled_weight(a.intermediate_size)
        _grad_product = self.made(inner)
        del scaled
        output = self.output_backward(a.intermediate_size)
        # The gradient times the values, which only the gelu's backward needs.
        times = self.made(inner)
        _grad_gates = self.made(inner)
        del times
        to_weight, to_bias = self.new(2 * matrix), self.new(2 * a.intermediate_size)
        _weight = self.lowered(2 * matrix)
        if self.mixed:
            self.made(matrix)
        _normed = self.made(self.stream)
        to_hidden, *to_norm = self.norm_backward()
        return (to_hidden, to_weight, to_bias, *output[:2], *to_norm, output[2])


class _Attention(_Block):
    """Attention along one mask, with rotated queries, keys and values."""

    name = "attention"
    part = "attention"

    def forward(self, hidden: Storage) -> tuple[Storage, tuple]:
        """See `_Block`."""
        a, place = self.architecture, self.place
        rows, inner = self.batch * a.num_heads, a.num_heads * a.head_dim
        kept = self.norm()
        weight = self.lowered(3 * inner * a.hidden_size)
        _qkv = self.made(3 * self.batch * place.length * inner)
        del weight
        text = self.turned(3 * rows * place.text * a.head_dim)
        image = self.turned(3 * rows * place.image * a.head_dim)
        weights, _outputs = self.attend()
        merged = self.made(self.batch * place.length * inner)
        out = self.scaled_output(inner)
        return out, (kept[0], hidden, *kept[1:], merged, text, image, *weights)

    def turned(self, count: int) -> Storage:
        """Rotated channels; 16-bit values are rotated in a 32-bit copy,
        and the rotation's product is a second 32-bit tensor."""
        result = self.made(count)
        if self.inner_itemsize == 2:
            raised = self.tape.new(count, 4)
            self.tape.new(count, 4)
            del raised
        return result

    def attend(self) -> tuple[list[Storage], tuple[Storage, Storage]]:
        """The attention weights of text and image, which backward needs, and the two outputs."""
        a, place = self.architecture, self.place
        rows = self.batch * a.num_heads
        # Held until the end of the method, as in `AttentionPattern.attend`.
        _scores = self.made(rows * place.text**2)
        weights = [self.made(rows * place.text**2)]
        text_out = self.made(rows * place.text * a.head_dim)
        bands = place.bands(self.kind, a.conv_kernel_size)
        if not bands:
            _image_scores = self.scores(rows, place.image, place.grid)
            weights.append(self.made(rows * place.image * (place.text + place.grid)))
            return weights, (text_out, self.made(rows * place.image * a.head_dim))
        image_out = self.made(rows * place.image * a.head_dim)
        for queries, keys in bands:
            _image_scores = self.scores(rows, queries, keys)
            weights.append(self.made(rows * queries * (place.text + keys)))
            _part = self.made(rows * queries * a.head_dim)
        return weights, (text_out, image_out)

    def scores(self, rows: int, queries: int, keys: int) -> tuple[Storage, Storage]:
        """Scores of image tokens with `keys` others of the image, and these joined with the scores with the text."""
        own = self.made(rows * queries * keys)
        against_text = self.made(rows * queries * self.place.text)
        joined = self.made(rows * queries * (self.place.text + keys))
        del against_text
        return own, joined

    def backward(self) -> tuple[Storage, ...]:
        """See `_Block`."""
        a, place = self.architecture, self.place
        rows, inner = self.batch * a.num_heads, a.num_heads * a.head_dim
        tokens = self.batch * place.length
        _flat = self.lowered(self.stream)
        output = self.output_backward(inner)
        scaled = self.scaled_weight(inner)
        _merged = self.made(tokens * inner)
        del scaled
        _parts = (self.made(rows * place.text * a.head_dim), self.made(rows * place.image * a.head_dim))
        _turned = self.attend_backward(rows)
        _grad_qkv = self.turned_back(3 * tokens * inner)
        weight = self.lowered(3 * inner * a.hidden_size)
        _normed = self.made(self.stream)
        del weight
        to_hidden, *to_norm = self.norm_backward()
        to_qkv = self.weight_gradient(3 * inner * a.hidden_size)
        return (to_hidden, to_qkv, *output[:2], *to_norm, output[2])

    def turned_back(self, count: int) -> Storage:
        """The reverse of `turned`, first for the text, then for the image."""
        result = self.made(count)
        if self.inner_itemsize == 2:
            # The text's copies are freed before the image's are made, so only the larger part counts.
            largest = count // self.place.length * max(self.place.text, self.place.image)
            raised = self.tape.new(largest, 4)
            self.tape.new(largest, 4)
            del raised
        return result

    def attend_backward(self, rows: int) -> tuple[Storage, Storage]:
        """Gradients of the rotated queries, keys and values of text and image."""
        a, place = self.architecture, self.place
        text = self.made(3 * rows * place.text * a.head_dim)
        _scores = self.softmax_backward(self.made(rows * place.text**2), rows * place.text**2)
        image = self.made(3 * rows * place.image * a.head_dim)
        bands = place.bands(self.kind, a.conv_kernel_size)
        for queries, keys in bands or [(place.image, place.grid)]:
            _own, joined = self.scores(rows, queries, keys)
            _image_scores = self.softmax_backward(joined, rows * queries * (place.text + keys))
            if bands:
                _part = self.made(rows * queries * a.head_dim)
        return text, image

    def softmax_backward(self, behind: Storage, count: int) -> Storage:
        """The gradient of a softmax's input; the kernel also holds grad * result."""
        result = self.made(count)
        self.tape.workspace(rounded(count * self.inner_itemsize))
        return result


def _input_bytes(a: Architecture, batch: Batch) -> int:
    """Bytes of text tokens and of image tokens, 64-bit integers."""
    text, image = batch.samples * a.text_length, batch.samples * (batch.length - a.text_length)
    return allocated_bytes(text, 8) + allocated_bytes(image, 8)


def _flops(a: Architecture, tensors: tuple[ParameterTensor, ...], length: int) -> int:
    place, inner, tokens = layout(a), a.num_heads * a.head_dim, a.sequence_length
    # Queries, keys, values and output; the two halves of the gated inner matrix, and the outer one.
    weights = 4 * a.hidden_size * inner + 3 * a.hidden_size * a.intermediate_size
    pairs = [_pairs(place, a.attention_kind(layer), a.conv_kernel_size) for layer in range(a.num_layers)]
    # Text positions compute only logits of text, image positions only those of the image.
    text = a.text_length * (a.vocab_size - a.image_vocab_size)
    head = 2 * a.hidden_size * (text + place.image * a.image_vocab_size)
    return sum(2 * weights * tokens + 4 * inner * seen for seen in pairs) + head


@lru_cache(maxsize=256)
def _pairs(place: Layout, kind: str, kernel: int) -> int:
    """Number of pairs of tokens in which one attends to the other; the last token predicts nothing and is left out.

    Each token attends to the text up to itself; image tokens attend to the image as the mask says
    (training/model/attention.py, `allowed_pairs`).
    """
    text, grid = place.text, place.grid
    seen = text * (text + 1) // 2 + (place.image - 1) * text
    for number in range(place.image - 1):
        row, column = divmod(number, grid)
        if kind == "row":
            seen += column + 1
        elif kind == "column":
            seen += row + 1
        elif kind == "conv":
            seen += (min(row, kernel - 1) + 1) * (min(column, kernel - 1) + 1)
        else:
            seen += number + 1
    return seen


FAMILY = Family(
    name="text-to-image",
    models=("This run's DALL-E",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    position_table=True,
    input_bytes=_input_bytes,
    forward_flops=_flops,
    reversible=True,
    own_trainer=True,
    attention_note="The run's model has its own attention: eager and sdpa make no difference.",
)
