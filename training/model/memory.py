"""The process' allocator: freed memory is kept for the next tensors instead of going back to the system."""

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
    peak.

    Returns:
        Whether it was set.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, (1 << 31) - 1))
