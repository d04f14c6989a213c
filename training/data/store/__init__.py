"""Prepared shards: writing, opening, fetching, checking and showing them."""
