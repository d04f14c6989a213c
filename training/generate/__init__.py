"""Draws pictures and texts of prompts, judges them, and measures a model by them."""
