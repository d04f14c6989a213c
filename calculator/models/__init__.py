"""Shapes of models: presets, and readers of Hugging Face's config.json."""
