"""Traces of training steps without a GPU: real code on tensors without values, followed storage by storage."""
