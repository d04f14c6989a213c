"""Checks of work: whether a peer's gradient comes from the samples that it declares.

With what it sends, a peer signs which samples these gradients are of (`Declared`). A validator, a peer that the
maintainer trusts, computes the gradients of some of them again, one by one, and those of as many others. Its question
is not whether they equal what the peer has sent, which is a mean over many more samples, perhaps with momentum and in 8
bits, but whether they are in it:

    share = (x . (d - c)) / E(x . (d - c))      x: what the peer sent, less what the validator itself sent
                                                d, c: mean gradient of declared samples, and of the others

A gradient of a sample is the same direction for all samples plus noise of its own. What the validator has sent takes
away the first. The noise of a declared sample is in x with its weight in the mean, so the share is 1; that of other
samples is not, and a peer that has never computed these samples has the share 0. Coordinates are divided by their
variance, or a few large ones would drown the rest.

A peer could hide in noise: the larger what it sends, the less certain its share. But a mean of few samples, or of none,
is farther from the others' than one of as many samples as it claims, and that shows as well (`noise_of`).

One check is uncertain, and tells its own standard error. So evidence is added up over checks, as in Wald's sequential
test (1945): the logarithm of how much likelier a result is of an honest peer than of one that has computed nothing.

What this does not find: a peer that computes what it declares and adds something small to it, which is the matter of
CenteredClip; one that chooses which samples it computes; one that declares more samples than it has computed, as long
as those that it computed are among them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from hivemind.utils.serializer import MSGPackSerializer
from torch import Tensor

MOST_SPANS = 32
"""Runs of samples that a peer declares at most, the longest; those of its own order are one or two."""
LARGEST_DECLARED_BYTES = 64 + 20 * MOST_SPANS
LARGEST_SAMPLE = 1 << 60
"""No peer has counted so many samples."""
USUAL_SHARE = 0.8
"""The least share that is to be expected of an honest peer: weights move between its computing and the check."""
MOST_SHARE = 2.0
"""Nobody sends this much more of a sample than it has computed."""
LEAST_ERROR = 1e-3
"""No check is more certain than this, whatever numbers come."""
SURE = 3.0
"""So many standard errors are beyond chance."""
NOISIER = 10.0
"""A mean of as many samples as a peer claims has a variance within this factor of what the others' means have."""
MOST_EVIDENCE = 3.0
"""One check says no more than this, for a peer or against it: few samples show their variance badly."""
FLOOR = 1e-2
"""Coordinates count as if they varied at least by this part of the mean variance."""
ALIKE = 0.5
"""Correlation from which on what two peers sent, without the mean of the others, is not independent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """Which samples a peer's gradient is of."""

    order: str
    """`Order.digest` of the order by which they are numbered."""
    seed: int
    """Of that order."""
    spans: tuple[tuple[int, int], ...]
    """Their numbers, counted through all passes: from the first to before the second."""
    mass: float
    """What all samples of the gradient count together, those of earlier epochs included (see `gradients`)."""

    @property
    def samples(self) -> int:
        """How many it names."""
        return sum(end - begin for begin, end in self.spans)

    def overlaps(self, other: Declared) -> bool:
        """Whether both name the same sample."""
        is_same = (self.order, self.seed) == (other.order, other.seed)
        return is_same and any(a < d and c < b for a, b in self.spans for c, d in other.spans)

    def number(self, index: int) -> int:
        """Of one of them, counted from 0.

        >>> Declared(order="0" * 16, seed=0, spans=((3, 5), (9, 10)), mass=3.0).number(2)
        9
        """
        for begin, end in self.spans:
            if index < end - begin:
                return begin + index
            index -= end - begin
        raise IndexError(index)

    def packed(self) -> bytes:
        """As it travels."""
        facts = [bytes.fromhex(self.order), self.seed, [*sum(self.spans, ())], self.mass]
        return MSGPackSerializer.dumps(facts)

    @classmethod
    def read(cls, packed: bytes) -> Declared | None:
        """From anybody; None if it is malformed, or names no samples."""
        if not 0 < len(packed) <= LARGEST_DECLARED_BYTES:
            return None
        try:
            order, seed, numbers, mass = MSGPackSerializer.loads(packed)
            kinds = (type(order), type(seed), type(mass), {type(number) for number in numbers})
        except Exception:  # of many kinds: whatever it is, it declares nothing
            return None
        if kinds != (bytes, int, float, {int}) or len(order) != 8 or not 0 <= seed < 2**32:
            return None
        if len(numbers) % 2 or len(numbers) > 2 * MOST_SPANS or not 0 < mass < math.inf:
            return None
        if any(before >= after for before, after in pairwise([-1, *numbers])) or numbers[-1] > LARGEST_SAMPLE:
            return None
        spans = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        return cls(order=order.hex(), seed=seed, spans=spans, mass=mass)


