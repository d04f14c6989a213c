"""Draws pictures and continues texts of prompts, judges the results, and measures a model by them."""
