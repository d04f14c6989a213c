"""Pauses of a peer on a volunteer's machine: the rules by which it computes nothing, and the volunteer's commands.

`manners` says whether the peer may compute now; `hours` and `sensors` are its rules. `keys` (the terminal) and
`commands` (`training volunteer`, from another terminal; `folders` finds the running volunteers) change its answer.
`awake` keeps the machine awake while the peer computes.
"""
