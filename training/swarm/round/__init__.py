"""One average of a group, in a process of its own: matchmaking, all-reduce, agreement."""
