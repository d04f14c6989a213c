"""Finds out within seconds why this machine cannot join a run, or what will go badly if it does.

A check is a small function of the file on its subject. It returns findings: that all is well, or faults by their names,
each with the reason why it matters and what to do. `examination` runs all checks at once and gives up those that take
too long. What may hang or crash, such as a GPU's driver, is tried in a process of its own (`children`).

This package imports neither torch nor hivemind, so that it can say that they are broken.
"""
