"""Fetches the training state from a peer as a newcomer does, without ever entering an averaging group.

hivemind 1.1.12 downloads inside an averager, which is a process of its own that others may take for a trainer, and
waits for ever if no timeout is given. This is the same protocol, with a limit on every wait and on the bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.compression import deserialize_torch_tensor
from hivemind.dht import DHT
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import ValueWithExpiration
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming

from training.errors import TrainingError
from training.swarm.codecs import read_blockwise
from training.swarm.coroutine import wait_for_result


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """What a peer serves to newcomers."""

    epoch: int
    tensors: tuple[torch.Tensor, ...]
    """Parameters in the optimizer's order, then the tensors of the optimizer's state."""
    optimizer_metadata: list[dict]
    """hivemind's flat list: `{"type": "tensor", "index": i}` or `{"type": "value", "value": v}` an entry."""
    donor: str
    """The peer id that it came from."""
    received_bytes: int = 0
    seconds: float = 0.0
    """From the first message to the last."""


def find_donors(dht: DHT, run_id: str) -> list[PeerID]:
    """Peers that offer their state, in random order: their own claims of priority are not heeded."""
    found = dht.get(f"{_prefix(run_id)}.all_averagers", latest=True)
    donors = [
        PeerID(key)
        for key, entry in (found.value.items() if found is not None and isinstance(found.value, dict) else ())
        if isinstance(key, bytes) and isinstance(entry, ValueWithExpiration) and isinstance(entry.value, (int, float))
    ]
    random.shuffle(donors)
    return donors


def download_state(
    dht: DHT,
    run_id: str,
    *,
    shapes: Sequence[torch.Size],
    chunk_seconds: float,
    total_seconds: float,
    max_bytes: int,
    epochs: range,
    averager: type[DecentralizedAverager] = TrainingStateAverager,
) -> TrainingState:
    """The state of the first donor that sends a sound one.

    Args:
        dht: A running DHT node.
        run_id: The run's name.
        shapes: Shapes of the parameters, in the optimizer's order; a state that begins otherwise is refused.
        chunk_seconds: Longest silence of a donor before the next one is tried.
        total_seconds: Longest download from one donor.
        max_bytes: A donor that sends more is given up.
        epochs: A state of another epoch is refused, before its tensors are sent.
        averager: Class of the peers' state averager: its name is part of the protocol.

    Raises:
        TrainingError: If no donor has sent a sound state; the message says what each of them did.
    """
    read_blockwise()
    donors = [donor for donor in find_donors(dht, run_id) if donor != dht.peer_id]
    if not donors:
        raise TrainingError("No peer offers its state yet.")

    async def fetch(donor: PeerID) -> TrainingState:
        p2p = await P2P.replicate(await asyncio.to_thread(dht.run_coroutine, DHT._get_p2p_daemon_listen_maddr))
        try:
            download = _fetch(p2p, donor, run_id, averager, chunk_seconds, max_bytes, epochs)
            return await asyncio.wait_for(download, total_seconds)
        finally:
            await p2p.shutdown()

    faults = []
    for donor in donors:
        try:
            state = wait_for_result(fetch(donor))
            _check(state, shapes)
            return state
        except Exception as error:  # whatever a stranger's answer leads to, the next donor is tried
            faults.append(f"{donor}: {error or type(error).__name__}")
    raise TrainingError(f"No peer has sent a sound state ({'; '.join(faults)}).")


async def _fetch(
    p2p: P2P,
    donor: PeerID,
    run_id: str,
    averager: type[DecentralizedAverager],
    chunk_seconds: float,
    max_bytes: int,
    epochs: range,
) -> TrainingState:
    stub = averager.get_stub(p2p, donor, namespace=_prefix(run_id))
    stream = await asyncio.wait_for(stub.rpc_download_state(averaging_pb2.DownloadRequest()), chunk_seconds)
    metadata, parts, tensors, received, began = None, [], [], 0, None
    async for message in aiter_with_timeout(stream, timeout=chunk_seconds):
        began = began or time.monotonic()
        received += len(message.tensor_part.buffer)
        if received > max_bytes:
            raise TrainingError(f"sent more than {max_bytes} bytes")
        if message.metadata:
            metadata = averager.serializer.loads(message.metadata)
            if not isinstance(metadata, dict) or metadata.get("epoch") not in epochs:
                raise TrainingError(f"is not at an epoch from {epochs.start} to {epochs.stop - 1}")
        if message.tensor_part.dtype and parts:
            tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
            parts = []
        parts.append(message.tensor_part)
    ended = time.monotonic()
    if parts:
        tensors.append(deserialize_torch_tensor(combine_from_streaming(parts)))
    if metadata is None:
        raise TrainingError("sent nothing")
    return TrainingState(
        epoch=metadata["epoch"],
        tensors=tuple(tensors),
        optimizer_metadata=metadata["optimizer_metadata"],
        donor=str(donor),
        received_bytes=received,
        seconds=ended - began,
    )


def _check(state: TrainingState, shapes: Sequence[torch.Size]) -> None:
    got = [tuple(tensor.shape) for tensor in state.tensors[: len(shapes)]]
    if got != [tuple(shape) for shape in shapes]:
        raise TrainingError("sent parameters of another model")
    moments = sum(entry.get("type") == "tensor" for entry in state.optimizer_metadata)
    if len(state.tensors) != len(shapes) + moments:
        raise TrainingError(f"sent {len(state.tensors)} tensors and announced {len(shapes) + moments}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in state.tensors if tensor.is_floating_point()):
        raise TrainingError("sent numbers that are not finite")


def _prefix(run_id: str) -> str:
    """Prefix of the state averager's keys and calls, as `hivemind.Optimizer` makes it."""
    return f"{run_id}_state_averager"
