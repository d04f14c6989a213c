"""Inner loops of the model, and the choice between them."""
