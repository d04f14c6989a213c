"""Families of language models whose layers have experts, one file each."""
