"""Makes shards of what people have."""
