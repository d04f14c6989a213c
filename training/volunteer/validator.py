"""Checks of work by this peer: computes some samples again that a groupmate declares; see `training.swarm.work`.

Before an average the validator chooses a groupmate. Afterwards its averager has what that one has sent, with its
signature. Between two micro-batches, the validator computes the gradients of some of the declared samples, each alone,
and those of as many of its own next ones. That takes the recipe's share of the run's computing (`check_share`) at most:
it saves samples up until it may spend them.

Evidence against a peer adds up over checks. When it is enough, this peer's groups leave that one out, and the run's
membership server is told, if the run has one.
"""

from __future__ import annotations

import json
import math
import queue
import random
import statistics
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from training.compute.micro_batches import MicroBatches
from training.data.stream.stream import Batch, TextBatch
from training.errors import reason_of
from training.storage.whole import write_whole
from training.swarm.round.pipe import Shown
from training.swarm.work import NOISIER, Declared, Presence, presence
from training.trust.server.policy import FAILING_EVIDENCE

CHECKED_PART = 1 / 2
"""Samples that are computed again, over the declared ones: the error of a check depends on that ratio alone."""
FEWEST, MOST = 8, 64
"""Samples that are computed again, and as many of others."""
CREDIT = 3.0
"""Evidence for a peer adds up to this at most: whoever was honest for long is not free for long."""
LEAST_MASS, MOST_MASS = 0.99, 4.0
"""What a peer's samples count together is no less than what those of the last epoch do. With momentum, it may have
computed so many times more in earlier epochs."""
MOST_PASSES = 2
"""The samples of an epoch are not farther apart."""
UNCHECKED = -0.5
"""Evidence of a check of a peer that declares less than half of the samples that it claims, samples that this peer does
not have, or takes itself, or has seen declared before, more mass than they can have, or one thing to some and another
to others: who does so again and again evades checks."""
TOO_NOISY, CLEAR = -1.5, 1.0
"""Evidence, at most, of a check of a peer whose vector varies more than a mean of so many samples can, unless its share
speaks clearly for it."""
SUSPECTED = 0.5
"""How often the peer is checked that has most against it; otherwise it is any of the groupmates, by chance."""
EVIDENCE_FOLDER = "evidence"
"""In the state folder: what speaks against peers that have failed, a file for each."""
MOST_CHECKS_TOLD = 50
EPOCHS_BETWEEN = 2
"""From the choice of a peer to its check: the next average must have ended, and this peer must have computed samples
that were not in it. One more if averages run in the background."""
MOST_OF_SET = 1 / 5
"""If a gradient has more than this part of all samples in it, those that the validator draws besides are in it, too,
and a check says nothing."""


class Optimizer(Protocol):
    """What a validator needs of `SwarmOptimizer`."""

    groupmates: tuple[str, ...]

    def inspect(self, peer: str) -> None:
        """Asks for some of what a groupmate sends to the next average."""

    def suspend(self, peer: str, deed: str) -> None:
        """Leaves a peer out of this one's groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check of a peer."""

    epoch: int
    samples: int
    """Computed again; 0: none could be."""
    share: float
    """Of them in what the peer sent; see `work.Presence`."""
    error: float
    noise: float = 1.0
    """See `work.noise_of`."""
    evidence: float
    proof: tuple[str, ...] = ()
    """The peer's signatures of what it has sent and declared; see `pipe.Shown`."""


@dataclass(slots=True)
class Record:
    """What is known of a peer's work."""

    evidence: float = 0.0
    checks: deque[Check] = field(default_factory=lambda: deque(maxlen=MOST_CHECKS_TOLD))
    undeclared: int = 0
    """Checks that were impossible."""
    seen: deque[Declared] = field(default_factory=lambda: deque(maxlen=MOST_CHECKS_TOLD))
    """What it has declared when it was checked."""
    copies: set[str] = field(default_factory=set)
    """Peers that have sent copies of what it sent, or it of theirs."""

    def add(self, check: Check) -> bool:
        """Whether the peer has failed now."""
        self.checks.append(check)
        self.undeclared += not check.samples
        self.evidence = min(self.evidence + check.evidence, CREDIT)
        has_failed = self.evidence <= FAILING_EVIDENCE
        if has_failed:  # whoever comes back is checked on, and need not fail as often again
            self.evidence = FAILING_EVIDENCE / 2
        return has_failed

    @property
    def failed(self) -> list[Check]:
        """Checks that were possible, and speak against it."""
        return [check for check in self.checks if check.samples and check.evidence < 0]

    @property
    def is_caught(self) -> bool:
        """Whether most of what speaks against it are checks that were possible. Otherwise its link to the shards may be
        down: it is left out, and nobody else hears of it."""
        unchecked = sum(check.evidence for check in self.checks if not check.samples)
        return sum(check.evidence for check in self.failed) < unchecked

    def told(self) -> dict:
        """For the membership server."""
        fields = ("epoch", "samples", "share", "error")
        checks = [{name: _finite(getattr(check, name)) for name in fields} for check in self.checks]
        told = {"checks": checks, "undeclared": self.undeclared}
        return told | ({"copied_from": sorted(self.copies)[:10]} if self.copies else {})


