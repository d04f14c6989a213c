"""A long-running role as a process: its children, its end, its log of events."""
