"""An epoch on the trainer's side: gradients, their exchange, and the update."""
