"""The shape of a run's model, without PyTorch if the recipe alone describes the model."""

from __future__ import annotations

from training.recipe import LanguageRun, RunConfig, TextToImageRun
from training.tasks.task import ModelShape


def shape_of(run: RunConfig) -> ModelShape:
    """The shape of a run's model, as `Task.shape` gives it.

    Needs no PyTorch if the recipe alone describes the model, so the site is built where PyTorch is not installed.

    Raises:
        BadInput: If the model cannot be built.
        TrainingError: If the model's description cannot be fetched.
    """
    config = run.calculator_config
    if config is not None and isinstance(run, TextToImageRun):
        return ModelShape(config=config, seq_len=run.model.seq_len, reversible=run.model.reversible)
    if config is not None and isinstance(run, LanguageRun):
        facts = {"seq_len": run.model.block_length, "reversible": False, "adapters": run.calculator_adapters}
        return ModelShape(config=config, **facts)
    from training.tasks.known import task_of  # here: it loads PyTorch

    return task_of(run).shape
