"""The controls of a figure: sliders, sliders over given numbers, choices, and texts that only an address sets.

Values are texts in addresses and in requests. Each is changed to the nearest accepted value, and a sentence says so if
that differs from the text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from calculator.units import show_count

LONGEST_QUOTE = 40
"""The most characters of a refused text that a sentence quotes."""
MOST_NAMED = 8
"""The most options that a sentence lists."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A slider over evenly spaced numbers."""

    name: str
    label: str
    low: float
    high: float
    default: float
    step: float = 1
    unit: str = ""
    folded: bool = False
    """True if the slider is among the folded controls, such as sliders that the reader drags in the drawing."""
    needs: tuple[str, str] | None = None
    """Name and value of another control that this control needs; with other values it is hidden.
    None: it is always shown."""

    def read(self, text: str) -> tuple[float, str]:
        """Reads the nearest allowed number, and a sentence if the text asked for another number; else an empty text."""
        number = _number(text)
        if number is None:
            return self.default, _replaced(self, text, f"a number from {self.low:g} to {self.high:g}", self.default)
        # Counted in steps from the low end and rounded, so that the text of 0.1 + 0.2 is 0.3.
        steps = round((min(max(number, self.low), self.high) - self.low) / self.step)
        value = min(round(self.low + steps * self.step, 6), self.high)
        inside = self.low <= number <= self.high
        return value, "" if inside else _replaced(self, text, f"from {self.low:g} to {self.high:g}", value)

    def text(self, value: float) -> str:
        """The value as text in an address."""
        return f"{value:g}"

    def shown(self, value: float) -> str:
        """The value as text for readers."""
        return f"{value:g} {self.unit}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stops:
    """A slider over given numbers, such as powers of two."""

    name: str
    label: str
    stops: tuple[float, ...]
    """Accepted values, ascending."""
    default: float
    unit: str = ""
    folded: bool = False
    needs: tuple[str, str] | None = None

    def read(self, text: str) -> tuple[float, str]:
        """Reads the nearest stop, and a sentence if the text asked for another number; else an empty text."""
        number = _number(text)
        accepted = f"from {self.shown(self.stops[0])} to {self.shown(self.stops[-1])}"
        if number is None:
            return self.default, _replaced(self, text, f"a number {accepted}", self.default)
        value = min(self.stops, key=lambda stop: abs(stop - number))
        inside = self.stops[0] <= number <= self.stops[-1]
        return value, "" if inside else _replaced(self, text, accepted, value)

    def text(self, value: float) -> str:
        """The value as text in an address."""
        return f"{value:.10g}"

    def shown(self, value: float) -> str:
        """The value as text for readers."""
        return f"{show_count(value)} {self.unit}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A choice among a few options."""

    name: str
    label: str
    options: tuple[tuple[str, str], ...]
    """(value, label)"""
    default: str
    folded: bool = False
    needs: tuple[str, str] | None = None

    def read(self, text: str) -> tuple[str, str]:
        """Reads the value, or the default and a sentence if the text is not an option."""
        values = [value for value, _ in self.options]
        if text in values:
            return text, ""
        accepted = f"one of {', '.join(values)}" if len(values) <= MOST_NAMED else "in the list"
        return self.default, _replaced(self, text, accepted, self.default)

    def text(self, value: str) -> str:
        """The value as text in an address."""
        return value

    def shown(self, value: str) -> str:
        """The value as text for readers."""
        return dict(self.options)[value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A text that another page puts into the address, such as the reader's own setup; the figure shows no input for it.

    Empty unless an address sets it.
    """

    name: str
    label: str
    check: Callable[[str], str]
    """Returns a sentence that says why a text is refused, or an empty text."""
    example: str
    """A text that is accepted."""
    default: str = ""
    folded: bool = False
    needs: tuple[str, str] | None = None

    def read(self, text: str) -> tuple[str, str]:
        """Reads the text, or returns the default and a sentence if it is refused."""
        refusal = self.check(text) if text else ""
        return (self.default, f"{self.label}: {refusal}") if refusal else (text, "")

    def text(self, value: str) -> str:
        """The value as text in an address."""
        return value

    def shown(self, value: str) -> str:
        """The value as text for readers."""
        return value


Control = Range | Stops | Choice | Given
Values = dict[str, float | str]


def read_values(controls: tuple[Control, ...], texts: Mapping[str, object]) -> tuple[Values, list[str]]:
    """A value for every control, and a sentence for each value that was changed to an accepted one.

    >>> read_values((Range(name="peers", label="Peers", low=2, high=8, default=4),), {"peers": "1000"})
    ({'peers': 8}, ['Peers: “1000” is not from 2 to 8, so 8 is used.'])
    """
    values: Values = {}
    sentences = []
    for control in controls:
        if control.name not in texts:
            values[control.name] = control.default
            continue
        values[control.name], sentence = control.read(str(texts[control.name]))
        sentences += [sentence] if sentence else []
    return values, sentences


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _replaced(control: Control, text: str, accepted: str, value: float | str) -> str:
    quoted = text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
    return f"{control.label}: “{quoted}” is not {accepted}, so {control.shown(value)} is used."
