"""What the trainer puts on disk is there whole or not at all."""
