"""Web routes of a monitor's checkpoints, from which peers start where no other peer can send its state.

GET /checkpoints/index.json       the checkpoints, oldest first; see `training.checkpoints.serve.index`
GET /checkpoints/NAME/FILE        one file; a part of it with the header Range, so that a download can resume
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import FileResponse

from training.checkpoints.facts import FILES
from training.checkpoints.serve.index import index_of

INDEX_SECONDS = 2.0
"""Least seconds between two reads of the folder, however many peers ask."""
_NAME = re.compile(r"epoch-\d{6,18}")


def checkpoint_routes(folder: Path) -> APIRouter:
    """Makes the routes below `/checkpoints`; they serve only the four known files of checkpoints.

    Args:
        folder: Folder of the run's checkpoints; need not exist yet.
    """
    routes = APIRouter(prefix="/checkpoints")
    guard = threading.Lock()
    kept: tuple[float, bytes] = (-INDEX_SECONDS, b"")

    @routes.get("/index.json")
    def index() -> Response:
        nonlocal kept
        with guard:
            if time.monotonic() - kept[0] >= INDEX_SECONDS or not kept[1]:
                kept = (time.monotonic(), index_of(folder).model_dump_json().encode())
            return Response(kept[1], media_type="application/json")

    @routes.api_route("/{name}/{file}", methods=["GET", "HEAD"])
    def content(name: str, file: str) -> FileResponse:
        path = folder / name / file
        if not _NAME.fullmatch(name) or file not in FILES or not path.is_file():
            raise HTTPException(404)
        return FileResponse(path, media_type="application/octet-stream")

    return routes
