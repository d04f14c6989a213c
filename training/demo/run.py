"""The whole run on one machine: pictures, shards, bootstrap peer, monitor and volunteers, started and stopped together.

Each part is a separate program in its own session, with its log under `logs/`. The parts find each other as they would
on the Internet: through the bootstrap peer's address and the recipe that the monitor serves.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console

from training.demo.children import Part, processes_of, read_events, sweep
from training.demo.config import DemoConfig, command_again, short_command
from training.demo.display import formatted, status_display
from training.demo.preparation import prepare
from training.errors import BadInput, TrainingError
from training.processes.interruption import Interrupted, Stop
from training.processes.programs import ending
from training.processes.servers.only_one import only_one
from training.processes.servers.ports import SITE_PORT
from training.publish.invitation import join_command
from training.recipe import RunConfig, load_recipe
from training.storage.remote import read_document

LOOPBACK_HOST = "127.0.0.1"
LOOPBACK = f"/ip4/{LOOPBACK_HOST}/tcp/0"
"""Address on which the demo's peers listen: only on this machine, each on a free port."""
MICRO_BATCH_SIZE = 16
"""Samples per forward pass of the demo's volunteers; on one core, a tenth faster than 8."""
NAMES = ("ada", "grace", "alan", "barbara", "edsger", "frances", "donald", "radia")
"""Names of the demo's volunteers, after pioneers of computing."""

READY_SECONDS = 120.0
"""Longest wait for a part to be ready; most of it is importing on a slow machine."""
STALL_SECONDS = 600.0
"""Longest time without the end of an epoch, after which the demo fails."""
MONITOR_STOP_SECONDS = 3.0
"""Longest time that the monitor may take for a last checkpoint, while the volunteers still serve their state."""
STOP_SECONDS, LAST_SECONDS = 5.0, 8.0
"""Seconds after Ctrl-C until parts that still run are killed, and until torch's shared-memory managers are. So
everything is gone within 10 s."""


