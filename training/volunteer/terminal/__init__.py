"""What `join` shows its volunteer: a live screen on a terminal, else a few plain lines; `--verbose` replaces both.

`view` follows the peer's events and knows the words and figures; `screen` and `lines` show them.
"""
