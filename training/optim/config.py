"""The `[optimizer]` and `[schedule]` tables of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from calculator.swarm.settings import EPOCHS_OF_2021, LEARNING_RATE_OF_2021
from training.section import Count, Decay, Positive, Section


class OptimizerConfig(Section):
    """Optimizer on the host: LAMB (You et al. 2020), AdamW (Loshchilov and Hutter 2019) or Muon (Jordan
    et al. 2024), with moments in 8 bit (Dettmers et al. 2021) or in 32."""

    name: Literal["lamb8bit", "lamb", "adamw8bit", "adamw", "muon"] = "lamb8bit"
    """`lamb8bit` and `adamw8bit` store the moments of large tensors in block-wise 8 bits, the others all in 32. LAMB
    scales each tensor's update to the norm of its weights, which suits very large batches; its learning rates are ten
    times those of AdamW, or more. `muon` makes the momentum of hidden matrices orthogonal, and is AdamW for
    embeddings, the output layer, norms and biases, with the same learning rate. Its update takes some 30 d operations
    per weight of layers of width d, with d = 1024 thirty times as long as the others."""
    betas: tuple[Decay, Decay] = (0.9, 0.96)
    """Decays of the first and the second moment; with `muon`, for the parameters that AdamW updates."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Term added to the root of the second moment. In 8 bits, second moments below some 10^-7 of their block's largest
    become 0; with AdamW and an eps far below the gradients, such weights would change too much."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.045
    """Decoupled weight decay; biases, norms and scales are exempt."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 4.0
    """Global norm to which the averaged gradient is clipped."""


class ScheduleConfig(Section):
    """Learning rate over epochs. One epoch is one global optimizer update."""

    peak_learning_rate: Annotated[float, Field(gt=0)] = LEARNING_RATE_OF_2021
    """Learning rate at the end of the warm-up (paper, section 3.3)."""
    warmup_epochs: Count = 3_125
    """Linear warm-up, in epochs."""
    total_epochs: Positive = EPOCHS_OF_2021
    """Epoch at which the rate has fallen linearly to zero."""
