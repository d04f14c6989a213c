"""The models' steps, sampling and optimizers, and what trained models write."""
