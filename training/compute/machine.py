"""This machine's devices, the memory that is free on them now, and the usable processor cores."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from calculator.devices import Device
from training.errors import BadInput

_GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file "),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file "),
)
"""Files of Linux control groups, versions 2 and 1: limit, use, statistics, and their line of reclaimable cache."""


def this_machine(name: str | None = None) -> Device:
    """A device of this machine with the memory that is free now.

    Args:
        name: `cpu`, `cuda` or `cuda:1` and so on; None: the first GPU, or the processor where there is none.

    Raises:
        BadInput: If this machine has no such device.
    """
    import torch

    device = torch_device(name)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(
            name="gpu",
            title=properties.name,
            memory_bytes=properties.total_memory,
            # What is free now, since other programs may use the same GPU.
            usable_bytes=torch.cuda.mem_get_info(device)[0],
            capability=(properties.major, properties.minor),
            source="torch.cuda.mem_get_info",
        )
    import psutil

    memory, allowed = psutil.virtual_memory(), group_bytes()
    return Device(
        name="cpu",
        title="processor and memory of this machine",
        memory_bytes=memory.total,
        usable_bytes=memory.available if allowed is None else min(memory.available, allowed),
        capability=None,
        source="psutil.virtual_memory" if allowed is None else "psutil.virtual_memory and the control group's limit",
        unified=True,
    )


def torch_device(name: str | None = None):
    """A `torch.device` that exists on this machine; arguments and errors as for `this_machine`."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
    if name is None:
        name = "cuda" if gpus else "cpu"
    chosen = "cuda:0" if name == "cuda" else name
    if chosen not in here:
        raise BadInput(f"PyTorch finds no device {name!r} on this machine; give one of: {', '.join(here)}.")
    return torch.device(chosen)


def usable_cores(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Processor cores that this process may use, by its CPU affinity and by a container's CPU quota.

    Args:
        root: Where control groups are mounted.
    """
    # macOS has no such call.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota_file, period_file in (("cpu.max", None), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):  # no such version, or "max"
            words = (root / quota_file).read_text().split()
            quota, period = int(words[0]), int((root / period_file).read_text() if period_file else words[1])
            # Version 1 of control groups writes -1 where there is no quota.
            if quota > 0:
                # Rounded up: one thread would leave half of a quota of 1.5 cores unused.
                cores = min(cores, max(math.ceil(quota / period), 1))
    return cores


def group_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that is left below a container's limit, which the machine's own figures do not show.

    Args:
        root: Where control groups are mounted.

    Returns:
        Bytes, or None where there is no limit.
    """
    for limit_file, use_file, parts_file, cache_line in _GROUP_FILES:
        with suppress(OSError, ValueError):  # no such version, or "max"
            limit, used = (int((root / name).read_text()) for name in (limit_file, use_file))
            parts = (root / parts_file).read_text().splitlines()
            # Cached files count as used, but the kernel drops them as soon as a process needs the memory.
            cache = int(next((line for line in parts if line.startswith(cache_line)), "- 0").split()[1])
            return max(limit - used + cache, 0)
    return None
