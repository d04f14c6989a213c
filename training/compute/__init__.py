"""What the machine can do, what training takes of it, and the micro-batches that it computes."""
