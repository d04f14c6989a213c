"""Waits for a coroutine from ordinary code, also in a thread with a running event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def wait_for_result(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine. Returns its result or raises its error.

    `asyncio.run` raises an error where the calling thread has a running loop, as the main thread of a notebook does.
    Then the coroutine runs in a thread of its own.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
