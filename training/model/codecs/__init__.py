"""Image codecs: they encode pictures as grids of codebook entries."""
