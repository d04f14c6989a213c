"""What a run trains: its model and its samples. `training.publish` shows what came of it."""
