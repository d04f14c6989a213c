"""The figure of the four factors: how large batches, sharing, 8 bit and overlap make up for a slow link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.all_reduce import sent_share
from calculator.models.architectures import PRESETS
from calculator.parts.parameters import count_parameters, count_small_parameters
from calculator.swarm.exchange import vector_bytes
from calculator.swarm.settings import COMPRESSION_THRESHOLD
from calculator.units import show_bytes, show_count, show_number, show_time

CLUSTER_MEGABITS = 10_000
"""The slowest link of a cluster (paper, section 2.1: 10-100 Gbit/s)."""
SHARED_GROUPS = 4
"""Layer groups of the 2021 run (paper, section 3.1): row, column, row, row."""
MEGABITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000)
MODELS = ("dalle-2021", "bert-large", "gpt2-large", "gpt2-xl", "t5-3b", "gpt-j-6b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A technique, and the waiting that remains once it is used."""

    name: str
    factor: float
    """The factor by which the waiting shrinks; infinite if none is left."""
    waiting_seconds: float
    """Seconds for which a peer waits for the network per sample that it computes."""


@lru_cache(maxsize=64)
def gradient_bytes(model: str, *, shared: bool, bits: int) -> int:
    """Bytes of a model's gradients as they are sent; with 8 bit, small tensors take 16.

    >>> gradient_bytes("gpt2", shared=False, bits=32) == 4 * 124_439_808
    True
    """
    architecture = PRESETS[model]
    groups = SHARED_GROUPS if shared else 0
    parameters = count_parameters(architecture, groups)
    if bits > 8:
        return parameters * bits // 8
    small = count_small_parameters(architecture, groups, below=COMPRESSION_THRESHOLD)
    return vector_bytes(parameters, small, "blockwise8")


def exchange_seconds(size_bytes: int, peers: int, megabits: float) -> float:
    """One all-reduce at the full rate of the slower direction.

    >>> exchange_seconds(1_250_000, 2, 10)
    1.0
    """
    return 8 * size_bytes * sent_share(peers) / (megabits * 1e6)


