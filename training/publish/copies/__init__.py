"""Copies of checkpoints and shards in other places: folders, object storage, the Hugging Face Hub."""
