"""Calculator of the memory that training a transformer takes on device and host. Standard library only."""

from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS, Architecture
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.setups import Setup

__all__ = ["PRESETS", "Architecture", "BadSetup", "Estimate", "Setup", "estimate"]
