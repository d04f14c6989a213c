"""Prepared shards: how they are written, found, fetched, checked and shown."""
