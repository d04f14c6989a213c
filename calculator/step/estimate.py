"""Setup -> Estimate: the memory of one training step on one device and its host, in three stages."""

from __future__ import annotations

from calculator.step.add_up import added_up
from calculator.step.answer import Estimate
from calculator.step.play import played
from calculator.step.resolve import training_of
from calculator.step.setups import Setup


def estimate(setup: Setup) -> Estimate:
    """Resolves a setup, plays its step and adds up what the device, the host and the bus hold.

    Raises:
        BadSetup: If the setup names something unknown or a combination that cannot exist.

    >>> result = estimate(Setup(model="gpt2", precision="fp32", attention="eager"))
    >>> result.parameters, result.gpu.total == max(instant.bytes for instant in result.timeline)
    (124439808, True)
    """
    training = training_of(setup)
    return added_up(training, played(training))
