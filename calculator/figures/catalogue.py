"""All figures, by name."""

from __future__ import annotations

from calculator.errors import BadSetup
from calculator.figures import (
    designer,
    outliers,
    quantization,
    ring,
    shuffling,
    streaming,
    thousandfold,
    tickets,
    uneven,
)
from calculator.figures.kit.figure import Figure

FIGURES: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE
    for module in (thousandfold, ring, uneven, quantization, streaming, shuffling, outliers, tickets, designer)
}


def figure_named(name: object) -> Figure:
    """The figure of this name.

    Raises:
        BadSetup: If no figure has this name.
    """
    figure = FIGURES.get(name) if isinstance(name, str) else None
    if figure is None:
        raise BadSetup(f"There is no figure {name!r:.60}; the figures are {', '.join(FIGURES)}.")
    return figure
