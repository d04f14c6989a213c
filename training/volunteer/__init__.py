"""A volunteer's peer from start to end: checks, arrival, training, reports."""
