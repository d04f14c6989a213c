"""A peer that expects more samples than the others do not let its group wait until its own count is full."""

from functools import partial

import pytest

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import ALL_THREE, LONG_SECONDS
from tests.training.swarm.real_peers.started_peers import meet


@pytest.mark.swarm
def test_a_peer_that_doubts_the_others_averages_when_they_do(tmp_path):
    """By itself it would compute for 20 s in each epoch, and the others for 3 s. They would give it up."""
    averages = 3
    (met,) = meet(tmp_path, [partial(scenarios.doubt_the_others, averages=averages)], ALL_THREE)
    together = {name: [report for report in reports if report.senders == 3] for name, reports in met.items()}
    assert all(len(reports) >= averages for reports in together.values()), met
    for report in together["third"]:
        assert 0 < report.samples < 80, report
    for name in ("first", "second"):
        assert max(report.averaging_seconds for report in met[name]) < LONG_SECONDS / 4
        assert not any("left out" in (report.note or "") for report in met[name])
