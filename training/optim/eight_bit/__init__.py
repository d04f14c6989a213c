"""Block-wise storage of optimizers' moments in 8 bits."""
