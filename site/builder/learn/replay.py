"""Replay of three runs that one volunteer attacks: losses after each update and events, from a record.

Without JavaScript, the page shows the whole runs (site/javascripts/replay.mjs shows them up to an update).
"""

from __future__ import annotations

import json
from html import escape

from builder.benchmark_records import record
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.units import show_count

RECORD = "attacked_runs"
TITLE = "One attack, three runs"
RUNS = {
    "mean": ("1", "Everybody is let in, averages by the mean"),
    "centered-clip": ("2", "Everybody is let in, averages by CenteredClip"),
    "tickets": ("3", "Members only, averages by the mean"),
}
"""Run -> number of its colour, and its name for readers."""
MARKED = {"attack": ("attack", "end"), "banned": ("ban", "start"), "back": ("back", "start")}
"""Events that the drawing marks -> label, and the end of the label that is at the line."""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
HEIGHT = 280


def attacked_runs() -> str:
    """Makes the figure as one line of HTML for a page's text.

    Raises:
        ValueError: If the attack did not begin at the same update in all runs: the page says that it did.
    """
    runs = {run["run"]: run for run in record(RECORD)["courses"]}
    if len({_event(run, "attack")["update"] for run in runs.values()}) > 1:
        raise ValueError(f"The attacks in benchmarks/results/{RECORD}.json begin at several updates; record it again.")
    last = min(len(run["losses"]) for run in runs.values())
    losses = {name: runs[name]["losses"][:last] for name in RUNS}
    wide, narrow = (_drawing(losses, runs["tickets"]["events"], narrow=narrow) for narrow in (False, True))
    names = "".join(
        f'<li><span class="swatch" style="--swatch:var(--series-{colour})"></span>{escape(words)}: loss '
        f'<output data-run="{name}">{losses[name][-1]:.2f}</output></li>'
        for name, (colour, words) in RUNS.items()
    )
    steps = "".join(f'<li data-update="{update}">{words}</li>' for update, words in _steps(runs["tickets"]))
    return (
        f'<figure class="figure replay" id="figure-replay" data-part="replay" aria-labelledby="replay-title" '
        f'data-losses="{escape(json.dumps(losses))}"><p class="figure__title" id="replay-title">{TITLE}</p>'
        '<div class="replay__controls with-script"><button type="button" class="small" data-slot="play">Play</button>'
        '<label for="replay-update">Update</label>'
        f'<input type="range" id="replay-update" min="1" max="{last}" value="{last}" autocomplete="off">'
        f'<output for="replay-update" data-slot="update">{last} of {last}</output></div>'
        '<div class="figure__stage"><div class="figure__drawing" data-search-exclude role="img" '
        f'aria-label="{escape(_label(losses))}"><div class="figure__wide">{wide}</div>'
        f'<div class="figure__narrow">{narrow}</div></div></div>'
        f'<ul class="replay__runs">{names}</ul><ol class="replay__steps">{steps}</ol>'
        '<p class="figure__source">Source: runs of the programs that volunteers start, on one machine '
        "(<code>benchmarks/attacks/attacks.py attacked_runs</code>); losses in nats per token, of the honest."
        "</p></figure>"
    )


def attack() -> dict[str, str]:
    """Facts about the attacked runs for the page's text."""
    facts = record(RECORD)
    runs = {run["run"]: run for run in facts["courses"]}
    lost, clipped, members = (runs[name] for name in RUNS)
    back = _event(members, "back")
    return {
        "factor": _factor(),
        "volunteers": show_count(facts["volunteers"]),
        "first_update": str(_event(lost, "attack")["update"]),
        "lost": f"{lost['losses'][-1]:.0f}",
        "before": f"{min(lost['losses']):.1f}",
        "clipped": f"{clipped['losses'][-1]:.2f}",
        "banned_seconds": f"{_event(members, 'banned')['seconds']:.0f}",
        "back_seconds": f"{back['seconds']:.0f}",
        "back_epoch": str(back["to_epoch"]),
        "highest": f"{max(members['losses'][_event(members, 'attack')['update'] :]):.1f}",
    }


def _factor() -> str:
    """Factor by which the hostile volunteer multiplies its gradients, as text."""
    return f"{record(RECORD)['factor']:.0f}".replace("-", "−")


def _event(run: dict, kind: str) -> dict:
    return next(event for event in run["events"] if event["kind"] == kind)


def _steps(run: dict) -> list[tuple[int, str]]:
    """Events of a run, each with its update; without the attack in the run of members."""
    refused, attack_, noticed, banned, back = (
        _event(run, kind) for kind in ("refused", "attack", "noticed", "banned", "back")
    )
    return [
        (refused["update"], f"{refused['who'].title()} has no invitation to the members’ run, and is refused."),
        (
            attack_["update"],
            f"Update {attack_['update']}: in all three, mallory sends its gradients times {_factor()}.",
        ),
        (
            noticed["update"],
            f"Update {noticed['update']}: the maintainer of the members’ run sees that the loss rises, "
            f"{noticed['seconds']:.0f} s after the attack began.",
        ),
        (banned["update"], f"Update {banned['update']}: the maintainer bans mallory, and asks the run to go back."),
        (
            back["update"],
            f"Update {back['update']}: the members go on from epoch {back['to_epoch']}, {back['seconds']:.0f} s after "
            "the attack began. Mallory is in no group any more.",
        ),
    ]


def _label(losses: dict[str, list[float]]) -> str:
    ends = "; ".join(f"{words}: {losses[name][-1]:.2f}" for name, (_, words) in RUNS.items())
    return f"Loss after each update of three runs, on a logarithmic axis. After {len(losses['mean'])} updates: {ends}."


def _drawing(losses: dict[str, list[float]], events: list[dict], *, narrow: bool) -> str:
    """Axes with words, and the curves in a drawing of their own, whose end the script cuts off."""
    canvas, curves = Canvas(narrow=narrow), Canvas(narrow=narrow)
    values = [loss for run in losses.values() for loss in run]
    last = len(losses["mean"])
    across = Scale(1, last, 34 if narrow else 44, canvas.width - 12)
    up = Scale(min(values) / 1.1, max(values) * 1.1, HEIGHT - 34, 26, logarithmic=True)
    for tick in TICKS:
        if up.low <= tick <= up.high:
            canvas.line(across.start, up.at(tick), across.end, up.at(tick))
            canvas.text(across.start - 6, up.at(tick) + 4, str(tick), "soft", anchor="end")
    for update in (1, *range(20, last + 1, 20)):
        canvas.text(across.at(update), HEIGHT - 16, str(update), "soft", anchor="middle")
    canvas.text((across.start + across.end) / 2, HEIGHT - 1, "updates", "soft", anchor="middle")
    canvas.text(0, 10, "loss", "soft")
    for event in events:
        if event["kind"] in MARKED:
            word, anchor = MARKED[event["kind"]]
            x = across.at(event["update"])
            canvas.line(x, 20, x, up.start, "dashed")
            canvas.text(x + (4 if anchor == "start" else -4), 14, word, "soft", anchor=anchor)
    for name, (colour, _) in RUNS.items():
        points = [(across.at(number), up.at(loss)) for number, loss in enumerate(losses[name], start=1)]
        curves.polyline(points, f"line-{colour}")
    ends = f'data-from="{100 * across.start / canvas.width:.2f}" data-to="{100 * across.end / canvas.width:.2f}"'
    # Before the axes, whose words then lie over the curves: tools that check contrast must see their background.
    return f'<div class="replay__curves" {ends}>{curves.html(HEIGHT)}</div>{canvas.html(HEIGHT)}'