def steps_of(values: Values) -> list[Step]:
    """The waiting after each technique in turn, starting with an exchange after every sample of every peer."""
    peers, megabits, model = int(values["peers"]), min(values["up"], values["down"]), str(values["model"])
    shared, bits, speed = values["sharing"] == "groups", int(values["bits"]), float(values["speed"])
    own_samples = max(1.0, values["batch"] / peers)
    full = exchange_seconds(gradient_bytes(model, shared=False, bits=32), peers, megabits)
    fewer = exchange_seconds(gradient_bytes(model, shared=shared, bits=32), peers, megabits)
    small = exchange_seconds(gradient_bytes(model, shared=shared, bits=bits), peers, megabits)
    waits = [("Exchange after each sample", full), ("Large batch", full / own_samples)]
    waits += [("Shared weights", fewer / own_samples), (f"{bits} bit", small / own_samples)]
    left = max(0.0, small / own_samples - 1 / speed) if values["overlap"] == "on" else small / own_samples
    waits.append(("Overlap", left))
    before = [full, *(seconds for _, seconds in waits)]
    return [
        Step(name=name, factor=was / seconds if seconds else float("inf"), waiting_seconds=seconds)
        for was, (name, seconds) in zip(before, waits, strict=False)
    ]


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws bars of the waiting on a logarithmic scale, with a line for the computing time;
    then the share of computing."""
    steps, computing = steps_of(values), 1 / float(values["speed"])
    shown = [step.waiting_seconds for step in steps if step.waiting_seconds]
    # From a quarter of the smallest, whose bar would otherwise have no length.
    axis = Scale(min(*shown, computing) / 4, max(*shown, computing) * 1.3, 4, canvas.width - 4, logarithmic=True)
    canvas.text(0, 14, "Waiting per sample, logarithmic", "strong")
    for row, step in enumerate(steps):
        y = 40 + 44 * row
        said = show_time(step.waiting_seconds) if step.waiting_seconds else "nothing"
        factor = (
            "" if not row else " (all of it)" if step.factor == float("inf") else f" (÷ {show_number(step.factor)})"
        )
        canvas.text(4, y, f"{step.name}{factor}", "ink")
        canvas.text(canvas.width - 4, y, said, "soft", anchor="end")
        canvas.rect(4, y + 6, canvas.width - 8, 16, "shade")
        if step.waiting_seconds:
            canvas.rect(4, y + 6, axis.at(step.waiting_seconds) - 4, 16, f"fill-{row + 1}")
    bottom = 40 + 44 * len(steps) - 10
    place = axis.at(computing)
    canvas.line(place, 46, place, bottom, "dashed")
    canvas.text(4, bottom + 16, f"dashed: computing takes {show_time(computing)}", "soft")
    first, last = (computing / (computing + step.waiting_seconds) for step in (steps[0], steps[-1]))
    for row, (name, share) in enumerate((("Before", first), ("After", last))):
        y = bottom + 50 + 40 * row
        canvas.text(4, y, f"{name}: computing {_percent(share)} of the time", "ink")
        canvas.rect(4, y + 6, canvas.width - 8, 16, "shade")
        canvas.rect(4, y + 6, (canvas.width - 8) * share, 16, "fill-1")
    return Drawn(
        caption=_caption(values, steps, first, last),
        label="Bars of the time that a peer waits per sample, after each technique, and the share spent computing",
        canvas=canvas,
        height=bottom + 118,
        head=("With", "Divided by", "Waiting per sample", "Share of computing"),
        rows=[
            (
                step.name,
                "–" if not row else "all of it" if step.factor == float("inf") else show_number(step.factor),
                show_time(step.waiting_seconds),
                _percent(computing / (computing + step.waiting_seconds)),
            )
            for row, step in enumerate(steps)
        ],
    )


def _caption(values: Values, steps: list[Step], first: float, last: float) -> str:
    peers, batch, speed = int(values["peers"]), max(values["batch"], values["peers"]), float(values["speed"])
    megabits = min(values["up"], values["down"])
    slower = CLUSTER_MEGABITS / megabits
    gap = f"{show_number(slower)} times slower than a cluster's 10 Gbit/s" if slower > 1 else "as fast as a cluster's"
    size = gradient_bytes(str(values["model"]), shared=values["sharing"] == "groups", bits=int(values["bits"]))
    sent, seconds = show_bytes(round(size * sent_share(peers))), exchange_seconds(size, peers, megabits)
    product = show_number(steps[0].waiting_seconds / steps[3].waiting_seconds)
    return (
        f"A link of {show_count(megabits)} Mbit/s is {gap}: with an exchange after each sample, {peers} peers would "
        f"spend {_percent(first)} of the time computing. Batch, sharing and {values['bits']} bit divide the waiting by "
        f"{product}. {_overlap(values, steps)} Now they spend {_percent(last)} of the time computing. One epoch takes "
        f"{show_time(batch / peers / speed)} to compute and {show_time(seconds)} to exchange; each peer "
        f"sends {sent}."
    )


def _overlap(values: Values, steps: list[Step]) -> str:
    before, after = steps[3].waiting_seconds, steps[4].waiting_seconds
    if values["overlap"] == "off":
        return "Without overlap, computing hides none of it."
    if not after:
        return "Overlap hides the rest."
    return f"Overlap hides {_percent((before - after) / before)} of the rest."


def _percent(share: float) -> str:
    if share >= 0.9995:
        return "100 %"
    return f"{100 * share:.1f} %" if share >= 0.001 else "under 0.1 %"


FIGURE = Figure(
    name="thousandfold",
    title="Four factors, one product",
    controls=(
        Choice(name="model", label="Model", options=tuple((name, name) for name in MODELS), default="dalle-2021"),
        Stops(name="up", label="Upload", stops=MEGABITS, default=10, unit="Mbit/s"),
        Stops(name="down", label="Download", stops=MEGABITS, default=100, unit="Mbit/s"),
        Stops(name="peers", label="Peers", stops=(2, 4, 8, 16, 32, 64, 128, 256), default=16),
        Stops(
            name="speed",
            label="One peer computes",
            stops=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50),
            default=2,
            unit="samples/s",
        ),
        Stops(
            name="batch",
            label="Samples an epoch",
            stops=(16, 64, 256, 1024, 4096, 16_384, 65_536),
            default=16_384,
        ),
        Choice(
            name="bits", label="Gradients in", options=(("32", "32 bit"), ("16", "16 bit"), ("8", "8 bit")), default="8"
        ),
        Choice(
            name="sharing",
            label="Weights",
            options=(("none", "of each layer"), ("groups", f"of {SHARED_GROUPS} groups")),
            default="groups",
        ),
        Choice(name="overlap", label="Overlap", options=(("off", "off"), ("on", "on")), default="on"),
    ),
    draw=draw,
    sources=(
        Source(text="Borzunov et al. 2022, section 2.1", address="https://arxiv.org/abs/2207.03481"),
        Source(text="You et al. 2020 (large batches)", address="https://arxiv.org/abs/1904.00962"),
        Source(text="Lan et al. 2020 (sharing)", address="https://arxiv.org/abs/1909.11942"),
        Source(text="Dettmers 2015 (8 bit)", address="https://arxiv.org/abs/1511.04561"),
        Source(text="Ren et al. 2021 (overlap)", address="https://arxiv.org/abs/2101.06840"),
    ),
)
