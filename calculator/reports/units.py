"""Numbers as people read them: bytes, counts, shares and times."""

from __future__ import annotations

from functools import lru_cache

_UNITS = (("TiB", 40, 2), ("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1))


@lru_cache(maxsize=4096)
def show_bytes(count: int) -> str:
    """Formats bytes: 13958643712 as 13.00 GiB. Rounds half up, by arithmetic with whole numbers."""
    for unit, shift, digits in _UNITS:
        if count >> shift:
            rounded = ((count * 10**digits) + (1 << (shift - 1))) >> shift
            return f"{rounded // 10**digits}.{rounded % 10**digits:0{digits}d} {unit}"
    return f"{count} B"


def show_count(count: float) -> str:
    """Formats a count: 774030080 as 774 030 080, with narrow no-break spaces."""
    text = f"{count:,.0f}" if count == int(count) else f"{count:,g}"
    return text.replace(",", "\u202f")


def show_left(margin: int) -> str:
    """Formats bytes that are left, or with a minus sign the bytes that are missing."""
    return ("" if margin >= 0 else "\u2212") + show_bytes(abs(margin))


def show_share(part: int, whole: int) -> str:
    """Formats a part in percent of the whole."""
    percent = round(100 * part / whole) if whole else 0
    return "under 1 %" if part and not percent else f"{percent} %"


def show_days(days: float) -> str:
    """Formats a time in days; below two days in hours, below two hours in minutes."""
    for size, word in ((1, "day"), (24, "hour"), (24 * 60, "minute")):
        if days * size >= 2 or word == "minute":
            break
    number = days * size
    short = show_count(round(number)) if number >= 10 else f"{max(number, 1):.1f}".removesuffix(".0")
    return f"{short} {word}{'' if short == '1' else 's'}"
