"""How each kind of fault begins and ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from tests.chaos.plan import Fault
from tests.chaos.stage import BOOTSTRAP, MONITOR, Stage

CLOCK_SECONDS = 300.0
SLOW_LINK, SLOW_DONOR = "1mbit", "250kbit"
BALLAST = "ballast"
_CHUNK = bytes(1 << 20)


def begin(stage: Stage, fault: Fault) -> None:
    """The fault happens."""
    stage.note("fault", kind=fault.kind, volunteers=fault.volunteers, sign=fault.sign)
    _BEGIN[fault.kind](stage, fault)


def end(stage: Stage, fault: Fault) -> None:
    """It is over."""
    _END[fault.kind](stage, fault)
    stage.note("over", kind=fault.kind, volunteers=fault.volunteers)


def _slow_donor(stage: Stage, fault: Fault) -> None:
    donor, newcomer = fault.volunteers
    stage.machines[donor].slow_down(up=SLOW_DONOR)
    stage.kill(newcomer)
    stage.start(newcomer)


def _wrong_clock(stage: Stage, fault: Fault) -> None:
    stage.kill(*fault.volunteers)
    _set_clock(stage, fault, fault.sign * CLOCK_SECONDS)
    _start_all(stage, fault)


def _set_clock(stage: Stage, fault: Fault, ahead_seconds: float) -> None:
    for name in fault.volunteers:
        stage.control(name).set(clock_seconds=ahead_seconds)


def _fill_disk(stage: Stage, _fault: Fault) -> None:
    with suppress(OSError), open(stage.disk / BALLAST, "ab", buffering=0) as ballast:
        while True:
            ballast.write(_CHUNK)
    with suppress(OSError), open(stage.disk / BALLAST, "ab", buffering=0) as ballast:
        while True:  # the last pages
            ballast.write(_CHUNK[:4096])


def _everyone_leaves(stage: Stage, fault: Fault) -> None:
    if fault.sign > 0:
        stage.ask_to_leave(*fault.volunteers)
    else:
        stage.kill(*fault.volunteers)


def _start_all(stage: Stage, fault: Fault) -> None:
    for name in fault.volunteers:
        stage.start(name)


_BEGIN: dict[str, Callable[[Stage, Fault], None]] = {
    "kill": lambda stage, fault: stage.kill(*fault.volunteers),
    "stop": lambda stage, fault: stage.freeze(*fault.volunteers),
    "cut": lambda stage, fault: stage.machines[fault.volunteers[0]].cut(),
    "slow": lambda stage, fault: stage.machines[fault.volunteers[0]].slow_down(down=SLOW_LINK, up=SLOW_LINK),
    "donor": _slow_donor,
    "clock": _wrong_clock,
    "jump": lambda stage, fault: _set_clock(stage, fault, fault.sign * CLOCK_SECONDS),
    "disk": _fill_disk,
    "monitor": lambda stage, fault: stage.kill(MONITOR),
    "bootstrap": lambda stage, fault: stage.kill(BOOTSTRAP),
    "reboot": lambda stage, fault: stage.kill(BOOTSTRAP, MONITOR, with_family=True),
    "everyone": _everyone_leaves,
}
_END: dict[str, Callable[[Stage, Fault], None]] = {
    "kill": _start_all,
    "stop": lambda stage, fault: stage.thaw(*fault.volunteers),
    "cut": lambda stage, fault: stage.machines[fault.volunteers[0]].mend(),
    "slow": lambda stage, fault: stage.machines[fault.volunteers[0]].slow_down(),
    "donor": lambda stage, fault: stage.machines[fault.volunteers[0]].slow_down(),
    "clock": lambda stage, fault: _set_clock(stage, fault, 0.0),
    "jump": lambda stage, fault: _set_clock(stage, fault, 0.0),
    "disk": lambda stage, fault: os.unlink(stage.disk / BALLAST),
    "monitor": lambda stage, fault: stage.start(MONITOR),
    "bootstrap": lambda stage, fault: stage.start(BOOTSTRAP),
    "reboot": lambda stage, fault: [stage.start(BOOTSTRAP), stage.start(MONITOR)],
    "everyone": _start_all,
}
