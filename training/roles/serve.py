"""Servers of a run on one machine: bootstrap peer and monitor as child programs, each started again when it ends.

They are two programs: if the monitor runs out of memory, newcomers still find the run through the bootstrap peer.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from training.errors import BadInput, RefusedByRun, TrainingError
from training.processes.events import EventLog
from training.processes.interruption import Interrupted, Stop
from training.processes.programs import ending
from training.processes.servers.only_one import only_one
from training.processes.servers.ports import ANYWHERE, DHT_PORT, LOOPBACK, SITE_PORT
from training.processes.servers.service import Pace, Service
from training.publish.invitation import MEMBERS_FLAGS
from training.publish.notebook import repository
from training.recipe import load_recipe
from training.storage.remote import read_document

LOOK_SECONDS = 0.2
ANSWER_SECONDS = 10.0
"""Longest wait for a server's answer."""
MONITOR_STOP_SECONDS, STOP_SECONDS = 8.0, 9.5
"""Seconds after Ctrl-C until the bootstrap peer is asked to end, so that the monitor can still save the state of peers
that it reaches through it; and until both are killed."""


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Settings of the servers on this machine; the recipe has those of the run."""

    recipe: str
    run_dir: Path
    """Folder of both identities, history, checkpoints and pictures: all that a restart or another machine needs."""
    shards: Path | None = None
    """Folder of prepared shards to serve; None: volunteers take those that the recipe names."""
    site: Path | None = None
    """Folder of the built site to serve; None: no site."""
    host: str = ANYWHERE
    port: int = SITE_PORT
    """Port of the site."""
    public_url: str | None = None
    """Address of the site for others; None: made from the address of the bootstrap peer and `port`."""
    dht_host: str = ANYWHERE
    """IP address at which both servers listen for peers."""
    dht_port: int = DHT_PORT
    """TCP port of the bootstrap peer; the monitor takes the next one. 0: free ports, which stay after a restart."""
    announce_host: str | None = None
    """IP address or DNS name at which peers reach this machine; None: its own addresses."""
    initial_peers: tuple[str, ...] = ()
    """Addresses of other servers of the run."""
    push_to: str | None = None
    """Place to which the monitor copies its checkpoints."""
    clip: str | None = None
    """CLIP model by which the monitor scores pictures of held-out captions."""
    python: tuple[str, ...] = (sys.executable, "-m", "training")
    """Command line of the trainer."""


def run_serve(
    settings: ServeSettings, *, events: EventLog, show: Callable[[str], None] | None = None, pace: Pace | None = None
) -> None:
    """Keeps both servers running until Ctrl-C, SIGTERM or SIGHUP.

    Args:
        settings: Settings of the servers.
        events: Log for `ready`, `warning` and `stopped`, and for the servers' events with a field `role`.
        show: Called with each line to print; None: prints it.
        pace: Pauses and limits for new starts.

    Raises:
        BadInput: If the recipe or the run's folder cannot be used.
        BadInput, RefusedByRun, TrainingError: If a server ends with an error before it was ready for the first time.
    """
    run = load_recipe(settings.recipe)
    if settings.announce_host and not settings.dht_port:
        raise BadInput(
            "--announce-host needs a fixed port, which a router can forward, and the next one.",
            cure="Give a --dht-port other than 0.",
        )
    with only_one(settings.run_dir, "`serve` or demo"), Stop() as stop:
        servers = _Servers(settings, events, show or print_text, pace or Pace())
        try:
            servers.run(run.run_id, stop)
        except Interrupted:
            servers.show(f"Stopping ({stop.reason}) ...")
        finally:
            servers.stop(stop)
    events.write("stopped")
    servers.show("Both servers have ended.")


class _Servers:
    def __init__(self, settings: ServeSettings, events: EventLog, show: Callable[[str], None], pace: Pace):
        self.settings, self.events, self.show = settings, events, show
        self.bootstrap = Service(
            "bootstrap peer",
            self._bootstrap_command,
            show=show,
            event=partial(self._pass_on, "bootstrap"),
            alive=lambda: accepts(_reachable(settings.dht_host), int(self._local_address.split("/")[4])),
            pace=pace,
        )
        self.monitor = Service(
            "monitor",
            self._monitor_command,
            show=show,
            event=partial(self._pass_on, "monitor"),
            alive=lambda: answers(f"{_url(_reachable(settings.host), settings.port)}/live/state.json"),
            pace=pace,
        )

    def run(self, run_id: str, stop: Stop) -> None:
        """Starts the bootstrap peer, then the monitor; then starts them again when they end, until a signal raises
        `Interrupted`."""
        self._await_ready(self.bootstrap, [self.bootstrap], stop)
        self._await_ready(self.monitor, [self.bootstrap, self.monitor], stop)
        told = {name: self.monitor.ready[name] for name in ("url", "initial_peers", "join_command")}
        self.events.write("ready", **told)
        page = f"Send volunteers this address:\n    {self.url}/join/\nOr" if self.settings.site else "Send volunteers"
        invite = _INVITE if MEMBERS_FLAGS in told["join_command"] else ""
        install = f"`pip install git+{repository()}` installs the program"
        command = f"this command ({install}):\n    {told['join_command']}\n{invite}"
        self.show(f"\n{run_id} is served. {page} {command}Ctrl-C stops both servers.\n")
        while True:
            self.bootstrap.look()
            self.monitor.look()
            stop.wait(LOOK_SECONDS)

    def stop(self, stop: Stop) -> None:
        """Ends the monitor, then the bootstrap peer; kills those that do not end in time, or both at a second
        Ctrl-C."""
        began = time.monotonic()

        def await_end(server: Service, seconds: float) -> None:
            while not server.has_ended() and time.monotonic() < began + seconds and not stop.impatient:
                time.sleep(0.05)

        self.monitor.stop()
        await_end(self.monitor, MONITOR_STOP_SECONDS)
        self.bootstrap.stop()
        for server in (self.bootstrap, self.monitor):
            await_end(server, STOP_SECONDS)
            server.kill()

    @property
    def url(self) -> str:
        """Address of the site for others, without a trailing slash."""
        if self.settings.public_url is not None:
            return self.settings.public_url.rstrip("/")
        everywhere = self.settings.host in LOOPBACK
        return _url(self._address.split("/")[2] if everywhere else self.settings.host, self.settings.port)

    @property
    def _address(self) -> str:
        """Address at which other machines reach the bootstrap peer."""
        return self.bootstrap.ready["addresses"][0]

    @property
    def _local_address(self) -> str:
        """Address at which this machine reaches the bootstrap peer: many routers do not lead back to the one for
        others."""
        port = self.settings.dht_port or self._address.split("/")[4]
        return f"{_maddr(_reachable(self.settings.dht_host), port)}/p2p/{self._address.rpartition('/')[2]}"

    def _bootstrap_command(self) -> list[str]:
        settings = self.settings
        return [
            *(*settings.python, "bootstrap", "--brief", "--recipe", settings.recipe),
            *("--state-dir", str(settings.run_dir / "bootstrap"), *self._listening(0)),
            *_flags("--initial-peers", settings.initial_peers),
        ]

    def _monitor_command(self) -> list[str]:
        settings = self.settings
        return [
            *(*settings.python, "monitor", "--recipe", settings.recipe, "--run-dir", str(settings.run_dir)),
            *_flags("--initial-peers", dict.fromkeys((self._local_address, self._address, *settings.initial_peers))),
            *("--host", settings.host, "--port", str(settings.port), "--public-url", self.url, *self._listening(1)),
            *_flags("--shards", [settings.shards] if settings.shards else []),
            *_flags("--site", [settings.site] if settings.site else []),
            *_flags("--push-to", [settings.push_to] if settings.push_to else []),
            *_flags("--clip", [settings.clip] if settings.clip else []),
        ]

    def _listening(self, number: int) -> list[str]:
        """Flags that set the addresses at which a server listens and that it announces; `number` counts the servers."""
        settings = self.settings
        port = settings.dht_port + number if settings.dht_port else 0
        announced = [_maddr(settings.announce_host, port)] if settings.announce_host else []
        return ["--host-maddrs", _maddr(settings.dht_host, port), *_flags("--announce-maddrs", announced)]

    def _await_ready(self, server: Service, running: list[Service], stop: Stop) -> None:
        """Waits until a server is ready. If the server ends with an error before that, raises this error."""
        while server.ready is None:
            for each in running:
                each.look()
            if server.ended is not None and server.ended >= 0:
                kinds = {kind.exit_code: kind for kind in (BadInput, RefusedByRun)}
                reason = server.last_line.removeprefix("Error: ") or "It printed nothing."
                raise kinds.get(server.ended, TrainingError)(
                    f"The {server.name} has ended before it was ready ({ending(server.ended)}): {reason}"
                )
            stop.wait(LOOK_SECONDS)

    def _pass_on(self, role: str, event: dict) -> None:
        """Copies a server's event into this program's log; events without a role concern the whole program."""
        fields = {name: value for name, value in event.items() if name not in ("event", "time")}
        self.events.write(event["event"], **fields, role=role)


def _flags(name: str, values: object) -> list[str]:
    return [word for value in values for word in (name, str(value))]


def print_text(text: str) -> None:
    """Prints whole lines, also from several threads: it writes each text in one call, which `print` may not do."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


