"""Reports of the command line, and the units in which people read numbers."""
