"""What happened in a recorded run, by time: the epochs of each volunteer, and the moments that a story tells."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.units import show_count


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """An epoch of one volunteer; times are seconds since the run began."""

    number: int
    began: float
    found: float
    """Time at which its group was found, and its average began."""
    ready: float
    """Time at which it had computed its samples, and began to look for a group."""
    ended: float
    samples: int
    together: int
    """Volunteers in its update."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """Something that happened, in words."""

    seconds: float
    key: str
    words: str


def epochs_of(volunteer: dict, columns: list[str]) -> list[Epoch]:
    """Epochs of a volunteer from its rows; computing begins when the last epoch has ended, or when it has joined."""
    rows = [dict(zip(columns, row, strict=True)) for row in volunteer["epochs"]]
    joined = [life[0] for life in volunteer["lives"]]
    found, last = [], 0.0
    for row in rows:
        ended = row["time"]
        began = max([last, *(moment for moment in joined if moment < ended)])
        averaging = min(row["averaging_seconds"], ended - began)
        ready = max(began, ended - averaging - row["waiting_seconds"])
        found.append(
            Epoch(
                number=row["epoch"],
                began=began,
                ready=ready,
                found=ended - averaging,
                ended=ended,
                samples=row["samples"],
                together=row["senders"],
            )
        )
        last = ended
    return found


def moments_of(facts: dict) -> list[Moment]:
    """What happened in the run, in its order.

    Raises:
        ValueError: If nobody was killed, or nobody averaged again, since the page tells of both.
    """
    volunteers = {one["name"]: one for one in facts["volunteers"]}
    killed = [(end, name) for name, one in volunteers.items() for _, end, how in one["lives"] if how == "killed"]
    again = [
        moment for one in volunteers.values() for moment, text in one["warnings"] if killed and "averaged again" in text
    ]
    if not killed or not any(moment > killed[0][0] for moment in again):
        raise ValueError("Nobody was killed in the middle of an average in the recorded run; record it again.")
    died, victim = killed[0]
    first, *returns = (life[0] for life in volunteers[victim]["lives"])
    early = [name for name in volunteers if name != victim]
    rows = {name: epochs_of(one, facts["columns"]) for name, one in volunteers.items()}
    exchange = min(one.found for every in rows.values() for one in every if one.together > 1)
    repeated = min(moment for moment in again if moment > died)
    number, seconds, loss, _ = facts["history"][-1]
    samples = sum(row[3] for row in facts["history"])
    found = [
        Moment(
            seconds=max(volunteers[name]["lives"][0][0] for name in early),
            key="joined",
            words=f"{listed(early)} are there, and compute.",
        ),
        Moment(
            seconds=exchange,
            key="first",
            words=f"Together they have {show_count(facts['target_batch_size'])} samples: they find each other as a "
            "group, and exchange parts of their gradients.",
        ),
        Moment(seconds=first, key="newcomer", words=f"{victim.title()} comes, with the others’ weights."),
        Moment(seconds=died, key="killed", words=f"{victim.title()} is killed in the middle of an exchange."),
        Moment(
            seconds=repeated,
            key="again",
            words=f"{repeated - died:.1f} s later, the others have repeated the exchange without it, and go on.",
        ),
        *(
            Moment(seconds=one, key="back", words=f"{victim.title()} is back, and goes on with them.")
            for one in returns
        ),
        Moment(
            seconds=seconds,
            key="end",
            words=f"Epoch {number} is done: {show_count(samples)} samples, loss {loss:.2g}.",
        ),
    ]
    return sorted(found, key=lambda one: one.seconds)


def course_of(facts: dict) -> dict:
    """Facts for the script: length of the run, and by time the epochs, the snapshots and the moments."""
    ended: dict[int, list[Epoch | None]] = {}
    for place, one in enumerate(facts["volunteers"]):
        for epoch in epochs_of(one, facts["columns"]):
            ended.setdefault(epoch.number, [None] * len(facts["volunteers"]))[place] = epoch
    losses = {number: loss for number, _, loss, _ in facts["history"]}
    epochs = [
        {
            "at": min(one.ended for one in row if one),
            "epoch": number,
            "loss": losses.get(number),
            "samples": [one.samples if one else None for one in row],
            "together": max(one.together for one in row if one),
        }
        for number, row in sorted(ended.items())
    ]
    return {
        "seconds": seconds_of(facts),
        "epochs": epochs,
        "snapshots": [snapshot[0] for snapshot in facts["snapshots"]],
        "moments": [round(one.seconds, 2) for one in moments_of(facts)],
    }


def seconds_of(facts: dict) -> float:
    """Length of the replay: to the last update, and a second more."""
    return facts["history"][-1][1] + 1


def share_of(facts: dict, name: str) -> float:
    """Percent of all samples that are a volunteer's."""
    brought = {
        one["name"]: sum(epoch.samples for epoch in epochs_of(one, facts["columns"])) for one in facts["volunteers"]
    }
    return 100 * brought[name] / sum(brought.values())


def listed(names: list[str]) -> str:
    """Names as a sentence begins with them.

    >>> listed(["ada", "alan", "grace"])
    'Ada, alan and grace'
    """
    text = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
    return text[0].upper() + text[1:]
