"""Makes shards of people's pictures, captions and texts."""
