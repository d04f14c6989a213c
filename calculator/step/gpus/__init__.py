"""The step of one GPU among several: what it holds and what it sends, with PyTorch or with DeepSpeed."""
