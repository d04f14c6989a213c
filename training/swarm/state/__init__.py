"""The weights of a peer, and how they become and stay the same as the others'."""
