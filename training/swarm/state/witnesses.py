"""Witnesses: samples of other donors' weights, drawn after a download, with which the downloaded weights are compared.

A donor could send anything, and a newcomer or the monitor would pass it on. So a peer that downloads a state asks other
donors for some of their weights, at places that nobody knew before. Most of the answering donors, the sender included,
must have nearly equal values there. Peers of a run do not have equal bits: gradients travel in 8 bits, and a peer may
be an epoch ahead. So a donor that changes all weights a little is not found out, but one that sends a spoiled model is.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hivemind.p2p import P2P, PeerID, ServicerBase, StubBase
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer
from torch import Tensor

from training.swarm.engine.bounds import unpack
from training.swarm.node.admission import Admission
from training.swarm.state.serving import SEED_BYTES

MOST_WITNESSES = 6
"""Most donors that are asked for a sample."""
SAMPLES_SECONDS = 10.0
"""Longest wait for all samples."""
VALUES_OF_A_TENSOR = 32
APART = 0.1
"""Largest distance of the samples of two peers of one epoch, as a share of the length of one sample, at which the peers
agree. Tests with faults (tests/chaos) allow 0.05."""
EPOCHS_APART = 3
"""Most epochs by which a compared witness is ahead or behind. The limit of the distance is multiplied by one
more than the difference in epochs."""
TENSOR_APART, TENSOR_FLOOR = 0.5, 0.25
"""Limit of each tensor's distance: a share of its own length, plus a share of the mean length of equally many weights.
Small tensors, such as biases that began at zero, differ more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Sample of a peer's weights."""

    epoch: int
    drifted: bool
    """True if the peer says that its weights differ from the others'."""
    values: np.ndarray
    """Values in float32, tensor by tensor; `sizes` gives the number of values of each."""

    def packed(self) -> bytes:
        """Packs the sample as a message."""
        values = self.values.astype("<f4").tobytes()
        return MSGPackSerializer.dumps({"epoch": self.epoch, "drifted": self.drifted, "values": values})

    @classmethod
    def read(cls, packed: bytes, count: int) -> Sample:
        """Reads a sample from a message.

        Raises:
            ValueError: If the message is not a sample of `count` finite values.
        """
        facts = unpack(packed)
        is_sample = isinstance(facts, dict) and [type(facts.get(name)) for name in ("epoch", "drifted", "values")]
        if is_sample != [int, bool, bytes] or len(facts["values"]) != 4 * count:
            raise ValueError("this is no sample")
        values = np.frombuffer(facts["values"], "<f4")
        if not np.isfinite(values).all():
            raise ValueError("the sample has numbers that are not finite")
        return cls(epoch=facts["epoch"], drifted=facts["drifted"], values=values)


def sizes(shapes: Sequence[torch.Size]) -> list[int]:
    """Number of values of each tensor in a sample."""
    return [min(VALUES_OF_A_TENSOR, shape.numel()) for shape in shapes]


def draw(tensors: Sequence[Tensor], seed: bytes) -> np.ndarray:
    """Draws a sample in float32. An equal seed draws equal places at all peers."""
    dice, parts = random.Random(seed), []
    for tensor, size in zip(tensors, sizes([tensor.shape for tensor in tensors]), strict=True):
        places = torch.tensor([dice.randrange(tensor.numel()) for _ in range(size)], dtype=torch.int64)
        parts.append(tensor.detach().reshape(-1)[places].float().cpu().numpy())
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


def agree(own: Sample, other: Sample, sizes_: Sequence[int]) -> bool:
    """Returns True if both samples may come from one healthy run, by the limits above."""
    wider = 1 + abs(own.epoch - other.epoch)
    squares, distances = (
        np.square(other.values, dtype=np.float64),
        np.square(own.values - other.values, dtype=np.float64),
    )
    if not math.sqrt(distances.sum()) <= APART * wider * math.sqrt(squares.sum()):
        return False
    usual, end = math.sqrt(squares.mean()) if len(squares) else 0.0, 0
    for size in sizes_:
        begin, end = end, end + size
        most = TENSOR_APART * math.sqrt(squares[begin:end].sum()) + TENSOR_FLOOR * usual * math.sqrt(size)
        if not math.sqrt(distances[begin:end].sum()) <= wider * most:
            return False
    return True


def is_believed(own: Sample, others: Sequence[Sample], sizes_: Sequence[int], *, donor_counts: bool = True) -> bool:
    """Returns True if most of the peers that can judge have a donor's weights.

    If no other peer can judge, the donor is believed if it counts itself.

    A witness that is far ahead cannot judge: the run has gone on during the download. One that is far behind can: the
    run is not at the epoch that the donor claims. Only a newcomer, at epoch 0, does not know the run's epoch.

    Args:
        own: Sample of the donor.
        others: Samples of the witnesses.
        sizes_: Number of values of each tensor; see `sizes`.
        donor_counts: True if the donor is one of the peers that can judge.
    """
    others = [one for one in others if not one.drifted]
    near = [one for one in others if abs(one.epoch - own.epoch) <= EPOCHS_APART]
    behind = [one for one in others if 0 < one.epoch < own.epoch - EPOCHS_APART]
    agreeing = donor_counts + sum(agree(own, one, sizes_) for one in near)
    return 2 * agreeing > donor_counts + len(near) + len(behind)


async def ask(
    p2p: P2P,
    service: type[ServicerBase],
    namespace: str,
    donors: Sequence[PeerID],
    shapes: Sequence[torch.Size],
    admission: Admission | None = None,
    seconds: float = SAMPLES_SECONDS,
) -> tuple[bytes, list[Sample]]:
    """Draws a seed and asks donors for samples. Returns the seed and the samples that came.

    Args:
        p2p: A connection of this event loop.
        service: Class that answers at the donors.
        namespace: Prefix of the averager.
        donors: Peers that offer their state; some are drawn if they are many.
        shapes: Shapes of the parameters.
        admission: Checks the tickets of the donors; None in an open run.
        seconds: Longest wait for all samples.
    """
    seed, count = secrets.token_bytes(SEED_BYTES), sum(sizes(shapes))
    asked = random.sample(list(donors), min(len(donors), MOST_WITNESSES))
    asking = (
        _ask_one(service.get_stub(p2p, donor, namespace=namespace), donor, seed, count, admission, seconds)
        for donor in asked
    )
    answers = await asyncio.gather(*asking)
    return seed, [answer for answer in answers if answer is not None]


async def _ask_one(
    stub: StubBase, donor: PeerID, seed: bytes, count: int, admission: Admission | None, seconds: float
) -> Sample | None:
    ticket = [admission.own_ticket.encode()] if admission is not None else []
    try:
        asked = stub.rpc_sample_state(averaging_pb2.MessageFromLeader(group_id=seed, gathered=ticket))
        answer = (await asyncio.wait_for(asked, seconds)).metadata
        return Sample.read(answer if admission is None else admission.without_ticket(answer, str(donor)), count)
    except Exception:  # the donor is gone, too slow, no member, or sends something else: others may answer
        return None
