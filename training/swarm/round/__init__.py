"""One average of a group, in a process of its own: matchmaking, exchange of parts, agreement on the result.

`allreduce` has the exchange, from top to bottom; `reducer` averages a part.
"""
