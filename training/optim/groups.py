"""Groups of a model's parameters for optimizers: those that decay, those that do not, and hidden matrices.

Muon moves hidden matrices. Embeddings and the output layer are matrices too, but no layer multiplies their whole input
by them: each of their rows stands for an entry of a vocabulary (Jordan et al. 2024, who leave these to AdamW as well).

A parameter is a hidden matrix if

- it is the weight of a linear layer (`training.model.kernels.linear`),
- and neither an `nn.Embedding` nor the output layer has it, also if it is tied to one of these. The output layer is
  what the method `get_output_embeddings` of a model, or of a part of it, returns: all models of transformers have it,
  and so does `TextToImageTransformer`.

Everything else is not: norms, biases, scales, positions, and weights of more than two dimensions (stacks of experts).
"""

from __future__ import annotations

from torch import nn

from training.errors import BadInput
from training.model.kernels.linear import multiplies
from training.model.trained import trained_parameters
from training.optim.config import OptimizerConfig


def parameter_groups(model: nn.Module, config: OptimizerConfig) -> list[dict]:
    """Groups the trained parameters: matrices and embeddings decay; biases, norms and scales do not.

    For Muon, hidden matrices are a group of their own, the first, with `hidden = True`. A parameter that several layers
    share is listed once. The order within groups is that of the model, so it is equal for all peers.

    Raises:
        BadInput: If the optimizer is Muon, and the model does not have a `get_output_embeddings`.
    """
    parameters = list(trained_parameters(model))
    hidden = hidden_matrices(model) if config.name == "muon" else set()
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    groups = [
        dict(params=[p for p in matrices if id(p) in hidden], weight_decay=config.weight_decay, hidden=True),
        dict(params=[p for p in matrices if id(p) not in hidden], weight_decay=config.weight_decay),
        dict(params=[parameter for parameter in parameters if parameter.ndim < 2], weight_decay=0.0),
    ]
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> set[int]:
    """Finds the hidden matrices of a model, and returns the `id` of each parameter; see the module.

    Raises:
        BadInput: If no part of the model has a `get_output_embeddings`.
    """
    modules = list(model.modules())
    telling = [module for module in modules if hasattr(module, "get_output_embeddings")]
    if not telling:
        raise BadInput(
            f"Muon must not move the output layer, and {type(model).__name__} has no `get_output_embeddings`, which "
            "would say which layer that is. Use the optimizer adamw8bit."
        )
    outputs = [module.get_output_embeddings() for module in telling]
    rows = [*outputs, *(module for module in modules if isinstance(module, nn.Embedding))]
    of_vocabularies = {id(module.weight) for module in rows if module is not None}
    weights = {id(module.weight) for module in modules if multiplies(module) and module.weight.ndim == 2}
    return weights - of_vocabularies
