"""How long a page keeps its reader waiting: the tasks of its main thread, read from a trace of Chromium."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TRACED = ("toplevel", "devtools.timeline")
"""Categories of events that a trace needs."""
OPENING_US = 500_000
"""Tasks that began this long before the first task that names the page's address belong to the page as well."""
WRITTEN_SECONDS = 90.0


@dataclass(frozen=True)
class Task:
    """A task of a main thread, with the promises that it starts."""

    began_us: float
    """On the clock of `time.monotonic`, in microseconds: Chromium reads the same clock on Linux."""
    wall_ms: float
    cpu_ms: float
    """CPU time: other work on the machine adds to `wall_ms`, but hardly to this."""


def tasks_of(events: list[dict], script: str) -> list[Task]:
    """The tasks of the main threads of all processes that ran `script`, by time.

    Chromium traces the promises as an event of its own after the task. In a page that runs Python on its main thread,
    Python starts there, so without them its freeze would not be counted.
    """
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    spans = [event for event in events if event.get("ph") == "X" and (event["pid"], event["tid"]) in mains]
    shown = {span["pid"] for span in spans if script in json.dumps(span.get("args", {}))}
    tasks = [task for pid in shown for task in _tasks([span for span in spans if span["pid"] == pid])]
    return sorted(tasks, key=lambda task: task.began_us)


def page_that_leads_to(url: str, seconds: float) -> str:
    """HTML of an empty page that opens a URL after so long."""
    return f"<!doctype html><title>At rest</title><meta http-equiv=refresh content='{seconds};url={url}'>"


def tasks_of_opening(first_page: str, address: str, script: str, *, seconds: float) -> list[Task]:
    """The tasks of the main thread that runs `script`, from the navigation to `address` on.

    Chromium writes the trace by itself. A debugger such as Playwright's would make the tasks longer: where a script
    makes an error object, V8 then parses it once more for the line numbers of all functions.

    Args:
        first_page: A page that leads to the other one after a rest, because Chromium's own start occupies both cores
            of a small machine for some seconds.
        address: Part of the URL of the page that is measured.
        script: Part of the URL of a script of that page.
        seconds: How long events are traced.
    """
    # Without ignore_cleanup_errors, files that the browser's children write after its end would make this fail.
    with tempfile.TemporaryDirectory(prefix="page-benchmark-", ignore_cleanup_errors=True) as folder:
        trace = Path(folder, "trace.json")
        program = subprocess.Popen(
            [
                os.environ.get("CHROMIUM") or shutil.which("chromium"),
                "--headless=new",
                "--no-sandbox",
                "--no-first-run",
                "--disable-gpu",
                f"--user-data-dir={folder}/profile",
                f"--trace-startup={','.join(TRACED)}",
                f"--trace-startup-file={trace}",
                f"--trace-startup-duration={seconds:.0f}",
                "--trace-startup-format=json",
                first_page,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            events = _written(trace, seconds + WRITTEN_SECONDS)
        finally:
            program.terminate()
            program.wait()
    opened = min(event["ts"] for event in events if address in json.dumps(event.get("args", {}))) - OPENING_US
    return [task for task in tasks_of(events, script) if task.began_us > opened]


def _written(trace: Path, seconds: float) -> list[dict]:
    """Waits until Chromium has written its trace completely; the events of it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.5)
        try:
            return json.loads(trace.read_text())["traceEvents"]
        except (OSError, ValueError):
            continue
    raise TimeoutError("Chromium has not written its trace in time.")


def _tasks(spans: list[dict]) -> list[Task]:
    """The tasks of one thread."""
    tasks: list[Task] = []
    ended = 0
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        if span["ts"] < ended:
            continue  # a part of the event before
        wall, cpu = span["dur"] / 1000, span.get("tdur", 0) / 1000
        if span["name"].endswith("PerformMicrotaskCheckpoint") and tasks:
            before = tasks[-1]
            tasks[-1] = Task(before.began_us, before.wall_ms + wall, before.cpu_ms + cpu)
        else:
            tasks.append(Task(span["ts"], wall, cpu))
        ended = span["ts"] + span["dur"]
    return tasks
