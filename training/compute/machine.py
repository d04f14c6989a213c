"""Devices of this machine, the memory that is free on them now, and the usable processor cores."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

from calculator.choose.devices import Device
from training.errors import BadInput, TrainingError, first_line

GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_GROUP_FILES = (
    ("", "memory.max", "memory.current", "inactive_file "),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
)
"""Files of Linux control groups, versions 2 and 1: the folder, the files of limit and use, and the line of reclaimable
cache in memory.stat."""


def this_machine(name: str | None = None) -> Device:
    """Describes a device of this machine with the memory that is free now.

    Args:
        name: `cpu`, `cuda` or `cuda:1` and so on; None: the first GPU, or the processor where there is none.

    Raises:
        BadInput: If this machine has no such device.
        TrainingError: If the GPU does not answer, for example because all its memory is taken.
    """
    import torch

    device = torch_device(name)
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        try:
            # Free memory now, since other programs may use the GPU too.
            usable = torch.cuda.mem_get_info(device)[0]
        except RuntimeError as error:  # asking already takes some memory, or the GPU is another program's alone
            raise TrainingError(
                f"{properties.name} cannot be used: {first_line(error).rstrip('.')}.",
                cure="Close the programs that use it (`nvidia-smi` lists them), or give --device cpu.",
            ) from None
        return Device(
            name="gpu",
            title=properties.name,
            memory_bytes=properties.total_memory,
            usable_bytes=usable,
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
    """Returns a `torch.device` that exists on this machine; arguments and errors as for `this_machine`."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = ["cpu", *(f"cuda:{number}" for number in range(gpus))]
    if name is None:
        name = "cuda" if gpus else "cpu"
    chosen = "cuda:0" if name == "cuda" else name
    if chosen not in here:
        raise BadInput(f"PyTorch finds no device {name!r} on this machine; give one of: {', '.join(here)}.")
    return torch.device(chosen)


def usable_cores(root: Path = GROUPS, own: Path = OWN_GROUPS) -> int:
    """Number of processor cores that this process may use, by its CPU affinity and the CPU quota of a container or
    service.

    Args:
        root: Folder at which control groups are mounted.
        own: File that names the groups of this process.
    """
    # macOS has no such call.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota_file, period_file, folder in (
        *(("cpu.max", None, folder) for folder in _groups(root, own, "")),
        *(("cpu.cfs_quota_us", "cpu.cfs_period_us", folder) for folder in _groups(root, own, "cpu")),
    ):
        with suppress(OSError, ValueError):  # the version is not in use, or the limit is "max"
            words = (folder / quota_file).read_text().split()
            quota, period = int(words[0]), int((folder / period_file).read_text() if period_file else words[1])
            # Version 1 of control groups writes -1 where there is no quota.
            if quota > 0:
                # Rounded up: one thread would leave half of a quota of 1.5 cores unused.
                cores = min(cores, max(math.ceil(quota / period), 1))
    return cores


def group_bytes(root: Path = GROUPS, own: Path = OWN_GROUPS) -> int | None:
    """Memory left below the limit of a container or service, which the machine's own figures do not show.

    Args:
        root: Folder at which control groups are mounted.
        own: File that names the groups of this process.

    Returns:
        Bytes, or None where there is no limit.
    """
    left = []
    for controller, limit_file, use_file, cache_line in _GROUP_FILES:
        for folder in _groups(root, own, controller):
            with suppress(OSError, ValueError):  # the version is not in use, or the limit is "max"
                limit, used = (int((folder / name).read_text()) for name in (limit_file, use_file))
                parts = (folder / "memory.stat").read_text().splitlines()
                # Cached files count as used, but the kernel drops them as soon as a process needs the memory.
                cache = int(next((line for line in parts if line.startswith(cache_line)), "- 0").split()[1])
                left.append(max(limit - used + cache, 0))
    return min(left, default=None)


def _groups(root: Path, own: Path, controller: str) -> list[Path]:
    """Lists the folders of this process's control group and of all groups around it; each may have a limit.

    Args:
        root: Folder at which control groups are mounted.
        own: File like Linux's /proc/self/cgroup.
        controller: Controller of version 1; empty: version 2.
    """
    mounted, inner = root / controller, ""
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                inner = path.strip("/")
    # In a container, the path may be the one on its host, and only the container's own part of it is mounted here.
    if ".." in Path(inner).parts or not (mounted / inner).is_dir():
        return [mounted]
    return [mounted / inner, *(mounted / part for part in Path(inner).parents)] if inner else [mounted]
