"""Pictures and captions on their way to batches: drawing, filters, codes, shards, stream."""
