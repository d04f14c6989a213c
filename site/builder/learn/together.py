"""The page Train together: three peers that train in the reader's browser, and a recorded run for each switch.

The record is of benchmarks/swarm/together.py, which also says how to train. Without JavaScript, the page shows the
recorded runs; site/javascripts/together/page.mjs starts the peers.
"""

from __future__ import annotations

import itertools
import json
import math
from html import escape

from builder.benchmark_records import record
from builder.markup.links import site_link
from builder.markup.tables import stacked
from calculator.swarm.settings import DEFAULTS
from calculator.units import show_count

RECORD = "together"
PEERS = ("ada", "grace", "alan")
CONTROLS = {
    "bits": ("A value travels in", (("32", "32 bits"), ("8", "8 bits"), ("1", "1 bit"))),
    "pace": (
        "Peers exchange",
        (("awaited", "at each update"), ("delayed", "one update late"), ("local", "at every 10th")),
    ),
    "hostile": ("Alan is", (("", "honest"), ("alan", "hostile"))),
    "clip": ("The average is", (("", "the mean"), ("1", "CenteredClip"))),
}
"""Switch -> its label, and for each value its words; the first one is chosen at first."""
LOSSES = (0.0003, 10.0)
"""Ends of the axis of losses."""
TICKS = (0.001, 0.01, 0.1, 1.0, 10.0)


def figure() -> str:
    """Makes the figure as one line of HTML for a page's text."""
    content = record(RECORD)
    settings, names = content["settings"], content["drawings"]["names"]
    runs = {name: {"switches": run["switches"], "losses": run["losses"]} for name, run in content["runs"].items()}
    setup = {"settings": settings, "drawings": content["drawings"], "runs": runs, "axis": LOSSES, "peers": PEERS}
    controls = "".join(_radios(name, *control) for name, control in CONTROLS.items())
    size = settings["side"] * len(names["shapes"])
    label = f"Pictures of the model: a row for each colour ({', '.join(names['colours'])}), a column for each shape "
    label += f"({', '.join(names['shapes'])})"
    peers = "".join(_peer(place, name) for place, name in enumerate(PEERS, start=1))
    plain = content["runs"]["plain"]
    source = (
        "Framed pictures: captions that the model never trains on. A picture counts as right if no other caption’s "
        "true picture is as near to it. Loss: mean squared difference to the true pictures. The recorded run was "
        "made by three programs of our trainer on one computer (<code>benchmarks/swarm/together.py</code>)."
    )
    return (
        '<figure class="figure together" id="figure-together" data-part="together" aria-labelledby="together-title" '
        f'data-setup="{escape(json.dumps(setup, separators=(",", ":")))}">'
        '<h2 class="figure__title" id="together-title">Three peers train</h2>'
        f'<div class="figure__controls with-script">{controls}</div>'
        '<p class="together__start with-script"><button type="button" class="md-button md-button--primary" '
        'data-slot="start">Train</button> <span role="status" data-slot="state">It takes some seconds of three of your '
        "processor’s cores.</span></p>"
        '<div class="together__stage"><div class="together__drawn">'
        f'<img src="{site_link("images/together.png")}" width="{size}" height="{size}" '
        f'alt="{escape(label)}, at the end of the recorded run">'
        f'<canvas class="with-script" width="{size}" height="{size}" role="img" aria-label="{escape(label)}" hidden>'
        f"</canvas>{_frames(content)}</div><div>{_plot(plain['losses'], settings['updates'])}</div></div>"
        f'<p data-slot="right">Recorded run after {settings["updates"]} updates: '
        f"{right_words(plain['right'], plain['right_unseen'], content)}</p>"
        f'<div class="with-script"><ul class="together__peers">{peers}</ul></div>'
        f'<p class="figure__source">{source}</p></figure>'
    )


def right_words(right: int, right_unseen: int, content: dict) -> str:
    """How many pictures are right, in words; `rightWords` of the script has the same."""
    names, unseen = content["drawings"]["names"], len(content["drawings"]["unseen"])
    seen = len(names["colours"]) * len(names["shapes"]) - unseen
    return f"{right} of {seen} pictures are right, and {right_unseen} of {unseen} that it never trains on."


def _radios(name: str, label: str, options: tuple[tuple[str, str], ...]) -> str:
    radios = "".join(
        f'<label><input type="radio" name="{name}" value="{value}" autocomplete="off"'
        f"{'' if place else ' checked'}><span>{words}</span></label>"
        for place, (value, words) in enumerate(options)
    )
    return f'<fieldset class="control"><legend>{label}</legend>{radios}</fieldset>'