class Validator:
    """Checks other peers' work between this one's micro-batches.

    Args:
        optimizer: Of this peer.
        parameters: Whose gradients are averaged, in the order in which they are.
        micro_batches: Computes gradients as this peer does when it trains.
        read: Gives the sample of a number in the order of a seed; may raise any exception.
        order: Digest of the order by which all number their samples; a peer that declares another one has other shards,
            and cannot be checked.
        set_samples: Of the whole order.
        own_seed: Of this peer's order, if each peer has its own; None: all share one.
        momentum: Of the peers, see `gradients`.
        share: Of the run's computing: what checks may take.
        is_delayed: Whether gradients are averaged in the background.
        folder: Keeps what speaks against peers that fail.
        report: Tells the membership server of a peer that has failed, and why.
        tell: Prints what the volunteer should know.
        log: Keeps each check of a peer, as an event.
        chance: Draws peers and samples; nobody else may know it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        parameters: Sequence[nn.Parameter],
        micro_batches: MicroBatches,
        read: Callable[[int, int], Batch | TextBatch],
        order: str,
        set_samples: int,
        own_seed: int | None,
        momentum: float,
        share: float,
        is_delayed: bool,
        folder: Path,
        report: Callable[[str, dict], None],
        tell: Callable[[str], None],
        log: Callable[..., None],
        chance: random.Random | None = None,
    ):
        self._optimizer, self._parameters, self._micro_batches = optimizer, tuple(parameters), micro_batches
        self._read, self._order, self._momentum, self._share = read, order, momentum, share
        self._set_samples, self._own_seed = set_samples, own_seed
        self._folder, self._report, self._tell, self._log = folder, report, tell, log
        self._chance = chance or random.SystemRandom()
        self._came: queue.SimpleQueue[Shown] = queue.SimpleQueue()
        self._parts: dict[bytes, list[Shown]] = {}
        self._controls: deque[list[Tensor]] = deque(maxlen=MOST)
        self._saved, self._needed = 0.0, 2 * FEWEST
        self._epochs_between, self._epochs_left = EPOCHS_BETWEEN + is_delayed, 0
        self.most_saved = 2.0 * MOST
        """Samples that it saves up for checks at most."""
        self.records: dict[str, Record] = {}
        self.spent = 0
        """Samples that were computed for checks."""

    def take(self, shown: Shown) -> None:
        """Gets what a groupmate has sent; called in another thread."""
        self._came.put(shown)

    def end_epoch(self, epoch: int, run_samples: float) -> None:
        """An epoch of this peer has ended: checks what has come, and chooses whom to check next.

        Args:
            epoch: That has ended.
            run_samples: Of all peers, in its update.
        """
        if math.isfinite(run_samples) and run_samples > 0:  # it is a sum of what all say
            self._saved = min(self._saved + self._share * run_samples, self.most_saved)
        self._epochs_left = max(self._epochs_left - 1, 0)
        if not self._epochs_left:
            self._collect()
            for parts in self._parts.values():
                try:
                    self._check(epoch, parts)
                except Exception as error:  # of many kinds, such as memory that runs out: this peer trains on
                    self._tell(f"The work of {parts[0].peer} cannot be checked: {reason_of(error)}.")
            self._parts.clear()
            if (others := self._optimizer.groupmates) and self._saved >= self._needed:
                self._optimizer.inspect(self._choose(others))
                self._epochs_left = self._epochs_between
        self._controls.clear()

    def note_batch(self, batch: Batch | TextBatch) -> None:
        """Samples of this peer that it has computed since its last epoch ended: they are not in what it checks."""
        for number in range(len(batch)):
            self._controls.append([tensor[number : number + 1] for tensor in batch.inputs])

    def _collect(self) -> None:
        while not self._came.empty():
            shown = self._came.get()
            self._parts.setdefault(shown.group_id + shown.peer.encode(), []).append(shown)

    def _choose(self, others: Sequence[str]) -> str:
        worst = min(others, key=lambda peer: self._record(peer).evidence)
        is_suspected = self._record(worst).evidence < 0 and self._chance.random() < SUSPECTED
        return worst if is_suspected else self._chance.choice(others)

    def _record(self, peer: str) -> Record:
        return self.records.setdefault(peer, Record())

    # -- one check -----------------------------------------------------------------------------------------------------

    def _check(self, epoch: int, parts: Sequence[Shown]) -> None:
        peer, declared = parts[0].peer, Declared.read(parts[0].declared)
        record, proof = self._record(peer), tuple(part.proof for part in parts)
        record.copies |= {copy for part in parts for copy in part.copies}
        for copy in record.copies:  # of the two, only one has computed it; both are checked soon
            self._record(copy).copies.add(peer)
            self._record(copy).evidence = min(self._record(copy).evidence, -0.1)
        found, count = None, 0
        says_one_thing = len({(part.declared, part.weight) for part in parts}) == 1
        if declared is not None and says_one_thing and self._is_sound(declared, parts[0].weight, record):
            if declared.samples < FEWEST or declared.mass > MOST_OF_SET * self._set_samples:
                return  # it has done little, and little depends on it; or the set is too small to tell
            wanted = math.ceil(CHECKED_PART * max(declared.samples, declared.mass / 10))
            count = min(max(FEWEST, min(wanted, MOST)), declared.samples)
            self._needed = 2 * count
            if self._needed > self._saved:
                return  # this peer has not saved enough; that one is not at fault
            count = min(count, len(self._controls))
            found = self._compute(declared, count, parts)
            if found is None:
                return
        if found is None:
            check = Check(epoch=epoch, samples=0, share=math.nan, error=math.inf, evidence=UNCHECKED, proof=proof)
        else:
            record.seen.append(declared)
            noise = statistics.median_low([part.noise for part in parts])
            is_too_noisy = noise >= NOISIER and found.evidence < CLEAR
            evidence = min(found.evidence, TOO_NOISY) if is_too_noisy else found.evidence
            facts = {"share": found.share, "error": found.error, "noise": noise, "evidence": evidence}
            check = Check(epoch=epoch, samples=count, **facts, proof=proof)
        told = {
            "epoch": epoch,
            "samples": check.samples,
            "share": _finite(check.share),
            "error": _finite(check.error),
            "noise": check.noise,
        }
        self._log("checked", peer=peer, **told, evidence=check.evidence)
        if record.add(check):
            self._fail(peer, record)

    def _is_sound(self, declared: Declared, weight: float, record: Record) -> bool:
        """Whether what a peer says can be so, and be checked."""
        first, last = declared.spans[0][0], declared.spans[-1][1]
        return (
            declared.order == self._order
            and declared.seed != self._own_seed
            and 2 * declared.samples >= weight
            and LEAST_MASS * weight <= declared.mass <= MOST_MASS * weight / (1 - self._momentum)
            and last - first <= MOST_PASSES * self._set_samples
            and not any(declared.overlaps(other) for other in record.seen)
        )

    def _compute(self, declared: Declared, count: int, parts: Sequence[Shown]) -> Presence | None:
        """None if there are too few, they cannot be had, or their gradients are not finite."""
        if count < FEWEST:
            return None
        # Of indices, not of the numbers themselves: who declares 2^60 samples shall not fill this peer's memory.
        numbers = [declared.number(index) for index in self._chance.sample(range(declared.samples), count)]
        self._saved -= 2 * count
        try:
            chosen = [list(self._read(declared.seed, number).inputs) for number in numbers]
        except Exception as error:  # of many kinds: this peer's link or disk; not the other one's fault
            self._tell(f"Samples for a check of work cannot be had: {error}")
            return None
        controls = self._chance.sample(list(self._controls), count)
        self.spent += 2 * count
        rows = [self._gradient(inputs, parts) for inputs in (*chosen, *controls)]
        if any(row is None for row in rows):
            return None
        values, asker = (torch.cat([getattr(part, name) for part in parts]) for name in ("values", "asker"))
        own, other = torch.stack(rows[:count]), torch.stack(rows[count:])
        return presence(values, asker, own, other, mass=declared.mass)

    def _gradient(self, inputs: Sequence[Tensor], parts: Iterable[Shown]) -> Tensor | None:
        """Those values of the gradient of one sample that the parts have."""
        loss = self._micro_batches.gradient_of_one(inputs)
        found = None
        if math.isfinite(loss):
            found = torch.cat([_values(self._parameters, part.begin, len(part.values)) for part in parts])
        for parameter in self._parameters:
            parameter.grad = None
        return found if found is not None and bool(torch.isfinite(found).all()) else None

    def _fail(self, peer: str, record: Record) -> None:
        is_caught = record.is_caught
        if is_caught:
            deed, failed = "sends gradients that do not come from the samples that it declares", len(record.failed)
            self._tell(f"{peer} has failed {failed} checks of its work: it {deed}. The checks are in {self._folder}.")
        else:
            deed = "declares no samples that this peer can check"
            self._tell(f"{peer} {deed}. Perhaps it has other shards, or cannot reach them.")
        self._optimizer.suspend(peer, f"{deed}, so it")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = {"peer": peer, "copies": sorted(record.copies), "checks": [asdict(check) for check in record.checks]}
            write_whole(self._folder / f"{peer}.json", json.dumps(kept, indent=1))
        except OSError as error:
            self._tell(f"What speaks against {peer} cannot be kept: {error}")
        if is_caught:
            self._report(peer, record.told())


def _values(parameters: Collection[nn.Parameter], begin: int, count: int) -> Tensor:
    """So many values of the parameters' gradients from a number on, all gradients one after the other."""
    found, at = [], 0
    for parameter in parameters:
        first, last = max(begin - at, 0), min(begin + count - at, parameter.numel())
        if first < last:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found.append(gradient.detach().flatten()[first:last].float().cpu())
        at += parameter.numel()
    return torch.cat(found)


def _finite(value: float) -> float:
    """As JSON can carry it."""
    return value if math.isfinite(value) else 1e9
