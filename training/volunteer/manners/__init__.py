"""A guest's manners on a volunteer's machine: when a peer computes nothing, and how the volunteer tells it so.

`manners` answers whether the peer may compute now; `hours` and `sensors` are its rules. `keys` (the terminal) and
`commands` (`training volunteer`, from another terminal; `folders` finds the running volunteers) change its answer.
`awake` keeps the machine awake while the peer computes.
"""
