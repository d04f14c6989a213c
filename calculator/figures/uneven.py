"""The figure of uneven devices: equal shares of a batch compared with counting samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calculator.figures.kit.controls import Range, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Handle, Source

DEVICES = ("Laptop", "Free GPU", "Gaming GPU", "Data-centre GPU")
FASTEST = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """Computing of one batch: its time, and the samples and busy time of each device."""

    computing_seconds: float
    """Time until the last sample is computed."""
    samples: tuple[int, ...]
    """Samples of each device."""
    busy_seconds: tuple[float, ...]
    """Time for which each device computes samples of this batch."""

    def samples_per_second(self, exchange_seconds: float) -> float:
        """The throughput of all devices together, including the exchange."""
        return sum(self.samples) / (self.computing_seconds + exchange_seconds)


def equal_shares(speeds: Sequence[float], batch: int) -> Epoch:
    """Gives each device an equal number of samples; the first devices get one more if the batch does not divide.

    >>> equal_shares([9, 1], 18).computing_seconds
    9.0
    """
    share, more = divmod(batch, len(speeds))
    samples = tuple(share + (device < more) for device in range(len(speeds)))
    busy = tuple(count / speed for count, speed in zip(samples, speeds, strict=True))
    return Epoch(computing_seconds=max(busy), samples=samples, busy_seconds=busy)


def by_samples(speeds: Sequence[float], batch: int) -> Epoch:
    """Lets each device compute samples until the batch is full; leaves out samples that are unfinished by then.

    >>> by_samples([9, 1], 20).samples, by_samples([9, 1], 20).computing_seconds
    ((18, 2), 2.0)
    """
    # At the instant at which fractions of samples would fill the batch, each device has finished at least this many;
    # what is missing then is less than one sample per device.
    fluid = batch / sum(speeds)
    samples = [int(fluid * speed + 1e-9) for speed in speeds]
    seconds = max(count / speed for count, speed in zip(samples, speeds, strict=True))
    while sum(samples) < batch:
        seconds, device = min(
            ((count + 1) / speed, device) for device, (count, speed) in enumerate(zip(samples, speeds, strict=True))
        )
        samples[device] += 1
    return Epoch(computing_seconds=seconds, samples=tuple(samples), busy_seconds=tuple(seconds for _ in speeds))


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws speeds as bars to drag; then a timeline for each device and way, up to the end of the slower way."""
    speeds = [float(values[f"speed{device}"]) for device in range(1, len(DEVICES) + 1)]
    batch, exchange = int(values["batch"]), float(values["exchange"])
    equal, counted = equal_shares(speeds, batch), by_samples(speeds, batch)
    left, right = (118, canvas.width - 24) if canvas.narrow else (136, canvas.width - 60)
    canvas.text(0, 14, "Samples per second: drag the ends", "strong")
    handles = [_speed_bar(canvas, device, speed, left, right) for device, speed in enumerate(speeds)]
    longest = max(equal.computing_seconds, counted.computing_seconds) + exchange
    time = Scale(0, longest, left, right)
    top = 36 + 26 * len(DEVICES) + 24
    for title, epoch in (("Equal shares", equal), ("By samples", counted)):
        top = _timelines(canvas, title, epoch, exchange, time, top)
    canvas.text(left, top - 4, "0 s", "soft")
    canvas.text(right, top - 4, f"{longest:.3g} s", "soft", anchor="end")
    canvas.text(0, top + 18, "coloured: computing, empty: waiting, grey: exchange", "soft")
    return Drawn(
        caption=_caption(speeds, equal, counted, exchange),
        label="Speeds of four devices as bars, and their timelines over one batch with equal shares and by samples",
        canvas=canvas,
        height=top + 28,
        head=("Device", "Samples/s", "Equal shares", "idle", "By samples", "weight", "idle"),
        rows=[
            (
                DEVICES[device],
                f"{speeds[device]:g}",
                str(equal.samples[device]),
                _percent(1 - equal.busy_seconds[device] / (equal.computing_seconds + exchange)),
                str(counted.samples[device]),
                f"{counted.samples[device] / batch:.3f}",
                _percent(1 - counted.busy_seconds[device] / (counted.computing_seconds + exchange)),
            )
            for device in range(len(DEVICES))
        ],
        handles=tuple(handles),
    )


