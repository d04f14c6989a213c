"""Causal language models by `transformers`: architecture, model with its loss, weights in folders."""
