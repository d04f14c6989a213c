"""Tasks of runs: models and their samples. `training.publish` shows the results."""
