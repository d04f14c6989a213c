"""Questions about a new run: who takes part, for how long, and where others reach this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from calculator.choose.devices import DEVICES, PROCESSOR
from calculator.choose.names import gpu_of
from training.errors import BadInput

Answer = TypeVar("Answer")
USUAL_COUNT, USUAL_DAYS = 2, 1.0
"""Number of computers like this one, and days of the run, if the person names no others."""
WHO = (
    "Who will take part? COUNT:DEVICE, such as 3:cpu for three computers without a GPU, or 30:t4; with a link in "
    "Mbit/s, 30:t4:20/100"
)
HOW_LONG = "In how many days should it be done?"
WHERE = "At which name or address do others reach this machine? Nothing: all are in its own network"


def ask(question: str, usual: str, read: Callable[[str], Answer]) -> Answer:
    """Asks until the answer can be read.

    Args:
        question: The question, without its default.
        usual: Answer if the person only presses Enter.
        read: Reads the answer; raises BadInput or ValueError if it cannot.
    """
    from rich.prompt import Prompt

    while True:
        answer = Prompt.ask(question, default=usual, show_default=bool(usual))
        try:
            return read(answer)
        except BadInput as error:
            print(error.sentence)
        except ValueError:
            print(f"{answer!r:.60} is no number.")


def days_of(text: str) -> float:
    """Reads a number of days.

    >>> days_of("0,5")
    0.5
    """
    days = float(text.replace(",", "."))
    if not 0 < days <= 3650:
        raise BadInput("Give more than 0 days, and at most 3650.")
    return days


def usual_volunteers() -> str:
    """Volunteers if the person names none, as a person writes them: two computers like this one."""
    return f"{USUAL_COUNT}:{_device_here()}"


def _device_here() -> str:
    """The calculator's name of this machine's GPU; `cpu` if it has none whose speed is known."""
    import torch  # slow to load

    name = gpu_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else PROCESSOR.name
    return name if name in DEVICES and DEVICES[name].teraflops else PROCESSOR.name
