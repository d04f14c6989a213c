"""Which run a peer trains, and how it stays in it without the run's servers."""
