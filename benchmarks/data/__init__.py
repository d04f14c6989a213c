"""Streams of samples, and the peers that this project's stream is compared with."""
