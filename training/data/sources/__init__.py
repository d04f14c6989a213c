"""Readers of pictures, captions and documents on disk, on the hub, or in lists of addresses."""
