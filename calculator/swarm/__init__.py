"""Training by volunteers: the cost of exchanging gradients, and the throughput of a mix of peers."""
