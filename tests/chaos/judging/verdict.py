"""Judges a run by its evidence. Each check compares two witnesses: peers' logs, weights, the history, the chronicle."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.judging.evidence import Accident, Epoch, Evidence, Interval, Life, clip, length, without

LEAST_THROUGHPUT = 0.9
"""Least throughput of the survivors, relative to the part without faults."""
HANG_SECONDS = 40.0
"""A volunteer that trains beside others ends an epoch within this time. An epoch takes 5 s; a group that loses a member
may take the recipe's 30 s for one average."""
JOIN_SECONDS = 60.0
"""A newcomer trains within this time. Loading PyTorch takes 10 s on two busy cores."""
HEAL_SECONDS = 60.0
"""Longest time for which a run may be in two parts."""
EPOCHS_APART = 3
"""Most epochs by which volunteers may differ: one of them ends an epoch while another one catches up."""
NEAR_SECONDS = 45.0
"""An epoch of one volunteer and the same one of another are ended within this time."""
WEIGHTS_APART = 0.05
"""Largest relative distance of the weights of two volunteers that both say that nothing is wrong."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    check: str
    found: str
    limit: str
    good: bool
    details: tuple[str, ...] = ()


def judge(evidence: Evidence) -> list[Finding]:
    """All checks."""
    return [
        throughput(evidence),
        _none("hangs", hangs(evidence)),
        _none("rounds that were wrong in silence", [*wrong_sums(evidence), *weights_apart(evidence)]),
        _none("splits of the run", splits(evidence)),
        _none("epochs that the history lacks", epochs_lost(evidence)),
        _none("epochs that it counts twice", epochs_doubled(evidence)),
        _none("returns without the newest checkpoint", weights_lost(evidence)),
        _none("programs that gave up", evidence.gave_up),
        _none("processes and files left behind", evidence.remains),
    ]


def _none(check: str, details: Iterable[str]) -> Finding:
    found = tuple(details)
    return Finding(check=check, found=str(len(found)), limit="0", good=not found, details=found)


# -- throughput ------------------------------------------------------------------------------------------------------


def throughput(evidence: Evidence) -> Finding:
    """Samples of each second that a volunteer was present and no fault had hit it, against the part without faults."""
    before = rate(evidence, (evidence.began, evidence.calm_until))
    after = rate(evidence, (evidence.calm_until, evidence.ended))
    share = after / before if before else math.nan
    details = tuple(
        f"{name}: {_rate_of(evidence, [name], (evidence.calm_until, evidence.ended)):.2f} samples/s in "
        f"{length(evidence.present(name, (evidence.calm_until, evidence.ended))):.0f} s, before the faults "
        f"{_rate_of(evidence, [name], (evidence.began, evidence.calm_until)):.2f}"
        for name in evidence.lives
    )
    return Finding(
        check="throughput of the survivors",
        found=f"{share:.0%} ({after:.2f} of {before:.2f} samples/s each)",
        limit=f">= {LEAST_THROUGHPUT:.0%}",
        good=share >= LEAST_THROUGHPUT,
        details=details if not share >= LEAST_THROUGHPUT else (),
    )


def rate(evidence: Evidence, window: Interval) -> float:
    """Samples per second of a volunteer, while it is present."""
    return _rate_of(evidence, list(evidence.lives), window)


def _rate_of(evidence: Evidence, names: list[str], window: Interval) -> float:
    samples = sum(_samples(evidence, name, window) for name in names)
    seconds = sum(length(evidence.present(name, window)) for name in names)
    return samples / seconds if seconds else 0.0


def _samples(evidence: Evidence, name: str, window: Interval) -> float:
    """Those that a volunteer contributed while it was present; an epoch's are spread evenly over its time."""
    total = 0.0
    present = evidence.present(name, window)
    for began, epoch in _spans(evidence, name):
        inside = length(clip(present, (began, epoch.time)))
        if not is_alone_beside_others(epoch):
            total += epoch.samples * inside / (epoch.time - began)
    return total


