"""How much memory training a transformer takes, on the device and on its host. Standard library only."""

from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS, Architecture
from calculator.step.answer import Estimate
from calculator.step.estimate import estimate
from calculator.step.setups import Setup

__all__ = ["PRESETS", "Architecture", "BadSetup", "Estimate", "Setup", "estimate"]
