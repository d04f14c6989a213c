"""Sends a peer's state to newcomers: the trainer packs it, the averager's process sends it.

hivemind passes tensors between the two processes, copies them into shared memory one by one, and encodes each while
sending. Here the trainer writes the encoded state into one piece of shared memory. So a newcomer gets its first byte
earlier, and all tensors are from one moment.
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
from hivemind.p2p import P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.streaming import split_for_streaming
from torch import Tensor

from training.swarm.engine.calls import until_hung_up
from training.swarm.engine.process import DHT
from training.swarm.engine.quota import Quota
from training.swarm.node.admission import Guest, admission_of
from training.swarm.node.dht import own_subkey
from training.trust.check import TicketRefused

SEED_BYTES = 8
"""Length of the seed that draws the places of a sample; see `state.witnesses`."""
OFFER_SECONDS = 30.0
"""Seconds for which an offer of the state is valid in the DHT; then it is renewed."""
TRAINER_SECONDS = 120.0
"""Longest wait for the trainer's state. It is long because an update of a large model may be under way; a newcomer may
have given up before."""
DOWNLOADS, DOWNLOADS_OF_ONE = 16, 2
"""Most downloads at a time, of all newcomers and of one: a copy of the state lies in memory for each. A newcomer whose
connection broke may begin anew before this peer knows of the break."""
DOWNLOADS_IN_A_ROW, DOWNLOAD_PAUSE_SECONDS = 6, 10.0
"""Most downloads of one newcomer in a row, and the pause before each further one: the trainer copies its state for
each."""
PATIENCE_SECONDS, SLOWEST_READER_BYTES_PER_SECOND = 60.0, 32 << 10
"""Longest time by which a newcomer may lag behind its share of a rate, and the rate of all newcomers together. A slower
newcomer is given up, since its copy of the state would stay in memory. The rate is a quarter of what a link of 1 Mbit/s
carries, the slowest that we mean to serve: the link has other uses, and may rest for a minute."""
DOWNLOAD_SECONDS = 1800.0
"""Longest download of the state from one donor, for a peer that trains."""
SAMPLES_OF_ONE, SAMPLE_PAUSE_SECONDS = 12, 2.0
"""Most samples for one peer in a row, and the pause before each further one. A newcomer asks once for each download."""

Head = tuple[bytes, int]
"""Message of a tensor without the tensor's bytes, and the number of these bytes."""


