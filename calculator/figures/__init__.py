"""Interactive figures of the pages on the five challenges: each turns settings into a drawing, a caption and a table.

`figure` defines a figure, `catalogue` has all of them by name, and `controls` and `drawing` are their building blocks.
The model behind a figure is a separate module if it is useful elsewhere: `all_reduce`, `averaging`, `eight_bit`,
`admission`.
"""
