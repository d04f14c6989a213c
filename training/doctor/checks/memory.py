"""Checks of memory: what is free and allowed, swap, and what processes can share."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.reports.units import show_bytes
from training.doctor.finding import Fault, Finding, fine, skipped

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

TOO_SMALL = Fault(
    name="memory-too-small",
    why="Training would end for lack of memory, or the system would end it.",
    remedy="Use a machine with more memory. `python -m training plan` says what takes it.",
)
LIMITED = Fault(
    name="memory-limited",
    why="A container or the system's settings allow this program less memory than training takes; it would be killed.",
    remedy="Raise the limit: `docker run --memory`, `MemoryMax=` of the service, or the cluster's request.",
)
OCCUPIED = Fault(
    name="memory-occupied",
    level="warning",
    why="Other programs have the memory. If they keep it, training ends for lack of memory.",
    remedy="Close other programs before you join.",
)
ADDRESSES = Fault(
    name="address-space-limited",
    why="PyTorch reserves far more addresses than it uses, and fails where it may not.",
    remedy="Start it from a shell with `ulimit -v unlimited`.",
)
SWAPPING = Fault(
    name="swapping",
    level="warning",
    why="The system moves memory to the disk. A training step then takes many times as long.",
    remedy="Close other programs until memory is free again.",
)
SHARED_SMALL = Fault(
    name="shared-memory-small",
    why="Trainer and averagers share the weights and gradients in /dev/shm. If it is full, the averager is killed.",
    remedy="Enlarge it: `docker run --shm-size=8g`, or `mount -o remount,size=8g /dev/shm`.",
)
FAULTS = (TOO_SMALL, LIMITED, OCCUPIED, ADDRESSES, SWAPPING, SHARED_SMALL)

LEAST_BYTES = 1100 << 20
"""What the smallest peer takes, if no recipe says more: the processes of a peer of the demo were measured at 1.07 GiB,
memory that they share counted once."""
LEAST_ADDRESSES = 6 << 30
"""The largest process of a peer of the demo, without a GPU, was measured to reserve 3.4 GiB; twice that is safe."""
LEAST_SHARED_BYTES = 32 << 20
"""A peer of the demo, whose weights take 5 MiB, was measured to take 11 MiB of it."""
SHARED_COPIES = 4
"""Copies of the trained weights, 4 bytes each, in shared memory: two were measured in the demo (gradients and
parameters); a download and a state that is served to a newcomer are two more."""
SWAP_SHARE, AVAILABLE_SHARE = 0.25, 0.1
"""A system swaps if so much of its swap is in use and less than this share of its memory is available."""


def check_memory(shared: Shared) -> Finding:
    """Whether the memory suffices for one sample at a time of the recipe's model."""
    import psutil

    from training.compute.machine import group_bytes

    # At once: the doctor's own programs will take a third of a gigabyte, which is free again when training begins.
    memory, allowed = psutil.virtual_memory(), group_bytes()
    need, whose = _needed(shared)
    return judge_memory(f"{whose} {show_bytes(need)}", need, memory.total, memory.available, allowed)


def judge_memory(told: str, need: int, total: int, available: int, allowed: int | None) -> Finding:
    """Whether memory suffices.

    Args:
        told: What takes `need`, as the beginning of a sentence.
        need: Bytes that training takes.
        total: Bytes of the machine.
        available: Bytes that other programs leave.
        allowed: Bytes that a container still allows; None if it has no limit.
    """
    if total < need:
        return TOO_SMALL.found(f"{told}; this machine has {show_bytes(total)}.")
    if allowed is not None and allowed < need:
        return LIMITED.found(f"{told}; this program may still take {show_bytes(allowed)}.")
    if available < need:
        return OCCUPIED.found(f"{told}; {show_bytes(available)} are free now.")
    return fine(f"{told}; {show_bytes(available)} are free.")


def check_address_space(_shared: object) -> Finding:
    """Whether `ulimit -v` is set."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        return ADDRESSES.found(f"This program may reserve {show_bytes(limit)} of addresses.")
    return fine("Addresses are not limited." if limit == resource.RLIM_INFINITY else f"Up to {show_bytes(limit)}.")


def check_swap(_shared: object, meminfo: Path = Path("/proc/meminfo")) -> Finding:
    """Whether the system is swapping.

    Args:
        meminfo: Linux's description of its memory.
    """
    try:
        words = {line.split(":")[0]: int(line.split()[1]) << 10 for line in meminfo.read_text().splitlines()}
    except OSError:
        return skipped("Not checked: this system has no /proc/meminfo.")
    used, total = words["SwapTotal"] - words["SwapFree"], words["SwapTotal"]
    told = f"{show_bytes(used)} of {show_bytes(total)} of swap are in use" if total else "There is no swap"
    if total and used / total > SWAP_SHARE and words["MemAvailable"] / words["MemTotal"] < AVAILABLE_SHARE:
        return SWAPPING.found(f"{told}, and only {show_bytes(words['MemAvailable'])} of memory are available.")
    return fine(f"{told}.")


def check_shared_memory(shared: Shared, folder: Path = Path("/dev/shm")) -> Finding:
    """Whether /dev/shm has room for what the trainer and its averagers share."""
    if not folder.is_dir():
        return skipped(f"Not checked: this system has no {folder}.")
    plan = shared.plan()
    need = max(LEAST_SHARED_BYTES, SHARED_COPIES * 4 * plan["trained_parameters"] if plan else 0)
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    told = f"Training takes up to {show_bytes(need)} of {folder}; {show_bytes(free)} are free"
    if free < need:
        return SHARED_SMALL.found(f"{told}.")
    return fine(f"{told}.")


def _needed(shared: Shared) -> tuple[int, str]:
    """Bytes of host memory, and the beginning of a sentence that says what takes them."""
    plan = shared.plan()
    if plan is None:
        return LEAST_BYTES, "The smallest peer takes about"
    return max(plan["host_bytes"], LEAST_BYTES), "With one sample at a time, this recipe takes about"
