"""Parameters, adapters and optimizers: how many values they hold, and in which precision."""
