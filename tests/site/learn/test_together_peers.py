"""Three real peers train the model of the page Train together, as the recorded runs of its page did."""

from __future__ import annotations

import pytest

from benchmarks.swarm.together import RUNS, train

UPDATES = 12


@pytest.mark.swarm
@pytest.mark.exhaustive
def test_centered_clip_keeps_a_hostile_peer_from_spoiling_the_model(tmp_path):
    mosaic = tmp_path / "mosaic.png"
    facts = train(RUNS["hostile-clip"], UPDATES, mosaic)
    (first, begun), *_, (last, ended) = facts["losses"]
    assert (first, last) == (0, UPDATES)
    assert ended < begun / 2 and facts["not_by_all"] == 0
    assert mosaic.stat().st_size > 1000
