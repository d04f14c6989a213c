"""Check before training that averaging works on this machine.

With numpy 2.4, hivemind 1.1.12 cannot read what it has written in 8 bit; every all-reduce would fail.
"""

from __future__ import annotations

import asyncio

import torch
from hivemind.compression import CompressionBase

from training.errors import TrainingError
from training.swarm.engine import engine
from training.swarm.engine.codecs import decode, encode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.parts import Part, divide, empty_updates
from training.swarm.round.reducer import Reducer, WeightedMean

PART_BYTES = 1 << 19
_WEIGHTS = (1.0, 3.0)
"""Weights of two imagined peers: the second has three times the samples."""


def check_exchange(codec: CompressionBase, threshold: int) -> None:
    """Averages two different tensors of each kind, small and large, through the codec, as two peers would.

    Takes some hundredths of a second.

    Raises:
        TrainingError: If the result is not the weighted mean, up to the rounding of 16 or 8 bits. Without this check,
            such a peer would train alone without noticing.
    """
    engine.prepare()
    for size, tolerance in ((min(threshold - 1, 1000), 2e-3), (threshold, 4e-2)):
        generator = torch.Generator().manual_seed(0)
        tensors = [torch.randn(size, generator=generator) + peer for peer in range(len(_WEIGHTS))]
        expected = sum(weight * tensor for weight, tensor in zip(_WEIGHTS, tensors, strict=True)) / sum(_WEIGHTS)
        try:
            averaged = wait_for_result(_average(tensors, codec))
        except Exception as error:
            raise TrainingError(_sentence(f"{type(error).__name__}: {error}")) from error
        for result in averaged:
            difference = float((result - expected).norm() / expected.norm())
            if not difference <= tolerance:
                raise TrainingError(_sentence(f"the average of {size} values is off by {difference:.1%}"))


async def _average(tensors: list[torch.Tensor], codec: CompressionBase) -> list[torch.Tensor]:
    """Returns the tensors that each of the peers has after an all-reduce in which the first peer averages all parts."""
    updates = [empty_updates([tensor]) for tensor in tensors]
    own, remote = (
        divide([tensor], update, shares=(1.0, 0.0), codec=codec, part_bytes=PART_BYTES)[0]
        for tensor, update in zip(tensors, updates, strict=True)
    )
    reducer = Reducer([part.values.numel() for part in own], (0, 1), WeightedMean())

    async def reduce_own(part: Part) -> None:
        part.update.copy_(await reducer.take(0, part.values, _WEIGHTS[0]))

    async def reduce_remote(part: Part) -> None:
        message = codec.compress(part.values, part.info)
        update = await reducer.take(1, decode(message), _WEIGHTS[1])
        part.update.copy_(decode(encode(update, message.compression)))

    for own_part, remote_part in zip(own, remote, strict=True):
        await asyncio.gather(reduce_own(own_part), reduce_remote(remote_part))
    return [tensor + update for tensor, (update,) in zip(tensors, updates, strict=True)]


def _sentence(fault: str) -> str:
    return (
        f"Averaging does not work on this machine ({fault}), so training would go on alone without notice; "
        "install the versions in constraints/ (numpy below 2.4 in particular)."
    )
