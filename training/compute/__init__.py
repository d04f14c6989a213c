"""Measures the machine, plans the memory that training takes of it, and computes micro-batches."""
