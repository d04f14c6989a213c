"""Causal language models of `transformers`: architecture, model with its loss, and weights in folders."""
