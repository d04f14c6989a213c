"""The state of a run: one of `STATUSES`, with its cause and what to do about it, in sentences for people.

`state_of_run` decides from `Facts` alone: contents of the history, and the current observations of a monitor. Without a
monitor, as in an export, it says how the monitor ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from calculator.units import show_number, show_time

if TYPE_CHECKING:  # pages read a history where hivemind is not installed
    from training.swarm.node.metrics import PeerRecord

Status = Literal["waiting", "running", "slow", "split", "stopped", "failed", "finished"]

STATUSES: tuple[Status, ...] = ("waiting", "running", "slow", "split", "stopped", "failed", "finished")
"""`waiting`: nobody trains. `split`: volunteers train apart from each other. `stopped`: on purpose. `failed`: by a
fault."""

RECENT_EPOCHS = 500
"""Epochs whose median is the run's usual speed."""
KNOWN_EPOCHS = 10
"""With fewer epochs than these a run has no usual speed."""
SLOW_SHARE = 0.3
"""A run below this share of its usual speed is slow."""
OVERDUE_TIMES, OVERDUE_SECONDS, FIRST_OVERDUE_SECONDS = 6, 60.0, 180.0
"""An epoch is overdue after the first number times the mean duration of the last epochs, but at least after the second
in seconds. The first epochs, before there is a mean, are overdue after the third."""
APART_EPOCHS = 3
"""Volunteers whose epochs differ by this number, in addition to the delay of records, do not average together: a
volunteer that is two epochs behind downloads the others' state."""
APART_SECONDS = 30.0
"""Time for which epochs must differ before the run counts as split: newcomers catch up in less."""
SILENT_SECONDS = 30.0
"""Time after which a DHT or servers that do not answer count as a fault."""
SHOWN_NAMES = 3
"""Volunteers that a sentence names; it counts the others."""

_JOIN = "The join page has the command with which anybody can take part."
_DOCTOR = (
    "On a volunteer's machine, python -m training doctor with the same recipe and addresses says what is in the way. "
    "Of two peers for whom no server relays, as with --client-mode, one needs an open port."
)
_RESTART = "To go on, start the monitor again with the same --run-dir; it keeps this history and the last checkpoint."


