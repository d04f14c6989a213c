"""Data of a run, from pictures, captions and texts to batches: the demo's data, preparation, shards, stream."""
