"""Download of the training state from a peer, as newcomers and the monitor do it, without an averaging group.

hivemind 1.1.12 downloads inside an averager, a process that other peers may take for a trainer, and waits for ever if
no time-out is given. This module uses hivemind's protocol with a limit on every wait and on the bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from hivemind.p2p import P2P, PeerID, ServicerBase
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils import ValueWithExpiration
from hivemind.utils.asyncio import aiter_with_timeout
from hivemind.utils.streaming import combine_from_streaming
from pydantic.v1 import BaseModel, StrictBool, StrictStr, conint, conlist

from training.errors import TrainingError
from training.recipe import RunConfig
from training.swarm.engine.bounds import unpack
from training.swarm.engine.codecs import decode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.engine import NodeSilent, answer_of_node, open_connection
from training.swarm.engine.process import DHT
from training.swarm.engine.quoted import quoted
from training.swarm.node.admission import Admission, Guest, admission_of
from training.swarm.node.dht import announced_peer
from training.swarm.node.record_tickets import accounts_of
from training.swarm.peers.table import Peers
from training.swarm.run.lineage import Lineage, run_prefix
from training.swarm.state.parameters import state_prefix
from training.swarm.state.serving import DOWNLOAD_SECONDS, StateService, offers_key
from training.swarm.state.witnesses import SAMPLES_SECONDS, Sample, draw, is_believed, sizes
from training.swarm.state.witnesses import ask as ask_witnesses

MOST_ENTRIES = 20_000
"""Most entries of an optimizer's state; a model has two or three for each parameter."""
SLOW_SECONDS, SLOWEST_BYTES_PER_SECOND = 15.0, 4096
"""Seconds after which a donor must have sent this many bytes per second on average, or it is given up."""

