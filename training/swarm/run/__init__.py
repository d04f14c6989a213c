"""The run of a peer: its lineage and its servers, and how the peer stays in the run without these servers."""
