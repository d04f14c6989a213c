"""The whole run on one machine."""
