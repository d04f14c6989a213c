"""Decision whether a peer may compute now; if not, why and until when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

SNOOZE_SECONDS = 3600.0
"""Length of a snooze."""
LOOK_SECONDS = 5.0
"""Seconds between two looks at the rules: some read sensors, and a micro-batch may take milliseconds."""

Rule = Callable[[], str | None]
"""Function that returns why and until when the peer must not compute, as the end of a sentence; None: it may."""


class Manners:
    """Wishes of the volunteer, and rules of the machine.

    The training loop asks `rest` between micro-batches; other threads, of keys and commands, call the other methods.

    Args:
        rules: Looked at in this order; the first that has a reason counts.
        leave: Asks the peer to leave at once.
        describe: Returns one line on what the peer does.
        clock: Returns seconds since 1970.

    >>> now = [0.0]
    >>> manners = Manners(clock=lambda: now[0])
    >>> manners.pause()
    >>> manners.rest()
    'as you wish, until you press p again or tell it to resume'
    >>> manners.snooze()
    >>> now[0] += 3601
    >>> manners.rest()
    """

    def __init__(
        self,
        rules: Sequence[Rule] = (),
        *,
        leave: Callable[[], None] = lambda: None,
        describe: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.time,
    ):
        self._rules, self._clock = tuple(rules), clock
        self.leave, self.describe = leave, describe
        self._until = -math.inf
        """End of the volunteer's pause."""
        self._looked, self._found = -math.inf, None
        self.is_finishing = False
        """True if the peer leaves when the update that ends its epoch has its samples."""

    # -- what the volunteer wants --------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stops computing until `resume`; what the peer has computed still counts."""
        self._until = math.inf

    def snooze(self) -> None:
        """Stops computing for `SNOOZE_SECONDS`."""
        self._until = self._clock() + SNOOZE_SECONDS

    def resume(self) -> None:
        """Ends a pause or a snooze. The rules still hold."""
        self._until = -math.inf

    def switch(self) -> None:
        """Pauses, or ends the volunteer's pause."""
        if self._clock() < self._until:
            self.resume()
        else:
            self.pause()

    def finish(self) -> None:
        """Leaves when the current epoch has ended."""
        self.is_finishing = True

    # -- what the training loop asks -----------------------------------------------------------------------------------

    def rest(self) -> str | None:
        """Returns why and until when the peer must not compute; None if it may."""
        now = self._clock()
        if now < self._until:
            if math.isinf(self._until):
                return "as you wish, until you press p again or tell it to resume"
            return f"snoozing until {time.strftime('%H:%M', time.localtime(self._until))}"
        if not 0 <= now - self._looked < LOOK_SECONDS:
            self._looked = now
            self._found = next((why for rule in self._rules if (why := rule()) is not None), None)
        return self._found