def _timelines(canvas: Canvas, title: str, epoch: Epoch, exchange: float, time: Scale, top: float) -> float:
    """Draws one way's throughput and a timeline for each device, from `top` down; returns where the next one begins."""
    canvas.text(0, top, f"{title}: {epoch.samples_per_second(exchange):.3g} samples/s together", "strong")
    for device, busy in enumerate(epoch.busy_seconds):
        y = top + 12 + 20 * device
        canvas.text(time.start - 14, y + 12, DEVICES[device], "soft", anchor="end")
        canvas.rect(time.start, y, time.at(epoch.computing_seconds) - time.start, 15, "shade")
        canvas.rect(time.start, y, time.at(busy) - time.start, 15, f"fill-{device + 1}")
    end = time.at(epoch.computing_seconds)
    canvas.rect(end, top + 12, time.at(epoch.computing_seconds + exchange) - end, 20 * len(DEVICES) - 5, "hatch")
    return top + 12 + 20 * len(DEVICES) + 30


def _speed_bar(canvas: Canvas, device: int, speed: float, left: float, right: float) -> Handle:
    """Draws a device's speed as a bar from `left`, at most up to `right`; its end can be dragged."""
    y, end = 36 + 26 * device, Scale(0, FASTEST, left, right).at(speed)
    canvas.text(left - 14, y + 4, DEVICES[device], "soft", anchor="end")
    canvas.rect(left, y - 7, end - left, 14, f"fill-{device + 1}", radius=2)
    # The slider's values at the edges of the whole drawing, which extends beyond the bars.
    per_unit = FASTEST / (right - left)
    return Handle(
        label=f"Speed of the {DEVICES[device]}",
        x=end,
        y=y,
        x_control=f"speed{device + 1}",
        x_ends=(round(-left * per_unit, 4), round((canvas.width - left) * per_unit, 4)),
    )


def _caption(speeds: Sequence[float], equal: Epoch, counted: Epoch, exchange: float) -> str:
    fastest = max(range(len(speeds)), key=lambda device: speeds[device])
    idle = 1 - equal.busy_seconds[fastest] / equal.computing_seconds
    rate, other = counted.samples_per_second(exchange), equal.samples_per_second(exchange)
    if max(speeds) == min(speeds):
        return f"All devices are equally fast, so both ways give {rate:.3g} samples/s."
    return (
        f"With equal shares all devices wait for the slowest: {other:.3g} samples/s together, and the "
        f"{DEVICES[fastest]} is idle for {_percent(idle)} of the computing time. If samples are counted, each device "
        f"computes until the batch is full: {rate:.3g} samples/s, {rate / other:.3g} times as many."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


FIGURE = Figure(
    name="uneven",
    title="Equal shares, or counting samples?",
    controls=(
        *(
            Range(
                name=f"speed{device + 1}",
                label=DEVICES[device],
                low=0.5,
                high=FASTEST,
                step=0.5,
                default=speed,
                unit="samples/s",
                folded=True,
            )
            for device, speed in enumerate((1, 3, 6, 14))
        ),
        Stops(name="batch", label="Samples in a batch", stops=(64, 128, 256, 512, 1024, 4096, 16384), default=256),
        Range(name="exchange", label="Exchange of gradients", low=0, high=60, default=2, unit="s"),
    ),
    draw=draw,
    sources=(
        Source(
            text="Diskin et al., Distributed deep learning in open collaborations, 2021, section 3.1",
            address="https://arxiv.org/abs/2106.10207",
        ),
    ),
)
