"""PyTorch's memory: what each operation allocates and keeps for backward, as a tape that is played once."""
