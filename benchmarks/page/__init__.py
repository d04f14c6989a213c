"""The site's pages in a browser: start, freezes, bytes, and the live API."""
