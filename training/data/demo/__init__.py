"""The demos' own data: drawn pictures with captions, and short stories."""
