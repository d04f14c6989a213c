"""The machines of a run: network namespaces on one bridge, with links that can be cut and slowed down.

All of it is made in a network and a mount namespace of the chaos program's own (`enter`). They vanish with the last
process in them, so nothing is left on the computer even if the program is killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

INSIDE = "CHAOS_INSIDE"
"""Variable that says that this process is in the namespaces already."""
FULL_SPEED = "100mbit"
TOOLS = ("unshare", "ip", "tc", "mount")


class CannotRunHere(Exception):
    """This computer lacks something that chaos needs; the message says what."""


def enter(arguments: list[str]) -> None:
    """Starts this program again in namespaces of its own, in place of this process; returns if it is in them already.

    Raises:
        CannotRunHere: If this computer has no namespaces, or lacks a tool.
    """
    if os.environ.get(INSIDE):
        return
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=_path()) is None]:
        raise CannotRunHere(
            f"Chaos needs Linux with the commands {', '.join(TOOLS)}, and {', '.join(missing)} cannot be found. "
            "Install them (Debian: apt-get install iproute2 util-linux mount)."
        )
    flags = ["--net", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    if subprocess.run(["unshare", *flags, "true"], capture_output=True, check=False).returncode:
        raise CannotRunHere(
            "Chaos needs network namespaces, and this computer allows none: run it as root, or in a container that has "
            "the capability SYS_ADMIN."
        )
    os.environ.update({INSIDE: "1", "PATH": _path()})
    os.execvp("unshare", ["unshare", *flags, sys.executable, "-m", "tests.chaos", *arguments])


def _path() -> str:
    """The search path, with the folders in which Debian keeps the commands of administrators."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Machine:
    """A network namespace, and its link."""

    name: str
    address: str

    def command(self, *words: object) -> list[str]:
        """The command, as it runs on this machine."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def cut(self) -> None:
        """Takes the link away: packets are lost in silence."""
        _run("ip", "link", "set", self._outside, "down")

    def mend(self) -> None:
        """The link is there again."""
        _run("ip", "link", "set", self._outside, "up")

    def slow_down(self, *, down: str = FULL_SPEED, up: str = FULL_SPEED) -> None:
        """Sets the link's speed, in tc's notation. An interface limits what it sends, so each end has one direction."""
        _run("tc", "qdisc", "replace", "dev", self._outside, *_shape(down))
        _run("tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", *_shape(up))

    @property
    def _outside(self) -> str:
        return f"to-{self.name}"


def build_machines(names: list[str]) -> dict[str, Machine]:
    """Makes the machines, in the namespaces that `enter` has entered."""
    # Names of namespaces lie in /run. /dev/shm shows what the programs leave in shared memory, and nobody else's.
    for folder in ("/run", "/dev/shm"):
        _run("mount", "-t", "tmpfs", "none", folder)
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "bridge", "type", "bridge")
    _run("ip", "link", "set", "bridge", "up")
    machines = {}
    for number, name in enumerate(names, 1):
        machine = machines[name] = Machine(name, f"10.213.8.{number}")
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", f"to-{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"to-{name}", "master", "bridge", "up")
        _run("ip", "-n", name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        machine.slow_down()
    return machines


def _shape(rate: str) -> tuple[str, ...]:
    return ("root", "tbf", "rate", rate, "burst", "32kb", "latency", "200ms")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRunHere(f"This failed: {' '.join(command)}: {done.stderr.strip() or 'no reason given'}.")
