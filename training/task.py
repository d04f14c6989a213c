"""What a run trains: the interface between a task and everything else, such as peers, plans, monitor and checkpoints.

The tasks of this project are in `training.tasks`; nothing imports them, `task_of` loads the one that a recipe names. A
task of an installed package is a subclass of `Task`, offered as an entry point:

    [project.entry-points."training_together.tasks"]
    my-task = "my_package:MyTask"

A recipe chooses it by `task = "my-task"`; it is never loaded from a recipe's address.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from training.config import (
    CAUSAL_LM,
    TASK_PLUGINS,
    TEXT_TO_IMAGE,
    LanguageRun,
    RunConfig,
    Section,
    TextToImageRun,
)
from training.errors import BadInput

if TYPE_CHECKING:  # torch takes seconds to load, and who only reads a recipe does not need it
    import torch
    from torch import Tensor

    from training.data.store.sets import Shards
    from training.data.store.shards import Kind, Manifest, TextManifest
    from training.data.stream.stream import Batch, Samples, TextBatch
    from training.model.kernels.kernel_choice import KernelChoice


BUILT_IN = {
    TEXT_TO_IMAGE: "training.tasks.text_to_image:TextToImage",
    CAUSAL_LM: "training.tasks.causal_lm:CausalLanguageModel",
}
"""Task -> where its class is, as an entry point names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a model has made of a prompt, a picture or a text, and what a judge says of it."""

    prompt: str
    file: str | None = None
    """Path of the picture below the pictures' folder, such as `000040/0.png`."""
    shape: bool | None = None
    """Whether every shape is as the prompt says; None if the judge does not know the prompt's words."""
    colour: bool | None = None
    text: str | None = None
    """How the model has continued the prompt."""
    good: bool | None = None
    """Whether the text is right; None if no judge knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardWords:
    """What a model card says that depends on the task."""

    pipeline_tag: str
    """As model hubs name the task."""
    weights: str
    """What the checkpoint holds, after "Weights of"."""
    needs: str
    """A sentence on what else is needed to use it."""
    knows: str
    """What the model has seen, after "The model knows"."""
    makes: str
    """What it does, after "nobody has filtered what it"."""
    loss_unit: str
    base: str | None = None
    """Hub id of the weights with which training began, or beside which adapters are trained."""


class Losses(Protocol):
    """What a model's forward pass returns."""

    loss: Tensor
    """Mean over the samples, differentiable."""


class TrainedModel(Protocol):
    """What a task's model can do beside what every `torch.nn.Module` can."""

    def __call__(self, *inputs: Tensor, stored_layers: int | None = None) -> Losses:
        """Losses of a micro-batch, whose tensors are those of `Batch.inputs`.

        Args:
            inputs: On the model's device; the first dimension is the sample.
            stored_layers: The number of layers, from the last, that keep their activations for backward.
        """

    config: Section
    """The recipe's `[model]`."""

    def stored_layers(self, micro_batch_size: int, budget_bytes: int | None, dtype: torch.dtype | None = None) -> int:
        """Layers that keep their activations within a budget; None keeps all, 0 none."""

    def kernel_choice(self, dtype: torch.dtype) -> KernelChoice:
        """How attention is computed, and why."""

    def compile_pointwise(self, dtype: torch.dtype) -> str:
        """Has `torch.compile` fuse what it can; says in a sentence what came of it."""


