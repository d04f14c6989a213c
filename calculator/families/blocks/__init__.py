"""Building blocks that families share: attention, decoder layers, losses."""
