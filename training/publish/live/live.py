"""Publishes a run: the live API along with the site, and the same documents as static files.

Every document is made from the history alone; the API serves it and `export` writes it to a file.
"""

from __future__ import annotations

import json
import mimetypes
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from training.errors import BadInput, TrainingError, reason_of
from training.publish.history.history import History, HistoryReader
from training.publish.history.run_state import RECENT_EPOCHS, Facts, state_of_run
from training.publish.live.rendered import Rendered, RenderedDocuments, answer, render
from training.publish.live.stream import Broadcast, stream_routes
from training.publish.live.volunteers import export_volunteers, volunteer_document, volunteer_routes
from training.publish.live.watch import Watch, watched_of
from training.recipe import RunConfig
from training.storage.whole import write_whole

UPDATED_EVERY_SECONDS = 2
"""Interval at which dashboards are asked to poll."""

_NO_SITE = "The site is not built here. The run's data: /live/state.json, /recipe.toml\n"


def store_run(
    history: History,
    run: RunConfig,
    recipe_toml: str,
    *,
    initial_peers: list[str],
    join_command: str,
    parameters: int,
    least_memory_bytes: int | None = None,
    sent_bytes: int | None = None,
    reconstruction_error: float | None = None,
    servers: Sequence[str] = (),
    one_machine: bool = False,
) -> None:
    """Stores the content of `/live/run.json` and `/recipe.toml` in the history, so that it outlives the monitor.

    Args:
        history: History of the run.
        run: Its recipe.
        recipe_toml: The recipe's text.
        initial_peers: Addresses of the servers, for newcomers.
        join_command: Command of newcomers.
        parameters: Number of trained parameters.
        least_memory_bytes: Memory with which a computer without a GPU can take part; None: not known.
        sent_bytes: Most bytes that a volunteer sends for an epoch; None: not known.
        reconstruction_error: Mean squared error of the codec of pictures, of colours from 0 to 1; None: not known.
        servers: Ids of the peers that volunteers trust on the run's lineage and checkpoints.
        one_machine: Whether all volunteers are programs on this machine, whose cores are then stored as well.
    """
    document = {
        "run_id": run.run_id,
        "kind": run.kind,
        "title": run.title,
        "description": run.description,
        "recipe_digest": run.digest,
        "initial_peers": initial_peers,
        "servers": list(servers),
        "join_command": join_command,
        "target_batch_size": run.swarm.target_batch_size,
        "total_epochs": run.schedule.total_epochs,
        "parameters": parameters,
        "least_memory_bytes": least_memory_bytes,
        "sent_bytes": sent_bytes,
        "reconstruction_error": reconstruction_error,
        "prompts": list(run.monitor.prompts),
        "one_machine": one_machine,
        "cores": os.cpu_count() if one_machine else None,
    }
    history.set_run_value("document", json.dumps(document))
    history.set_run_value("recipe.toml", recipe_toml)


def run_document(history: HistoryReader, *, live: bool = True) -> dict:
    """Document `run`: the run's name and how to join it; a run that is over has no join command."""
    stored = history.run_value("document")
    if stored is None:
        raise TrainingError(f"{history.path} holds no run yet; start its monitor first.")
    over = {} if live else {"initial_peers": [], "servers": [], "join_command": ""}
    return {**json.loads(stored), "started_at": float(history.run_value("started_at") or 0), **over}


def state_document(history: HistoryReader, *, now: float, live: bool = True, watch: Watch | None = None) -> dict:
    """Document `state`: the run's current state. Without a monitor (`live` false) nobody counts as active.

    Args:
        history: History of the run.
        now: Seconds since the epoch.
        live: Whether a monitor watches the run now.
        watch: View of that monitor; None: only the history is known.
    """
    last = history.last_epoch() or {"epoch": None, "loss": None, "time": None}
    facts = _facts(history, last["epoch"], now=now, watch=watch)
    state = state_of_run(facts, live=live)
    watches = live and state.status != "stopped"
    return {
        "time": now,
        "status": state.status,
        "cause": state.cause,
        "remedy": state.remedy,
        "epoch": last["epoch"],
        "loss": last["loss"],
        "samples_per_second": facts.samples_per_second if watches else None,
        "active_peers": facts.active_peers if watches else 0,
        "total_samples": history.total_samples(),
        "last_epoch_at": last["time"],
        "updated_every_seconds": UPDATED_EVERY_SECONDS,
        "stream": live,
    }


def _facts(history: HistoryReader, epoch: int | None, *, now: float, watch: Watch | None) -> Facts:
    """Collects the facts on which the state of a run at this epoch depends."""
    return Facts(
        now=now,
        total_epochs=run_document(history)["total_epochs"],
        epochs=history.epochs(epoch - RECENT_EPOCHS) if epoch is not None else (),
        active_peers=history.active_peers(),
        samples_per_second=history.samples_per_second(),
        last_seen=history.last_seen(),
        watched=watch.watched if watch is not None else watched_of(history),
        is_watched=watch is not None or history.is_watched(),
        sight=watch.sight() if watch is not None else None,
    )


