"""Building blocks of a figure: what it is, its controls, and its drawing."""
