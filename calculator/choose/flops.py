"""Floating-point operations per sample, and the samples per second that a GPU reaches."""

from __future__ import annotations

from functools import lru_cache

from calculator.choose.devices import Device
from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.models.architectures import Architecture
from calculator.parts.parameters import parameter_tensors

UTILISATION = 0.3
"""Fraction of a GPU's published peak that training reaches. The INTELLECT-1 run reached 36 to 41 % on data-centre GPUs
(arXiv:2412.01152, abstract). A reversible model computes its layers four times where three are counted, and 3/4 of that
is 27 to 31 %. Measure yours: the trainer prints its samples per second."""
LAYER_SECONDS = 1e-3
"""Time to launch a layer's kernels in forward, backward and recomputation: some 200 kernels of 5 microseconds each.
Assumed; it limits small models on large GPUs."""


@lru_cache(maxsize=64)
def forward_flops(architecture: Architecture, length: int | None = None) -> int:
    """Operations of one sample's forward pass: 2 for each weight and token, and those of each attended pair of tokens.

    Masked pairs and recomputation do not count, and of a mixture's experts only those that compute a token.

    Args:
        architecture: The model.
        length: Tokens of a sequence, of a diffusion model those of its text; None: the model's own length.

    Raises:
        BadSetup: For families other than the run's own and decoders.
    """
    family = family_of(architecture)
    if family.forward_flops is None:
        raise BadSetup(
            "Operations are counted for text-to-image and diffusion models, vision transformers and decoders, not for "
            f"{architecture.name}."
        )
    return family.forward_flops(architecture, parameter_tensors(architecture), length or architecture.sequence_length)


def samples_per_second(
    architecture: Architecture,
    device: Device,
    utilisation: float = UTILISATION,
    micro_batch_size: float | None = None,
    *,
    length: int | None = None,
    frozen: bool = False,
) -> float:
    """Samples per second, each with the operations of three forward passes, at a fraction of the published peak.

    Backward computes the gradients of activations and those of weights, each with the operations of a forward pass; of
    frozen weights it computes none.

    Args:
        architecture: A model whose operations `forward_flops` counts.
        device: A GPU with a published peak.
        utilisation: The fraction of the peak that training reaches.
        micro_batch_size: Samples per pass, which share the time to launch kernels, or this GPU's part of them;
            None: the launch time is neglected.
        length: See `forward_flops`.
        frozen: Whether only adapters are trained, whose own operations are few.

    Raises:
        BadSetup: If no peak is published for the device.
    """
    if device.teraflops is None:
        raise BadSetup(f"No speed is published for {device.title} in 16-bit products; give samples a second instead.")
    if not 0 < utilisation <= 1:
        raise BadSetup(f"The share of a GPU's peak is above 0 and at most 1, not {utilisation}.")
    starting = architecture.num_layers * LAYER_SECONDS / micro_batch_size if micro_batch_size else 0.0
    passes = 2 if frozen else 3
    return 1 / (passes * forward_flops(architecture, length) / (device.teraflops * 1e12 * utilisation) + starting)