def _peer(place: int, name: str) -> str:
    """What is known of a peer, and the button that ends its worker."""
    title = name.title()
    return (
        f'<li data-peer="{name}"><p>{_swatch(f"--series-{place}")}<strong>{title}</strong> '
        '<span data-slot="doing">waits for you</span></p>'
        '<p data-slot="share">No part of the batch</p><p data-slot="samples">No samples yet</p>'
        '<p data-slot="bytes">Nothing sent</p>'
        f'<button type="button" class="small" data-slot="drop" disabled>Drop {title}</button></li>'
    )


def _frames(content: dict) -> str:
    """Frames around the pictures of captions that the model never trains on."""
    drawings = content["drawings"]
    rows, columns = (len(drawings["names"][kind]) for kind in ("colours", "shapes"))
    frames = "".join(
        f'<rect x="{shape + 0.04}" y="{colour + 0.04}" width="0.92" height="0.92"/>'
        for colour, shape in drawings["unseen"]
    )
    return f'<svg viewBox="0 0 {columns} {rows}" aria-hidden="true">{frames}</svg>'


def height_of(loss: float) -> float:
    """Place of a loss in the plot, in percent from the top; `heightOf` of the script has the same."""
    low, high = LOSSES
    loss = min(max(loss, low), high)
    return 100 * math.log(high / loss) / math.log(high / low)


def _plot(losses: list[list[float]], updates: int) -> str:
    """Axes, the recorded curve, and an empty one that the script fills."""
    lines = "".join(f'<path class="grid" d="M0 {height_of(tick):.1f}H{updates}"/>' for tick in TICKS)
    points = "L".join(f"{update} {height_of(loss):.2f}" for update, loss in losses)
    words = "".join(f'<span style="top:{height_of(tick):.1f}%">{tick:g}</span>' for tick in TICKS)
    label = f"Loss of the recorded run: {losses[0][1]:.2g} at first, {losses[-1][1]:.2g} after {updates} updates"
    return (
        f'<div class="together__plot figure__drawing" role="img" aria-label="{label}" data-slot="plot">{words}'
        f'<svg viewBox="0 0 {updates} 100" preserveAspectRatio="none" aria-hidden="true">{lines}'
        f'<path class="dashed" data-slot="recorded" d="M{points}"/><path class="line-1" data-slot="earlier"/>'
        f'<path class="line-ink" data-slot="own"/></svg></div>'
        f'<p class="together__axis">Loss, over {updates} updates. {_swatch("--ink")}this page '
        f"{_swatch('--series-1')}its run before; dashed: the recorded run</p>"
    )


def _swatch(colour: str) -> str:
    return f'<span class="swatch" style="--swatch:var({colour})"></span>'


def runs_table() -> str:
    """Table of the recorded runs."""
    content = record(RECORD)
    unseen = len(content["drawings"]["unseen"])
    rows = [
        (
            _name(run["switches"]),
            _loss(run["losses"][-1][1]),
            f"{run['right']} and {run['right_unseen']}",
            _kilobytes(run),
            f"{run['seconds']:.2f} s",
        )
        for run in content["runs"].values()
    ]
    right = f"Right, and of {unseen} never trained on"
    head = ("Recorded run", "Last loss", right, "Sent in an exchange", "Between exchanges")
    return stacked("Recorded runs", head, rows)


def _loss(loss: float) -> str:
    return f"{loss:.4f}" if loss < 1 else show_count(round(loss))


def _name(switches: dict) -> str:
    words = [f"{switches['bits']} bits"] if "bits" in switches else []
    words += [f"exchange {dict(CONTROLS['pace'][1])[switches['pace']]}"] if "pace" in switches else []
    words += ["hostile peer"] * bool(switches.get("hostile")) + ["CenteredClip"] * bool(switches.get("clip"))
    words += ["a peer is killed"] * bool(switches.get("drop"))
    return escape(", ".join(words) or "32 bits, mean, at each update")


def facts() -> dict:
    """Facts about the model and the recorded runs for the page's text, by name; those of a run by its name."""
    content = record(RECORD)
    sizes = content["settings"]["sizes"]
    runs = {name.replace("-", "_"): run | {"sent": _kilobytes(run)} for name, run in content["runs"].items()}
    parameters = show_count(sum((into + 1) * out for into, out in itertools.pairwise(sizes)))
    return {
        "batch": content["settings"]["batch"],
        "parameters": parameters,
        "sparse_kept": DEFAULTS.sparse_kept,
        **runs,
    }


def _kilobytes(run: dict) -> str:
    return f"{show_count(round(run['bytes'] / 1000))} kB"