SMALLEST_PART_BYTES = 1024
"""Smallest part of a tensor in bytes, except its last part. Donors send 64 KiB (hivemind, utils/streaming.py); each
part that is kept takes some 200 bytes more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """Training state that a peer serves to newcomers."""

    epoch: int
    tensors: tuple[torch.Tensor, ...]
    """Parameters in the optimizer's order, then the tensors of the optimizer's state."""
    optimizer_metadata: list[dict]
    """State of the optimizer as hivemind's flat list: `{"type": "tensor", "index": i}` or `{"type": "value", "value":
    v}` an entry."""
    donor: str
    """Peer id of the sender."""
    wants_weights: bool = False
    """True if the donor's parameters or moments differ from the others'."""
    received_bytes: int = 0
    seconds: float = 0.0
    """Seconds from the first message to the last."""


class _TensorEntry(BaseModel):
    """Entry of the optimizer's state that stands for one of the tensors sent."""

    type: Literal["tensor"]
    index: conint(strict=True, ge=0)
    """Index among the tensors of the optimizer's state."""


class _ValueEntry(BaseModel):
    """Entry of the optimizer's state that is not a tensor; the optimizer judges whether it fits."""

    type: Literal["value"]
    value: Any = ...


class _Facts(BaseModel):
    """Description of a donor's state in its first message."""

    epoch: conint(strict=True, ge=0)
    wants_weights: StrictBool = False
    lineage: StrictStr | None = None
    optimizer_metadata: conlist(_TensorEntry | _ValueEntry, max_items=MOST_ENTRIES)

    class Config:
        """Settings of this model alone. hivemind's SchemaValidator forbids further fields by default, for all
        models."""

        extra = "ignore"

    @classmethod
    def read(cls, packed: bytes) -> _Facts:
        """Reads a description from its packed form.

        Raises:
            TrainingError: If it is malformed.
        """
        try:
            return cls.parse_obj(unpack(packed))
        except (TypeError, ValueError):
            raise TrainingError("does not tell what it sends", cure="Nothing: another peer is asked.") from None

    @property
    def moments(self) -> int:
        """Number of tensors of the optimizer's state."""
        return sum(isinstance(entry, _TensorEntry) for entry in self.optimizer_metadata)


class BadState(TrainingError):
    """A donor has sent numbers that no healthy run has."""


class OtherWeights(BadState):
    """The weights of a donor differ from those of most other donors."""


def find_donors(dht: DHT, prefix: str, *, oldest_epoch: int = 0) -> list[PeerID]:
    """Returns the peers that offer their state, in random order; the priority that a peer claims is ignored.

    A peer's priority is its epoch. If weights of the run are wanted, peers at epoch 0 have none and are not asked:
    after a power cut, newcomers would otherwise wait for each other's answers while another peer has a checkpoint.

    Raises:
        NodeSilent: If this peer's node does not answer.
    """
    found = answer_of_node(dht.get, offers_key(state_prefix(prefix)), latest=True)
    donors = [
        peer
        for key, entry in (found.value.items() if found is not None and isinstance(found.value, dict) else ())
        if isinstance(key, bytes) and isinstance(entry, ValueWithExpiration) and isinstance(entry.value, (int, float))
        if entry.value or not oldest_epoch
        if (peer := announced_peer(dht, key)) is not None
    ]
    random.shuffle(donors)
    return donors


def download_newer_state(
    dht: DHT,
    run: RunConfig,
    *,
    shapes: Sequence[torch.Size],
    first_epoch: int,
    lineage: Lineage | None = None,
    peers: Peers | None = None,
) -> TrainingState:
    """Downloads a state of `first_epoch` or later, as a peer of the run does; see `download_state`."""
    return download_state(
        dht,
        run_prefix(run.run_id, lineage),
        lineage=lineage,
        shapes=shapes,
        chunk_seconds=donor_seconds(run),
        total_seconds=DOWNLOAD_SECONDS,
        max_bytes=most_state_bytes(shapes),
        epochs=range(first_epoch, run.schedule.total_epochs + 1),
        peers=peers,
    )


def donor_seconds(run: RunConfig) -> float:
    """Seconds that a peer of the run waits for a donor's next message."""
    return max(run.swarm.next_chunk_timeout_seconds, 2 * run.swarm.request_timeout_seconds)


def most_state_bytes(shapes: Sequence[torch.Size]) -> int:
    """Most bytes that a donor may send: float32 weights, two float32 moments and 1 MB."""
    return 1_000_000 + 12 * sum(shape.numel() for shape in shapes)


def download_state(
    dht: DHT,
    prefix: str,
    *,
    lineage: Lineage | None = None,
    shapes: Sequence[torch.Size],
    chunk_seconds: float,
    total_seconds: float,
    max_bytes: int,
    epochs: range,
    service: type[ServicerBase] = StateService,
    inspect: Callable[[int, torch.Tensor], None] = lambda number, tensor: None,
    asked_last: Container[str] = (),
    peers: Peers | None = None,
    on_fault: Callable[[str, Exception], None] = lambda donor, error: None,
) -> TrainingState:
    """Downloads the state of the first donor that sends a sound one.

    Args:
        dht: A running DHT node.
        prefix: Prefix of the run; see `lineage.run_prefix`.
        lineage: Lineage of the run; a state that names another one is refused.
        shapes: Shapes of the parameters, in the optimizer's order; a state that begins otherwise is refused.
        chunk_seconds: Longest silence of a donor before the next one is tried, and of a witness of its weights.
        total_seconds: Longest download from one donor.
        max_bytes: A donor that sends more is given up.
        epochs: A state of another epoch is refused, before its tensors are sent.
        service: Class that answers at the donor; its name is part of the protocol.
        inspect: Called with the number of each tensor and the tensor as soon as it has come; an error ends this donor's
            download. Each donor's first tensor has the number 0.
        asked_last: Donors that are asked only if no other sends a sound state.
        peers: Table of the other peers. If donors with a voice are present, they are asked first, and only they judge
            whether a state is that of the run; None: only their tickets give a voice.
        on_fault: Called with the id of each donor that sends no sound state, and the reason.

    Raises:
        TrainingError: If no donor has sent a sound state; the message says what each of them did.
        NodeSilent: If this peer's node, which asks the donors, does not answer.
    """
    donors = [donor for donor in find_donors(dht, prefix, oldest_epoch=epochs.start) if donor != dht.peer_id]
    if not donors:
        raise TrainingError("No peer offers its state yet.", cure="Wait for another volunteer, then start again.")
    peers = peers or Peers()
    peers.note_accounts(accounts_of(dht, donors))
    download = _Download(
        prefix=prefix,
        lineage=lineage,
        service=service,
        shapes=shapes,
        chunk_seconds=chunk_seconds,
        max_bytes=max_bytes,
        epochs=epochs,
        inspect=inspect,
        admission=admission_of(dht),
        peers=peers,
    )
    in_turn = sorted(donors, key=lambda one: (str(one) in asked_last, not peers.has_voice(one.to_bytes())))
    return _ask_in_turn(partial(download.ask, dht), in_turn, total_seconds, on_fault)


def _ask_in_turn(
    ask: Callable[[PeerID, Sequence[PeerID], float], Awaitable[TrainingState]],
    donors: Sequence[PeerID],
    total_seconds: float,
    on_fault: Callable[[str, Exception], None],
) -> TrainingState:
    """Asks the donors one after the other; see `download_state`.

    A donor whose own state is not sound does not count as a witness of the others' weights: donors that were refused
    because of it are asked again.
    """
    faults: dict[str, list[str]] = {}
    waiting, unsound = list(donors), set()
    refused: dict[PeerID, OtherWeights] = {}
    try:
        while waiting:
            donor = waiting.pop(0)
            try:
                return wait_for_result(ask(donor, [other for other in donors if other not in unsound], total_seconds))
            except NodeSilent:
                raise  # without the node no donor can be asked
            except OtherWeights as error:
                refused[donor] = error
            except Exception as error:  # after any error from a stranger's answer, the next donor is tried
                # Errors of this program quote no donor; other errors may contain whatever the donor has sent.
                said = str(error) if isinstance(error, TrainingError) else quoted(str(error))
                faults.setdefault(said or type(error).__name__, []).append(str(donor))
                on_fault(str(donor), error)
                if isinstance(error, BadState):
                    unsound.add(donor)
                    waiting += refused
                    refused.clear()
    finally:
        for donor, error in refused.items():
            faults.setdefault(str(error), []).append(str(donor))
            on_fault(str(donor), error)
    raise TrainingError(
        f"No peer has sent a sound state ({_told(faults)}).",
        cure="Start again in a minute; then other peers are asked.",
    )


def _told(faults: Mapping[str, Sequence[str]]) -> str:
    """Lists faults and their donors in a short text that does not depend on the donors' order.

    >>> _told({"sent nothing": ["QmC", "QmA", "QmB"], "timed out": ["QmD"]})
    'QmA and 2 others: sent nothing; QmD: timed out'
    """
    texts = []
    for fault, donors in faults.items():
        others = len(donors) - 1
        texts.append(f"{min(donors)}{f' and {others} others' if others > 1 else ' and another' * others}: {fault}")
    return "; ".join(sorted(texts))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Download:
    """One download: asks a donor and reads its answer; see `download_state`."""

    prefix: str
    lineage: Lineage | None
    service: type[ServicerBase]
    shapes: Sequence[torch.Size]
    chunk_seconds: float
    max_bytes: int
    epochs: range
    inspect: Callable[[int, torch.Tensor], None]
    admission: Admission | None
    peers: Peers = field(default_factory=Peers)

    async def ask(self, dht: DHT, donor: PeerID, donors: Sequence[PeerID], total_seconds: float) -> TrainingState:
        """Downloads one donor's state over a connection of its own, and compares it with those of other donors.

        A connection belongs to the event loop that opened it, and each donor's download has a loop of its own.
        """
        p2p = await open_connection(dht)
        try:
            state = await asyncio.wait_for(self.fetch(p2p, donor), total_seconds)
            await self._compare(p2p, state, donor, donors)
            return state
        finally:
            await p2p.shutdown()

    async def _compare(self, p2p: P2P, state: TrainingState, donor: PeerID, donors: Sequence[PeerID]) -> None:
        """Compares the state with a sample of one donor of each voice but the sender's."""
        voices = list(self.peers.by_voice([donor.to_bytes() for donor in donors]).values())
        own = [voice for voice in voices if donor.to_bytes() in voice]
        witnesses = [PeerID(random.choice(voice)) for voice in voices if voice not in own]
        if not witnesses:
            return
        asked = (p2p, self.service, state_prefix(self.prefix), witnesses, self.shapes, self.admission)
        seed, samples = await ask_witnesses(*asked, min(SAMPLES_SECONDS, self.chunk_seconds))
        values = draw(state.tensors[: len(self.shapes)], seed)
        sample = Sample(epoch=state.epoch, drifted=state.wants_weights, values=values)
        if not is_believed(sample, samples, sizes(self.shapes), donor_counts=bool(own)):
            raise OtherWeights("sent other weights than the others have", cure="Nothing: another peer is asked.")

    async def fetch(self, p2p: P2P, donor: PeerID) -> TrainingState:
        """Reads one donor's state and checks each part as it comes.

        Raises:
            TrainingError: If a part is wrong.
        """
        stub = self.service.get_stub(p2p, donor, namespace=state_prefix(self.prefix))
        ticket = [] if self.admission is None else [self.admission.own_ticket.encode()]
        called = stub.rpc_download_state(averaging_pb2.MessageFromLeader(gathered=ticket))
        stream = await asyncio.wait_for(called, self.chunk_seconds)
        async with aclosing(stream):
            return await self._take(stream, donor)

    async def _take(self, stream: AsyncIterator[averaging_pb2.DownloadData], donor: PeerID) -> TrainingState:
        facts, guest, parts, tensors, received, began = None, None, [], [], 0, None
        async for message in aiter_with_timeout(stream, timeout=self.chunk_seconds):
            began = began or time.monotonic()
            received += message.ByteSize()  # on all its fields: each part is kept until the tensor is read
            if received > self.max_bytes:
                raise TrainingError(f"sent more than {self.max_bytes} bytes", cure="Nothing: another peer is asked.")
            seconds = time.monotonic() - began
            if seconds > SLOW_SECONDS and received < SLOWEST_BYTES_PER_SECOND * seconds:
                raise TrainingError(
                    f"has sent only {received} bytes in {seconds:.0f} s", cure="Nothing: another peer is asked."
                )
            if message.metadata:
                # The description comes with the first part, so a state of another epoch is refused before its gigabytes
                # are here.
                if facts is not None:  # with fewer announced tensors than have come, tiny ones would fill memory
                    raise TrainingError("tells twice what it sends", cure="Nothing: another peer is asked.")
                guest, told = self._open(message.metadata, donor)
                facts = _Facts.read(told)
                self._check(facts)
            elif facts is None:
                fault = "shows no ticket" if self.admission is not None else "does not tell what it sends"
                raise TrainingError(fault, cure="Nothing: another peer is asked.")
            elif guest is not None and guest.is_banned:
                raise TrainingError("has been banned meanwhile", cure="Nothing: another peer is asked.")
            parts.append(message.tensor_part)
            if len(parts) < parts[0].chunks:
                _check_size(message.tensor_part)
                continue
            tensors.append(self._read(parts, len(tensors)))
            parts = []
            if facts is not None and len(tensors) == len(self.shapes) + facts.moments:
                # The donor keeps the stream open until its reader closes it (`streams`): reading on would mean waiting.
                break
        if facts is None:
            raise TrainingError("sent nothing", cure="Nothing: another peer is asked.")
        state = TrainingState(
            epoch=facts.epoch,
            tensors=tuple(tensors),
            optimizer_metadata=[dict(entry) for entry in facts.optimizer_metadata],
            donor=str(donor),
            wants_weights=facts.wants_weights,
            received_bytes=received,
            seconds=time.monotonic() - began,
        )
        _check_count(state, len(self.shapes))
        return state

    def _open(self, metadata: bytes, donor: PeerID) -> tuple[Guest | None, bytes]:
        return (None, metadata) if self.admission is None else self.admission.open(metadata, str(donor))

    def _check(self, facts: _Facts) -> None:
        if facts.epoch not in self.epochs:
            raise TrainingError(
                f"is not at an epoch from {self.epochs.start} to {self.epochs.stop - 1}",
                cure="Nothing: another peer is asked.",
            )
        if self.lineage is not None and facts.lineage != self.lineage.id:
            raise TrainingError("has weights of another lineage", cure="Nothing: another peer is asked.")

    def _read(self, parts: list[runtime_pb2.Tensor], number: int) -> torch.Tensor:
        tensor = decode(combine_from_streaming(parts))
        if number < len(self.shapes) and tuple(tensor.shape) != tuple(self.shapes[number]):
            raise TrainingError("sent parameters of another model", cure="Nothing: another peer is asked.")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise BadState("sent numbers that are not finite", cure="Nothing: another peer is asked.")
        self.inspect(number, tensor)
        return tensor


def _moments(optimizer_metadata: list[dict]) -> int:
    return sum(entry.get("type") == "tensor" for entry in optimizer_metadata)


def _check_size(part: runtime_pb2.Tensor) -> None:
    """Refuses tiny parts: each is kept until its tensor is whole, and its object takes more memory than its bytes."""
    if len(part.buffer) < SMALLEST_PART_BYTES:
        raise TrainingError(
            f"sent a part of {len(part.buffer)} bytes of a longer tensor", cure="Nothing: another peer is asked."
        )


def _check_count(state: TrainingState, parameters: int) -> None:
    moments = _moments(state.optimizer_metadata)
    if len(state.tensors) != parameters + moments:
        raise TrainingError(
            f"sent {len(state.tensors)} tensors and announced {parameters + moments}",
            cure="Nothing: another peer is asked.",
        )
