"""A damaged history is found, set aside and rebuilt from the newest sound backup; good backups stay as they are."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.tiers import sample
from tests.training.publish.history.test_history import ALAN, Report, begin, open_history, recent
from training.errors import BadInput
from training.publish.history.backup import HISTORY_FILE, back_up, back_up_run, backups
from training.publish.history.history import HistoryReader
from training.publish.history.sound import DamagedHistory, damage_of

PAGE, PAGES = 4096, 24
BACKED_UP, LAST = (100, 200, 300), 320


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run's folder: `closed` by its monitor, and `killed` with it."""
    folder = tmp_path_factory.mktemp("made") / "killed"
    folder.mkdir()
    with contextlib.closing(open_history(folder)) as history:
        begin(history)
        for epoch in range(1, LAST + 1):
            report = Report(epoch=epoch, samples=10 * epoch, time=float(epoch))
            history.observe([report, report.copy(update=ALAN)])
            if epoch in BACKED_UP:
                back_up_run(folder, epoch)
        history.set_run_value("recipe.toml", "x" * 9000)  # on pages of its own
        with contextlib.closing(sqlite3.connect(folder / HISTORY_FILE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copytree(folder, folder.with_name("closed"))
        shutil.copytree(folder, folder.with_name("kill"))
    shutil.copytree(folder, folder.with_name("closed"), dirs_exist_ok=True)
    return folder.parent


@pytest.fixture
def run_dir(made, tmp_path):
    """The folder of a run whose monitor has ended as it should."""
    return shutil.copytree(made / "closed", tmp_path / "run")


def contents(reader):
    """Everything that a history says, but for its events."""
    return reader.epochs(), reader.leaderboard(), reader.losses(), reader.run_value("recipe.toml")


def overwrite(file: Path, place: int, content: bytes):
    with file.open("r+b") as out:
        out.seek(place)
        out.write(content)


def assert_mended(run_dir, damaged: bytes | None, *, from_backup: str):
    """The history is that of a backup, the backups are as before, and a sentence says so."""
    before = {path.name: path.read_bytes() for path in backups(run_dir)}
    with contextlib.closing(open_history(run_dir)) as history:
        assert f"goes on from the backup {from_backup}," in history.mended
        assert contents(history) == contents(HistoryReader(run_dir / "backups" / from_backup))
        assert history.events()[-1]["text"] == history.mended
    assert {path.name: path.read_bytes() for path in backups(run_dir)} == before
    aside = [path for path in run_dir.glob("damaged/*") if path.suffix == ".sqlite"]
    assert [path.read_bytes() for path in aside] == ([] if damaged is None else [damaged])
    with contextlib.closing(open_history(run_dir)) as again:
        assert again.mended is None


def test_a_sound_history_is_what_it_was(made, run_dir):
    assert (run_dir / HISTORY_FILE).stat().st_size >= PAGE * PAGES
    for name in ("closed", "kill"):
        assert damage_of(made / name / HISTORY_FILE) is None
        folder = shutil.copytree(made / name, run_dir.with_name(name))
        with contextlib.closing(open_history(folder)) as history:
            assert history.mended is None and history.last_epoch()["epoch"] == LAST


@pytest.mark.parametrize("page", sample(range(PAGES), every=8))
@pytest.mark.parametrize("is_bit", [False, True], ids=["page", "bit"])
def test_each_page_and_each_bit_of_a_closed_history_counts(run_dir, page, is_bit):
    file, dice = run_dir / HISTORY_FILE, random.Random(page)
    place = page * PAGE + (dice.randrange(100, PAGE) if is_bit else 0)
    new = bytes([file.read_bytes()[place] ^ 1 << dice.randrange(8)]) if is_bit else dice.randbytes(PAGE)
    overwrite(file, place, new)
    assert_mended(run_dir, file.read_bytes(), from_backup="history-000300.sqlite")


@pytest.mark.parametrize("page", sample(range(PAGES), every=8))
def test_each_page_of_a_killed_monitors_history_counts_or_says_nothing(made, tmp_path, page):
    """No checksum was written; a page of garbage breaks SQLite's structure unless nothing is on it."""
    run_dir = shutil.copytree(made / "kill", tmp_path / "run")
    whole = contents(HistoryReader(run_dir / HISTORY_FILE))
    overwrite(run_dir / HISTORY_FILE, page * PAGE, random.Random(page).randbytes(PAGE))
    with contextlib.closing(open_history(run_dir)) as history:
        mended = contents(HistoryReader(run_dir / "backups" / "history-000300.sqlite"))
        assert contents(history) == (whole if history.mended is None else mended)


@pytest.mark.parametrize("size", [0, 1, 99, 100, PAGE - 1, PAGE, 3 * PAGE, 3 * PAGE + 7])
@pytest.mark.parametrize("state", ["closed", "kill"])
def test_a_truncated_or_emptied_history_is_rebuilt(made, tmp_path, state, size):
    run_dir = shutil.copytree(made / state, tmp_path / "run")
    file = run_dir / HISTORY_FILE
    file.write_bytes(file.read_bytes()[:size])
    assert_mended(run_dir, file.read_bytes(), from_backup="history-000300.sqlite")


def test_a_history_that_is_gone_is_rebuilt(run_dir):
    (run_dir / HISTORY_FILE).unlink()
    assert_mended(run_dir, None, from_backup="history-000300.sqlite")


def test_a_damaged_backup_is_named_and_the_one_before_is_taken(run_dir):
    overwrite(run_dir / HISTORY_FILE, PAGE, b"damage")
    damaged = (run_dir / HISTORY_FILE).read_bytes()
    overwrite(backups(run_dir)[-1], 2 * PAGE + 5, b"damage")
    assert "history-000300.sqlite is damaged: its content differs" in _mended_in_a_copy(run_dir)
    assert_mended(run_dir, damaged, from_backup="history-000200.sqlite")


def _mended_in_a_copy(run_dir):
    copy = shutil.copytree(run_dir, run_dir.with_name("copy"))
    with contextlib.closing(open_history(copy)) as history:
        return history.mended


def test_without_a_sound_backup_a_history_begins_anew(run_dir):
    for file in (run_dir / HISTORY_FILE, *backups(run_dir)):
        overwrite(file, PAGE, b"damage")
    with contextlib.closing(open_history(run_dir)) as history:
        assert "There is no sound backup, so it begins anew" in history.mended
        assert history.mended.count("is damaged: ") == 1 + len(BACKED_UP)
        assert history.epochs() == []


def test_volunteers_records_bring_back_what_the_backup_lacks(run_dir):
    (run_dir / HISTORY_FILE).write_bytes(b"")
    with contextlib.closing(open_history(run_dir)) as history:
        told = Report(epoch=306, samples=3060, time=400.0, recent=recent(*range(301, 307), until=399))
        history.observe([told, told.copy(update=ALAN)])
        assert [row["epoch"] for row in history.epochs()] == list(range(1, 307))
        assert {row["samples"] for row in history.epochs()[300:]} == {20}
        assert history.total_samples() == 2 * 3060


def test_a_file_that_was_never_a_history_stays_where_it_is(tmp_path):
    (tmp_path / HISTORY_FILE).write_text("no database at all, but long enough to be looked at" * 20)
    with pytest.raises(BadInput, match="no history"):
        open_history(tmp_path)
    assert (tmp_path / HISTORY_FILE).exists()


def test_a_history_that_is_damaged_while_a_monitor_writes_it_is_not_copied_and_ends_that_monitor(run_dir):
    with contextlib.closing(open_history(run_dir)) as history:
        history.set_run_value("key", "value")
        with contextlib.closing(sqlite3.connect(run_dir / HISTORY_FILE)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for page in range(1, PAGES):
            overwrite(run_dir / HISTORY_FILE, page * PAGE, bytes(PAGE))
        with pytest.raises(DamagedHistory, match="is damaged: "):
            back_up(run_dir / HISTORY_FILE, run_dir / "backups" / "history-000300.sqlite")
        with pytest.raises(DamagedHistory):
            history.epochs()
        history._connection.execute("PRAGMA cache_size = 0")
        with pytest.raises(DamagedHistory):
            history.enter_lineage("a" * 16)
    assert damage_of(backups(run_dir)[-1]) is None
