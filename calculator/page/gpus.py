"""Verdict, speed and cost of one setup on every listed GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from calculator.choose.devices import Device, smallest_first
from calculator.choose.fit import verdict
from calculator.choose.flops import samples_per_second
from calculator.errors import BadSetup
from calculator.step.answer import Estimate
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.tape.tensor_parallel import TENSOR_SHARDINGS
from calculator.units import show_count, show_left, show_time

MOST_BILLIONS, MOST_PRICE = 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Run:
    """The amount of training whose time and cost are asked for."""

    billions: float
    """Tokens, in billions."""
    price: float | None
    """Price of one GPU for an hour, in any currency."""

    @classmethod
    def of(cls, texts: Mapping[str, object]) -> Run:
        """Reads a run from the texts of the page's two fields, `billions` and `price`;
        without texts, one billion and no price.

        Raises:
            BadSetup: If a text is not a number in the field's range.
        """
        billions = _number(texts.get("billions"), "The tokens to train on, in billions,", MOST_BILLIONS)
        price = _number(texts.get("price"), "The price of one GPU for an hour", MOST_PRICE)
        return cls(1.0 if billions is None else billions, price)


def _number(text: object, what: str, most: float) -> float | None:
    if text in (None, ""):
        return None
    try:
        number = float(str(text)[:100])
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        raise BadSetup(f"{what} must be a number above 0 and at most {most:,.0f}, not {str(text)!r:.60}.")
    return number


def rows(setup: Setup, result: Estimate, run: Run, device: Device | None = None) -> list[dict]:
    """Makes a row for each GPU: its verdict, the memory left, its speed, and the run's cost.
    GPUs that the setup fits are first.

    Among GPUs with equal verdicts, the GPU with the least memory is first.

    Args:
        setup: Setup of the training.
        result: Estimate of the setup.
        run: Amount of training, and price of a GPU.
        device: A GPU that has a row even if it is not listed.

    Returns:
        `name` and `title` of the GPU, `standing` as in a verdict, `left` (memory, "−" before what is missing), `speed`
        (samples a second), `time` and `cost` of the run on the setup's GPUs together, all three "–" if no peak is
        published or the model's operations are not counted. The cost is also "–" without a price.
    """
    order = ("fits", "tight", "does not fit")
    found = [_row(setup, result, one, run) for one in smallest_first(device)]
    return sorted(found, key=lambda row: order.index(row["standing"]))


def note(setup: Setup) -> str:
    """A sentence on the number of GPUs that the rows assume; empty for one."""
    if setup.gpus == 1:
        return ""
    count = show_count(setup.gpus)
    together = setup.sharding in TENSOR_SHARDINGS
    most = ", at most: they wait for sums within every layer, which are not counted" if together else ""
    return f"Each row is for {count} such GPUs: what is left on each, and how fast they train together{most}."


def _row(setup: Setup, result: Estimate, device: Device, run: Run) -> dict:
    judged = verdict(setup, device, result)
    speed, time, cost = _pace(setup, device, run)
    return {
        "name": device.name,
        "title": device.title,
        "standing": judged.standing,
        "left": show_left(judged.margin_bytes),
        "speed": speed,
        "time": time,
        "cost": cost,
    }


def _pace(setup: Setup, device: Device, run: Run) -> tuple[str, str, str]:
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
        return "–", "–", "–"
    seconds = 1e9 * run.billions / (speed * tokens)
    cost = "–" if run.price is None else _show_cost(run.price * setup.gpus * seconds / 3600)
    return f"{speed:.2g}" if speed < 10 else f"{speed:.0f}", show_time(seconds), cost


def _show_cost(amount: float) -> str:
    """Formats an amount of money to two digits, because the speed from which it is computed is rough.

    >>> _show_cost(0.1234), _show_cost(12.34), _show_cost(12345.6)
    ('0.12', '12', '12\u202f000')
    """
    return f"{amount:.2f}" if amount < 10 else show_count(float(f"{amount:.2g}"))
