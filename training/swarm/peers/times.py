"""All times and counts by which this peer judges the others."""

from __future__ import annotations

from calculator.swarm.forecast import GONE_SECONDS

POLL_SECONDS = 0.1
"""Interval at which a waiting thread looks whether its event has come."""
PAUSE_SECONDS = 1.0
"""Seconds of delay that show nothing about a peer: a busy computer pauses now and then."""
LEAST_SHARE = 0.1
"""Least share of the time between two averages that others wait for a peer, however few samples it brings."""

# -- whose reports count -----------------------------------------------------------------------------------------------

MEETINGS = 3.0
"""Missed averages after which a peer is expected ever more rarely, and its samples hasten no search for a group."""
LEAST_SHARE_BROUGHT = 0.5
"""Share of its reported samples that a peer must bring for the report to count in full: it may have had to pause."""
MOST_PEERS = 4096
"""Most peers in the table; those that were silent for the longest time are forgotten."""
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 300.0
"""Seconds that a peer trains on after it has heard of a newer epoch and found no state of it; then it asks again. The
first value doubles with each failure, up to the second."""

# -- peers that a search for a group waits for ------------------------------------------------------------------------

LIVELY_WINDOWS = 6
"""Windows of matchmaking without a report after which no group waits for a peer."""
LOOK_SHARE, SILENT_SHARE, LATE_ANSWER_SHARE = 0.25, 0.5, 0.3
"""Shares of a window: the pause between two rounds of pings while a peer looks for a group; the silence after which it
pings a peer; the time after which an answer is late if most others answer much sooner. Without these pings a group
would wait for a dead peer through all its windows, in every epoch."""

# -- peers that groups leave out ---------------------------------------------------------------------------------------

MOST_FAULTS = 2
"""Number of faults from which on groups leave a peer out."""
LEFT_OUT_SECONDS, LONGEST_LEFT_OUT_SECONDS = 30.0, 3600.0
"""Seconds for which a peer is left out: at first, and at most. Each further fault doubles them."""
FORGOTTEN_SECONDS = 900.0
"""Time without another fault after which all faults of a peer are forgotten."""
ROUNDS_COMPARED = 3
"""Rounds over which a peer's slowness is averaged; one round may be an accident."""

# -- peers that an all-reduce waits for
# ---------------------------------------------------------------------------------

LOOK_SECONDS = 0.25
"""Pause between two looks of an all-reduce at late peers."""
SILENT_SECONDS = GONE_SECONDS - LOOK_SECONDS
"""Seconds without an answer to a ping after which a peer is gone. A full link delays an answer by a second or two."""
USUAL_TIMES = 4.0
"""Multiple of the time of the others' first parts. A wait counts if it is longer than this, and than
`PAUSE_SECONDS`."""
REDUCER_FACTOR = 1.25
"""Factor by which an all-reduce waits longer for a reducer than for a sender. A reducer may be late because of a sender
whose parts only it lacks, and must be able to report that before others give the reducer up."""