def spans_of(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The longest runs of some numbers, in their order; two of equal numbers that are not apart are one.

    >>> spans_of([7, 5, 6, 12, 6])
    ((5, 8), (12, 13))
    """
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    longest = sorted(found, key=lambda span: span[0] - span[1])[:MOST_SPANS]
    return tuple((begin, end) for begin, end in sorted(longest))


@dataclass(frozen=True, slots=True)
class Presence:
    """How much of some samples is in a gradient, over what there should be."""

    share: float
    error: float
    """Standard error of the share."""

    @property
    def evidence(self) -> float:
        """For the peer if it is above 0, against it below: logarithm of a likelihood ratio; see the module."""
        if not (math.isfinite(self.share) and math.isfinite(self.error)):
            return -MOST_EVIDENCE
        if self.share - SURE * self.error > MOST_SHARE:
            return -MOST_EVIDENCE
        # Of two normal distributions with this standard error, around the usual share and around 0.
        ratio = USUAL_SHARE * (2 * self.share - USUAL_SHARE) / (2 * max(self.error, LEAST_ERROR) ** 2)
        return max(-MOST_EVIDENCE, min(ratio, MOST_EVIDENCE))


def presence(vector: Tensor, asker: Tensor, declared: Tensor, controls: Tensor, *, mass: float) -> Presence | None:
    """How much of the declared samples is in what a peer has sent; None if all gradients are the same.

    Args:
        vector: (P,), some values of what the peer has sent.
        asker: (P,), the same of what the validator has sent.
        declared: (k, P), gradients of k of its samples, each alone; k >= 2.
        controls: (k', P), those of k' samples that are in none of the vectors; k' >= 2.
        mass: See `Declared`.
    """
    centred = torch.cat([rows - rows.mean(0) for rows in (declared, controls)])
    variance = centred.square().sum(0) / (len(centred) - 2)
    floor = FLOOR * variance.mean()
    if not floor > 0:
        return None
    weighted = (vector - asker) / (variance + floor)
    of_declared, of_controls = (declared @ weighted).double(), (controls @ weighted).double()
    expected = float((variance / (variance + floor)).sum(dtype=torch.float64)) / mass
    error = (of_declared.var() / len(declared) + of_controls.var() / len(controls)).sqrt()
    return Presence(float(of_declared.mean() - of_controls.mean()) / expected, float(error) / expected)


def noise_of(vectors: Sequence[Tensor], weights: Sequence[float], asker: int, one: int) -> float:
    """Variance of one vector over what is usual among the others, if each is a mean of as many samples as its weight.

    1.0 if there are not two others to compare it with. Of the usual ones, the higher median counts, and whoever claims
    much less than most is left out: a member that claims next to nothing would make all others look noisy.

    Args:
        vectors: Of all senders.
        weights: Of all, above 0.
        asker: Number of the validator's own vector, from which all distances are taken.
        one: Number of the vector.
    """
    found = {
        number: float((vector - vectors[asker]).double().square().sum()) / (1 / weights[number] + 1 / weights[asker])
        for number, vector in enumerate(vectors)
        if number != asker
    }
    least = statistics.median_low(weights) / 2
    own, others = found.pop(one), [noise for number, noise in found.items() if weights[number] >= least]
    return own / max(statistics.median_high(others), 1e-300) if len(others) > 1 else 1.0


def alike(vectors: Sequence[Tensor], average: Tensor, one: int) -> list[int]:
    """Which other vectors are copies of one of them, perhaps with some noise; of two, nobody can tell.

    Args:
        vectors: Of all senders.
        average: Of all.
        one: Number of one of them.
    """
    if len(vectors) < 3:
        return []
    apart = [vector - average for vector in vectors]
    return [
        number
        for number, other in enumerate(apart)
        if number != one and float(torch.cosine_similarity(apart[one], other, dim=0)) > ALIKE
    ]