@dataclass(frozen=True, kw_only=True, slots=True)
class Sight:
    """Observations of a running monitor that it does not write into the history."""

    since: float
    """Time at which the monitor started, in seconds since 1970 as all times here."""
    volunteers: tuple[PeerRecord, ...] = ()
    groups: tuple[tuple[PeerRecord, ...], ...] = ()
    """Volunteers who can average with each other; see `groups_of`."""
    apart_since: float | None = None
    """Time since which there are several groups; None while there is at most one."""
    unmet: tuple[PeerRecord, ...] = ()
    """Volunteers who average with nobody although others train; see `training.publish.history.unmet`."""
    answered_at: float | None = None
    """Time at which the DHT answered last; None: not yet."""
    servers: int = 0
    """Bootstrap peers that the monitor knows; 0: not known."""
    servers_answering: int = 0
    servers_silent_seconds: float = 0.0
    """Time since the last answer of any bootstrap peer."""
    fault: str = ""
    """A fault of the monitor's own, as a sentence, such as that its disk is full."""
    fault_cure: str = ""
    members_server_away_since: float | None = None
    """Time since which the monitor has seen nothing of the membership server;
    None: the server is there, or the run is open."""
    mended: str = ""
    """Damage of the history that this monitor found when it started, and what it did; empty if there was none."""
    loss_fault: str = ""
    """Fault of the run's loss, from `training.checkpoints.sanity`; empty if there is none."""
    saved_epoch: int = 0
    """Epoch of the last checkpoint; 0: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """Last monitor of a run, as `training.publish.live.watch` writes it into the history."""

    state: Literal["watching", "stopped", "failed"]
    since: float
    """Time at which that monitor started."""
    at: float
    """Time at which the monitor stopped or failed; while it watches, time of its last note."""
    volunteers: int = 0
    """Number of volunteers at that time."""
    cause: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything on which the state of a run depends."""

    now: float
    total_epochs: int
    epochs: Sequence[dict] = ()
    """The history's last rows, at most `RECENT_EPOCHS`, oldest first."""
    active_peers: int = 0
    """Peers whose records have not expired."""
    samples_per_second: float | None = None
    """Speed of all active peers together."""
    last_seen: float | None = None
    """Time at which the history's latest record of any peer came."""
    watched: Watched | None = None
    """The last monitor; None if the history does not name it."""
    is_watched: bool = True
    """True if a monitor runs now."""
    sight: Sight | None = None
    """Observations of the running monitor; None if only the history is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunState:
    """Status of a run, for people."""

    status: Status
    cause: str = ""
    """Cause of the status, in a sentence; empty if the run goes on as it should, or has finished."""
    remedy: str = ""
    """Remedy, in a sentence; empty if there is nothing to do."""


def state_of_run(facts: Facts, *, live: bool = True) -> RunState:
    """Judges the state of the run; with `live` false, for an export, which has no monitor."""
    if facts.epochs and facts.epochs[-1]["epoch"] >= facts.total_epochs:
        return RunState(status="finished")
    if not live:
        return _ended(facts)
    if facts.watched is not None and facts.watched.state == "stopped":
        return _stopped(facts.watched)
    sight = facts.sight
    if sight is not None and (fault := _fault(facts, sight)) is not None:
        return fault
    if sight is not None and sight.apart_since is not None and facts.now - sight.apart_since >= APART_SECONDS:
        return _split(sight)
    return _idle(facts) or _spoiled(sight) or _all_unmet(sight) or _slow(facts) or _some_unmet(sight) or _running(sight)


def groups_of(volunteers: Sequence[PeerRecord], *, most_apart: int) -> tuple[tuple[PeerRecord, ...], ...]:
    """Volunteers who can average with each other, the most advanced group first.

    Two volunteers are in different groups if their lineages differ, or if more than `most_apart` epochs lie between
    their epochs and no volunteer is in between. Newcomers who have not downloaded the state yet are in no group.
    """
    there = sorted(
        (one for one in volunteers if one.status in ("training", "waiting")),
        key=lambda one: (one.lineage or "", -one.epoch),
    )
    groups: list[list[PeerRecord]] = []
    for one in there:
        last = groups[-1][-1] if groups else None
        if last is None or last.lineage != one.lineage or last.epoch - one.epoch > most_apart:
            groups.append([])
        groups[-1].append(one)
    return tuple(sorted(map(tuple, groups), key=lambda group: -group[0].epoch))


def most_apart(epochs: Sequence[dict], *, stale_seconds: float) -> int:
    """Epochs by which records of volunteers who train together may differ.

    Args:
        epochs: The last rows of the history, oldest first.
        stale_seconds: Largest age of the record of a volunteer that trains; the epochs of this time are added.
    """
    seconds = seconds_per_epoch(epochs)
    return APART_EPOCHS - 1 + (round(2 * stale_seconds / seconds) if seconds else 0)


def seconds_per_epoch(epochs: Sequence[dict]) -> float | None:
    """Mean duration of the last twenty epochs; None with fewer than three."""
    times = [row["time"] for row in epochs[-20:]]
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) >= 3 else None


def _ended(facts: Facts) -> RunState:
    """State of a run as its history alone tells it, without a monitor or in an export."""
    watched = facts.watched
    if facts.is_watched:
        cause = f"This is a copy of the run, made on {_when(facts.now)} while its monitor ran."
        return RunState(status="stopped", cause=cause, remedy="The run's own page shows how it went on.")
    match watched.state if watched is not None else None:
        case "stopped":
            return _stopped(watched)
        case "failed":
            return RunState(
                status="failed",
                cause=f"The monitor ended by a fault on {_when(watched.at)}: {watched.cause}",
                remedy=f"Mend what it names. {_RESTART}",
            )
        case "watching":
            after = max(watched.at, facts.last_seen or 0.0)
            return RunState(
                status="failed",
                cause=f"The monitor ended after {_when(after)} without being asked to: it was killed, it crashed, or "
                "its machine went down.",
                remedy=_RESTART,
            )
    return RunState(status="stopped", remedy=_RESTART)


def _stopped(watched: Watched) -> RunState:
    count = watched.volunteers
    there = "no volunteer was there" if not count else f"{_people(count)} {_were(count)} there and may train on"
    cause = f"The maintainer stopped the monitor on purpose on {_when(watched.at)}; {there}."
    return RunState(status="stopped", cause=cause, remedy=_RESTART)


def _fault(facts: Facts, sight: Sight) -> RunState | None:
    if sight.fault:
        return RunState(status="failed", cause=sight.fault, remedy=sight.fault_cure)
    silent = facts.now - (sight.answered_at if sight.answered_at is not None else sight.since)
    if silent >= SILENT_SECONDS:
        return RunState(
            status="failed",
            cause=f"The monitor's own DHT node has not answered for {show_time(silent)}, so this page cannot say who "
            "trains.",
            remedy="Look at the monitor's terminal. If this lasts, start the monitor again.",
        )
    cut_off = sight.servers and not sight.servers_answering and sight.servers_silent_seconds >= SILENT_SECONDS
    if cut_off and not facts.active_peers:
        none = (
            "The run's bootstrap peer has not"
            if sight.servers == 1
            else f"None of the run's {sight.servers} servers has"
        )
        return RunState(
            status="failed",
            cause=f"{none} answered the monitor for {show_time(sight.servers_silent_seconds)}, and it sees no "
            "volunteer. Volunteers who know each other may train on.",
            remedy="Start the bootstrap peer again with the same --state-dir and port; the monitor calls it again and "
            "again.",
        )
    return None


def _split(sight: Sight) -> RunState:
    groups = sight.groups
    told = "; ".join(f"{_names(group)} at epoch {group[0].epoch}" for group in groups[:SHOWN_NAMES])
    if len({group[0].lineage for group in groups}) > 1:
        cause = f"The volunteers train {len(groups)} different runs of the same name: {told}."
    else:
        cause = f"The volunteers train in {len(groups)} groups that do not meet: {told}."
    return RunState(
        status="split",
        cause=cause,
        remedy="Groups that reach a common server find each other within a minute. If this lasts, stop the smaller "
        "group's volunteers and let them join again with the command of the join page.",
    )


def _all_unmet(sight: Sight | None) -> RunState | None:
    """Returns the state `split` if no volunteer averages with any other."""
    if sight is None or not sight.unmet or len(sight.unmet) < len(_training(sight)):
        return None
    return RunState(
        status="split",
        cause=f"{_names(sight.unmet)} do not reach each other: each of them trains a model of its own.",
        remedy=_DOCTOR,
    )


def _some_unmet(sight: Sight | None) -> RunState | None:
    """Returns `running` with a cause if some volunteers average with nobody, and the others with each other."""
    if sight is None or not sight.unmet:
        return None
    one = len(sight.unmet) == 1
    averages, trains = ("averages", "it trains a model of its own") if one else ("average", "they train on their own")
    return RunState(
        status="running",
        cause=f"{_names(sight.unmet)} {averages} with nobody, because the others are out of reach; {trains}.",
        remedy=_DOCTOR,
    )


def _running(sight: Sight | None) -> RunState:
    """Returns `running`, with a cause if the run is about to have trouble."""
    if sight is None or sight.members_server_away_since is None:
        return _mended(sight) or RunState(status="running")
    return RunState(
        status="running",
        cause=f"The membership server has not answered since {_when(sight.members_server_away_since)}: members train "
        "on until their tickets end, nobody new can join, and nobody hears of a ban.",
        remedy="Start the membership server again, and look whether its address answers from elsewhere.",
    )


def _mended(sight: Sight | None) -> RunState | None:
    """Returns `running` with a cause if the monitor found a damaged history; its curves may lack epochs."""
    if sight is None or not sight.mended:
        return None
    remedy = "Look at the disk. The training is not concerned: volunteers and checkpoints have the weights."
    return RunState(status="running", cause=sight.mended, remedy=remedy)


def _training(sight: Sight) -> list[PeerRecord]:
    return [one for one in sight.volunteers if one.status == "training"]


def _idle(facts: Facts) -> RunState | None:
    """Returns `waiting` if nobody trains."""
    sight = facts.sight
    if facts.active_peers:
        return (_arriving(facts, sight.volunteers) or _alone(sight.volunteers)) if sight is not None else None
    if facts.last_seen is None:
        return RunState(status="waiting", cause="No volunteer has joined yet.", remedy=_JOIN)
    if sight is not None and facts.last_seen < sight.since:
        return RunState(
            status="waiting",
            cause=f"The monitor started on {_when(sight.since)} and has seen no volunteer since. Those of before have "
            "left, or have not found the run's servers again yet.",
            remedy=f"Volunteers who are still there call the servers again and again. {_JOIN}",
        )
    return RunState(
        status="waiting",
        cause=f"No volunteer is there since {_when(facts.last_seen)}.",
        remedy=f"The run goes on from its last state as soon as somebody joins. {_JOIN}",
    )


def _spoiled(sight: Sight | None) -> RunState | None:
    """Returns `failed` if the loss is far above its earlier values."""
    if sight is None or not sight.loss_fault:
        return None
    to = sight.saved_epoch
    back = f"let the run go back to its last checkpoint (restore --to {to})" if to else "begin anew (restore --to 0)"
    return RunState(
        status="failed",
        cause=f"Something is wrong with the run: {sight.loss_fault}. No checkpoint is taken meanwhile.",
        remedy=f"If somebody has spoiled the weights, ban them and {back}. If the loss may be so high, set "
        "max_loss_rise = 0 in the recipe's [monitor] and start the monitor again.",
    )


def _arriving(facts: Facts, volunteers: Sequence[PeerRecord]) -> RunState | None:
    """Returns `waiting` if nobody trains, and all volunteers look for the run's weights."""
    if not volunteers or not facts.epochs or any(one.status != "joining" for one in volunteers):
        return None
    look, have = ("look", "have") if len(volunteers) > 1 else ("looks", "has")
    return RunState(
        status="waiting",
        cause=f"Nobody trains now. {_names(volunteers)} {have} come and {look} for the weights of epoch "
        f"{facts.epochs[-1]['epoch']}, for up to a minute; then the newest ones that anybody holds are taken.",
        remedy="The newest may lie on the disk of a volunteer who was there before, or in the last checkpoint.",
    )


