"""Files: written whole or not at all on this disk, and read from elsewhere by one client."""
