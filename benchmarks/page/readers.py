"""Readers of a run's live API: `READERS` pages that ask for the state at intervals, and `STREAMS` open event streams.

    python benchmarks/page/readers.py PORT SECONDS

asks a server on this machine for so long, and prints a JSON object with the times of all answers and the number of
states that the streams have sent. Each reader asks for the state every two seconds, and at each new epoch for all that
a page asks for, as a page without a stream does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

READERS, STREAMS = 200, 200
READER_PAUSE_SECONDS = 2.0


class Reader:
    """One reader's connection: HTTP by hand, because a client library would take more CPU time than the server."""

    def __init__(self, port: int):
        self._port = port
        self._etags: dict[str, str] = {}
        self._opened: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.milliseconds: list[float] = []

    async def ask(self, name: str) -> bytes:
        """The answer to a request for /live/NAME; empty if it has not changed."""
        began = time.monotonic()
        try:
            status, headers, content = await self._exchange(name)
        except (ConnectionError, asyncio.IncompleteReadError):
            # As a browser does: the server closes connections on which nothing was asked for some seconds.
            self._opened = None
            status, headers, content = await self._exchange(name)
        self.milliseconds.append(1000 * (time.monotonic() - began))
        if status not in ("200", "304"):
            raise RuntimeError(f"{name}: {status}")
        self._etags[name] = headers["etag"]
        return content

    async def _exchange(self, name: str) -> tuple[str, dict[str, str], bytes]:
        """Status, headers and content of an answer."""
        if self._opened is None:
            self._opened = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._opened
        etag = self._etags.get(name, "")
        head = f"GET /live/{name} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nIf-None-Match: {etag}\r\n\r\n"
        writer.write(head.encode())
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)}
        return status.split()[1], headers, await reader.readexactly(int(headers.get("content-length", 0)))

    async def read(self, number: int, until: float) -> None:
        """Asks as a page without a stream does."""
        epoch = None
        await asyncio.sleep(READER_PAUSE_SECONDS * number / READERS)
        while time.monotonic() < until:
            state = await self.ask("state.json")
            now = json.loads(state)["epoch"] if state else epoch
            if now != epoch:
                since = f"since={(epoch or now) - 2}"
                epoch = now
                names = (f"history.json?{since}", f"losses.json?most=24&{since}", "leaderboard.json?most=100")
                for name in (*names, "pictures.json", "events.json"):
                    await self.ask(name)
            await asyncio.sleep(READER_PAUSE_SECONDS)


async def listen(port: int, until: float) -> int:
    """How many states a stream has sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /live/events HTTP/1.1\r\nHost: x\r\n\r\n")
    states = 0
    while time.monotonic() < until:
        states += (await reader.readline()).startswith(b"data: ")
    writer.close()
    return states


async def read_all(port: int, seconds: float) -> tuple[list[float], int]:
    """Readers and streams at once: the milliseconds of every answer, and the number of states streamed."""
    until = time.monotonic() + seconds
    readers = [Reader(port) for _ in range(READERS)]
    _, states = await asyncio.gather(
        asyncio.gather(*(reader.read(number, until) for number, reader in enumerate(readers))),
        asyncio.gather(*(listen(port, until) for _ in range(STREAMS))),
    )
    return [one for reader in readers for one in reader.milliseconds], sum(states)


if __name__ == "__main__":
    answers, streamed = asyncio.run(read_all(int(sys.argv[1]), float(sys.argv[2])))
    print(json.dumps({"milliseconds": answers, "states": streamed}))
