"""Copies of checkpoints and shards to other places: folders, object storage, the Hugging Face Hub."""
