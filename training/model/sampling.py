"""Sampling of image codes, one code at a time.

Each sample has its own seed, so that its result does not depend on the batch, apart from rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from training.errors import BadInput
from training.model.decoder import Decoder
from training.model.transformer import TextToImageTransformer

LEAST_TEMPERATURE = 1e-6
"""Smallest temperature: logits divided by it are finite in 32 bits. At much higher temperatures only the likeliest code
is drawn already."""
Progress = Callable[[int, int], None]
"""Function called with the number of tokens drawn so far and their total."""


def sample_codes(
    model: TextToImageTransformer,
    text: Tensor,
    *,
    top_k: int | None = 256,
    top_p: float | None = None,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Draws an image for each row of text.

    Args:
        model: Model from `build_model`; all is computed on its device.
        text: Token ids (B, text_seq_len), where 0 is padding.
        top_k: Number of the likeliest codes among which to draw; None: all. 1 always takes the likeliest.
        top_p: Least joint probability of the likeliest codes among which to draw; None: all. Applied after `top_k`.
        temperature: Number by which logits are divided.
        seed: First seed, where sample b is drawn with seed + b; or a sequence with a seed for each sample.
        progress: Called after each token.

    Returns:
        Codes (B, I).

    Raises:
        BadInput: If a setting is out of range.
    """
    check_sampling(top_k=top_k, top_p=top_p, temperature=temperature)
    batch, total = text.shape[0], model.config.image_seq_len
    seeds = _seeds(seed, batch)
    # All random numbers of a sample before its first code, from its own generator on the CPU: they depend neither on
    # the batch nor on the device.
    uniform = torch.stack([torch.rand(total, generator=torch.Generator().manual_seed(one)) for one in seeds])
    uniform = uniform.to(text.device)
    with torch.inference_mode(), torch.autocast(text.device.type, enabled=False):
        decoder = Decoder(model, text)
        logits = decoder.first_logits
        codes = torch.empty(batch, total, dtype=torch.long, device=text.device)
        for position in range(total):
            drawn = draw_codes(logits, uniform[:, position], top_k=top_k, top_p=top_p, temperature=temperature)
            codes[:, position] = drawn
            if progress is not None:
                progress(position + 1, total)
            if position + 1 < total:
                logits = decoder.step(drawn)
    # A normal tensor: a tensor made in inference mode cannot be used where gradients are computed.
    return codes.clone()


def _seeds(seed: int | Sequence[int], batch: int) -> list[int]:
    """Makes a seed for each sample; arguments as for `sample_codes`.

    Raises:
        BadInput: If the number of seeds is wrong, or a seed is too large.
    """
    seeds = [seed + row for row in range(batch)] if isinstance(seed, int) else list(seed)
    if len(seeds) != batch:
        raise BadInput(f"{len(seeds)} seeds for {batch} rows of text; give one each, or a single one.")
    for one in seeds:
        check_seed(one)
    return seeds


def check_seed(seed: int) -> None:
    """Raises BadInput if a seed is too large: PyTorch's generators take 64 bits."""
    if not -(2**63) <= seed < 2**63:
        raise BadInput(f"A seed of {seed} is too large; give a whole number from -2**63 to below 2**63.")


def draw_codes(
    logits: Tensor, uniform: Tensor, *, top_k: int | None, top_p: float | None, temperature: float
) -> Tensor:
    """Draws one code per row, by inverting the cumulative distribution at a uniform number.

    Args:
        logits: Logits of the codes, (B, V).
        uniform: Uniform numbers in [0, 1), (B,).

    Returns:
        Codes, (B,).
    """
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    if count == 1:
        return logits.argmax(-1)
    scaled = logits.float() / temperature
    if count == logits.shape[-1] and top_p is None:
        codes, weights = None, torch.softmax(scaled, dim=-1)
    else:
        values, codes = scaled.topk(count, dim=-1)
        weights = torch.softmax(values, dim=-1)
        if top_p is not None:
            before = weights.cumsum(-1) - weights
            # The code that crosses the limit is kept as well, so that at least one code remains.
            weights = weights * (before < top_p)
    reached = weights.cumsum(-1)
    # Times the total, which is not exactly 1 after rounding and top-p.
    drawn = (reached <= uniform[:, None] * reached[:, -1:]).sum(-1, keepdim=True)
    # Rounding may lead one place too far, to a code of probability 0.
    last = (weights > 0).sum(-1, keepdim=True) - 1 if codes is not None else count - 1
    drawn = drawn.clamp(max=last)
    return (drawn if codes is None else codes.gather(-1, drawn)).squeeze(-1)


def check_sampling(*, top_k: int | None, top_p: float | None, temperature: float) -> None:
    """Raises BadInput if a setting is out of range."""
    if top_k is not None and top_k < 1:
        raise BadInput(f"top-k is {top_k}; give at least 1, or omit it for all codes.")
    if top_p is not None and not 0 < top_p <= 1:
        raise BadInput(f"top-p is {top_p}; give a probability above 0 and up to 1.")
    if not LEAST_TEMPERATURE <= temperature < math.inf:
        raise BadInput(
            f"The temperature is {temperature}; give a number from {LEAST_TEMPERATURE:g} up (top-k 1 takes the "
            "likeliest code)."
        )
