"""Families of models that see or make pictures, one file each."""
