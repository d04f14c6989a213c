"""A peer's own record: what an epoch changes in it, and what is kept of it across restarts."""

from __future__ import annotations

import json
import math
import shutil
from types import SimpleNamespace

import pytest

from tests.training.trust.tickets import Holder
from training.recipe import load_recipe
from training.swarm.node.metrics import LARGEST_LOSS
from training.swarm.peers.epochs import EpochEnd
from training.swarm.peers.groups import RoundReport
from training.volunteer.reporter import TOTALS, TOTALS_FILE, Reporter, _first_record

HOLDER = Holder()
SIZES = {"group_size": 3, "senders": 3, "own_share": 0.3, "weight": 192.0, "torn": False, "seconds": 1.0}
AVERAGE = RoundReport(**SIZES, bytes_sent=100, bytes_received=200)


@pytest.fixture
def reporter_in():
    """Makes reporters whose node stores nothing: their threads try in vain."""
    made = []

    def make(folder, warn=lambda text: None):
        connection = SimpleNamespace(dht=None, identity=HOLDER, name="ada")
        belonging = SimpleNamespace(lineage=SimpleNamespace(id="a" * 16))
        facts = {"micro_batch_size": 4, "tokens": "t" * 16, "warn": warn}
        made.append(Reporter(load_recipe("demo"), connection, belonging, folder, **facts))
        return made[-1]

    yield make
    for reporter in made:
        reporter.leave()


def ended(epoch, *, others=0, average=None):
    return EpochEnd(epoch=epoch, others=others, samples=64, round=average).report([])


def totals_of(reporter):
    record = reporter.record
    return record.samples, record.averaged_epochs, record.alone_epochs, record.bytes_sent, record.bytes_received


def test_totals_go_on_after_a_restart_and_in_another_lineage(tmp_path, reporter_in):
    first = reporter_in(tmp_path)
    assert (first.record.status, first.record.epoch, totals_of(first)) == ("joining", 0, (0, 0, 0, 0, 0))
    first.end_epoch(ended(6, others=2, average=AVERAGE), loss=2.5, seconds=8.0)
    first.end_epoch(ended(7, others=2), loss=2.25, seconds=8.0)
    assert (first.record.status, first.record.epoch, first.record.loss) == ("training", 8, 2.25)
    assert first.record.samples_per_second == 8.0 and totals_of(first) == (128, 1, 1, 100, 200)
    again = reporter_in(tmp_path)
    assert (again.record.status, again.record.loss, totals_of(again)) == ("joining", None, (128, 1, 1, 100, 200))
    assert again.record.seconds == 16.0
    first.begin_anew()
    assert (first.record.status, first.record.epoch, totals_of(first)) == ("joining", 0, (128, 1, 1, 100, 200))


WHOLE = dict.fromkeys(TOTALS, 7) | {"seconds": 7.0}


@pytest.mark.parametrize("kept", ["", "[]", "{}", "[" * 10**5, "\x00", '"7"', json.dumps(WHOLE)[:-1]])
def test_damaged_totals_count_as_none_and_are_named_and_set_aside(tmp_path, reporter_in, kept):
    (tmp_path / TOTALS_FILE).write_text(kept)
    warnings = []
    assert totals_of(reporter_in(tmp_path, warnings.append)) == (0, 0, 0, 0, 0)
    assert len(warnings) == 1 and warnings[0].startswith(f"{tmp_path / TOTALS_FILE} with what you have contributed is")
    assert (tmp_path / f"{TOTALS_FILE}.damaged").read_text() == kept and not (tmp_path / TOTALS_FILE).exists()


def test_each_bit_of_the_totals_counts_or_says_nothing(tmp_path, reporter_in):
    warnings = []
    reporter_in(tmp_path, warnings.append).end_epoch(ended(6, others=2, average=AVERAGE), loss=2.5, seconds=8.0)
    file = tmp_path / TOTALS_FILE
    whole, facts = file.read_bytes(), {"name": "ada", "peer_id": "QmAda", "micro_batch_size": 4}
    kept = totals_of(SimpleNamespace(record=_first_record(file, warn=warnings.append, **facts)))
    assert kept[0] == 64 and not warnings
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        warnings.clear()
        found = totals_of(SimpleNamespace(record=_first_record(file, warn=warnings.append, **facts)))
        assert found == (kept if not warnings else (0, 0, 0, 0, 0))


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("value", [-5, 1e30, 10**30, "7", True, None, [7], math.nan, math.inf])
def test_totals_that_nobody_can_have_count_as_none(tmp_path, reporter_in, name, value):
    (tmp_path / TOTALS_FILE).write_text(json.dumps(WHOLE))
    assert reporter_in(tmp_path).record.samples == 7
    (tmp_path / TOTALS_FILE).write_text(json.dumps(WHOLE | {name: value}))
    assert totals_of(reporter_in(tmp_path)) == (0, 0, 0, 0, 0)


def test_a_loss_that_others_would_refuse_is_left_out(tmp_path, reporter_in):
    reporter = reporter_in(tmp_path)
    reporter.end_epoch(ended(0), loss=LARGEST_LOSS + 1.0, seconds=8.0)
    assert (reporter.record.loss, reporter.record.samples) == (None, 64)


def test_a_disk_that_cannot_be_written_is_told_once_and_training_goes_on(tmp_path, reporter_in):
    warnings, folder = [], tmp_path / "away"
    reporter = reporter_in(folder, warnings.append)

    def warnings_after_two_epochs():
        for _ in range(2):
            reporter.end_epoch(ended(0), loss=2.5, seconds=10.0)
        return len(warnings)

    assert warnings_after_two_epochs() == 1
    folder.mkdir()
    assert warnings_after_two_epochs() == 1
    assert json.loads((folder / TOTALS_FILE).read_text())["samples"] == 4 * 64
    shutil.rmtree(folder)
    assert warnings_after_two_epochs() == 2
