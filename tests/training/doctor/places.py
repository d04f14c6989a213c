"""What the doctor's tests make real: servers that misbehave, disks and networks of one program, a run's server."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import ROOT, run_program

HERE = Path(__file__).parent
CAN_UNSHARE = sys.platform == "linux" and run_program(["unshare", "-rmn", "true"]).returncode == 0
"""True if this machine lets programs have mounts and networks of their own."""

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]
"""Answers one request."""


def file_of(content: bytes | str, *, status: int = 200, **headers: str) -> Answer:
    """An answer with a body and headers, whose names have _ for -."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        body = content.encode() if isinstance(content, str) else content
        request.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serves over HTTP; gives the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            answer(self)

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # clients that break off are what is tested
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def listening(backlog: int = 8) -> Iterator[socket.socket]:
    """A socket that listens on this machine; nobody takes its connections from the queue."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as listener:
        yield listener


def closed_port() -> int:
    """A port on which nothing listens."""
    with listening() as listener:
        return listener.getsockname()[1]


def alone(
    script: str, *command: str | Path, env: dict[str, str] | None = None, within: float = 100
) -> subprocess.CompletedProcess[str]:
    """Runs a shell's script in mounts and a network of its own, where it is root, and then a command.

    Args:
        script: Makes the surroundings, such as mounts; `$@` is the command.
        command: Program and arguments.
        env: Variables that are set besides the tests' own.
        within: Most seconds that it takes.
    """
    command = ["unshare", "-rmn", "sh", "-ec", script, "sh", *command]
    return run_program(command, env={**os.environ, **(env or {})}, within=within)


def check_alone(script: str, expression: str, **env: str) -> dict:
    """The finding of a check, in surroundings that a script makes.

    Args:
        script: As for `alone`; `"$@"` is the program that checks.
        expression: Python, such as `compute.check_cache(facts())`; `facts` takes the words of `Asked`.
        env: Variables that are set.
    """
    done = alone(script, sys.executable, "-c", checking(expression), env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def checking(expression: str) -> str:
    """A program that prints the finding of an expression as JSON; see `check_alone`."""
    return (
        "import json\nfrom dataclasses import asdict\nfrom pathlib import Path\n"
        "from training.doctor.checks import compute, machine, network\nfrom training.doctor.facts import Asked, Facts\n"
        f"facts = lambda **asked: Facts(Asked(**asked))\nprint(json.dumps(asdict({expression})))"
    )


def doctor(
    *arguments: str | Path, surroundings: str = "", env: dict[str, str] | None = None
) -> tuple[int, dict[str, object]]:
    """Exit code and JSON of the whole program, in surroundings of its own if a script makes them."""
    command = [sys.executable, "-m", "training", "doctor", "--json", *arguments]
    done = (
        alone(surroundings, *command, env=env)
        if surroundings
        else run_program(command, env={**os.environ, **(env or {})})
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def names(findings: Sequence[dict]) -> set[str]:
    """Names of the faults in the program's JSON."""
    return {finding["name"] for finding in findings if finding["name"]}


def server_command(folder: Path, *arguments: str | Path) -> list[str | Path]:
    """The command of a run's server, `run_server.py`."""
    return [sys.executable, HERE / "run_server.py", folder, *arguments]


SERVER_ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
