"""All times and counts by which this peer judges the others."""

from __future__ import annotations

MEETINGS = 3.0
"""A peer that has missed so many averages at which it should have been is expected ever more rarely, and its samples
bring no search for a group forward."""
LEAST_SHARE_BROUGHT = 0.5
"""A peer that brings this share of the samples that it reported has brought them: it may have had to pause."""
MOST_PEERS = 4096
"""The table keeps so many peers; those of which nothing was heard for the longest time are forgotten."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 300.0
"""A peer that has heard of a newer epoch and found no state of it trains on for so long before it asks again. The pause
doubles with each failure, up to the second."""
