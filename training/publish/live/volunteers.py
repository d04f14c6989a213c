"""The page of each volunteer of a run: what it has contributed, as JSON and as a picture to share.

A volunteer's program also asks here for what is counted of its own peer (`training.volunteer.terminal.counted`).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from training.publish.history.history import HistoryReader
from training.publish.live.picture import picture_of
from training.publish.live.rendered import Rendered, answer, render
from training.storage.whole import write_whole

PAGE = re.compile(r"[0-9a-f]{16}")
"""Pattern of a page's id."""
FOLDER = "volunteers"
PEERS = "/live/peers"
"""Address of the documents of single peers."""
_GONE = {"active": False, "samples_per_second": None}


def volunteer_document(history: HistoryReader, page: str, *, live: bool = True) -> dict:
    """Document of one volunteer: the run's name, and what the volunteer has contributed (`board.contribution`).

    Args:
        history: History of the run.
        page: Id of the volunteer's page.
        live: Whether a monitor watches the run now; without one no volunteer counts as active.

    Raises:
        KeyError: If no volunteer has this page.
    """
    found = history.contribution(page)
    if found is None:
        raise KeyError(page)
    run = json.loads(history.run_value("document") or "{}")
    return {"run_id": run.get("run_id"), "title": run.get("title"), **found, **({} if live else _GONE)}


def volunteer_routes(
    history: HistoryReader, current: Callable[[str], Awaitable[Rendered]], clock: Callable[[], float]
) -> list[Route]:
    """Makes the routes of the documents and pictures: `/live/volunteers/PAGE.json` and `.svg`, `/live/peers/ID.json`.

    Args:
        history: History of the run.
        current: Returns the rendered document of a page that exists.
        clock: Returns seconds since 1970.
    """

    async def rendered(request: Request) -> Rendered:
        page = request.path_params["page"]
        # Looked up first: a document that is computed is also kept, and anybody may ask for any number of pages.
        if not PAGE.fullmatch(page) or not await asyncio.to_thread(history.has_page, page):
            raise HTTPException(404)
        return await current(page)

    async def document(request: Request) -> Response:
        return answer(request, await rendered(request))

    async def picture(request: Request) -> Response:
        drawn = picture_of(json.loads((await rendered(request)).content))
        # A browser that opens the picture by itself loads nothing that the picture might name.
        headers = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(drawn, media_type="image/svg+xml", headers=headers)

    async def peer(request: Request) -> Response:
        # Not kept: it is as quickly computed as found.
        found = await asyncio.to_thread(history.peer, request.path_params["peer"])
        return JSONResponse({"last_seen": None, "samples": 0} | (found or {}) | {"time": clock()})

    address = f"/live/{FOLDER}/{{page}}"
    pages = [Route(f"{address}.json", document), Route(f"{address}.svg", picture)]
    return [*pages, Route(f"{PEERS}/{{peer}}.json", peer)]


def export_volunteers(history: HistoryReader, folder: Path) -> None:
    """Writes the documents and pictures of all volunteers as static files, in place of those of an earlier export.

    Args:
        history: History of the run.
        folder: Folder `live` of the export.
    """
    # An earlier export may name somebody who is anonymous now.
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    for page in history.pages():
        document = volunteer_document(history, page, live=False)
        (folder / FOLDER).mkdir(exist_ok=True)
        write_whole(folder / FOLDER / f"{page}.json", render(document))
        write_whole(folder / FOLDER / f"{page}.svg", picture_of(document))
