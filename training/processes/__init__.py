"""A long-running role as a process: its children, its end, its event log."""
