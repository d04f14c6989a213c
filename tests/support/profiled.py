"""The memory that code takes at its highest, as PyTorch's profiler counts it on the CPU."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def highest_bytes(run: Callable[[], object]) -> int:
    """Bytes that a call takes and gives back, at their highest."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    taken = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = highest = 0
    for event in sorted(taken, key=lambda event: event.start_ns()):
        held += event.nbytes()
        highest = max(highest, held)
    return highest
