"""Long-running roles as processes: their children, their end, and their event log."""
