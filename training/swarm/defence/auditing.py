"""Audit of a reducer: the average of a part is computed again from the signed messages.

An all-reduce's senders and reducers have signed their parts and answers (`receipts`). From a reducer's receipt, the
commitments that it names, the senders' parts and one answer, anybody can compute the average again. If the answer
differs, that is proof: the reducer itself has signed all that contradicts it. An unsigned claim proves nothing.

An answer has gone through a codec, and processors round differently: a number between two codes may become either. So
each number of an answer may differ from the right one by the codec's own error; differences beyond that add up.
`benchmarks/attacks/attacks.py audits` measures how far honest answers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from torch import Tensor

from training.swarm.defence.clipping import Clipping, clipped_shares
from training.swarm.defence.receipts import (
    Commitment,
    Receipt,
    Scope,
    digest_of_commitments,
    digest_of_tensor,
)
from training.swarm.engine.codecs import decode, encode
from training.swarm.engine.ids import digest_of

NOISE_SHARE = 0.1
"""Share of the codec's change by which an answer may be farther from the right one than the codec's error explains."""
ROUNDING = 1e-5
"""Share of the averaged vectors' length that is added to that limit: single precision rounds at 1e-7 of the length."""
LARGEST_SUMMAND = 1e30
"""Largest summand whose mean is judged. A mean of larger numbers may overflow in one order of summands only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Evidence by which one answer of a reducer is judged."""

    scope: Scope
    reducer: PeerID
    receiver: PeerID
    """Peer that got the answer."""
    receipt: Receipt
    part: int = 0
    """Number of the part among the reducer's parts."""
    commitments: tuple[Commitment, ...] = ()
    """Commitments of all senders, in the group's order."""
    parts: tuple[runtime_pb2.Tensor, ...] = ()
    """Parts of the senders, in the group's order; empty if the commitments alone prove the lie."""
    answer: runtime_pb2.Tensor | None = None
    answers: tuple[bytes, ...] = ()
    """Digests of all answers to the receiver, in the order of the parts."""
    other: tuple[PeerID, Receipt] | None = None
    """Another peer's receipt, which names other commitments."""
    values: int | None = None
    """Length of the part by the judge's own tensors; None: the length that the receiver has sent."""


def lie_in(case: Case, clipping: Clipping | None) -> str | None:
    """Returns what the reducer has done wrong, if the case proves it; None if it proves nothing.

    Args:
        case: Evidence from any peer.
        clipping: Rule by which the group averages; None: the weighted mean.
    """
    scope, reducer = case.scope, case.reducer
    if not case.receipt.holds(scope, reducer=reducer, receiver=case.receiver):
        return None
    if case.other is not None:
        receiver, other = case.other
        differs = other.commitments != case.receipt.commitments
        if differs and receiver in scope.peers and other.holds(scope, reducer=reducer, receiver=receiver):
            return "told two peers that it had averaged different parts"
        return None
    if digest_of_commitments(case.commitments) != case.receipt.commitments:
        return None
    if not are_sound(case.commitments, scope, reducer):
        return "averaged without the parts that its senders have signed"
    if not _is_complete(case):
        return None
    return "answered with a wrong average" if _is_wrong(case, clipping) else None


def are_sound(commitments: Sequence[Commitment], scope: Scope, reducer: PeerID) -> bool:
    """Returns True if the commitments are signed by all senders, each for the same number of parts."""
    return (
        len(commitments) == len(scope.peers)
        and len({len(one.digests) for one in commitments}) == 1
        and all(
            one.holds(scope, sender=sender, reducer=reducer)
            for sender, one in zip(scope.peers, commitments, strict=True)
        )
    )


