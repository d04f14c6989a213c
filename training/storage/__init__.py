"""Files: written as a whole or not at all on this disk, and read from other places by one client."""
