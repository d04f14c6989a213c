"""Sends a peer's state to newcomers: the trainer packs it, the averager's process sends it.

hivemind passes tensors between the two processes, copies them into shared memory one by one, and encodes each while
sending. Here the trainer writes the encoded state into one piece of shared memory. So a newcomer gets its first byte
sooner, and all tensors are from the same moment.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import AsyncIterator  # noqa: UP035  hivemind reads the types of calls, and knows this one alone

import numpy as np
import torch
from hivemind.compression import CompressionBase, CompressionInfo
from hivemind.dht import DHT
from hivemind.p2p import P2PContext, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.streaming import split_for_streaming
from torch import Tensor

from training.swarm.quota import Quota
from training.swarm.streams import until_hung_up

OFFER_SECONDS = 30.0
"""How long an offer of the state is valid in the DHT; then it is renewed."""
TRAINER_SECONDS = 120.0
"""The trainer must hand over its state within this time. It is long because an update of a large model may be under
way; a newcomer may have given up before."""
DOWNLOADS, DOWNLOADS_OF_ONE, DOWNLOAD_PAUSE_SECONDS = 16, 6, 10.0
"""Newcomers at a time; downloads of one newcomer in a row, and the pause before each further one. For each download the
trainer copies its state."""

Head = tuple[bytes, int]
"""A tensor's message without its bytes, and the number of these bytes."""


def pack(
    tensors: Sequence[Tensor], infos: Sequence[CompressionInfo], codec: CompressionBase
) -> tuple[Tensor, list[Head]]:
    """Encodes the tensors one after another into shared memory; returns that memory and the tensors' heads.

    The encoded tensors must not be larger than the originals.
    """
    storage = torch.UntypedStorage._new_shared(max(sum(tensor.nbytes for tensor in tensors), 1))
    memory = torch.empty(0, dtype=torch.uint8).set_(storage)
    written, heads, end = memory.numpy(), [], 0
    for tensor, info in zip(tensors, infos, strict=True):
        message = codec.compress(tensor, info, allow_inplace=False)
        data = np.frombuffer(message.buffer, dtype=np.uint8)
        written[end : end + len(data)] = data
        end += len(data)
        message.ClearField("buffer")
        heads.append((message.SerializeToString(), len(data)))
    return memory, heads


def unpack(memory: Tensor, heads: Sequence[Head]) -> Iterator[runtime_pb2.Tensor]:
    """The messages of all tensors, each split into parts small enough for a stream."""
    read, end = memory.numpy(), 0
    for head, size in heads:
        message = runtime_pb2.Tensor.FromString(head)
        begin, end = end, end + size
        message.buffer = read[begin:end].tobytes()
        yield from split_for_streaming(message)


class StateService(ServicerBase):
    """Offers the state in the DHT, and sends it to newcomers that ask for it.

    Args:
        dht: A running node.
        prefix: The averager's prefix.
        ask_trainer: Asks the trainer for its state under a number; `take` brings the answer with that number.
    """

    def __init__(self, dht: DHT, prefix: str, *, ask_trainer: Callable[[int], None]):
        self._dht, self._prefix, self._ask_trainer = dht, prefix, ask_trainer
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future] = {}
        self._priority: float | None = None
        self._changed = asyncio.Event()
        self._declaring: asyncio.Task | None = None
        self._quota = Quota(at_once=DOWNLOADS, of_one=DOWNLOADS_OF_ONE, seconds=DOWNLOAD_PAUSE_SECONDS)

    def offer(self, priority: float | None) -> None:
        """Offers the state to newcomers from now on; None withdraws the offer."""
        self._priority = priority
        self._changed.set()
        if self._declaring is None and priority is not None:
            self._declaring = asyncio.create_task(self._declare())

    def take(self, number: int, state: tuple[bytes, Tensor, Sequence[Head]] | None) -> None:
        """Takes the trainer's answer: metadata, and the result of `pack`; None if it could not read its state."""
        if (asked := self._asked.get(number)) is not None and not asked.done():
            asked.set_result(state)

    async def _declare(self) -> None:
        """Announces the offer in the DHT and keeps renewing it; announces a withdrawal once."""
        while True:
            # Cleared before the priority is read: an offer that changes while it is stored is stored again at once.
            self._changed.clear()
            expiration = get_dht_time() + OFFER_SECONDS
            stored = self._dht.store(
                offers_key(self._prefix),
                subkey=self._dht.peer_id.to_bytes(),
                value=self._priority,
                expiration_time=expiration,
                return_future=True,
            )
            with suppress(Exception):  # a node that does not answer now may answer when the offer is renewed
                await asyncio.wait_for(stored, OFFER_SECONDS)
            left = None if self._priority is None else max(0.0, expiration - get_dht_time())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def rpc_download_state(
        self, _request: averaging_pb2.DownloadRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """A newcomer requests the state; sends nothing if it is not offered, or if that peer asks too often."""
        with self._quota.request(context.remote_id) as allowed:
            if allowed and self._priority is not None:
                async for message in until_hung_up(self._messages()):
                    yield message

    async def _messages(self) -> AsyncIterator[averaging_pb2.DownloadData]:
        if (state := await self._state()) is None:
            return
        metadata, memory, heads = state
        for part in unpack(memory, heads):
            yield averaging_pb2.DownloadData(tensor_part=part, metadata=metadata)
            metadata = None  # only the first part carries it

    async def _state(self) -> tuple[bytes, Tensor, Sequence[Head]] | None:
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._ask_trainer(number)
        try:
            return await asyncio.wait_for(asked, TRAINER_SECONDS)
        finally:
            del self._asked[number]


def offers_key(prefix: str) -> str:
    """The DHT key of the peers that offer their state, the same as hivemind's."""
    return f"{prefix}.all_averagers"
