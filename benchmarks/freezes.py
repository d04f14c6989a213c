"""How long a page keeps its reader waiting: the tasks of its main thread, read from a trace of Chromium."""

from __future__ import annotations

import json
from dataclasses import dataclass

TRACED = ("toplevel", "devtools.timeline")
"""Categories of events that a trace needs."""


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
