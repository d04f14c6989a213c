"""The life of a volunteer's peer: checks, arrival, training, reports."""
