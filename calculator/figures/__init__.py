"""Interactive figures of the pages on the five challenges: each turns settings into a drawing, a caption and a table.

`catalogue` has all figures by name; `kit` defines what a figure is and how it is drawn; `rules` holds the algorithms.
"""