class Task(ABC):
    """What one run trains.

    Args:
        run: Its recipe.
    """

    name: ClassVar[str]
    """As recipes name it."""
    run_config: ClassVar[type[RunConfig]]
    """What its recipes may hold."""
    kind: ClassVar[Kind]
    """What its shards hold."""

    def __init__(self, run: RunConfig):
        self.run = run

    # -- the model ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self) -> TrainedModel:
        """The model with its initial weights, equal on all machines; on the meta device if that is the default one."""

    def build_trained_part(self) -> TrainedModel:
        """The model, of which only what is trained need be in memory: enough to receive weights and to save them."""
        return self.build_model()

    def describes(self, model: TrainedModel) -> bool:
        """Whether a model is the recipe's."""
        return self.run.model == model.config

    def on_paper(self) -> TrainedModel:
        """The model on the meta device: shapes without memory for its weights.

        Raises:
            BadInput: If its sizes are too large for PyTorch.
        """
        import torch

        try:
            with torch.device("meta"):
                return self.build_model()
        except (RuntimeError, TypeError) as error:  # more values than 64 bits can count
            raise BadInput(
                f"The recipe's model cannot be built: {str(error).splitlines()[0].rstrip('.')}.",
                cure="Change the sizes in the recipe's `[model]`.",
            ) from None

    @property
    def computing_parameters(self) -> int:
        """Weights that a token passes through; shared weights count each time."""
        return sum(parameter.numel() for parameter in self.on_paper().parameters())

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """L."""

    @property
    @abstractmethod
    def seq_len(self) -> int:
        """T, tokens of a sample."""

    # -- what the calculator must know ---------------------------------------------------------------------------------

    @abstractmethod
    def calculator_config(self) -> dict[str, Any]:
        """The model as the calculator reads it, `model_type` among its fields."""

    @property
    def fetches_weights(self) -> bool:
        """Whether `build_model` reads weights from a folder or the hub; a plan does without."""
        return False

    @property
    def computes_in_16_bits(self) -> bool:
        """Whether layers must compute in 16 bits, because frozen weights are stored in no more."""
        return False

    @property
    def keeps_some(self) -> bool:
        """Whether the model can keep the activations of some layers; otherwise it keeps those of all or of none."""
        return False

    @property
    def reversible(self) -> bool:
        """Whether layers are reversible: those that do not keep their activations keep no input either."""
        return False

    @property
    def usual_activation_budget(self) -> int | None:
        """Bytes of activations to keep if nobody has chosen; None: all."""
        return None

    # -- samples -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_fit(self, manifest: Manifest | TextManifest, *, source: str) -> None:
        """Compares the shards' tokens with the recipe's model.

        Raises:
            BadInput: If they were prepared for another model.
        """

    @abstractmethod
    def samples(self, shards: Shards) -> Samples:
        """The samples of opened shards.

        Raises:
            BadInput: As `check_fit`.
        """

    @abstractmethod
    def example(self, samples: int) -> Batch | TextBatch:
        """So many made-up samples, with which a step can be timed."""

    @abstractmethod
    def describe(self, batch: Batch | TextBatch, shards: str) -> str:
        """The first sample of a batch in words, so that a volunteer sees what will be trained."""

    # -- what people see -----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def card(self) -> CardWords:
        """What the model card of a checkpoint says."""

    @abstractmethod
    def show(self, checkpoint: Path, shards: str, folder: Path, name: str) -> Sequence[Shown]:
        """What the monitor shows of a checkpoint: the recipe's prompts, each with what the model makes of it.

        Args:
            checkpoint: Its folder.
            shards: Folder or address of the run's shards.
            folder: Gets files, below `name`.
            name: Folder of this checkpoint's files.
        """


def task_of(run: RunConfig) -> Task:
    """The task of a run, whose recipe was read; so the task is known."""
    if run.task in BUILT_IN:
        plugin = EntryPoint(name=run.task, value=BUILT_IN[run.task], group=TASK_PLUGINS)
    else:
        plugin = entry_points(group=TASK_PLUGINS)[run.task]
    return plugin.load()(run)


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
    config = run.calculator_config if run.task in BUILT_IN else None
    adapters = run.calculator_adapters
    if config is not None and isinstance(run, TextToImageRun):
        return ModelShape(config=config, seq_len=run.model.seq_len, reversible=run.model.reversible)
    if config is not None and isinstance(run, LanguageRun):
        return ModelShape(config=config, seq_len=run.model.block_length, reversible=False, adapters=adapters)
    task = task_of(run)
    facts = {"seq_len": task.seq_len, "reversible": task.reversible}
    return ModelShape(config=task.calculator_config(), adapters=adapters, **facts)
