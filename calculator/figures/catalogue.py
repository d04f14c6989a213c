"""All figures, by name."""

from __future__ import annotations

from calculator.errors import BadSetup
from calculator.figures import (
    designer,
    outliers,
    quantization,
    sharding,
    shuffling,
    step,
    streaming,
    thousandfold,
    tickets,
    uneven,
)
from calculator.figures.exchanges import feedback, local_updates, poison, ring, sparse
from calculator.figures.kit.figure import Figure

FIGURES: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE
    for module in (
        thousandfold,
        ring,
        sparse,
        uneven,
        step,
        sharding,
        quantization,
        streaming,
        shuffling,
        outliers,
        tickets,
        local_updates,
        feedback,
        poison,
        designer,
    )
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
