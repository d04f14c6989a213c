"""How much memory training a transformer takes, on the device and on its host. Standard library only."""

from calculator.architectures import PRESETS, Architecture
from calculator.errors import BadSetup
from calculator.estimate import Estimate, estimate
from calculator.setups import Setup

__all__ = ["PRESETS", "Architecture", "BadSetup", "Estimate", "Setup", "estimate"]
