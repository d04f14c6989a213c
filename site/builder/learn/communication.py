"""Cost of exchanging the gradients of one epoch, for the page on communication: calculated, not measured."""

from __future__ import annotations

from builder.markup.tables import stacked
from calculator import Setup, estimate
from calculator.figures.rules.all_reduce import sent_share
from calculator.figures.thousandfold import gradient_bytes
from calculator.units import show_bytes, show_count, show_time
from training.recipe import load_recipe

PEERS = 16
"""Volunteers of the example."""

LINKS = (("10 Mbit/s", 10e6), ("100 Mbit/s", 100e6), ("10 Gbit/s", 10e9))
"""Bits per second. The first two are home connections, the last is a cluster's (paper, section 2.1)."""


def communication_table() -> str:
    """HTML table: bytes that each volunteer sends per epoch of the 2021 run's model, and the time of sending them."""
    shared = _parameters({"model": "dalle-2021"})
    separate = _parameters({"model": "dalle-2021", "shared_groups": load_recipe("dalle-2021").model.num_layers})
    rows = [
        ("Every layer its own weights, 32 bit", separate, gradient_bytes("dalle-2021", shared=False, bits=32)),
        ("Layers share weights, 32 bit", shared, gradient_bytes("dalle-2021", shared=True, bits=32)),
        ("Layers share weights, 8 bit", shared, gradient_bytes("dalle-2021", shared=True, bits=8)),
    ]
    lines = []
    for what, values, size in rows:
        sent = round(size * sent_share(PEERS))
        cells = [f"{show_count(round(values / 1e6))}\u00a0M", show_bytes(sent)]
        cells += [show_time(8 * sent / bits_per_second) for _, bits_per_second in LINKS]
        lines.append((what, *cells))
    shown = stacked("What one epoch costs", ("Gradients", "Values", "Sent by each volunteer", *dict(LINKS)), lines)
    note = f"{PEERS} volunteers exchange gradients once, in a ring, and use their links fully and for nothing else."
    return f"{shown}\n\n{note}"


def stored_parameters(name: str) -> str:
    """Number of weights that a recipe's model stores, in millions; shared weights count once."""
    return f"{_parameters({'model': name}) / 1e6:.0f}"


def _parameters(setup: dict) -> int:
    return estimate(Setup(**setup)).parameters
