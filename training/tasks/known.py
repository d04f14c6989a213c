"""The tasks that a recipe can name: this project's, and those of installed packages.

A task of an installed package is a subclass of `Task`, offered as an entry point:

    [project.entry-points."training_together.tasks"]
    my-task = "my_package:MyTask"

A recipe chooses it by `task = "my-task"`; it is never loaded from a recipe's address.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from training.recipe import TASK_PLUGINS, RunConfig
from training.tasks.causal_lm import CausalLanguageModel
from training.tasks.task import Task
from training.tasks.text_to_image import TextToImage

OWN: dict[str, type[Task]] = {task.name: task for task in (TextToImage, CausalLanguageModel)}
"""The project's tasks by their names."""


def task_of(run: RunConfig) -> Task:
    """Makes the task of a run. Reading the recipe has checked that the task is known."""
    task = OWN.get(run.task) or entry_points(group=TASK_PLUGINS)[run.task].load()
    return task(run)