def history_document(history: HistoryReader, *, since: int | None = None, points: int | None = None) -> dict:
    """Document `history`: the epochs, the losses on held-out samples and, unless `since` is given, the branches.

    Has all epochs, those after `since`, or `points` means of the older epochs and each of the newest.
    """
    if since is not None:
        return {"epochs": history.epochs(since), "held_out": history.held_out(since)}
    epochs = history.epochs() if points is None else history.thinned_epochs(points)
    return {"epochs": epochs, "held_out": history.held_out(), "branches": history.branches()}


def losses_document(
    history: HistoryReader, *, since: int | None = None, points: int = 1000, most: int | None = None
) -> dict:
    """Document `losses`: losses of all volunteers, or of the `most` who have contributed most."""
    names = history.first_names(most) if most is not None else None
    return {"peers": history.losses(points, since=since if since is not None else -1, names=names)}


def leaderboard_document(
    history: HistoryReader,
    *,
    live: bool = True,
    hours: int | None = None,
    most: int | None = None,
    offset: int = 0,
) -> dict:
    """Document `leaderboard`: contributions of all volunteers, or of `most` after the first `offset`.

    Without a monitor (`live` false) no volunteer counts as active. `contributors` counts those who have computed for
    `least_seconds`, as the paper counts them.

    Args:
        history: History of the run.
        live: Whether a monitor watches the run now.
        hours: Hours until now that count; None: the whole run.
        most: Largest number of volunteers.
        offset: Number of volunteers to skip.
    """
    volunteers = history.leaderboard(hours=hours, most=most, offset=offset)
    if not live:
        volunteers = [{**volunteer, "active": False, "samples_per_second": None} for volunteer in volunteers]
    return {"volunteers": volunteers, "hours": hours, **history.count_contributors(hours=hours)}


def pictures_document(history: HistoryReader) -> dict:
    """Document `pictures`: addresses of the pictures of the fixed prompts, or the texts that continue them."""
    snapshots = history.snapshots()
    for snapshot in snapshots:
        for picture in snapshot["pictures"]:
            if "file" in picture:
                picture["file"] = f"/live/pictures/{picture['file']}"
    return {"snapshots": snapshots}


DOCUMENTS = ("run", "state", "history", "losses", "leaderboard", "pictures", "events")
"""Names of the documents, which are served at `/live/NAME.json`."""


def compute_document(
    name: str,
    history: HistoryReader,
    *,
    now: float,
    live: bool = True,
    watch: Watch | None = None,
    part: dict[str, int] | None = None,
) -> dict:
    """Computes one of `DOCUMENTS`. `live` says whether a monitor watches the run;
    `part` chooses a part of a long document.

    Raises:
        TypeError: If the document has no part of this kind.
    """
    part = part or {}
    match name:
        case "run":
            return run_document(history, live=live)
        case "state":
            return state_document(history, now=now, live=live, watch=watch)
        case "history":
            return history_document(history, **part)
        case "losses":
            return losses_document(history, **part)
        case "leaderboard":
            return leaderboard_document(history, live=live, **part)
        case "pictures":
            return pictures_document(history)
        case "events":
            return {"events": history.events()}
        case _:
            raise KeyError(name)


