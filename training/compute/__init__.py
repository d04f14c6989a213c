"""Use of the machine: measures it, plans the memory that training takes, and computes micro-batches."""
