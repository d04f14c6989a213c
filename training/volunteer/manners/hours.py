"""Hours of the day at which a peer may compute."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from training.errors import BadInput

MINUTES_OF_A_DAY = 24 * 60
_TIME = r"(\d{1,2})(?::(\d{2}))?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hours:
    """Hours in local time, possibly over midnight.

    >>> Hours.read("22-8")
    Hours(begin=1320, end=480)
    """

    begin: int
    """Minute of the day at which they begin."""
    end: int
    """Minute of the day at which they end; not the same as `begin`."""

    @classmethod
    def read(cls, text: str) -> Hours:
        """Reads hours such as `22-8` or `22:30-8:15`.

        Raises:
            BadInput: If the text means no hours.
        """
        found = re.fullmatch(rf"{_TIME}-{_TIME}", text.replace(" ", ""))
        parts = [int(part or 0) for part in found.groups()] if found else [24, 60] * 2
        if any(hour > 24 for hour in parts[::2]) or any(minute > 59 for minute in parts[1::2]):
            raise BadInput(f"--hours is {text!r}; give two times of the day, such as 22-8 or 22:30-7:15.")
        begin, end = (
            (60 * hour + minute) % MINUTES_OF_A_DAY for hour, minute in zip(parts[::2], parts[1::2], strict=True)
        )
        if begin == end:
            raise BadInput(f"--hours {text} begins and ends at the same time; to compute all day, omit it.")
        return cls(begin=begin, end=end)

    def has(self, minute: int) -> bool:
        """Returns True if a minute of the day is within the hours.

        >>> [Hours.read("22-8").has(60 * hour) for hour in (21, 22, 0, 7, 8)]
        [False, True, True, True, False]
        """
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end

    def rule(self, clock: Callable[[], time.struct_time] = time.localtime) -> Callable[[], str | None]:
        """Makes the rule of these hours for `Manners`.

        Args:
            clock: Returns the local time.
        """

        def rest() -> str | None:
            now = clock()
            if self.has(60 * now.tm_hour + now.tm_min):
                return None
            return f"outside its hours ({_of_day(self.begin)} to {_of_day(self.end)}), until {_of_day(self.begin)}"

        return rest


def _of_day(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
