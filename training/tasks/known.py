"""The tasks that a recipe can name."""

from __future__ import annotations

from training.recipe import RunConfig
from training.tasks.causal_lm import CausalLanguageModel
from training.tasks.task import Task
from training.tasks.text_to_image import TextToImage

TASKS: dict[str, type[Task]] = {task.name: task for task in (TextToImage, CausalLanguageModel)}
"""Name in recipes -> task."""


def task_of(run: RunConfig) -> Task:
    """Makes the task of a run. Reading the recipe has checked that the task is known."""
    return TASKS[run.task](run)
