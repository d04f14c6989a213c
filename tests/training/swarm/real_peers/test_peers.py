"""The peers of these tests: a meeting ends as soon as one of them fails."""

import time

import pytest

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.started_peers import PATIENCE_SECONDS, meet


@pytest.mark.swarm
def test_a_meeting_fails_at_once_with_what_the_failing_peer_printed(tmp_path):
    began = time.monotonic()
    with pytest.raises(AssertionError, match="the second peer's own fault") as failure:
        meet(tmp_path, [scenarios.fail_alone])
    assert "first:" not in str(failure.value)
    assert time.monotonic() - began < PATIENCE_SECONDS / 3