_INVITE = (
    "It asks for a code: `moderate invite NAME` prints one for each. Members of an organization on the Hugging Face "
    "Hub give --hugging-face instead.\n"
)


def _reachable(host: str) -> str:
    return LOOPBACK.get(host, host)


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _maddr(host: str, port: int | str) -> str:
    """Address of a peer in libp2p's form, without its id.

    >>> [_maddr(host, 31337) for host in ("203.0.113.7", "2001:db8::7", "run.example")]
    ['/ip4/203.0.113.7/tcp/31337', '/ip6/2001:db8::7/tcp/31337', '/dns4/run.example/tcp/31337']
    """
    try:
        kind = f"ip{ip_address(host).version}"
    except ValueError:
        kind = "dns4"
    return f"/{kind}/{host}/tcp/{port}"


def accepts(host: str, port: int) -> bool:
    """Returns True if a program accepts connections at a port of a host."""
    with suppress(OSError), socket.create_connection((host, port), timeout=ANSWER_SECONDS):
        return True
    return False


def answers(url: str) -> bool:
    """Returns True if a document can be read at a URL, without a proxy: the environment's does not know this
    machine's."""
    with suppress(OSError, ValueError):
        return bool(read_document(url, seconds=ANSWER_SECONDS, uses_proxy=False))
    return False