def _is_complete(case: Case) -> bool:
    """Returns True if the case's parts and answer are those that were signed."""
    if len(case.parts) != len(case.commitments) or case.answer is None or case.receiver not in case.scope.peers:
        return False
    if not 0 <= case.part < len(case.commitments[0].digests) == len(case.answers):
        return False
    if digest_of(*case.answers) != case.receipt.answers or digest_of_tensor(case.answer) != case.answers[case.part]:
        return False
    signed = (one.digests[case.part] for one in case.commitments)
    return all(digest_of_tensor(part) == digest for part, digest in zip(case.parts, signed, strict=True))


def _is_wrong(case: Case, clipping: Clipping | None) -> bool:
    distance, most = distance_of(case, clipping)
    return distance > most


def distance_of(case: Case, clipping: Clipping | None) -> tuple[float, float]:
    """Returns the distance of an answer from the right one beyond the codec's error, and its limit.

    The result is (0, 0) if the distance cannot be known, and (inf, 0) if a sender's part cannot be read: an honest
    reducer gives such a sender up and signs nothing. Otherwise an accomplice could make all lies of a reducer
    unprovable.

    The case must be complete.
    """
    receiver = case.scope.peers.index(case.receiver)
    weights = [one.weights[case.part] for one in case.commitments]
    parts, answer = [_read(part) for part in case.parts], _read(case.answer)
    if answer is None or parts[receiver] is None:  # the receiver could not read such an answer either
        return 0.0, 0.0
    if any(part is None for part in parts):
        return math.inf, 0.0
    # Not the shape of the reducer's own part: if that differed, all other parts would look wrong.
    shape = parts[receiver].shape if case.values is None else torch.Size([case.values])
    if parts[receiver].shape != shape:
        return 0.0, 0.0
    # As in `reducer.Reducer`: malformed parts and weights become zeros, with weight 0.
    for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
        if part.shape != shape or not (math.isfinite(weight) and weight >= 0 and bool(torch.isfinite(part).all())):
            parts[number], weights[number] = torch.zeros(shape), 0.0
    average, scale = _average(parts, weights, clipping, case.scope.shares)
    if not math.isfinite(scale):
        return 0.0, 0.0
    exact = torch.zeros(shape) if average is None else average - parts[receiver]
    coded = decode(encode(exact, case.parts[receiver].compression)).float()
    noise = (coded - exact).abs_()
    most = NOISE_SHARE * _length(noise) + ROUNDING * (scale + _length(parts[receiver]))
    if not math.isfinite(most):  # the codec cannot carry such numbers
        return 0.0, 0.0
    if answer.shape != shape or not bool(torch.isfinite(answer).all()):
        return math.inf, most
    return _length((answer - exact).abs_().sub_(noise).clamp_(min=0)), most


def _read(message: runtime_pb2.Tensor) -> Tensor | None:
    """Decodes a part to float32; None if it cannot be read."""
    try:
        return decode(message).detach().float()
    except Exception:  # decoding raises errors of many kinds
        return None


def _average(
    parts: Sequence[Tensor], weights: Sequence[float], clipping: Clipping | None, shares: Sequence[float]
) -> tuple[Tensor | None, float]:
    """Computes the average, and the length of the averaged vectors, on which rounding errors depend.

    The average is None if nobody has any weight: all peers keep their own values then. The length is infinite if a mean
    may have overflowed.
    """
    counted = [one for one in zip(parts, weights, shares, strict=True) if one[1] > 0]
    if not counted:
        return None, 0.0
    vectors, used, of_these = zip(*counted, strict=True)
    if clipping is None:
        if any(weight * _largest(part) > LARGEST_SUMMAND for part, weight, _ in counted):
            return None, math.inf
        total = math.fsum(used)
        pulls = [weight / total for weight in used]
    else:
        pulls = clipped_shares(vectors, used, clipping, of_these)
    average, scale = torch.zeros_like(vectors[0]), 0.0
    for share, vector in zip(pulls, vectors, strict=True):
        average.add_(vector, alpha=share)
        scale += share * _length(vector)
    return average, scale


def _length(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _largest(vector: Tensor) -> float:
    return float(vector.abs().max()) if vector.numel() else 0.0