def is_alone_beside_others(epoch: Epoch) -> bool:
    """True if a volunteer made an update by itself although it knew of others: they do not have its samples."""
    return epoch.senders == 1 and epoch.others > 0


def _spans(evidence: Evidence, name: str) -> list[tuple[float, Epoch]]:
    """Each epoch of a volunteer with the time at which it began: when the one before ended, or the volunteer joined."""
    joined = [life.joined for life in evidence.lives[name] if life.joined is not None]
    epochs = evidence.epochs[name]
    ends = [epoch.time for epoch in epochs]
    return [(max(t for t in (*joined, *ends, 0.0) if t < epoch.time), epoch) for epoch in epochs]


# -- hangs -----------------------------------------------------------------------------------------------------------


def hangs(evidence: Evidence) -> list[str]:
    """Volunteers that ended no epoch for too long though others were there, and newcomers that never began."""
    found = []
    for name, lives in evidence.lives.items():
        company = _in_company(evidence, name)
        marks = sorted([epoch.time for epoch in evidence.epochs[name]] + [evidence.began, evidence.ended])
        for before, after in itertools.pairwise(marks):
            found += [
                f"{name} ended no epoch for {ended - began:.0f} s from {_clock(evidence, began)}"
                for began, ended in clip(company, (before, after))
                if ended - began > HANG_SECONDS
            ]
        found += [
            f"{name} was started at {_clock(evidence, life.began)} and did not train after {seconds:.0f} s"
            for life in lives
            if (seconds := _joining_seconds(evidence, name, life)) > JOIN_SECONDS
        ]
    return found


def _joining_seconds(evidence: Evidence, name: str, life: Life) -> float:
    """Seconds for which a volunteer could try to join: not while its machine slept or had no link, nor while nobody had
    the run's weights, because all volunteers were gone and the monitor was down."""
    prevented = [
        (accident.began, accident.ended)
        for accident in evidence.accidents
        if accident.kind in ("stop", "cut") and name in accident.volunteers
    ]
    there = [(one.joined, one.ended) for lives in evidence.lives.values() for one in lives if one.joined is not None]
    down = [(one.began, one.ended) for one in evidence.accidents if one.kind in ("monitor", "reboot")]
    return length(without([(life.began, life.joined or life.ended)], [*prevented, *without(down, there)]))


def _in_company(evidence: Evidence, name: str) -> list[Interval]:
    """When a volunteer was present, and at least one other as well."""
    others = [part for other in evidence.lives if other != name for part in evidence.present(other)]
    parts = sorted(part for own in evidence.present(name) for part in clip(others, own))
    merged: list[Interval] = []
    for began, ended in parts:
        if merged and began <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((began, ended))
    return merged


# -- rounds that were wrong in silence -------------------------------------------------------------------------------


def wrong_sums(evidence: Evidence) -> list[str]:
    """Updates whose samples are not the sum of what their senders say that they contributed.

    Any set of volunteers that reported the epoch may be the senders. A volunteer that reported nothing, because a fault
    hit it or the others went on without it, may have been one with any number of samples.
    """
    found = []
    for name, epoch in _epochs_together(evidence):
        others = _same_epoch(evidence, name, epoch)
        said = [other.samples for other in others.values()]
        silent = len(evidence.lives) - 1 - len(others)
        if not _can_be(round(epoch.update_samples) - epoch.samples, epoch.senders - 1, said, silent):
            reported = ", ".join(f"{other} {one.samples}" for other, one in others.items()) or "nothing"
            found.append(
                f"{name}'s epoch {epoch.epoch} at {_clock(evidence, epoch.time)} has {epoch.update_samples:.0f} "
                f"samples of {epoch.senders} volunteers, {epoch.samples} its own; the others reported {reported}"
            )
    return found


def _epochs_together(evidence: Evidence) -> list[tuple[str, Epoch]]:
    return [
        (name, epoch)
        for name, epochs in evidence.epochs.items()
        for epoch in epochs
        if epoch.senders > 1 and epoch.update_samples is not None and epoch.fault is None
    ]


