"""What a peer does from its start to its end: checks, arrival, training, reports."""
