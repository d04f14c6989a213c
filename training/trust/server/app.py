"""The membership server's HTTP: challenges, tickets, the ban list, and the maintainers' page.

Strangers may send it anything, so bodies are bounded in size and time, requests are limited by address, and an answer
repeats nothing of its request. A proxy in front of the server does TLS.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import math
import sqlite3
from collections.abc import Callable
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from training.trust.proof import LARGEST_KEY_BYTES, LARGEST_PROOF_BYTES
from training.trust.refusals import REASONS, Refusal
from training.trust.server import desk as desks
from training.trust.server.desk import Desk, Kind
from training.trust.server.limits import RateLimit, asker
from training.trust.server.page import members_page, style
from training.trust.ticket import LINEAGE, PEER_ID

LARGEST_BODY_BYTES = 8192
BODY_SECONDS = 10.0
"""Longest time in which the body of a request must arrive."""
BUSY_SECONDS = 5.0
"""Pause that the server asks of clients while another program, such as a backup, locks the register."""
LIMITS = {
    "/challenge": {"per_second": 0.5, "at_once": 30},
    "/tickets": {"per_second": 0.5, "at_once": 30},
    "/bans": {"per_second": 20, "at_once": 200},
    "/page": {"per_second": 0.2, "at_once": 10},
}
"""Limits of requests from one address: many volunteers may share an address, and each asks for the ban list every few
seconds. The last limit bounds how fast the page's token can be guessed."""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


PeerId = Annotated[str, Field(pattern=rf"^{PEER_ID.pattern}$")]


class Credential(BaseModel):
    """Credential by which a peer asks to be admitted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind
    text: Annotated[str, Field(max_length=512, pattern=r"^[!-~]*$")] = ""
    """Hugging Face token, invitation code, or answer to a proof of work."""


class TicketRequest(BaseModel):
    """A peer's request for a ticket, with the proof of its id."""

    model_config = ConfigDict(extra="forbid", strict=True)

    peer_id: PeerId
    public_key: Annotated[str, Field(max_length=LARGEST_KEY_BYTES, pattern=r"^[ -~]*$")]
    """Public key as OpenSSH writes it."""
    nonce: Annotated[str, Field(max_length=80, pattern=r"^[0-9]{1,12}\.[0-9a-f]+\.[A-Za-z0-9_-]+$")]
    signature: Annotated[str, Field(max_length=LARGEST_PROOF_BYTES, pattern=r"^[A-Za-z0-9+/=]*$")]
    lineage: Annotated[str, Field(pattern=rf"^(?:{LINEAGE.pattern})$")]
    credential: Credential


def create_app(desk: Desk, *, page_token: str | None) -> FastAPI:
    """Builds the server's web application.

    Args:
        desk: Desk that gives the tickets.
        page_token: Password of the maintainers' page; None: no page.
    """
    app = FastAPI(title="Membership server of a collaborative training run", openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(400, _malformed)  # what is no JSON
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(sqlite3.OperationalError, _busy)

    @app.get("/challenge")
    def challenge(peer_id: PeerId) -> dict:
        admits = {"organizations": desk.policy.organizations, "work_bits": desk.policy.work_bits}
        return {"run_id": desk.register.run_id, "key": desk.key.public, "nonce": desk.nonce(peer_id), **admits}

    @app.post("/tickets")
    def tickets(asked: TicketRequest) -> dict:
        fields = asked.model_dump(exclude={"credential"})
        credential = {"kind": asked.credential.kind, "credential": asked.credential.text}
        return {"ticket": desk.give(desks.Request(**fields, **credential))}

    @app.get("/bans", response_class=PlainTextResponse)
    def bans(known: Annotated[int | None, Query(ge=0, le=10**12)] = None) -> str:
        return desk.bans(known)

    if page_token is not None:

        @app.get("/page", response_class=HTMLResponse)
        def page(request: Request) -> Response:
            if not _has_token(request, page_token):
                asks = {"www-authenticate": 'Basic realm="Members", charset="UTF-8"'}
                return PlainTextResponse("The page asks for the maintainers' token.", status_code=401, headers=asks)
            return HTMLResponse(members_page(desk))

        app.get("/page.css")(lambda: Response(style(), media_type="text/css"))
    # Outermost comes last: what it refuses reaches nothing else.
    app.add_middleware(_Door)
    return app


def _malformed(_request: Request, _error: Exception) -> JSONResponse:
    """Refuses a malformed request. FastAPI's own answer would repeat its contents, perhaps a token."""
    return JSONResponse({"refused": "malformed"}, status_code=422)


def _refused(_request: Request, refusal: Refusal) -> JSONResponse:
    assert refusal.reason in REASONS
    return _refusal(refusal)


def _busy(_request: Request, error: sqlite3.OperationalError) -> JSONResponse:
    """Answers 503 if another program locks the register. Raises any other fault of SQLite, which is then logged."""
    if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):  # above are kinds of these
        raise error
    return _refusal(Refusal("busy", seconds=BUSY_SECONDS))


def _refusal(refusal: Refusal) -> JSONResponse:
    seconds = math.ceil(refusal.seconds)
    headers = {"retry-after": str(seconds)} if seconds else {}
    return JSONResponse({"refused": refusal.reason, "seconds": seconds}, status_code=refusal.status, headers=headers)


def _has_token(request: Request, token: str) -> bool:
    """Returns whether the password of a request, by HTTP's basic authentication, is the token."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    try:
        password = base64.b64decode(text, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return False
    return kind.lower() == "basic" and hmac.compare_digest(password, token.encode())


class _Door:
    """ASGI middleware that bounds the size and time of requests, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, limit: Callable[..., RateLimit] = RateLimit):
        self._app = app
        self._limits = {path: limit(**rates) for path, rates in LIMITS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        # Requests that never come whole must not use up the permits of those who share an address.
        body = await _body(receive)
        refusal = Refusal("malformed") if body is None else self._too_fast(scope)
        if refusal is not None:
            await _refusal(refusal)(scope, receive, answer)
            return
        await self._app(scope, _once(body), answer)

    def _too_fast(self, scope: Scope) -> Refusal | None:
        limit = self._limits.get(scope["path"])
        address = (scope.get("client") or ("unknown",))[0]
        wait = limit.take(asker(address)) if limit is not None else 0.0
        return Refusal("too-fast", seconds=wait) if wait else None


async def _body(receive: Receive) -> bytes | None:
    """Receives the whole body of a request; None if it is too long or too slow, or the connection has ended."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                if len(body) > LARGEST_BODY_BYTES:
                    return None
                if not message.get("more_body"):
                    return bytes(body)
    except TimeoutError:
        return None


def _once(body: bytes) -> Receive:
    """Returns an ASGI `receive` that gives an application a body that is already here."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
