"""Output head and loss in pieces, as this project's trainer computes them (training/model/language/loss.py)."""

from __future__ import annotations

from calculator.families.blocks.context import Context
from calculator.tape.autograd import Matrix, Tensor, rounded

LEAST_PIECE, LARGEST_PIECE = 64, 1024
"""Tokens of a piece: with fewer, products of matrices are slow; with more, they are no faster."""


def trainer_loss(c: Context, hidden: Tensor, head: Matrix, bias: Matrix | None) -> Tensor:
    """Next-token loss of hidden states, whose gradients forward makes.

    Args:
        c: Sizes, and the tape.
        hidden: B * T rows of D values.
        head: V, D.
        bias: V values; None: there is none.
    """
    t = c.tape
    rows, (vocabulary, width) = c.batch * c.length, head.shape
    piece = min(max(width // 2, LEAST_PIECE), LARGEST_PIECE, rows)
    t.name = "output head and loss, in pieces"
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _labels, _counted, _share = t.new(rows, 8), t.new(rows, 1), t.new(rows, 4)
    operands = (hidden, head) if bias is None else (hidden, head, bias)
    made = [t.new(one.count, one.itemsize) if one.node is not None else None for one in operands]
    size = 2 if t.autocast else 4
    _matrix = t.new(head.count, size) if head.itemsize != size else None
    # All pieces need the same, so that one is enough here.
    logits = t.new(piece * vocabulary, 4)
    if t.autocast:
        _inputs = t.new(piece * width, 2)
        t.workspace(rounded(2 * piece * vocabulary))  # logits before their cast
    if c.architecture.logit_softcap:
        squared = t.new(piece * vocabulary, 4)
        _slope = t.new(piece * vocabulary, 4)
        del squared
    # The gradient of the logits takes their place; products need it in their own type.
    _lowered = t.new(piece * vocabulary, 2) if t.autocast else None
    t.workspace(rounded(size * piece * width))
    if head.node is not None and head.itemsize != size:
        t.workspace(rounded(size * head.count))  # the piece's gradient, which is added to that of earlier ones
    del logits
    _inputs = _slope = _lowered = None
    loss = Tensor(t.new(1, 4), 1, 4)

    def backward(_grad) -> tuple:
        results = tuple(made)
        made.clear()
        return results

    loss.node = t.record(t.name, operands, tuple(made), backward)
    return loss