def _same_epoch(evidence: Evidence, name: str, epoch: Epoch) -> dict[str, Epoch]:
    """The other volunteers' reports of the same epoch, the nearest in time if it was trained twice."""
    found = {}
    for other, epochs in evidence.epochs.items():
        near = [one for one in epochs if one.epoch == epoch.epoch and abs(one.time - epoch.time) < NEAR_SECONDS]
        if other != name and near:
            found[other] = min(near, key=lambda one: abs(one.time - epoch.time))
    return found


def _can_be(total: int, senders: int, said: list[int], silent: int) -> bool:
    """True if this number of senders can have this total of samples together.

    >>> _can_be(30, 2, [10, 20, 5], silent=0), _can_be(31, 2, [10, 20, 5], silent=0), _can_be(31, 2, [10], silent=1)
    (True, False, True)
    """
    for unknown in range(min(silent, senders) + 1):
        for chosen in itertools.combinations(said, senders - unknown):
            if sum(chosen) + unknown <= total if unknown else sum(chosen) == total:
                return True
    return False


def weights_apart(evidence: Evidence) -> list[str]:
    """Volunteers that have made equally many updates, and whose weights differ though neither says that they do."""
    found = []
    for one, other in itertools.combinations(evidence.weights, 2):
        for distance, updates, time in distances(evidence, one, other):
            if distance > WEIGHTS_APART:
                found.append(
                    f"{one} and {other} differ by {distance:.1%} after {updates} updates, at {_clock(evidence, time)}"
                )
                break
    return found


def distances(evidence: Evidence, one: str, other: str) -> list[tuple[float, int, float]]:
    """Relative distances of two volunteers' weights, with the updates in them and the time."""
    found = []
    for own in evidence.weights[one]:
        for their in evidence.weights[other]:
            same = own.updates == their.updates and abs(own.time - their.time) < NEAR_SECONDS
            if same and not own.drifted and not their.drifted:
                apart = math.dist(own.values, their.values) / (math.hypot(*own.values) or 1.0)
                found.append((apart, own.updates, max(own.time, their.time)))
    return found


# -- one run ---------------------------------------------------------------------------------------------------------


def splits(evidence: Evidence) -> list[str]:
    """Signs of two runs side by side."""
    found = [*_second_beginnings(evidence), *_apart(evidence), *_alone(evidence)]
    lineages = sorted({life.lineage for lives in evidence.lives.values() for life in lives if life.lineage})
    if len(lineages) > 1:
        found.append(f"volunteers trained {len(lineages)} lineages: {', '.join(lineages)}")
    if evidence.lineages > 1:
        found.append(f"the history has {evidence.lineages} lineages")
    return found


def _second_beginnings(evidence: Evidence) -> list[str]:
    first = min((epoch.time for epochs in evidence.epochs.values() for epoch in epochs), default=math.inf)
    return [
        f"{name} began with fresh weights at {_clock(evidence, life.joined)}, when the run had updates"
        for name, lives in evidence.lives.items()
        for life in lives
        if life.joined is not None and life.state == "fresh weights" and life.joined > first
    ]


def _apart(evidence: Evidence) -> list[str]:
    """Volunteers that were at different epochs for too long."""
    found, since = [], None
    present = {name: evidence.present(name) for name in evidence.lives}
    for now in range(int(evidence.began), int(evidence.ended)):
        there = [name for name in present if any(began <= now < ended for began, ended in present[name])]
        at = {name: _epoch_at(evidence, name, now) for name in there}
        known = {name: epoch for name, epoch in at.items() if epoch is not None}
        if known and max(known.values()) - min(known.values()) > EPOCHS_APART:
            since = now if since is None else since
            if now - since == int(HEAL_SECONDS):
                told = ", ".join(f"{name} at {epoch}" for name, epoch in known.items())
                found.append(f"epochs have been apart since {_clock(evidence, since)}: {told}")
        else:
            since = None
    return found