def _alone(volunteers: Sequence[PeerRecord]) -> RunState | None:
    """Returns `waiting` if all volunteers wait for others, or pause."""
    waiting = [one for one in volunteers if one.status != "paused"]
    if volunteers and not waiting:
        return RunState(
            status="waiting",
            cause=f"{_names(volunteers)} {'pause' if len(volunteers) > 1 else 'pauses'}: by choice, by the hours, or "
            "because the machine is on battery, hot or in use.",
            remedy=f"They go on by themselves. {_JOIN}",
        )
    volunteers = waiting
    if not volunteers or any(one.status != "waiting" for one in volunteers):
        return None
    waits = "wait" if len(volunteers) > 1 else "waits"
    return RunState(
        status="waiting",
        cause=f"{_names(volunteers)} {waits} for others: alone, a volunteer's small batches would carry the weights "
        "away from what the run has learned.",
        remedy=f"A second volunteer is enough. {_JOIN}",
    )


def _slow(facts: Facts) -> RunState | None:
    """Returns `slow` if an epoch is overdue or the speed is far below the usual speed."""
    rows = facts.epochs
    if rows:
        quiet, usual = facts.now - rows[-1]["time"], seconds_per_epoch(rows)
        longest = FIRST_OVERDUE_SECONDS if usual is None else max(OVERDUE_SECONDS, OVERDUE_TIMES * usual)
        if quiet > longest:
            normal = f"; usually one takes {show_time(usual)}" if usual is not None else ""
            return RunState(
                status="slow",
                cause=f"No epoch was finished for {show_time(quiet)}{normal}.",
                remedy="Volunteers may be leaving or joining, and their averages failing: that passes when they have "
                "met again. If it lasts, a volunteer's terminal says why.",
            )
    speeds = [row["samples_per_second"] for row in rows if row["samples_per_second"] is not None]
    now = facts.samples_per_second
    if len(speeds) < KNOWN_EPOCHS or now is None:
        return None
    usual = statistics.median(speeds)
    # The last epochs count too: a volunteer's record says 0 for a moment when it has just come back.
    if max(now, *speeds[-3:]) >= SLOW_SHARE * usual:
        return None
    people = round(statistics.median(row["active_peers"] for row in rows))
    return RunState(
        status="slow",
        cause=f"The run computes {show_number(now)} samples per second, {100 * now / usual:.0f} % of its usual "
        f"{show_number(usual)}; {_people(facts.active_peers)} {_are(facts.active_peers)} there, usually {people}.",
        remedy=f"More volunteers make it faster. {_JOIN}",
    )


def _names(volunteers: Sequence[PeerRecord]) -> str:
    names = sorted(one.name for one in volunteers)
    more = len(names) - SHOWN_NAMES
    if more > 0:
        return f"{', '.join(names[:SHOWN_NAMES])} and {more} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _people(count: int) -> str:
    return "1 volunteer" if count == 1 else f"{count} volunteers"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _when(seconds: float) -> str:
    """Formats a time for a sentence, such as "22 November 2026 at 19:40 UTC"; readers live in all time zones."""
    time = datetime.fromtimestamp(seconds, UTC)
    return f"{time.day} {time:%B %Y at %H:%M UTC}"
