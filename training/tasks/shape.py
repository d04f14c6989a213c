"""The shape of a run's model, without PyTorch where the recipe alone says it all."""

from __future__ import annotations

from training.recipe import LanguageRun, RunConfig, TextToImageRun
from training.tasks.task import ModelShape


def shape_of(run: RunConfig) -> ModelShape:
    """The shape of a run's model, as `Task.shape` gives it.

    Needs no PyTorch if the recipe says it all, so the site's pages are built where PyTorch is not installed.

    Raises:
        BadInput: If the model cannot be built.
        TrainingError: If its description has to be fetched and cannot be.
    """
    config = run.calculator_config
    if config is not None and isinstance(run, TextToImageRun):
        return ModelShape(config=config, seq_len=run.model.seq_len, reversible=run.model.reversible)
    if config is not None and isinstance(run, LanguageRun):
        facts = {"seq_len": run.model.block_length, "reversible": False, "adapters": run.calculator_adapters}
        return ModelShape(config=config, **facts)
    from training.tasks.known import task_of  # here: it loads PyTorch

    return task_of(run).shape
