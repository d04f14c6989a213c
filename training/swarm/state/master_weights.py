"""Master weights on the host, and the optimizer that updates them.

A model's weights may lie on a GPU, in any precision. The optimizer uses copies in float32 on the host, with the
averaged gradients as their `.grad`. After each update the copies are written back to the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.compression.base import TensorRole
from hivemind.optim import state_averager
from hivemind.optim.state_averager import dump_optimizer_state, initialize_optimizer_state_
from torch import Tensor, nn

from training.swarm.run.lineage import Lineage
from training.swarm.state.serving import Head, pack
from training.swarm.state.witnesses import Sample, draw


class MasterWeights:
    """Master weights in float32, and their optimizer.

    Args:
        groups: Parameter groups of the model; `params` are the model's parameters.
        optimizer: Makes the optimizer from groups with master weights in the place of the model's parameters.
        learning_rate: Returns the learning rate of the update that ends an epoch.
    """

    def __init__(
        self,
        groups: Sequence[dict],
        optimizer: Callable[[Iterable[dict]], torch.optim.Optimizer],
        learning_rate: Callable[[int], float],
    ):
        self.model_parameters: tuple[nn.Parameter, ...] = tuple(p for group in groups for p in group["params"])
        copies = iter(_copies(self.model_parameters))
        self.optimizer = optimizer([{**group, "params": [next(copies) for _ in group["params"]]} for group in groups])
        initialize_state(self.optimizer)
        self._learning_rate = learning_rate
        self._hold_gradients: Callable[[], AbstractContextManager] = nullcontext
        self.lock = threading.Lock()
        """Lock held while the weights or the optimizer's state change, and while they are read as a whole."""
        self.epoch = 0
        """Number of updates in these weights. A delayed update may still be under way when its epoch has begun."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Returns the master weights, in the order in which peers send them."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    @property
    def shapes(self) -> list[torch.Size]:
        """Returns the shapes of the parameters, in the order in which peers send them."""
        return [parameter.shape for parameter in self.parameters]

    def use_gradients(
        self, gradients: Sequence[Tensor], hold: Callable[[], AbstractContextManager] = nullcontext
    ) -> None:
        """Uses these tensors as gradients from now on, with the values that they have when an update begins.

        Args:
            gradients: Tensors in the order of the parameters.
            hold: Makes a context in which nothing else changes them.
        """
        self._hold_gradients = hold
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def update(self, epoch: int) -> None:
        """Makes the update that ends an epoch."""
        # First the averager's lock, then this one, as `ParameterAverager` takes them: with the orders mixed, two
        # threads could wait for each other.
        with self._hold_gradients(), self.lock:
            for group in self.optimizer.param_groups:
                group["lr"] = self._learning_rate(epoch)
            self.optimizer.step()
            self.epoch = epoch + 1

    @torch.no_grad()
    def copy_to_model(self) -> None:
        """Copies the weights to the model."""
        for parameter, copy in zip(self.model_parameters, self.parameters, strict=True):
            parameter.copy_(copy)

    def update_model(self) -> None:
        """Brings a change of these weights to the model, between two micro-batches."""
        self.copy_to_model()

    @torch.no_grad()
    def load(self, weights: Sequence[Tensor], epoch: int) -> None:
        """Replaces the weights by weights that have `epoch` updates."""
        with self.lock:
            self._take(weights, epoch)

    def _take(self, weights: Sequence[Tensor], epoch: int) -> None:
        for parameter, tensor in zip(self.parameters, weights, strict=True):
            parameter.copy_(tensor)
        self.epoch = epoch

    @torch.no_grad()
    def load_state(self, tensors: Sequence[Tensor], optimizer_metadata: list[dict], epoch: int) -> None:
        """Replaces the state by that of another peer: weights, then tensors of the optimizer's state.

        Raises:
            Exception: Of any kind, if the metadata or the tensors do not fit this optimizer. Weights and moments are
                then unchanged, since `load_optimizer_state` and `training.optim` check all tensors before they change
                any.
        """
        own = self.parameters
        settings = [
            {key: value for key, value in group.items() if key != "params"} for group in self.optimizer.param_groups
        ]
        with self.lock:
            # The optimizer's state first: it may be refused. The weights' shapes were checked when they arrived.
            load_optimizer_state(self.optimizer, optimizer_metadata, tensors[len(own) :])
            for group, kept in zip(self.optimizer.param_groups, settings, strict=True):
                # The donor's settings come with its state; but the recipe sets the learning rate and other settings.
                group.update(kept)
            self._take(tensors[: len(own)], epoch)

    def packed_state(
        self, codec: CompressionBase, *, drifted: bool, lineage: Lineage | None = None
    ) -> tuple[dict, Tensor, list[Head]]:
        """Packs the state between two updates for a newcomer: metadata, and the result of `serving.pack`.

        hivemind sends the live tensors, which may change meanwhile. It also names the epoch that has begun, even if the
        update by which this epoch begins is still under way.

        Args:
            codec: Codec of the tensors.
            drifted: Tells the newcomer that these weights or moments differ from the others'.
            lineage: Lineage of the weights, if they have one.
        """
        with self.lock, torch.no_grad():
            weights = [parameter.detach() for parameter in self.parameters]
            optimizer_metadata, moments = dump_optimizer_state(self.optimizer)
            infos = _infos(weights, TensorRole.PARAMETER) + _infos(moments, TensorRole.OPTIMIZER)
            metadata = {"epoch": self.epoch, "wants_weights": drifted, "optimizer_metadata": optimizer_metadata}
            if lineage is not None:
                metadata["lineage"] = lineage.id
            return metadata, *pack([*weights, *moments], infos, codec)

    def packed_sample(self, seed: bytes, *, drifted: bool) -> bytes:
        """Packs a sample of the weights between two updates; see `witnesses`."""
        with self.lock:
            return Sample(epoch=self.epoch, drifted=drifted, values=draw(self.parameters, seed)).packed()


def load_optimizer_state(optimizer: torch.optim.Optimizer, metadata: Sequence[dict], tensors: Sequence[Tensor]) -> None:
    """Loads a state that another peer has sent. torch's SGD would take tensors of any shape as momenta.

    Raises:
        ValueError: If the tensors of the state are not those of the optimizer.
        Exception: Of any kind, if the state does not fit for another reason.
    """
    own_metadata, own_tensors = dump_optimizer_state(optimizer)
    if _shapes(metadata, tensors) != _shapes(own_metadata, own_tensors):
        raise ValueError("it has other tensors")
    state_averager.load_optimizer_state(optimizer, metadata, tensors)


def _shapes(metadata: Sequence[dict], tensors: Sequence[Tensor]) -> list[torch.Size | None]:
    """Shape of each entry of hivemind's flat list; None for a value."""
    return [tensors[entry["index"]].shape if entry["type"] == "tensor" else None for entry in metadata]


def initialize_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state that an optimizer would make in its first update, as SGD makes its momenta.

    A newcomer or the monitor may download a state before its first update: it needs as many tensors as the donor.
    """
    if not optimizer.state:
        initialize_optimizer_state_(optimizer)


def _copies(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [
        parameter.detach().to(device="cpu", dtype=torch.float32, copy=True).requires_grad_(parameter.requires_grad)
        for parameter in parameters
    ]


def _infos(tensors: Sequence[Tensor], role: TensorRole) -> list[CompressionInfo]:
    return [CompressionInfo.from_tensor(tensor, key=number, role=role) for number, tensor in enumerate(tensors)]
