"""What a run trains: its model, its samples, and what is shown of it. Everything else is the same for all tasks."""