def run_demo(config: DemoConfig, *, console: Console | None = None) -> int:
    """Runs the demo until it is interrupted, has failed, or has done `config.epochs`.

    Returns:
        Exit code: 0 when the epochs are done, 128 + the signal's number when it was interrupted before.

    Raises:
        BadInput: If the port, the recipe, the epochs or the run folder cannot be used.
        TrainingError: If a part that the run needs has failed; the message names it and its log.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    run = load_recipe(config.recipe)
    if config.epochs is not None and config.epochs > run.schedule.total_epochs:
        raise BadInput(
            f"--epochs is {config.epochs}, and the schedule of {run.run_id} ends after {run.schedule.total_epochs}; "
            "give at most so many."
        )
    _ask_this_machine_directly()
    with only_one(config.run_dir, "demo"), Stop() as stop:
        demo = _Demo(config, run, console, stop)
        try:
            demo.begin()
            prepare(config, run, console, stop)
            demo.start()
            demo.watch()
        except Interrupted:
            console.print(f"Stopping ({stop.reason}) ...")
        finally:
            demo.stop()
    if stop.signal_number is not None and not demo.finished:
        console.print(f"All processes have ended. `{command_again(config)}` continues from the last checkpoint.")
        return 128 + stop.signal_number
    console.print("All processes have ended.")
    return 0


@dataclass
class _Demo:
    """The demo's parts while they run."""

    config: DemoConfig
    run: RunConfig
    console: Console
    stop_asked: Stop
    bootstrap: Part | None = None
    monitor: Part | None = None
    volunteers: list[Part] = field(default_factory=list)
    joined: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    url: str = ""
    join_command: str = ""
    finished: bool = False

    def _path(self, *names: str) -> Path:
        return self.config.run_dir.joinpath(*names)

    def _start(self, key: str, name: str, *arguments: str) -> Part:
        """Starts a role with its log and a fresh event log."""
        log = self._path("logs", f"{key}.log")
        return Part(name, [*self.config.python, *arguments, "--log-json", str(log.with_suffix(".jsonl"))], log)

    def begin(self) -> None:
        """Starts the bootstrap peer, which loads its libraries while the data are prepared."""
        self.bootstrap = self._start(
            "bootstrap",
            "The bootstrap peer",
            *("bootstrap", "--recipe", self.config.recipe),
            *("--host-maddrs", LOOPBACK, "--state-dir", str(self._path("bootstrap"))),
        )

    def start(self) -> None:
        """Waits for the bootstrap peer, and starts the monitor, then the volunteers."""
        config = self.config
        port = _free_port(config.port)
        address = self._ready(self.bootstrap)["addresses"][0]
        self.url = f"http://{LOOPBACK_HOST}:{port}"
        command = join_command(self.url, program=short_command(config.python))
        site = ("--site", str(config.site)) if config.site is not None else ()
        self.monitor = self._start(
            "monitor",
            "The monitor",
            *("monitor", "--recipe", config.recipe, "--initial-peers", address, *site),
            *("--run-dir", str(config.run_dir), "--shards", str(self._path("shards"))),
            *("--host-maddrs", LOOPBACK, "--one-machine"),
            *("--port", str(port), "--join-command", command),
        )
        self.join_command = self._ready(self.monitor)["join_command"]
        for name in volunteer_names(config.volunteers):
            self.volunteers.append(
                self._start(
                    name,
                    f"Volunteer {name}",
                    *("join", self.url, "--name", name),
                    *("--threads", "1", "--micro-batch-size", str(MICRO_BATCH_SIZE), "--precision", "float32"),
                    *("--verbose", "--host-maddrs", LOOPBACK, "--state-dir", str(self._path("peers", name))),
                    *("--pause-when", "never"),  # somebody waits for the demo, also on battery
                    # After a restart no peer has the run's state any more; all start from the last checkpoint.
                    *("--resume", str(self._path("checkpoints"))),
                )
            )
        self.console.print(
            f"\nThe run is live at [bold]{self.url}[/bold]\n"
            f"Join it from a second terminal, here:\n    {self.join_command}\n"
            f"Logs: {self._path('logs')}. Ctrl-C stops everything.\n"
        )

    def _ready(self, part: Part) -> dict:
        """The part's `ready` event."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            exit_code = part.exit_code
            for event in read_events(part.events):
                if event["event"] == "ready":
                    return event
            if exit_code is not None:
                raise part.failure("ended before it was ready")
            self.stop_asked.wait(0.1)
        part.send(signal.SIGABRT)  # makes Python write its stack traces into the log
        with suppress(subprocess.TimeoutExpired):
            part.process.wait(timeout=2)
        raise part.failure(f"was not ready within {READY_SECONDS:.0f} s")

    def watch(self) -> None:
        """Shows the run's progress until the wanted epochs are done and shown."""
        started = progressed = time.monotonic()
        answered = time.monotonic()
        last_epoch: int | None = None
        with status_display(self.console, self.config.epochs or self.run.schedule.total_epochs) as show:
            while True:
                self.stop_asked.wait(1.0)
                self._look_after_parts()
                now = time.monotonic()
                state = _fetch_json(f"{self.url}/live/state.json")
                if state is None:
                    if now - answered > READY_SECONDS:
                        raise self.monitor.failure(f"has not answered for {READY_SECONDS:.0f} s")
                    continue
                answered = now
                if state["epoch"] != last_epoch:
                    last_epoch, progressed = state["epoch"], now
                if state["status"] == "finished" and not self.finished:
                    self._finish(state)
                if not self.finished:
                    show(state, now - started)
                if self.config.epochs is not None and (last_epoch or 0) >= self.config.epochs:
                    self.console.print(f"Epoch {last_epoch} is done, loss {formatted(state['loss'], '.3f')}.")
                    return
                if self.finished:
                    continue
                if self.volunteers and len(self.gone) == len(self.volunteers) and not state["active_peers"]:
                    raise self.volunteers[-1].failure("ended, and nobody else trains")
                if now - progressed > STALL_SECONDS:
                    raise TrainingError(
                        f"No epoch has ended for {STALL_SECONDS:.0f} s; "
                        f"the volunteers' logs in {self._path('logs')} say why.",
                        cure="Read the last lines of these logs; this table lists their messages.",
                    )

    def _finish(self, state: dict) -> None:
        """Prints that the schedule is done and what to do next; the site stays up until Ctrl-C."""
        self.finished = True
        evaluate = shlex.join(
            [*short_command(self.config.python), "evaluate", "--checkpoint", str(self.config.run_dir)]
        )
        self.console.print(
            f"The run has finished its schedule of {state['epoch']} epochs, loss {formatted(state['loss'], '.3f')}.\n"
            f"{self.url} shows it until Ctrl-C. To count how much of what it makes is right:\n    {evaluate}"
        )

    def _look_after_parts(self) -> None:
        for part in (self.bootstrap, self.monitor):
            if part.exit_code is not None:
                raise part.failure("ended")
        for part in self.volunteers:
            if part.name not in self.joined and any(event["event"] == "joined" for event in read_events(part.events)):
                self.joined.add(part.name)
                self.console.print(f"{part.name} has joined.")
            if part.exit_code is not None and part.name not in self.gone:
                self.gone.add(part.name)
                # After a crash, hivemind's processes may survive, and other peers would still try to reach them.
                sweep([part])
                if part.exit_code == 0:
                    self.console.print(f"{part.name} has left.")
                else:
                    self.console.print(
                        f"{part.name} ended ({ending(part.exit_code)}); the others continue. Its log: {part.log}"
                    )

    def stop(self) -> None:
        """Asks all parts to end, the monitor first, so that it can save the state; then kills those that still run."""
        started = time.monotonic()
        parts = [part for part in (self.monitor, *self.volunteers, self.bootstrap) if part is not None]
        if self.monitor is not None:
            self.monitor.send(signal.SIGTERM)
            self._await(self._monitor_is_done, started + MONITOR_STOP_SECONDS)
        for part in parts:
            if part is not self.monitor:
                part.send(signal.SIGTERM)
        self._await(lambda: all(part.exit_code is not None for part in parts), started + STOP_SECONDS)
        sweep(parts)
        # torch's shared-memory managers need a moment to free their memory.
        while (left := processes_of(parts)) and time.monotonic() < started + LAST_SECONDS:
            time.sleep(0.1)
        for process in left:
            with suppress(psutil.Error):
                process.kill()

    def _monitor_is_done(self) -> bool:
        """Returns whether the monitor has taken its last checkpoint, or has ended."""
        stopped = any(event["event"] == "stopped" for event in read_events(self.monitor.events))
        return stopped or self.monitor.exit_code is not None

    def _await(self, condition: Callable[[], bool], deadline: float) -> None:
        while not condition() and time.monotonic() < deadline and not self.stop_asked.impatient:
            time.sleep(0.05)


def volunteer_names(count: int) -> list[str]:
    """Names of the demo's volunteers, all different."""
    return [NAMES[number] if number < len(NAMES) else f"volunteer-{number + 1}" for number in range(count)]


def _ask_this_machine_directly() -> None:
    """Exempts this machine from a proxy that the environment names, for this program and all that it starts."""
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if exempt != "*":
        os.environ["no_proxy"] = ",".join(filter(None, [exempt, LOOPBACK_HOST]))


def _fetch_json(url: str) -> dict | None:
    """Fetches a document; None while the server does not answer."""
    try:
        return json.loads(read_document(url, seconds=5))
    except (OSError, ValueError):
        return None


def _free_port(wanted: int | None) -> int:
    for port in [wanted] if wanted is not None else [*range(SITE_PORT, SITE_PORT + 20), 0]:
        with socket.socket() as probe:
            # Without this, the system keeps the port of a demo that has just ended for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((LOOPBACK_HOST, port))
                return probe.getsockname()[1]
    raise BadInput(f"Port {wanted} is taken; give another --port, or omit it, and a free one is chosen.")
