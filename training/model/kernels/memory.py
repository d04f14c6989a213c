"""Settings of glibc's allocator: it keeps memory that a step frees for the next one, and returns that of the start."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""Largest threshold that glibc accepts (malloc/malloc.c, HEAP_MAX_SIZE / 2)."""


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory for the rest of the process; does nothing on other systems.

    A training step allocates and frees large buffers, which have equal sizes in each step. Each time the system
    provides a new buffer, it clears it page by page, which takes a sixth of the time of a step of the demo. The price
    is memory: the process stays as large as at its peak, and becomes larger than all that it uses at once, because
    blocks of other sizes do not fill the free ones. The full model's step grows it by twice what it holds
    (benchmarks/README.md).

    Returns:
        True if the allocator has accepted the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Both, because setting either one stops glibc from adapting the other (mallopt(3)).
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))


def give_back_freed_memory() -> bool:
    """Returns the memory that is free now to the system; does nothing without glibc.

    Creating hivemind's optimizer and downloading a state make temporary copies of all parameters, more than a quarter
    of what remains (benchmarks/memory/memory_on_host.py), and steps never need that much again.

    Returns:
        True if the C library was called.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform.startswith("linux") else None
    if trim is None:
        return False
    trim(0)
    return True
