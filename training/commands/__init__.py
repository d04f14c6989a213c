"""One file per command of `python -m training`: flags, their help, and a call into the part that does the work. Flags
that several have in common stand in `options`.

Heavy imports (torch, hivemind) stand inside the functions, so that `--help` answers at once.
"""
