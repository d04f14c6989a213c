"""Making of a new run: from a folder of data to servers that volunteers join."""
