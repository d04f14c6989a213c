"""The losses of the families."""

from __future__ import annotations

from calculator.autograd import Tensor
from calculator.families.context import Context


def causal_loss(c: Context, logits: Tensor) -> Tensor:
    """Next-token loss on 32-bit logits (transformers, loss/loss_utils.py, ForCausalLMLoss)."""
    t = c.tape
    logits = t.cast(logits, 4, "casting the logits to 32 bit")
    # One label of padding more, so that the labels without the first are as many as the logits.
    labels = t.tensor(c.batch * (c.length + 1), 8)
    # contiguous() copies them unless there is a single sequence.
    shifted = t.tensor(c.batch * c.length, 8) if c.batch > 1 else labels
    return t.cross_entropy(logits, shifted.storage, c.batch * c.length)


def token_loss(c: Context, logits: Tensor) -> Tensor:
    """Loss on the logits in their own precision; the labels are inputs (torch.nn.CrossEntropyLoss)."""
    return c.tape.cross_entropy(logits, None)
