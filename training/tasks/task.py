"""A task: what a run trains. The interface between it and everything else: peers, plans, monitor, checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from training.errors import BadInput
from training.recipe import RunConfig
from training.section import Section

if TYPE_CHECKING:  # torch takes seconds to load, and reading a recipe does not need it
    import torch
    from torch import Tensor

    from training.data.store.sets import Shards
    from training.data.store.shards import Manifest, TextManifest
    from training.data.stream.stream import Batch, Samples, TextBatch
    from training.model.kernels.kernel_choice import KernelChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Description of a run's model for the calculator."""

    config: dict[str, Any]
    """See `Task.calculator_config`."""
    seq_len: int
    """T, tokens of a sample."""
    reversible: bool
    """See `Task.reversible`."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """Adapters that are trained in place of the model, as fields of `calculator.step.setups.Setup`; empty: the model is
    trained."""


class Losses(Protocol):
    """Result of a model's forward pass."""

    loss: Tensor
    """Mean over the samples, differentiable."""


class TrainedModel(Protocol):
    """Methods that a task's model has besides those of every `torch.nn.Module`."""

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
        """Kernels that compute attention, and the reason."""


class Task(ABC):
    """What one run trains: a model, and samples for it.

    Args:
        run: Its recipe.
    """

    name: ClassVar[str]
    """Name in recipes."""
    run_config: ClassVar[type[RunConfig]]
    """Class that its recipes are read into."""

    def __init__(self, run: RunConfig):
        self.run = run

    # -- the model ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self) -> TrainedModel:
        """The model with its initial weights, equal on all machines; on the meta device if that is the default one."""

    def build_trained_part(self) -> TrainedModel:
        """Builds a model that has memory for its trained part at least: enough to receive weights and to save them."""
        return self.build_model()

    def describes(self, model: TrainedModel) -> bool:
        """Returns whether a model is the recipe's."""
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
    def shape(self) -> ModelShape:
        """The model's shape, as the calculator reads it."""
        facts = {"seq_len": self.seq_len, "reversible": self.reversible, "adapters": self.run.calculator_adapters}
        return ModelShape(config=self.calculator_config(), **facts)

    @property
    def fetches_weights(self) -> bool:
        """Returns whether `build_model` reads weights from a folder or the hub; a plan does without them."""
        return False

    @property
    def computes_in_16_bits(self) -> bool:
        """Returns whether layers must compute in 16 bits, because frozen weights are stored in 16 bits or fewer."""
        return False

    @property
    def keeps_some(self) -> bool:
        """Returns whether the model can keep the activations of some layers; otherwise it keeps those of all layers or
        of none."""
        return False

    @property
    def reversible(self) -> bool:
        """Returns whether layers are reversible: those that do not keep their activations keep no input either."""
        return False

    @property
    def usual_activation_budget(self) -> int | None:
        """Default budget of activations in bytes; None: all are kept."""
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
        """Makes up samples with which a step can be timed."""

    @abstractmethod
    def describe(self, batch: Batch | TextBatch, shards: str) -> str:
        """Describes the first sample of a batch in words, so that a volunteer sees what will be trained."""
