"""The shape of a run's model, as the calculator reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.config import RUNS, LanguageRun, RunConfig, TextToImageRun


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What the calculator must know of a run's model."""

    config: dict[str, Any]
    """See `Task.calculator_config`."""
    seq_len: int
    """T, tokens of a sample."""
    reversible: bool
    """See `Task.reversible`."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """What is trained in place of the model, as fields of `calculator.step.setups.Setup`; empty: the model."""


def shape_of(run: RunConfig) -> ModelShape:
    """The shape of a run's model, from the recipe alone where that says it all.

    So the site's pages are built where PyTorch is not installed. A task of an installed package is asked: it may know
    better than the class of runs that it has from us.

    Raises:
        BadInput: If the model cannot be built.
        TrainingError: If its description has to be fetched and cannot be.
    """
    config = run.calculator_config if run.task in RUNS else None
    adapters = run.calculator_adapters
    if config is not None and isinstance(run, TextToImageRun):
        return ModelShape(config=config, seq_len=run.model.seq_len, reversible=run.model.reversible)
    if config is not None and isinstance(run, LanguageRun):
        return ModelShape(config=config, seq_len=run.model.block_length, reversible=False, adapters=adapters)
    from training.tasks.known import task_of  # here: it loads PyTorch

    task = task_of(run)
    facts = {"seq_len": task.seq_len, "reversible": task.reversible}
    return ModelShape(config=task.calculator_config(), adapters=adapters, **facts)
