"""One training step: a setup goes in, the estimate of its memory comes out."""
