"""The home page's replay of a recorded run: what happened at which time, and what the model drew.

The record is of benchmarks/swarm/recorded_run.py. Without JavaScript the page shows the whole run, whose lanes scroll;
site/javascripts/home/timeline.mjs shows the moment that the reader chooses.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from html import escape

from builder.benchmark_records import record
from builder.home.course import Moment, course_of, listed, moments_of, share_of
from builder.home.lanes import lanes_html
from calculator.figures.kit.drawing import Scale
from calculator.units import show_count

RECORD = "recorded_run"
TITLE = "One run, replayed"


def replay() -> str:
    """Makes the figure as one line of HTML for a page's text."""
    facts = record(RECORD)
    course, moments = course_of(facts), moments_of(facts)
    # The slider's first step after the death, so that the list tells of it.
    shown = math.ceil(2 * next(one.seconds for one in moments if one.key == "killed")) / 2
    controls = (
        '<div class="replay__controls with-script"><button type="button" class="small" data-slot="play">Play</button>'
        '<label for="timeline-time">Time</label><input type="range" id="timeline-time" min="0" step="0.5" '
        f'max="{course["seconds"]:.1f}" value="{shown:.1f}" autocomplete="off"><output for="timeline-time" '
        f'data-slot="time">{clock(shown)} of {clock(course["seconds"])}</output></div>'
    )
    return (
        '<figure class="figure timeline" id="figure-run" data-part="timeline" aria-labelledby="timeline-title" '
        f'data-course="{escape(json.dumps(course, separators=(",", ":")))}">'
        f'<h2 class="figure__title" id="timeline-title">{TITLE}</h2><p>{_about(facts)}</p>'
        f'<div class="timeline__top">{_film(facts, shown)}<div>{_state(facts, course)}{_whole(facts, course, moments)}'
        f"{controls}{lanes_html(facts, moments)}</div></div>{_list(moments)}"
        '<p class="figure__source">A light box shows computing, the higher the more samples; a full one shows '
        "an exchange of gradients. Times and samples are from the volunteers’ event logs, the loss from the monitor’s "
        "history. <code>benchmarks/swarm/recorded_run.py</code> makes such a run again.</p></figure>"
    )


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(125.9)
    '2:05'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _about(facts: dict) -> str:
    day = datetime.fromtimestamp(facts["began"], UTC)
    unequal = "; ".join(
        f"{name} {why}, and brings {share_of(facts, name):.0f} % of the samples"
        for name, why in facts["unequal"].items()
    )
    return (
        f"A recording of {day.day} {day:%B %Y}: {len(facts['volunteers'])} volunteers’ programs on one computer with "
        f"{facts['machine']['cores']} cores, as they would run on {len(facts['volunteers'])} computers. "
        f"They are unequal, as computers are: {unequal}."
    )


def _film(facts: dict, shown: float) -> str:
    """The pictures of all snapshots; with JavaScript only the newest at the chosen time is shown."""
    count = len(facts["snapshots"])
    drawn = [place for place, snapshot in enumerate(facts["snapshots"]) if snapshot[0] <= shown]
    prompts = facts["prompts"]
    side = math.ceil(math.sqrt(len(prompts)))
    frames = []
    for place, (_, epoch, right) in enumerate(facts["snapshots"]):
        look = ' class="now"' if place == (drawn[-1] if drawn else 0) else ""
        label = f"Drawn at epoch {epoch} for {', '.join(f'“{prompt}”' for prompt in prompts)}; {right} right"
        frames.append(
            f'<li{look}><div class="timeline__frame" role="img" aria-label="{escape(label)}" '
            f'style="background-size:100% {100 * count}%;'
            f'background-position:0 {100 * place / max(count - 1, 1):.3f}%"></div>'
            f"<p>epoch {epoch}: {right} of {len(prompts)} right</p></li>"
        )
    asked = "".join(f"<li>{escape(prompt)}</li>" for prompt in prompts)
    return (
        f'<div class="timeline__drawn" style="--side:{side}">'
        f'<ol class="timeline__film" data-slot="film">{"".join(frames)}</ol>'
        f'<ul class="timeline__prompts" aria-label="Captions that the model was given">{asked}</ul></div>'
    )


def _state(facts: dict, course: dict) -> str:
    """Epoch, loss, and each volunteer's samples; as the run ends, until the script says otherwise."""
    last = course["epochs"][-1]
    names = "".join(
        f'<li><span class="swatch" style="--swatch:var(--series-{place})"></span>{escape(one["name"])} '
        f'<output data-slot="brought">{_count(samples)}</output></li>'
        for place, (one, samples) in enumerate(zip(facts["volunteers"], last["samples"], strict=True), start=1)
    )
    return (
        f'<p class="timeline__state" data-slot="state">Epoch {last["epoch"]}, loss {last["loss"]:.2g}, by '
        f"{last['together']} volunteers</p>"
        f'<ul class="replay__runs timeline__names" aria-label="Samples of each volunteer in that epoch">{names}</ul>'
    )


def _count(samples: int | None) -> str:
    return "–" if samples is None else show_count(samples)


def _list(moments: list[Moment]) -> str:
    lines = "".join(
        f'<li><a href="#run-{one.key}" data-at="{one.seconds:.2f}">{clock(one.seconds)}</a> {escape(one.words)}</li>'
        for one in moments
    )
    return f'<ol class="timeline__moments">{lines}</ol>'


def _whole(facts: dict, course: dict, moments: list[Moment]) -> str:
    """The whole run at a glance: the loss, and below it the samples of each volunteer on top of each other."""
    losses = [(row["at"], row["loss"]) for row in course["epochs"] if row["loss"] is not None]
    across = Scale(0, course["seconds"], 0, 1000)
    up = Scale(min(loss for _, loss in losses), max(loss for _, loss in losses), 58, 2)
    stack = Scale(0, max(sum(filter(None, row["samples"])) for row in course["epochs"]), 100, 62)
    parts = []
    below = [0] * len(course["epochs"])
    for place in range(len(facts["volunteers"])):
        above = [low + (row["samples"][place] or 0) for low, row in zip(below, course["epochs"], strict=True)]
        ends = [across.at(row["at"]) for row in course["epochs"]]
        edge = [(x, stack.at(value)) for x, value in zip(ends, above, strict=True)]
        edge += [(x, stack.at(value)) for x, value in reversed([*zip(ends, below, strict=True)])]
        parts.append(f'<path class="fill-{place + 1}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in edge)}z"/>')
        below = above
    line = "L".join(f"{across.at(x):.1f} {up.at(loss):.1f}" for x, loss in losses)
    parts.append(f'<path class="line-ink" d="M{line}"/>')
    marks = "".join(
        f'<path class="dashed" d="M{across.at(one.seconds):.1f} 0V100"/>'
        for one in moments
        if one.key in ("killed", "back")
    )
    label = (
        f"Loss from {losses[0][1]:.2g} to {losses[-1][1]:.2g} over {clock(course['seconds'])} minutes; below, the "
        f"samples of {listed([one['name'] for one in facts['volunteers']])} in each epoch."
    )
    return (
        f'<div class="timeline__whole figure__drawing" role="img" aria-label="{escape(label)}">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}{marks}</svg>'
        '<div class="timeline__cursor with-script"></div></div>'
        '<p class="timeline__key">Line: loss. Bands: samples of each volunteer in an epoch, which is one update of the '
        "shared model.</p>"
    )
