"""A peer's own record: what an epoch changes in it, and what is kept of it across restarts."""

from __future__ import annotations

import json
import math
import shutil
from types import SimpleNamespace
from typing import get_args

import pytest

from tests.training.trust.tickets import Holder
from training.recipe import load_recipe
from training.swarm.node.metrics import LARGEST_LOSS, Missed, PeerRecord
from training.swarm.peers.epochs import Brought, EpochEnd
from training.swarm.peers.groups import RoundReport
from training.volunteer.reporter import TOTAL_FILE, Reporter, _read_total

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


def ended(epoch, *, others=0, average=None, **facts):
    return EpochEnd(epoch=epoch, others=others, samples=facts.pop("samples", 64), round=average, **facts).report([])


def totals_of(reporter):
    record = reporter.record
    return record.samples, record.averaged_epochs, record.alone_epochs, record.bytes_sent, record.bytes_received


def test_a_record_counts_from_the_start_of_the_program_and_the_screen_from_the_first_one(tmp_path, reporter_in):
    first = reporter_in(tmp_path)
    assert (first.record.status, first.record.epoch, totals_of(first)) == ("joining", 0, (0, 0, 0, 0, 0))
    first.end_epoch(ended(6, others=2, average=AVERAGE), loss=2.5, seconds=8.0)
    first.end_epoch(ended(7, others=2), loss=2.25, seconds=8.0)
    assert (first.record.status, first.record.epoch, first.record.loss) == ("training", 8, 2.25)
    assert first.record.samples_per_second == 8.0 and totals_of(first) == (128, 1, 1, 100, 200)
    assert first.samples == 64, "those of the epoch without an average do not count"
    again = reporter_in(tmp_path)
    assert (again.record.status, again.record.loss, totals_of(again)) == ("joining", None, (0, 0, 0, 0, 0))
    assert again.samples == 64
    first.begin_anew()
    assert (first.record.status, first.record.epoch, totals_of(first)) == ("joining", 0, (128, 1, 1, 100, 200))
    assert first.record.recent == first.record.seen == first.record.missed == []


VALUES = [-5, 1e30, 10**30, "7", True, None, [7], math.nan, math.inf]


@pytest.mark.parametrize(
    "kept", ["", "[]", "{}", "[" * 10**5, "\x00", '"7"', '{"samples": 7', *map(json.dumps, VALUES)]
)
def test_damaged_totals_count_as_none_and_are_named_and_set_aside(tmp_path, reporter_in, kept):
    for text in (kept, f'{{"samples": {kept}}}'):
        (tmp_path / TOTAL_FILE).write_text(text)
        warnings = []
        reporter = reporter_in(tmp_path, warnings.append)
        assert (reporter.samples, totals_of(reporter)) == (0, (0, 0, 0, 0, 0))
        assert len(warnings) == 1 and warnings[0].startswith(f"{tmp_path / TOTAL_FILE} with what this machine has")
        assert (tmp_path / f"{TOTAL_FILE}.damaged").read_text() == text and not (tmp_path / TOTAL_FILE).exists()


def test_each_bit_of_the_total_counts_or_says_nothing(tmp_path, reporter_in):
    warnings = []
    reporter_in(tmp_path, warnings.append).end_epoch(ended(6, others=2, average=AVERAGE), loss=2.5, seconds=8.0)
    file = tmp_path / TOTAL_FILE
    whole = file.read_bytes()
    assert _read_total(file, warnings.append) == 64 and not warnings
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        warnings.clear()
        assert _read_total(file, warnings.append) == (64 if not warnings else 0)


def test_no_file_on_the_disk_changes_what_others_learn(tmp_path, reporter_in):
    (tmp_path / TOTAL_FILE).write_text('{"samples": 123456}')
    reporter = reporter_in(tmp_path)
    assert reporter.samples == 123456 and totals_of(reporter) == (0, 0, 0, 0, 0)
    assert "123456" not in reporter.record.json()


def brought(epoch, **samples):
    return {f"Qm-{name:_>8}": Brought(epoch, given) for name, given in samples.items()}


def test_a_record_tells_what_others_have_brought(tmp_path, reporter_in):
    """The newest first; none twice; as many as fit, of a large group the next ones after its own id."""
    reporter = reporter_in(tmp_path)
    reporter.end_epoch(ended(0, others=2, average=AVERAGE, brought=brought(1, alan=63.9, grace=None)), 2.5, 8.0)
    reporter.end_epoch(ended(1, others=2, average=AVERAGE, brought=brought(2, alan=1e300)), 2.5, 8.0)
    own = [(2, "____alan", 10**12), (1, "____alan", 64), (1, "___grace", None)]
    assert sorted(reporter.record.seen) == sorted(own) and reporter.record.seen[0] == own[0]
    crowd = {f"Qm{n:08}": Brought(3, 4.0) for n in range(200)}
    reporter.end_epoch(ended(2, others=200, average=AVERAGE, brought=crowd), 2.5, 8.0)
    assert len(reporter.record.seen) == 64 and {one.epoch for one in reporter.record.seen} == {3}
    PeerRecord.parse_obj(reporter.record.dict())


def test_each_epoch_that_ends_while_a_peer_is_there_is_done_or_missed_for_one_reason(tmp_path, reporter_in):
    reporter = reporter_in(tmp_path)
    reporter.begin(3)
    reporter.end_epoch(ended(3, others=2, average=AVERAGE), 2.5, 8.0)
    reporter.miss_epoch(ended(4, others=2, left_behind=True))
    reporter.end_epoch(ended(7, others=2, average=AVERAGE), 2.5, 8.0)
    reporter.end_epoch(ended(8, others=2), 2.5, 8.0)
    reporter.end_epoch(ended(9, others=2, average=AVERAGE, samples=0), 2.5, 8.0)
    reporter.wait()
    assert reporter.record.status == "waiting"
    reporter.end_epoch(ended(12, others=2, average=AVERAGE), 2.5, 8.0)
    reasons = {
        5: "late",
        6: "catching up",
        7: "catching up",
        9: "unreachable",
        10: "refused",
        11: "paused",
        12: "paused",
    }
    assert dict(reporter.record.missed) == reasons and set(reasons.values()) == set(get_args(Missed))
    assert [one.epoch for one in reporter.record.recent] == [4, 8, 9, 10, 13]
    PeerRecord.parse_obj(reporter.record.dict())
    reporter.end_epoch(ended(7, others=2, average=AVERAGE), 2.0, 8.0)  # after a return to an earlier checkpoint
    assert [(one.epoch, one.loss) for one in reporter.record.recent] == [(4, 2.5), (8, 2.0)]
    assert set(dict(reporter.record.missed)) == {5, 6, 7}


def test_a_long_run_keeps_the_last_epochs_only(tmp_path, reporter_in):
    reporter = reporter_in(tmp_path)
    reporter.begin(0)
    for epoch in range(0, 300, 3):
        reporter.end_epoch(ended(epoch, others=2, average=AVERAGE), 2.5, 8.0)
    epochs = sorted([one.epoch for one in reporter.record.recent] + [one.epoch for one in reporter.record.missed])
    assert epochs == list(range(298 - 63, 299))
    reporter.end_epoch(ended(10**6, others=2, average=AVERAGE), 2.5, 8.0)
    assert len(reporter.record.recent) + len(reporter.record.missed) == 64
    PeerRecord.parse_obj(reporter.record.dict())


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
    assert json.loads((folder / TOTAL_FILE).read_text())["samples"] == 4 * 64
    shutil.rmtree(folder)
    assert warnings_after_two_epochs() == 2
