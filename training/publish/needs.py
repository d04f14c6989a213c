"""What a run needs of a volunteer, for pages that list runs."""

from __future__ import annotations

from calculator import BadSetup
from calculator.choose.devices import Device
from training.compute.plan import training_of
from training.errors import BadInput
from training.recipe import RunConfig
from training.simulate.forecast import collaboration_of

_PROCESSOR = Device(
    name="cpu", title="processor", memory_bytes=0, usable_bytes=0, capability=None, source="any computer", unified=True
)


def needs_of(run: RunConfig) -> dict[str, int | None]:
    """Computes what a volunteer without a GPU needs; None where the calculator does not know it.

    `least_memory_bytes` is the memory of training one sample at a time, without Python and PyTorch themselves.
    `sent_bytes` are those that a volunteer sends per epoch in a group of `USUAL_GROUP`, as a mean over epochs with and
    without a state.

    >>> from training.recipe import load_recipe
    >>> needs_of(load_recipe("demo"))
    {'least_memory_bytes': 28151296, 'sent_bytes': 4024335}
    """
    try:
        memory = training_of(run).need_bytes(_PROCESSOR, 1)
    except (BadSetup, BadInput):
        memory = None
    try:
        sent = round(collaboration_of(run, ()).exchange().sent_bytes())
    except (BadSetup, BadInput):
        sent = None
    return {"least_memory_bytes": memory, "sent_bytes": sent}
