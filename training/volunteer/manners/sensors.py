"""Rules that pause a peer while the machine runs on battery, is hot, or is in use.

Each reading is a function that returns None if the system does not give it; its rule then never stops a peer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from training.errors import BadInput
from training.volunteer.manners.manners import Rule

NEAR_DEGREES, COOL_DEGREES = 5.0, 15.0
"""A machine is hot when a sensor is this close to the temperature at which the hardware protects itself, and cool again
when all sensors are this far below. In degrees Celsius."""
PLAUSIBLE_LIMITS = (50.0, 150.0)
"""Limits of sensors beyond these are placeholders, such as 0 or 65261.8."""
IDLE_SECONDS = 180.0
"""Time since the last key or movement of the mouse after which nobody uses a Mac. On Linux the desktop decides."""
PROGRAM_SECONDS = 5.0
"""Longest wait for a program that describes the machine."""


# -- readings ----------------------------------------------------------------------------------------------------------


def is_plugged_in() -> bool | None:
    """Returns whether the machine is plugged in; None if it has no battery."""
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return None if battery is None else battery.power_plugged


def degrees_left() -> float | None:
    """Degrees between the hottest sensor and its limit; None without sensors that have limits, as on macOS."""
    import psutil

    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    left = []
    for sensor in (sensor for group in sensors.values() for sensor in group):
        limit = sensor.critical or sensor.high
        if limit and PLAUSIBLE_LIMITS[0] <= limit <= PLAUSIBLE_LIMITS[1]:
            left.append(limit - sensor.current)
    return min(left, default=None)


def is_in_use(platform: str = sys.platform, ask: Callable[[list[str]], str] | None = None) -> bool | None:
    """Returns whether anybody uses the computer now; None if the system does not tell.

    Args:
        platform: Name of the system, as in `sys.platform`.
        ask: Runs a command and returns what it prints; empty if it fails.
    """
    ask = ask or _printed
    if platform == "darwin":
        found = re.search(r'"HIDIdleTime" = (\d+)', ask(["ioreg", "-c", "IOHIDSystem", "-d", "4"]))
        return int(found[1]) < 1e9 * IDLE_SECONDS if found else None
    # Without a session's name, it shows the properties of the whole machine.
    answer = ask(["loginctl", "show-session", "--property=IdleHint"])
    return answer.strip() == "IdleHint=no" if "IdleHint=" in answer else None


def _printed(command: list[str]) -> str:
    options = {"capture_output": True, "text": True, "timeout": PROGRAM_SECONDS, "stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(command, check=False, **options).stdout
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""


# -- rules -------------------------------------------------------------------------------------------------------------


def on_battery(read: Callable[[], bool | None] = is_plugged_in) -> Rule:
    """Makes the rule that a peer rests while the machine runs on battery."""

    def rest() -> str | None:
        return "on battery, until this machine is plugged in" if read() is False else None

    return rest


def when_hot(read: Callable[[], float | None] = degrees_left) -> Rule:
    """Makes the rule that a peer rests while the machine is hot, until it has cooled down."""
    is_hot = False

    def rest() -> str | None:
        nonlocal is_hot
        left = read()
        is_hot = left is not None and left < (COOL_DEGREES if is_hot else NEAR_DEGREES)
        return f"hot ({left:.0f} degrees below the limit), until it has cooled down" if is_hot else None

    return rest


def while_in_use(read: Callable[[], bool | None] = is_in_use) -> Rule:
    """Makes the rule that a peer rests while somebody uses the computer.

    Raises:
        BadInput: If the system does not tell whether anybody does.
    """
    if read() is None:
        raise BadInput(
            "This system does not tell whether anybody uses the computer. Omit `use` from --pause-when, and give "
            "--hours instead."
        )

    def rest() -> str | None:
        return "this computer is in use, until nobody has used it for some minutes" if read() else None

    return rest


RULES: dict[str, Callable[[], Rule]] = {"battery": on_battery, "heat": when_hot, "use": while_in_use}
"""Makers of rules, by the names that `--pause-when` takes."""
NEVER = "never"


def rules_for(names: str) -> list[Rule]:
    """Makes the rules for what `--pause-when` names, such as `battery,heat`; `never` names none.

    Raises:
        BadInput: If a name is unknown, or the system does not give the reading of a rule.
    """
    wanted = [name.strip() for name in names.split(",")]
    if wanted == [NEVER]:
        return []
    if unknown := [name for name in wanted if name not in RULES]:
        raise BadInput(f"--pause-when has {unknown[0]!r}; give some of {', '.join(RULES)}, or {NEVER}.")
    return [RULES[name]() for name in dict.fromkeys(wanted)]
