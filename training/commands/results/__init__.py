"""Commands that use a checkpoint: generate, evaluate, convert."""
