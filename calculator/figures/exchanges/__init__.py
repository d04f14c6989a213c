"""Figures of what peers exchange: sparse distances, what they carry over, local updates, and poisoned averages."""
