"""A finished run, recorded as static files in site/live, which `training.publish.live.live.export` writes.

During a run the monitor answers at the same addresses. If no run is recorded, the site gets an empty live/run.json, so
that the dashboard's first request does not fail.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from builder.dashboard.curves import loss_svg, spark_svg
from calculator.units import show_count, show_time
from training.publish.config import LEAST_SECONDS

EMPTY = {"live/run.json": "{}\n"}
"""Content of the files of a site without a recorded run, by address."""

SHOWN_SNAPSHOTS = 8
"""Number of recorded snapshots that the pages themselves show, evenly spread from the first to the last."""


def is_recorded(docs: Path) -> bool:
    """Returns whether `docs` holds a recorded run."""
    return (docs / "live" / "run.json").is_file()


def load_recorded(docs: Path) -> dict | None:
    """The data of the recorded run that the templates show, or None if no run is recorded.

    Raises:
        ValueError: If a file is not JSON, or no epoch has a loss.
    """
    if not is_recorded(docs):
        return None
    names = ("run", "state", "history", "losses", "leaderboard", "pictures")
    documents = {name: json.loads((docs / "live" / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    run, state = documents["run"], documents["state"]
    points = [(row["epoch"], row["loss"]) for row in documents["history"]["epochs"] if row["loss"] is not None]
    peers = [(row["epoch"], row["active_peers"]) for row in documents["history"]["epochs"]]
    if not points:
        raise ValueError("The recorded run in site/live has no epoch with a loss; remove it or record another.")
    volunteers = documents["leaderboard"]["volunteers"]
    people = f"{len(volunteers)} volunteers"
    if run.get("one_machine"):
        people = f"{len(volunteers)} volunteers’ programs on {_computer(run)}"
    ended = datetime.fromtimestamp(state["last_epoch_at"], UTC)
    each = {name: [(x, y) for x, y in pairs if y is not None] for name, pairs in documents["losses"]["peers"].items()}
    (first_epoch, first_loss), (last_epoch, last_loss) = points[0], points[-1]
    return {
        "run": run,
        "state": state,
        "sentence": f"Recorded on {ended.day} {ended:%B %Y}: {people}, {last_epoch} epochs.",
        "people": people,
        "loss_svg": loss_svg(points, {name: line for name, line in each.items() if line}),
        "spark_svg": spark_svg(points, peers) if len(points) > 1 else "",
        "loss_summary": f"Loss: {first_loss:.3g} at epoch {first_epoch}, {last_loss:.3g} at epoch {last_epoch}.",
        "tiles": {
            "epoch": f"{show_count(state['epoch'])} of {show_count(run['total_epochs'])}",
            "loss": f"{last_loss:.3g}",
            "active": show_count(len(volunteers)),
            "speed": _median_speed(documents["history"]["epochs"]),
            "samples": show_count(state["total_samples"]),
            "parameters": show_count(run["parameters"]) if run.get("parameters") else "–",
        },
        "glance": {
            "loss": f"{last_loss:.3g}",
            "active": show_count(len(volunteers)),
            "samples": show_count(state["total_samples"]),
        },
        "pictures": _shown_snapshots(documents["pictures"]),
        "writes": any("text" in one for snapshot in documents["pictures"]["snapshots"] for one in snapshot["pictures"]),
        "board": [
            {
                "place": place,
                "name": one["name"],
                "samples": show_count(one["samples"]),
                "share": _share(one["share"]),
                "time": show_time(one["seconds"]),
                "until": _until(one["last_seen"], documents["history"]["epochs"]),
            }
            for one, place in zip(volunteers, _places(volunteers), strict=True)
        ],
    }


def _computer(run: dict) -> str:
    return f"one computer with {run['cores']} cores" if run.get("cores") else "one computer"


def _median_speed(epochs: list[dict]) -> str:
    """Median of the epochs' samples per second, as javascripts/dashboard/page.mjs shows it of a run that is over."""
    speeds = [row["samples_per_second"] for row in epochs if row["samples_per_second"] is not None]
    return f"{statistics.median(speeds):.3g}" if speeds else "–"


def _until(last_seen: float, epochs: list[dict]) -> str:
    """How long a volunteer took part, as javascripts/dashboard/people.mjs says it of a run that is over."""
    seen = [row["epoch"] for row in epochs if row["time"] <= last_seen]
    if len(seen) == len(epochs):
        return "to the end"
    return f"until epoch {show_count(seen[-1])}" if seen else "before the first epoch"


def _places(volunteers: list[dict]) -> Iterator[str]:
    """Places of those who have computed for ten minutes, as javascripts/dashboard/people.mjs shows them."""
    place = 0
    for one in volunteers:
        place += (ranks := one["seconds"] >= LEAST_SECONDS)
        yield str(place) if ranks else "–"


def still_pictures(docs: Path) -> Iterator[tuple[str, Path]]:
    """(address, file) of the pictures that the pages show without JavaScript.

    They are copied out of live/: if a monitor serves this site, the addresses below live/ have the pictures of its run.
    """
    if is_recorded(docs):
        pictures = json.loads((docs / "live" / "pictures.json").read_text(encoding="utf-8"))
        for snapshot in _shown_snapshots(pictures):
            for picture in (one for one in snapshot["pictures"] if "still" in one):
                yield picture["still"], docs / picture["file"].lstrip("/")


def _shown_snapshots(document: dict) -> list[dict]:
    """The snapshots to show, the newest first: pictures with the address of their copy as `still`, or texts with their
    HTML as `written`."""
    drawn = [snapshot for snapshot in document["snapshots"] if snapshot["pictures"]]
    count = min(SHOWN_SNAPSHOTS, len(drawn))
    places = {round(place * (len(drawn) - 1) / max(count - 1, 1)) for place in range(count)}
    return [
        {
            **drawn[place],
            "pictures": [
                picture | (_written(picture) if "text" in picture else _still(picture))
                for picture in drawn[place]["pictures"]
            ],
        }
        for place in sorted(places, reverse=True)
    ]


def _still(picture: dict) -> dict[str, str]:
    return {"still": picture["file"].replace("/live/pictures/", "recorded/", 1)}


def _written(text: dict) -> dict[str, str]:
    """Escapes a recorded text for HTML, with line breaks as `&#10;`: Markdown might end the HTML at an empty line."""
    return {"written": escape(text["text"].strip() or "(nothing)").replace("\n", "&#10;")}


def _share(share: float | None) -> str:
    """A share in percent, as javascripts/dashboard/people.mjs shows it."""
    if share is None:
        return "–"
    return f"{100 * share:.1g} %" if share < 0.01 else f"{100 * share:.0f} %"
