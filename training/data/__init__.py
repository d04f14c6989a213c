"""From pictures and captions to batches: drawing, filters, codes, shards, stream."""
