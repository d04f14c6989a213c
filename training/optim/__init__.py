"""The optimizer of the run: LAMB with 8-bit moments on the host, and its learning-rate schedule."""
