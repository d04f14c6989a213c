"""The losses of the families."""

from __future__ import annotations

from calculator.families.blocks.context import Context
from calculator.families.blocks.liger_loss import liger_loss
from calculator.families.blocks.trainer_loss import trainer_loss
from calculator.tape.autograd import Tensor


def head_and_loss(c: Context, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    """Next-token loss of hidden states; also the logits, which the caller holds, if there are all at once.

    Args:
        c: Sizes, options, and the output head, which is the token embedding if both are one.
        hidden: B * T rows of D values.
    """
    t = c.tape
    head, bias = c.weights.get("head.weight", c.weights["embedding.tokens"]), c.weights.get("head.bias")
    if c.loss == "liger":
        return liger_loss(c, hidden, head), None
    if c.loss == "trainer":
        return trainer_loss(c, hidden, head, bias), None
    logits = t.linear(t.entered(hidden), head, bias, name="output head")
    if c.architecture.logit_softcap:
        # One name for all three, as in the real code: each is freed when the next one takes its place.
        logits = t.scale(logits, "output head")
        logits = t.elementwise(logits, "output head")
        logits = t.scale(logits, "output head")
    if c.architecture.logit_scale:
        logits = t.scale(logits, "output head")
    return causal_loss(c, logits), logits


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
