"""Numbers as people read them: bytes, counts, shares, rates and times. All that the project prints uses these."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

_UNITS = (("TiB", 40, 2), ("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1))
_LONGEST_SECONDS = 1000 * 365 * 86_400
_PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))


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


def show_number(value: float, digits: int = 3) -> str:
    """Formats a measured number with some digits and no exponent; from 1000 on with all digits before the point.

    >>> [show_number(one) for one in (0, 7.87e-05, 0.5, 12.34, 999.6, 52341.7)]
    ['0', '0.0000787', '0.5', '12.3', '1\u202f000', '52\u202f342']
    """
    if abs(value) >= 999.5:
        return show_count(round(value))
    return f"{Decimal(f'{value:.{digits}g}'):f}"


def show_rate(per_second: float, unit: str, digits: int = 3) -> str:
    """Formats a rate with the prefix that makes it shortest, such as a link's bits in a second.

    >>> show_rate(78.7e6, "FLOP"), show_rate(5e6, "bit"), show_rate(120, "bit")
    ('78.7 MFLOP/s', '5 Mbit/s', '120 bit/s')
    """
    for prefix, size in _PREFIXES:
        if per_second >= 0.9995 * size:  # which three digits show as 1
            return f"{show_number(per_second / size, digits)} {prefix}{unit}/s"
    return f"{show_number(per_second, digits)} {unit}/s"


def show_time(seconds: float) -> str:
    """Formats a span of time in units that fit; javascripts/parts/format.mjs does the same from a second on.

    >>> [show_time(one) for one in (0, 0.0123, 0.714, 14.2, 600, 3725, 7200)]
    ['0 s', '12 ms', '0.71 s', '14 s', '10 min', '1 h 2 min', '2 h']
    >>> [show_time(one * 86_400) for one in (2.34, 45, 3650)]
    ['2.3 days', '45 days', '10 years']
    """
    if 0 < seconds < 0.0995:
        return f"{1000 * seconds:.2g} ms" if seconds >= 1e-4 else "under 0.1 ms"
    if seconds < 119.5:
        return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
    if seconds < 2 * 86_400:
        hours, minutes = divmod(round(seconds / 60), 60)
        return " ".join(f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min")) if count)
    if seconds >= _LONGEST_SECONDS:
        return f"over {show_count(1000)} years"
    size, unit = (365, "years") if seconds >= 730 * 86_400 else (1, "days")
    count = seconds / 86_400 / size
    return f"{f'{count:.2g}' if count < 99.5 else show_count(round(count))} {unit}"


def show_days(days: float) -> str:
    """Formats a span of time that is given in days."""
    return show_time(86_400 * days)
