"""Limits of requests: each address or account has a number of permits, which grows back at a steady rate."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MOST_BUCKETS = 20_000
"""Most addresses and accounts that are remembered; the longest unused one is forgotten, which bounds the memory."""
_NETWORK_BITS = 64
"""Leading bits of an IPv6 address that name a home's network; all machines of a network share their permits."""


class RateLimit:
    """Limit on the requests of each asker.

    Args:
        per_second: Permits that come back in a second.
        at_once: Most permits of an asker: requests that may come at once after a long pause.
        clock: Seconds from any start; a test passes its own.
    """

    def __init__(self, *, per_second: float, at_once: int, clock: Callable[[], float] = time.monotonic):
        self._per_second, self._at_once, self._clock = per_second, at_once, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._guard = threading.Lock()

    def take(self, whose: str) -> float:
        """Takes a permit of the asker `whose`. Returns 0, or the seconds until the next permit if there is none."""
        now = self._clock()
        with self._guard:
            left, since = self._buckets.pop(whose, (float(self._at_once), now))
            left = min(self._at_once, left + (now - since) * self._per_second)
            self._buckets[whose] = (left - 1 if left >= 1 else left, now)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._per_second


def asker(address: str) -> str:
    """Name under which requests from an address are limited:
    the IPv4 address itself, or the network of an IPv6 address.

    >>> asker("203.0.113.7"), asker("2001:db8:1:2:3:4:5:6"), asker("testclient")
    ('203.0.113.7', '2001:db8:1:2::', 'testclient')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), _NETWORK_BITS), strict=False).network_address)
