"""Every listed GPU for one setup: whether it fits, and how fast it, or several of it together, train."""

from __future__ import annotations

from calculator.devices import DEVICES, Device
from calculator.errors import BadSetup
from calculator.estimate import Estimate
from calculator.fit import verdict
from calculator.flops import samples_per_second
from calculator.page.words import show_bytes, show_count
from calculator.setups import Setup, resolve
from calculator.tensor_parallel import TENSOR_SHARDINGS

UNITS = (("years", 365 * 86_400), ("days", 86_400), ("hours", 3600), ("minutes", 60))
TOKENS = 1e9


def rows(setup: Setup, result: Estimate) -> list[dict]:
    """For each GPU, the one with the least memory first: its verdict, what is left, and its speed.

    Args:
        setup: Whose step it is.
        result: Its estimate.

    Returns:
        `name` and `title` of the GPU, `standing` as in a verdict, `left` (memory, "−" before what is missing), `speed`
        (samples a second) and `time` (for a billion tokens) of the setup's GPUs together, both "–" if no peak is
        published or the model's operations are not counted.
    """
    ordered = sorted(DEVICES.values(), key=lambda device: device.usable_bytes)
    return [_row(setup, result, device) for device in ordered]


def note(setup: Setup) -> str:
    """For how many GPUs the rows are; empty for one."""
    if setup.gpus == 1:
        return ""
    count = show_count(setup.gpus)
    together = setup.sharding in TENSOR_SHARDINGS
    most = ", at most: they wait for sums within every layer, which are not counted" if together else ""
    return (
        f"Each row is for {count} such GPUs: what is left on each, and how fast they train together{most}. For the "
        f"cost, multiply the time by {count} as well."
    )


def _row(setup: Setup, result: Estimate, device: Device) -> dict:
    judged = verdict(setup, device, result)
    margin = show_bytes(abs(judged.margin_bytes))
    speed, time = _pace(setup, device)
    left = margin if judged.fits else f"\u2212{margin}"
    return {"name": device.name, "title": device.title, "standing": judged.standing, "left": left, "speed": speed,
            "time": time}  # fmt: skip


def _pace(setup: Setup, device: Device) -> tuple[str, str]:
    architecture = resolve(setup)
    length = setup.sequence_length if architecture.diffuses or not architecture.fixed_length else None
    tokens = (length or architecture.sequence_length) + (architecture.image_tokens if architecture.diffuses else 0)
    adapters = setup.lora_rank is not None
    # Of a sample that the GPUs compute together, each computes a part, but it launches the kernels of all layers.
    parts = setup.gpus if setup.sharding in TENSOR_SHARDINGS else 1
    try:
        speed = setup.gpus * samples_per_second(
            architecture, device, micro_batch_size=setup.micro_batch_size / parts, length=length, frozen=adapters
        )
    except BadSetup:
        return "–", "–"
    return f"{speed:.2g}" if speed < 10 else f"{speed:.0f}", show_time(TOKENS / (speed * tokens))


def show_time(seconds: float) -> str:
    """A time in the unit that fits it.

    >>> show_time(5000), show_time(200_000), show_time(1e9)
    ('1.4 hours', '2.3 days', '32 years')
    """
    name, unit = next(((name, unit) for name, unit in UNITS if seconds >= unit), UNITS[-1])
    return f"{seconds / unit:.{0 if seconds >= 10 * unit else 1}f} {name}"