def _epoch_at(evidence: Evidence, name: str, now: float) -> int | None:
    epochs = evidence.epochs[name]
    ended = bisect.bisect_right(epochs, now, key=lambda epoch: epoch.time)
    return epochs[ended - 1].epoch if ended else None


def _alone(evidence: Evidence) -> list[str]:
    """Volunteers that made their updates alone for too long while others were there."""
    found = []
    for name in evidence.lives:
        for began, ended in _in_company(evidence, name):
            epochs = [epoch for epoch in evidence.epochs[name] if began < epoch.time < ended]
            for is_alone, group in itertools.groupby(epochs, key=lambda epoch: epoch.senders == 1):
                times = [epoch.time for epoch in group]
                if is_alone and times[-1] - times[0] > HEAL_SECONDS:
                    found.append(
                        f"{name} made {len(times)} updates alone for {times[-1] - times[0]:.0f} s from "
                        f"{_clock(evidence, times[0])}, beside others"
                    )
    return found


# -- the history -----------------------------------------------------------------------------------------------------


def _logged(evidence: Evidence) -> dict[int, int]:
    """Samples of each epoch, by the volunteers' logs."""
    logged: dict[int, int] = {}
    for epochs in evidence.epochs.values():
        for epoch in epochs:
            logged[epoch.epoch] = logged.get(epoch.epoch, 0) + epoch.samples
    return logged


def epochs_lost(evidence: Evidence) -> list[str]:
    """Epochs that volunteers have ended and the history does not have.

    If all were gone and came back with a checkpoint, what they had done since then has not become a part of the run.
    """
    missing = sorted(_logged(evidence).keys() - evidence.history.keys())
    when = {epoch.epoch: epoch.time for epochs in evidence.epochs.values() for epoch in epochs}
    gone_back = [
        (accident.began, max((life.epoch for life in _back_from(evidence, accident).values()), default=0))
        for accident in evidence.accidents
        if accident.kind == "everyone"
    ]
    return [
        f"epoch {epoch}, ended at {_clock(evidence, when[epoch])}"
        for epoch in missing
        if not any(when[epoch] < left_at and epoch > newest for left_at, newest in gone_back)
    ]


def epochs_doubled(evidence: Evidence) -> list[str]:
    """Epochs with more samples in the history than in all logs together."""
    logged = _logged(evidence)
    found = [
        f"epoch {epoch} has {samples} samples in the history, {logged.get(epoch, 0)} in the logs"
        for epoch, samples in sorted(evidence.history.items())
        if samples > logged.get(epoch, 0)
    ]
    for name, total in sorted(evidence.totals.items()):
        own = sum(epoch.samples for epoch in evidence.epochs.get(name, []))
        if total > own:
            found.append(f"{name} has {total} samples in the history, {own} in its log")
    return found


# -- weights and programs ----------------------------------------------------------------------------------------------


def weights_lost(evidence: Evidence) -> list[str]:
    """Returns of all volunteers that began before the newest checkpoint."""
    found = []
    for accident in evidence.accidents:
        saved = [epoch for time, epoch in evidence.checkpoints if time < accident.began]
        if accident.kind != "everyone" or not saved:
            continue
        found += [
            f"{name} came back at epoch {life.epoch} ({life.state}); the newest checkpoint was of {max(saved)}"
            for name, life in _back_from(evidence, accident).items()
            if life.epoch < max(saved)
        ]
    return found


def _back_from(evidence: Evidence, accident: Accident) -> dict[str, Life]:
    """The first life of each volunteer after an accident in which it came to train."""
    found: dict[str, Life] = {}
    for name, lives in evidence.lives.items():
        for life in lives:
            if life.began > accident.began and life.epoch is not None:
                found.setdefault(name, life)
    return found


def _clock(evidence: Evidence, moment: float) -> str:
    """Minutes and seconds since the part without faults began.

    >>> _clock(Evidence(began=100, calm_until=140, ended=300), 175.2)
    '1:15'
    """
    seconds = round(moment - evidence.began)
    return f"{'-' * (seconds < 0)}{abs(seconds) // 60}:{abs(seconds) % 60:02d}"
