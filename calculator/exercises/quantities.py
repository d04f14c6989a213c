"""Quantities as readers type them, such as "1.5 GB", "2 h 5 min" or "40 %": text in, number in base units out.

Base units are bytes, seconds, bytes per second, and 1 for shares and counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from calculator.errors import BadSetup
from calculator.units import show_number

LONGEST = 60
"""Most characters of a quantity."""
LARGEST = 1e30
"""Largest quantity that is read, in base units."""
_DECIMAL = (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
_BINARY = (("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40))
_NAMES = {"size": "a size", "rate": "a rate", "time": "a time", "share": "a share", "count": "a plain number"}
_PIECE = re.compile(r"([+-]?\d[\d ]*(?:\.\d+)?(?:e[+-]?\d+)?|[+-]?\.\d+)\s*([^\d\s+.-]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit measures, and its size in base units."""

    dimension: str
    size: float


def _units() -> dict[str, Unit]:
    found = {"": Unit("count", 1), "%": Unit("share", 0.01), "percent": Unit("share", 0.01)}
    found |= {name: Unit("count", size) for name, size in (("thousand", 1e3), ("million", 1e6), ("billion", 1e9))}
    for prefix, size in (("", 1), *_DECIMAL, *_BINARY):
        for name, share in (("B", 1), ("bit", 1 / 8)):
            found[prefix + name] = Unit("size", size * share)
            found[f"{prefix}{name}/s"] = Unit("rate", size * share)
    found |= {f"{prefix}bps": Unit("rate", size / 8) for prefix, size in _DECIMAL}
    found |= {"byte": Unit("size", 1), "bytes": Unit("size", 1), "bits": Unit("size", 1 / 8)}
    times = {
        "ms": 1e-3, "s": 1, "sec": 1, "second": 1, "seconds": 1, "min": 60, "minute": 60, "minutes": 60, "h": 3600,
        "hour": 3600, "hours": 3600, "d": 86_400, "day": 86_400, "days": 86_400,
    }  # fmt: skip
    return found | {name: Unit("time", size) for name, size in times.items()}


UNITS = _units()
"""Units by their names."""


def read(text: str, unit: str) -> float:
    """The quantity that a reader has typed, in base units.

    Args:
        text: A number, or several with units of time; without a unit it is in `unit`.
        unit: The unit in which the question asks: one of `UNITS`, or the name of what is counted, such as "samples".

    Raises:
        BadSetup: If the text is no number, its unit measures something else, or it is larger than `LARGEST`.

    >>> read("1.5 GB", "MB"), read("1 500", "MB"), read("2 h 5 min", "s"), read("12 samples", "samples")
    (1500000000.0, 1500000000.0, 7500.0, 12.0)
    """
    asked = UNITS.get(unit, UNITS[""])
    plain = _plain(text)
    pieces = [(found[1].replace(" ", ""), found[2]) for found in _PIECE.finditer(plain)]
    if not pieces or _PIECE.sub("", plain).strip():
        example = f"12 {unit}".strip()
        raise BadSetup(f"{text.strip()[:LONGEST]!r} is not a number; write one such as {example}.")
    if len(pieces) > 1 and asked.dimension != "time":
        raise BadSetup("Write one number with its unit.")
    value = sum(float(number) * _unit(name, unit, asked).size for number, name in pieces)
    if abs(value) > LARGEST:
        raise BadSetup(f"{text.strip()} is beyond all answers; write a number of at most {LARGEST:g}.")
    return value


def shown(value: float, unit: str = "", digits: int = 4) -> str:
    """A value in base units as text in a unit.

    >>> shown(1.5e9, "MB"), shown(0.25, "%"), shown(12, "samples")
    ('1\u202f500 MB', '25 %', '12 samples')
    """
    size = UNITS.get(unit, UNITS[""]).size
    return f"{show_number(value / size, digits)} {unit}".strip().replace("-", "\u2212")


def listed(values: Iterable[float]) -> str:
    """Plain numbers as text, one after the other.

    >>> listed((2.5, -1.0))
    '2.5, \u22121'
    """
    return ", ".join(shown(value, digits=6) for value in values)


def _plain(text: str) -> str:
    """The text with a point as decimal sign, without groups of digits.

    Raises:
        BadSetup: If the text is too long, or a comma may mean a group of digits as well as the decimal sign.
    """
    if len(text) > LONGEST:
        raise BadSetup(f"A number has at most {LONGEST} characters; yours has {len(text)}.")
    plain = text.replace("\u2212", "-").replace("\u00d7", " ").replace("_", "")
    plain = re.sub(r"[\u00a0\u2009\u202f\s]+", " ", plain).strip()
    if re.search(r"\d(,\d{3}){2,}(?!\d)|\d(,\d{3})+\.", plain):
        return plain.replace(",", "")
    if re.search(r"(?<!\d)[1-9]\d{0,2},\d{3}(?!\d)", plain):
        raise BadSetup(f"The comma of {text.strip()} may mean thousands or decimals; write it without a comma.")
    return re.sub(r"(?<=\d),(?=\d)", ".", plain)


def _unit(name: str, asked_name: str, asked: Unit) -> Unit:
    """The unit of a typed name.

    Raises:
        BadSetup: If there is no such unit, or it measures something else than the question asks for.
    """
    if not name:
        return UNITS.get(asked_name, UNITS[""])
    if name == asked_name or (asked.dimension == "count" and name.rstrip("s") == asked_name.rstrip("s")):
        return asked
    if name in ("kb", "Kb", "Mb", "Gb", "Tb"):
        raise BadSetup(f"{name} may mean bits or bytes; write {name[0]}B or {name[0]}bit.")
    alike = {key: one for key, one in UNITS.items() if key.casefold() == name.casefold()}
    found = UNITS.get(name) or next(iter(alike.values()), None)
    if found is None:
        raise BadSetup(f"{name[:20]} is not a unit that this page knows; answer in {asked_name or 'a plain number'}.")
    if found.dimension != asked.dimension:
        wanted = f"{_NAMES[asked.dimension]}, in {asked_name}" if asked_name else _NAMES[asked.dimension]
        raise BadSetup(f"{name} is the unit of {_NAMES[found.dimension]}; the question asks for {wanted}.")
    return found
