"""All times and counts by which this peer judges the others."""

from __future__ import annotations

from calculator.swarm.forecast import GONE_SECONDS

POLL_SECONDS = 0.1
"""A thread that waits for something looks this often whether it has come."""
PAUSE_SECONDS = 1.0
"""A shorter delay says nothing of a peer: a busy computer pauses now and then."""
LEAST_SHARE = 0.1
"""A peer is worth this share of the time between two averages at least, however little it brings."""

# -- whose reports count -----------------------------------------------------------------------------------------------

MEETINGS = 3.0
"""Missed averages after which a peer is expected ever more rarely, and its samples hasten no search for a group."""
LEAST_SHARE_BROUGHT = 0.5
"""A peer that brings this share of the samples that it reported has brought them: it may have had to pause."""
MOST_PEERS = 4096
"""Most peers in the table; those that were silent for the longest time are forgotten."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 300.0
"""A peer that has heard of a newer epoch and found no state of it trains on for so long before it asks again. The pause
doubles with each failure, up to the second."""

# -- whom a search for a group waits for -------------------------------------------------------------------------------

LIVELY_WINDOWS = 6
"""Windows of matchmaking without a report after which no group waits for a peer."""
LOOK_SHARE, SILENT_SHARE, LATE_ANSWER_SHARE = 0.25, 0.5, 0.3
"""Shares of a window: the pause between two rounds of pings while a peer looks for a group; the silence after which it
pings a peer; the time after which an answer is late if most others answer much sooner. Without this a group would wait
for a dead peer through all its windows, in every epoch."""

# -- whom groups leave out ---------------------------------------------------------------------------------------------

MOST_FAULTS = 2
"""A peer is left out from this fault on,"""
LEFT_OUT_SECONDS, LONGEST_LEFT_OUT_SECONDS = 30.0, 3600.0
"""for so long at first, and so long at most."""
FORGOTTEN_SECONDS = 900.0
"""Time without another fault after which all faults of a peer are forgotten."""
ROUNDS_COMPARED = 3
"""Rounds over which a peer's slowness is averaged; one round may be an accident."""

# -- whom an all-reduce waits for --------------------------------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Pause between two looks of an all-reduce at late peers."""
SILENT_SECONDS = GONE_SECONDS - LOOK_SECONDS
"""A peer that answers no ping for so long is gone. A full link delays an answer by a second or two."""
USUAL_TIMES = 4.0
"""A wait counts if it is longer than this multiple of the time of the others' first parts, and than a pause."""
REDUCER_FACTOR = 1.25
"""A reducer may be late because of a sender whose parts only it lacks. It must be able to say so before others give it
up."""
