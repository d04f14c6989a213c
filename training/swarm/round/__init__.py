"""One average of a group, in a process of its own: how a group forms, exchanges parts, and agrees on the result.

`allreduce` is the exchange, from top to bottom; `parts` says which peer averages which piece, and `reducer` how.
"""
