"""Weights of a peer, and how they become and stay equal to the other peers' weights."""
