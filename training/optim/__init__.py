"""Optimizers of a run, which update on the host: LAMB, AdamW and Muon; and their learning-rate schedule."""
