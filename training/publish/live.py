"""Publishes a run: the live API along with the site, and the same documents as static files.

Every document is made from the history alone; the API serves it and `export` writes it to a file.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from training.config import RunConfig
from training.errors import BadInput, TrainingError, reason_of
from training.publish.history import History, HistoryReader
from training.storage.whole import write_whole

UPDATED_EVERY_SECONDS = 2
"""How often dashboards are asked to poll."""

KEPT_SECONDS = 0.5
"""A document is computed at most once in this time, however many dashboards ask."""

_NO_SITE = "The site is not built here. The run's data: /live/state.json, /recipe.toml\n"


def store_run(
    history: History,
    run: RunConfig,
    recipe_toml: str,
    *,
    initial_peers: list[str],
    join_command: str,
    parameters: int,
    one_machine: bool = False,
) -> None:
    """Stores the content of `/live/run.json` and `/recipe.toml` in the history, so that it outlives the monitor."""
    document = {
        "run_id": run.run_id,
        "title": run.title,
        "description": run.description,
        "recipe_digest": run.digest,
        "initial_peers": initial_peers,
        "join_command": join_command,
        "target_batch_size": run.swarm.target_batch_size,
        "total_epochs": run.schedule.total_epochs,
        "parameters": parameters,
        "prompts": list(run.monitor.prompts),
        "one_machine": one_machine,
    }
    history.set_run_value("document", json.dumps(document))
    history.set_run_value("recipe.toml", recipe_toml)


def run_document(history: HistoryReader, *, live: bool = True) -> dict:
    """Which run this is and how to join it; a run that is over cannot be joined."""
    stored = history.run_value("document")
    if stored is None:
        raise TrainingError(f"{history.path} holds no run yet; start its monitor first.")
    over = {} if live else {"initial_peers": [], "join_command": ""}
    return {**json.loads(stored), "started_at": float(history.run_value("started_at") or 0), **over}


def state_document(history: HistoryReader, *, now: float, live: bool = True) -> dict:
    """The run's current state. Without a monitor (`live` false) no peer counts as active, whatever the history says."""
    last = history.last_epoch() or {"epoch": None, "loss": None, "time": None}
    active_peers = history.active_peers() if live else 0
    if last["epoch"] is not None and last["epoch"] >= run_document(history)["total_epochs"]:
        status = "finished"
    elif not live:
        status = "stopped"
    else:
        status = "running" if active_peers else "waiting"
    return {
        "time": now,
        "status": status,
        "epoch": last["epoch"],
        "loss": last["loss"],
        "samples_per_second": history.samples_per_second() if live else None,
        "active_peers": active_peers,
        "total_samples": history.total_samples(),
        "last_epoch_at": last["time"],
        "updated_every_seconds": UPDATED_EVERY_SECONDS,
    }


def leaderboard_document(history: HistoryReader, *, live: bool = True) -> dict:
    """What each volunteer has contributed. Without a monitor no volunteer counts as active."""
    volunteers = history.leaderboard()
    if not live:
        volunteers = [{**volunteer, "active": False, "samples_per_second": None} for volunteer in volunteers]
    return {"volunteers": volunteers}


def pictures_document(history: HistoryReader) -> dict:
    """The fixed prompts as they were drawn, with the addresses of the pictures."""
    snapshots = history.snapshots()
    for snapshot in snapshots:
        for picture in snapshot["pictures"]:
            picture["file"] = f"/live/pictures/{picture['file']}"
    return {"snapshots": snapshots}


DOCUMENTS = ("run", "state", "history", "losses", "leaderboard", "pictures", "events")
"""Names of the documents: `/live/NAME.json` each."""


