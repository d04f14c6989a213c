"""The process' allocator: what a step frees is kept for the next one, what only the start needed goes back."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc refuses more (malloc/malloc.c, HEAP_MAX_SIZE / 2)."""


def keep_freed_memory() -> bool:
    """Tells glibc to keep what is freed, for the rest of the process; other systems are left as they are.

    A training step frees and takes the same large buffers again and again. Each time the system hands one out afresh it
    clears it page by page, which costs a step of the demo a sixth of its time. The process stays as large as its
    peak, and larger than what it ever used at once: blocks of other sizes do not fill those that are free. The full
    model's step grows it by twice what it holds (benchmarks/README.md).

    Returns:
        Whether it was set.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def give_back_freed_memory() -> bool:
    """Has glibc give what is free now back to the system; other systems are left as they are.

    Making hivemind's optimizer and downloading a state take copies of all parameters for a moment, more than a quarter
    of what stays (benchmarks/memory_on_host.py), and steps never ask for that much again.

    Returns:
        Whether the C library was asked.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is None:
        return False
    trim(0)
    return True
