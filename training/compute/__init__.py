"""What the machine can do, how much of it training takes, and the micro-batches that it computes."""