def compute_document(name: str, history: HistoryReader, *, now: float, live: bool = True) -> dict:
    """One of `DOCUMENTS`; `live` says whether a monitor watches the run now."""
    match name:
        case "run":
            return run_document(history, live=live)
        case "state":
            return state_document(history, now=now, live=live)
        case "history":
            return {"epochs": history.epochs()}
        case "losses":
            return {"peers": history.losses()}
        case "leaderboard":
            return leaderboard_document(history, live=live)
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
    clock: Callable[[], float] = time.time,
) -> FastAPI:
    """The live API, the recipe, the checkpoints, the shards and the site, as one application.

    Args:
        history: Read again for each document; `store_run` must have been called.
        pictures: Folder of the drawn pictures, served below /live/pictures.
        checkpoints: Folder of the run's checkpoints, served below /checkpoints.
        shards: Folder of the prepared shards, served below /shards, so that volunteers can stream from here.
        site: Folder of the built site, served at /.
        clock: Seconds since the epoch; a test passes its own.
    """
    # Python's table depends on the system, and browsers refuse modules and WebAssembly of another type.
    for media_type, suffix in [("text/javascript", ".mjs"), ("application/wasm", ".wasm"), ("text/plain", ".toml")]:
        mimetypes.add_type(media_type, suffix)
    documents = _Documents(history, clock)
    app = FastAPI(title="Live API of a collaborative training run", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_Headers)

    # Before the general route, which would match this address, too, and ignore `since`.
    @app.get("/live/history.json")
    def epochs(request: Request, since: int | None = None) -> Response:
        if since is None:
            return _json(request, documents.rendered("history"))
        return _json(request, render({"epochs": history.epochs(since)}))

    @app.get("/live/{name}.json")
    def document(request: Request, name: str) -> Response:
        if name not in DOCUMENTS:
            raise HTTPException(404)
        return _json(request, documents.rendered(name))

    @app.get("/recipe.toml")
    def recipe() -> PlainTextResponse:
        return PlainTextResponse(history.run_value("recipe.toml"))

    # The folder appears only with the first drawing, hence `check_dir=False`.
    app.mount("/live/pictures", StaticFiles(directory=pictures, check_dir=False))
    if checkpoints is not None:
        from training.publish.offered import checkpoint_routes  # here, because it loads torch

        app.include_router(checkpoint_routes(checkpoints))
    if shards is not None:
        app.mount("/shards", StaticFiles(directory=shards))

    # Last: a mount at / answers every address that no earlier route has matched.
    if site is not None:
        app.mount("/", StaticFiles(directory=site, html=True))
    else:
        app.get("/")(lambda: PlainTextResponse(_NO_SITE))
    return app


def export(history: HistoryReader, folder: Path, *, pictures: Path, clock: Callable[[], float] = time.time) -> None:
    """Writes a finished run as static files: the same documents under the same paths.

    Args:
        history: The run.
        folder: Gets `live/*.json`, `live/pictures/` and `recipe.toml`; usually the built site.
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
        write_whole(folder / "recipe.toml", history.run_value("recipe.toml") or "")
        for snapshot in history.snapshots():
            for picture in snapshot["pictures"]:
                target = live / "pictures" / picture["file"]
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(pictures / picture["file"], target)
    except OSError as error:
        raise BadInput(
            f"The run cannot be exported to {folder}: {reason_of(error)}.", cure="Give a folder that you may write to."
        ) from None


def render(document: dict) -> bytes:
    """JSON as it is served and written; never NaN, which browsers refuse."""
    return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


class _Documents:
    """Rendered documents, each cached for `KEPT_SECONDS`."""

    def __init__(self, history: HistoryReader, clock: Callable[[], float]):
        self._history = history
        self._clock = clock
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._guard = threading.Lock()

    def rendered(self, name: str) -> bytes:
        # Held while computing, so that many dashboards at once cost one computation.
        with self._guard:
            now = time.monotonic()
            made_at, content = self._kept.get(name, (-KEPT_SECONDS, b""))
            if not content or now - made_at >= KEPT_SECONDS:
                content = render(compute_document(name, self._history, now=self._clock()))
                self._kept[name] = (now, content)
            return content


def _json(request: Request, content: bytes) -> Response:
    etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    # `in`, because the header may list several, or mark one as weak (W/).
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"etag": etag})
    return Response(content, media_type="application/json", headers={"etag": etag})


class _Headers:
    """Adds the headers of every response: revalidate before using a cached copy, and do not guess the type."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"cache-control", b"no-cache"),
                    (b"x-content-type-options", b"nosniff"),
                ]
            await send(message)

        await self._app(scope, receive, send_with_headers)
