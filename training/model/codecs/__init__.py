"""Image codecs: pictures as grids of codebook entries."""
