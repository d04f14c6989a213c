"""Lets the tests of this folder import what they share: `peers`, `scenarios`, `played` and `two_nodes`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
