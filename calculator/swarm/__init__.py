"""Training by volunteers: what the exchange of gradients costs, and what a mix of peers reaches."""
