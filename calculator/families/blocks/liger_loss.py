"""Output head and loss in pieces, as Liger's fused linear cross-entropy computes them (liger-kernel 0.8.5).

Forward makes the logits of some tokens at a time and at once the gradients of both operands of the head, so that
neither logits nor hidden states are kept (ops/fused_linear_cross_entropy.py). The matrix products are those of a GPU of
compute capability 8.0 or higher.
"""

from __future__ import annotations

from functools import partial

from calculator.families.blocks.context import Context
from calculator.tape.autograd import WEIGHT_COPY, Matrix, Parameter, Storage, Tensor, rounded
from calculator.tape.operations import Operations
from calculator.tape.sizes import power_of_two_from


def liger_loss(c: Context, hidden: Tensor, head: Matrix) -> Tensor:
    """Next-token loss of hidden states (LigerForCausalLMLoss).

    Args:
        c: Sizes, and the tape.
        hidden: B * T rows of D values.
        head: V, D.
    """
    t = c.tape
    labels = t.tensor(c.batch * (c.length + 1), 8)
    # The name keeps them as long as the real code's variable does; see `calculator.families.blocks.losses`.
    _shifted = t.tensor(c.batch * c.length, 8) if c.batch > 1 else labels
    return _fused_cross_entropy(t, hidden, head)


def _fused_cross_entropy(t: Operations, hidden: Tensor, head: Matrix) -> Tensor:
    vocabulary, width = head.shape
    rows = hidden.count // width
    # About as many logits at a time as there are values in `hidden`; the number of rows is a power of two.
    piece = min(power_of_two_from(-(-rows // -(-vocabulary // width))), rows)
    t.name = "output head and loss, in pieces"
    made = [t.new(hidden.count, hidden.itemsize), t.new(head.count, head.itemsize) if head.node is not None else None]
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _losses, _counted = t.new(rows, 4), t.new(rows, 1)
    casts = t.autocast and 4 in (hidden.itemsize, head.itemsize)
    # All pieces have the same memory for their logits, unless autocast casts the operands.
    _logits = None if casts else t.new(piece * vocabulary, hidden.itemsize)
    _piece(t, hidden, head, piece, casts=casts)
    if piece < rows:
        # The later pieces are like the second one, or smaller.
        _piece(t, hidden, head, min(piece, rows - piece), casts=casts)
    _logits = None
    loss = Tensor(t.new(1, 4), 1, 4)
    loss.node = t.record(t.name, (hidden, head), tuple(made), partial(_given_away, t, made))
    return loss


def _piece(t: Operations, hidden: Tensor, head: Matrix, rows: int, *, casts: bool) -> None:
    """Plays the logits of some rows, their gradient in the same memory, and its products with both operands."""
    vocabulary, width = head.shape
    if casts:
        # Autocast caches no copy of the transposed head.
        _lowered = _in_half(t, hidden, rows * width), _in_half(t, head, head.count)
        _logits = t.new(rows * vocabulary, 2)
        _lowered = None
        _lowered = _cached_copy(t, head) if isinstance(head, Parameter) else _in_half(t, head, head.count)
        t.workspace(rounded(2 * rows * width))
        _lowered = None
    if head.node is None:
        return
    if casts:
        t.workspace(rounded(2 * rows * width))  # the rows of `hidden` in 16 bits
    elif head.itemsize == 4:
        t.workspace(rounded(4 * head.count))  # this piece's gradient, which is added to that of earlier ones


def _in_half(t: Operations, x: Tensor, count: int) -> Storage | None:
    """Autocast's 16-bit copy of `count` values of an operand; None if they have 16 bits already."""
    return t.new(count, 2) if x.itemsize == 4 else None


def _cached_copy(t: Operations, head: Parameter) -> Storage:
    """Autocast's copy of a trained head, which it caches at the first use."""
    if id(head) not in t.cache:
        storage = t.new(head.count, 2)
        storage.kind = WEIGHT_COPY
        t.cache[id(head)] = Tensor(storage, head.count, 2)
    return t.cache[id(head)].storage


def _given_away(t: Operations, made: list[Storage | None], grad: Storage) -> tuple:
    """Returns the gradients that forward made, and gives up other references to them,
    after a check of the loss's gradient."""
    t.workspace(rounded(4))
    results = tuple(made)
    made.clear()
    return results
