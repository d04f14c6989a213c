"""Tickets by which members take part: the maintainer's server signs them, and each peer checks them by itself."""
