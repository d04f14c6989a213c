"""What a volunteer is told of an epoch."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from training.processes.events import EventLog
from training.swarm.epochs import EpochEnd
from training.volunteer.loop import TrainingLoop
from training.volunteer.notices import Notices
from training.volunteer.reporter import PeerStatus


@pytest.mark.parametrize(
    "waited, shown, warned", [(0.004, None, False), (0.25, "2% waiting for samples", False), (3.0, "30% waiting", True)]
)
def test_the_share_of_time_that_goes_to_waiting_for_samples_is_shown(tmp_path, waited, shown, warned):
    stream = SimpleNamespace(waiting_seconds=waited, skipped_samples=0, repeated_samples=0)
    printed = io.StringIO()
    loop = TrainingLoop(
        run=None,
        settings=None,
        choices=None,
        model=None,
        optimizer=None,
        reporter=SimpleNamespace(status=PeerStatus(), end_epoch=lambda status, samples: None),
        contribution_file=tmp_path / "contribution.json",
        notices=Notices(events=EventLog(tmp_path / "events.jsonl"), console=Console(file=printed, width=200)),
        samples=SimpleNamespace(stream=stream, pass_done=None),
    )
    loop._end_epoch(EpochEnd(epoch=6, others=0, samples=64).report([]), loss=2.5, seconds=10.0)
    line, *warnings = printed.getvalue().splitlines()
    assert line.startswith("epoch     7  loss 2.5000     64 samples")
    assert (shown in line) if shown else ("waiting" not in line)
    assert bool(warnings) == warned and all("waited for samples for 30% of the time" in text for text in warnings)
    assert f'"data_waiting_seconds": {waited}' in (tmp_path / "events.jsonl").read_text()