def create_app(
    history: HistoryReader,
    *,
    pictures: Path,
    checkpoints: Path | None = None,
    shards: Path | None = None,
    site: Path | None = None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """Builds one web application of the live API, the recipe, the checkpoints, the shards and the site.

    Args:
        history: History of the run, read again for each document; `store_run` must have been called.
        pictures: Folder of the drawn pictures, served below /live/pictures.
        checkpoints: Folder of the run's checkpoints, served below /checkpoints.
        shards: Folder of the prepared shards, served below /shards, so that volunteers can stream from here.
        site: Folder of the built site, served at /.
        watch: View of the monitor; None: only the history is known.
        clock: Seconds since the epoch; a test passes its own.
    """
    for media_type, suffix in [("text/javascript", ".mjs"), ("application/wasm", ".wasm"), ("text/plain", ".toml")]:
        mimetypes.add_type(media_type, suffix)
    app = FastAPI(title="Live API of a collaborative training run", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Headers)
    app.router.routes.extend(_document_routes(history, watch, clock))

    # Before the general route, which would match this address, too, and ignore `since`.
    @app.get("/recipe.toml")
    def recipe() -> PlainTextResponse:
        return PlainTextResponse(history.run_value("recipe.toml"))

    drawn = StaticFiles(directory=pictures, check_dir=False)
    drawn.config_checked = True  # the folder appears only with the first drawing; until then nothing is found there
    app.mount("/live/pictures", drawn)
    if checkpoints is not None:
        from training.checkpoints.serve.offered import checkpoint_routes  # here, because it loads torch

        app.include_router(checkpoint_routes(checkpoints))
    if shards is not None:
        app.mount("/shards", StaticFiles(directory=shards))

    # Last: a mount at / answers every address that no earlier route has matched.
    if site is not None:
        app.mount("/", StaticFiles(directory=site, html=True))
    else:
        app.get("/")(lambda: PlainTextResponse(_NO_SITE))
    return app


PARTS = {
    "history": ("since", "points"),
    "losses": ("since", "points", "most"),
    "leaderboard": ("hours", "most", "offset"),
}
"""Documents with parts, and the parameters by which a request chooses one."""
LEAST = {"since": -2, "points": 1, "hours": 1, "most": 1, "offset": 0}
"""Smallest value of each parameter."""
LARGEST = 10**9


def _document_routes(history: HistoryReader, watch: Watch | None, clock: Callable[[], float]) -> list[Route]:
    """Makes the routes of the documents, whole and in parts, and of the stream of states.

    The routes are Starlette's: FastAPI's take several times as long, and there may be hundreds of requests per second.
    """
    documents = RenderedDocuments()

    def is_over() -> bool:
        return watch is not None and watch.is_over

    async def current(name: str, part: dict[str, int]) -> Rendered:
        # In the key, because after the monitor's end a document from before it is wrong, however new it is.
        key = (name, is_over(), *part.items())
        compute = partial(compute_document, name, history, now=clock(), watch=watch, part=part)
        return await documents.current(key, compute, version=watch.version if watch is not None else 0)

    async def state() -> bytes:
        return (await current("state", {})).content

    async def document(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in DOCUMENTS:
            raise HTTPException(404)
        if name == "state" and watch is not None:
            watch.asked()
        return answer(request, await current(name, _part(name, request)))

    async def volunteer(page: str) -> Rendered:
        compute = partial(volunteer_document, history, page)
        version = watch.version if watch is not None else 0
        return await documents.current(("volunteer", page), compute, version=version)

    volunteers = volunteer_routes(history, volunteer, clock)
    return [Route("/live/{name}.json", document), *volunteers, *stream_routes(Broadcast(state, is_over))]


def _part(name: str, request: Request) -> dict[str, int]:
    """Reads from a request the part of a document that it asks for.

    Raises:
        HTTPException: 422 if a parameter is not a number, or too small or large.
    """
    part = {}
    for parameter in PARTS.get(name, ()):
        if (given := request.query_params.get(parameter)) is None:
            continue
        if not re.fullmatch(r"-?\d{1,10}", given) or not LEAST[parameter] <= int(given) <= LARGEST:
            told = f"{parameter} is {given!r}; give a whole number from {LEAST[parameter]} to {LARGEST}."
            raise HTTPException(422, told)
        part[parameter] = int(given)
    return part


def export(history: HistoryReader, folder: Path, *, pictures: Path, clock: Callable[[], float] = time.time) -> None:
    """Writes a run as static files: the documents of the live API, under the paths of the live API.

    Args:
        history: History of the run.
        folder: Folder for `live/*.json`, `live/pictures/` and `recipe.toml`; usually the built site.
        pictures: Folder of the drawn pictures.
        clock: Seconds since the epoch, for the time of the export.

    Raises:
        BadInput: If `folder` cannot be written.
    """
    live = folder / "live"
    try:
        live.mkdir(parents=True, exist_ok=True)
        for name in DOCUMENTS:
            write_whole(live / f"{name}.json", render(compute_document(name, history, now=clock(), live=False)))
        export_volunteers(history, live)
        write_whole(folder / "recipe.toml", history.run_value("recipe.toml") or "")
        for snapshot in history.snapshots():
            for picture in (one for one in snapshot["pictures"] if "file" in one):
                target = live / "pictures" / picture["file"]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(pictures / picture["file"], target)
    except OSError as error:
        raise BadInput(
            f"The run cannot be exported to {folder}: {reason_of(error)}.", cure="Give a folder that you may write to."
        ) from None


_FOR_ALL_SITES = {"access-control-allow-origin": "*", "access-control-expose-headers": "date"}
"""Headers by which a browser lets pages of other sites read the run's documents. One site may thus show many runs;
the documents are public, and no request for them changes anything."""


class _Headers:
    """ASGI middleware that adds headers to every response: revalidate a cached copy, and do not guess the type.
    Pages of other sites may read what is below /live/.

    It also removes the host from redirects: Starlette uses the host that the request names, a stranger's or a proxy's.
    """

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({"cache-control": "no-cache", "x-content-type-options": "nosniff"})
                if scope["path"].startswith("/live/"):
                    headers.update(_FOR_ALL_SITES)
                if "location" in headers:
                    headers["location"] = _path_of(headers["location"])
            await send(message)

        await self._app(scope, receive, send_with_headers)


def _path_of(url: str) -> str:
    """Returns an address of this server without scheme and host.

    >>> _path_of("http://elsewhere.example//calculator/?gpu=t4")
    '/calculator/?gpu=t4'
    """
    parts = urlsplit(url)
    return urlunsplit(("", "", "/" + parts.path.lstrip("/"), parts.query, ""))
