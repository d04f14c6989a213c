"""One file per command of `python -m training`: its flags, their help, and a call into the part that does the work.

Flags that several commands share are in `options`. Heavy imports (torch, hivemind) are inside the functions, so that
`--help` answers at once.
"""
