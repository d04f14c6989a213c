"""Interface of a task, the model and samples of a run, to everything else: peers, plans, monitor, checkpoints."""

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
    """Adapters that are trained in place of the model, as fields of `calculator.step.setups.Setup`;
    empty without adapters."""


class Losses(Protocol):
    """Result of a model's forward pass."""

    loss: Tensor
    """Mean over the samples, differentiable."""


class TrainedModel(Protocol):
    """Methods that a task's model has besides those of every `torch.nn.Module`."""

    def __call__(self, *inputs: Tensor, stored_layers: int | None = None) -> Losses:
        """Losses of a micro-batch, whose tensors are those of `Batch.inputs`.

        Args:
            inputs: Tensors on the model's device; the first dimension is the sample.
            stored_layers: The number of layers, from the last, that keep their activations for backward.
        """

    config: Section
    """The recipe's `[model]`."""

    def stored_layers(self, micro_batch_size: int, budget_bytes: int | None, dtype: torch.dtype | None = None) -> int:
        """Number of layers that keep their activations within a budget; None keeps all, 0 none."""

    def kernel_choice(self, dtype: torch.dtype) -> KernelChoice:
        """Chooses the kernels that compute attention; returns them with the reason."""


class Task(ABC):
    """Task of a run: its model, and the samples for the model.

    Args:
        run: Recipe of the run.
    """

    name: ClassVar[str]
    """Name of the task in recipes."""
    run_config: ClassVar[type[RunConfig]]
    """Class into which recipes of the task are read."""

    def __init__(self, run: RunConfig):
        self.run = run

    # -- the model ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def build_model(self) -> TrainedModel:
        """Builds the model with its initial weights, equal on all machines;
        on the meta device if PyTorch's default is that."""

    def build_trained_part(self) -> TrainedModel:
        """Builds a model that has memory for its trained part at least: enough to receive weights and to save them."""
        return self.build_model()

    def describes(self, model: TrainedModel) -> bool:
        """Returns whether a model has the configuration of the task's recipe."""
        return self.run.model == model.config

    def on_paper(self) -> TrainedModel:
        """Builds the model on the meta device: shapes without memory for the weights.

        Raises:
            BadInput: If the model's sizes are too large for PyTorch.
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
        """Number of weights that a token passes through; shared weights count each time."""
        return sum(parameter.numel() for parameter in self.on_paper().parameters())

    @property
    @abstractmethod
    def num_layers(self) -> int:
        """L, layers of the model."""

    @property
    @abstractmethod
    def seq_len(self) -> int:
        """T, tokens of a sample."""

    # -- what the calculator must know ---------------------------------------------------------------------------------

    @abstractmethod
    def calculator_config(self) -> dict[str, Any]:
        """The model as the calculator reads it, including `model_type`."""

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
        """Returns whether layers are reversible: then layers that recompute their activations keep no input either."""
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
            BadInput: If the shards were prepared for another model.
        """

    @abstractmethod
    def samples(self, shards: Shards) -> Samples:
        """Makes the samples of opened shards.

        Raises:
            BadInput: If the shards were prepared for another model.
        """

    @abstractmethod
    def example(self, samples: int) -> Batch | TextBatch:
        """Makes up samples with which a step can be timed."""

    @abstractmethod
    def describe(self, batch: Batch | TextBatch, shards: str) -> str:
        """Describes the first sample of a batch in words, so that a volunteer sees what will be trained."""