def pack(
    tensors: Sequence[Tensor], infos: Sequence[CompressionInfo], codec: CompressionBase
) -> tuple[Tensor, list[Head]]:
    """Encodes the tensors one after another into shared memory. Returns this memory and the heads of the tensors.

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
    """Yields the messages of all tensors, each split into parts small enough for a stream."""
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
        ask: Passes a numbered request to the trainer, for weights at the places that a seed draws, or (None) for its
            state; the answer comes by `take` with this number.
    """

    def __init__(self, dht: DHT, prefix: str, ask: Callable[[int, bytes | None], None]):
        self._dht, self._prefix, self._ask = dht, prefix, ask
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future] = {}
        self._priority: float | None = None
        self._changed = asyncio.Event()
        self._declaring: asyncio.Task | None = None
        self._admission = admission_of(dht)
        most = {"at_once": DOWNLOADS, "of_one": DOWNLOADS_OF_ONE, "in_a_row": DOWNLOADS_IN_A_ROW}
        self._quota = Quota(**most, seconds=DOWNLOAD_PAUSE_SECONDS)
        self._samples = Quota(at_once=DOWNLOADS, of_one=SAMPLES_OF_ONE, seconds=SAMPLE_PAUSE_SECONDS)

    def offer(self, priority: float | None) -> None:
        """Offers the state to newcomers from now on; None withdraws the offer."""
        self._priority = priority
        self._changed.set()
        if self._declaring is None and priority is not None:
            self._declaring = asyncio.create_task(self._declare())

    def take(self, number: int, answer: tuple[bytes, Tensor, Sequence[Head]] | bytes | None) -> None:
        """Takes the trainer's answer: metadata and the result of `pack`, or a packed sample; None if it has none."""
        if (asked := self._asked.get(number)) is not None and not asked.done():
            asked.set_result(answer)

    async def _declare(self) -> None:
        """Announces the offer in the DHT and keeps renewing it; announces a withdrawal once."""
        while True:
            # Cleared before the priority is read: an offer that changes while it is stored is stored again at once.
            self._changed.clear()
            expiration = get_dht_time() + OFFER_SECONDS
            stored = self._dht.store(
                offers_key(self._prefix),
                subkey=own_subkey(self._dht),
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
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.DownloadData]:
        """Sends the state to a newcomer, which shows its ticket in a run that admits members only.

        Sends nothing if the state is not offered, or if the newcomer asks too often. hivemind's own request has no
        place for a ticket.
        """
        guest = Guest(self._admission, _ticket_in(request), str(context.remote_id))
        if self._lets_in(request, context):
            async for message in self._state_for(context.remote_id, guest):
                yield message

    async def rpc_sample_state(
        self, request: averaging_pb2.MessageFromLeader, context: P2PContext
    ) -> averaging_pb2.DownloadData:
        """Sends a sample of this peer's weights to a peer that compares a state (`witnesses`); nothing if it asks too
        often."""
        if not self._lets_in(request, context):
            return averaging_pb2.DownloadData()
        with self._samples.request(context.remote_id) as allowed:
            if not allowed or self._priority is None or len(request.group_id) != SEED_BYTES:
                return averaging_pb2.DownloadData()
            sample = await self._answer(request.group_id)
            if sample and self._admission is not None:
                sample = self._admission.with_ticket(sample)
            return averaging_pb2.DownloadData(metadata=sample or b"")

    def _lets_in(self, request: averaging_pb2.MessageFromLeader, context: P2PContext) -> bool:
        """Returns True if a request has a valid ticket, or needs none."""
        with suppress(TicketRefused):
            if self._admission is not None:
                self._admission.check(_ticket_in(request), str(context.remote_id), trains=True)
            return True
        return False

    async def _state_for(self, peer: PeerID, guest: Guest) -> AsyncIterator[averaging_pb2.DownloadData]:
        with self._quota.request(peer) as allowed:
            if allowed and self._priority is not None:
                async for message in until_hung_up(self._messages()):
                    if guest.is_banned:
                        return
                    yield message

    async def _messages(self) -> AsyncIterator[averaging_pb2.DownloadData]:
        if (state := await self._answer(None)) is None:
            return
        metadata, memory, heads = state
        if self._admission is not None:
            metadata = self._admission.with_ticket(metadata)
        clock = asyncio.get_running_loop().time
        ends = clock() + DOWNLOAD_SECONDS
        # While the newcomer reads nothing, the task that answers the call waits and asks for no further message. The
        # timeout cancels that task, which ends the call.
        async with asyncio.timeout(PATIENCE_SECONDS) as patience:
            for part in unpack(memory, heads):
                yield averaging_pb2.DownloadData(tensor_part=part, metadata=metadata)
                metadata = None  # only the first part carries the description
                # All downloads share this peer's link, which may itself be the slow one.
                longer = patience.when() + len(part.buffer) * self._quota.open / SLOWEST_READER_BYTES_PER_SECOND
                patience.reschedule(min(longer, clock() + PATIENCE_SECONDS, ends))

    async def _answer(self, seed: bytes | None) -> tuple[bytes, Tensor, Sequence[Head]] | bytes | None:
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._ask(number, seed)
        try:
            return await asyncio.wait_for(asked, TRAINER_SECONDS)
        finally:
            del self._asked[number]


def _ticket_in(request: averaging_pb2.MessageFromLeader) -> bytes:
    return request.gathered[0] if request.gathered else b""


def offers_key(prefix: str) -> str:
    """Returns the DHT key of the peers that offer their state; it equals hivemind's."""
    return f"{prefix}.all_averagers"
