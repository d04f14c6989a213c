"""The schedule: warm-up reaches the peak at its end, then a straight line to zero."""

import pytest

from training.optim.config import ScheduleConfig
from training.optim.schedule import learning_rate_factor


def test_the_run_of_2021_warms_up_for_a_tenth_and_ends_at_zero():
    config = ScheduleConfig()
    assert learning_rate_factor(0, config) == pytest.approx(1 / 3125)
    assert learning_rate_factor(3124, config) == learning_rate_factor(3125, config) == 1.0
    assert learning_rate_factor((3125 + 31250) // 2, config) == pytest.approx(0.5, abs=1e-4)
    assert learning_rate_factor(31250, config) == learning_rate_factor(40000, config) == 0.0


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate_factor(0, ScheduleConfig(warmup_epochs=0, total_epochs=10)) == 1.0
