"""Tries before training whether averaging works on this machine, because hivemind says nothing if a codec fails.

With numpy 2.4, hivemind 1.1.12 cannot read what it has written in 8 bit; an all-reduce then returns the full group,
and each peer keeps its own tensor.
"""

from __future__ import annotations

import asyncio

import torch
from hivemind.averaging.partition import TensorPartContainer, TensorPartReducer
from hivemind.compression import CompressionBase, deserialize_torch_tensor, serialize_torch_tensor

from training.errors import TrainingError
from training.swarm.engine import engine
from training.swarm.engine.coroutine import wait_for_result

_WEIGHTS = (1.0, 3.0)
"""Two imagined peers, the second with three times the samples."""


def check_exchange(codec: CompressionBase, threshold: int) -> None:
    """Averages two different tensors of each kind, small and large, through the codec, as two peers would.

    Takes some hundredths of a second.

    Raises:
        TrainingError: If the result is not the weighted mean, up to the rounding of 16 or 8 bits. A peer that trained
            all the same would train alone without noticing.
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
    """What each of the peers holds after a round in which the first one reduces."""
    containers = [TensorPartContainer([tensor], (1.0, 0.0), compression=codec) for tensor in tensors]
    parts = containers[0].get_raw_input_parts(0)
    reducer = TensorPartReducer(tuple(part.shape for part in parts), len(tensors))
    own, remote = parts, [message async for message in containers[1].iterate_input_parts_for(0)]

    async def reduce_own(index: int, part: torch.Tensor) -> None:
        averaged = await reducer.accumulate_part(0, index, part, weight=_WEIGHTS[0])
        containers[0].register_processed_part(0, index, averaged - part)

    async def reduce_remote(index: int, message: object) -> None:
        part = deserialize_torch_tensor(message)
        averaged = await reducer.accumulate_part(1, index, part, weight=_WEIGHTS[1])
        answer = serialize_torch_tensor(averaged - part, message.compression)
        containers[1].register_processed_part(0, index, deserialize_torch_tensor(answer))

    for index, (part, message) in enumerate(zip(own, remote, strict=True)):
        await asyncio.gather(reduce_own(index, part), reduce_remote(index, message))
    deltas = [[delta async for delta in container.iterate_output_tensors()] for container in containers]
    return [tensor + delta[0] for tensor, delta in zip(tensors, deltas, strict=True)]


def _sentence(fault: str) -> str:
    return (
        f"Averaging does not work on this machine ({fault}), so training would go on alone without notice; "
        "install the versions in constraints/ (numpy below 2.4 in particular)."
    )
