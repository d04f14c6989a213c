"""What is written is there whole or not at all: through exceptions, kills at any instant, and full disks."""

import ast
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.programs import Programs, run_program
from training.storage.whole import (
    LEFTOVER_SECONDS,
    delete_drafts,
    replace_folder,
    whole_file,
    whole_folder,
    write_whole,
)

ROOT = Path(__file__).resolve().parents[3]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_text_and_bytes_replace_what_was_there(tmp_path):
    write_whole(tmp_path / "a", "grün\n")
    assert (tmp_path / "a").read_bytes() == "grün\n".encode()
    write_whole(tmp_path / "a", b"\x00\xff")
    assert (tmp_path / "a").read_bytes() == b"\x00\xff"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_old_content_and_no_draft(tmp_path, error):
    write_whole(tmp_path / "a", "old")
    with pytest.raises(error), whole_file(tmp_path / "a") as draft:
        draft.write_text("ne")
        raise error
    with pytest.raises(error), whole_folder(fill(tmp_path / "b", c="old")) as draft:
        fill(draft, c="new", d="new")
        raise error
    assert names(tmp_path) == ["a", "b"] and names(tmp_path / "b") == ["c"]
    assert (tmp_path / "a").read_text() == (tmp_path / "b" / "c").read_text() == "old"


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    write_whole(tmp_path / "a", "old")
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


def test_permissions_are_the_old_files_or_as_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o604)
    write_whole(tmp_path / "new", "y")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o604


def test_a_link_stays_and_the_file_behind_it_changes(tmp_path):
    fill(tmp_path / "far", a="old")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "a")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "far" / "a").read_text() == "new"
    assert names(tmp_path / "far") == ["a"]


def test_a_folder_takes_the_place_of_an_older_one(tmp_path):
    with whole_folder(tmp_path / "deep" / "b") as draft:
        fill(draft, c="1", d="1")
    with whole_folder(tmp_path / "deep" / "b", flushed=False) as draft:
        fill(draft, c="2")
    assert names(tmp_path / "deep") == ["b"] and names(tmp_path / "deep" / "b") == ["c"]


def test_a_folder_that_cannot_be_put_in_place_leaves_the_older_one(tmp_path):
    fill(tmp_path / "b", c="old")
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "not there", tmp_path / "b")
    assert names(tmp_path) == ["b"] and (tmp_path / "b" / "c").read_text() == "old"


@pytest.mark.parametrize("is_pipe", [False, True], ids=["a file", "a pipe"])
def test_a_folder_takes_the_place_of_nothing_but_a_folder(tmp_path, is_pipe):
    place = tmp_path / "place"
    os.mkfifo(place) if is_pipe else place.write_text("mine")
    with pytest.raises(NotADirectoryError), whole_folder(place):
        pass
    with pytest.raises(NotADirectoryError):
        replace_folder(fill(tmp_path / "new", a="1"), place)
    assert place.is_fifo() if is_pipe else place.read_text() == "mine"
    assert names(tmp_path) == ["new", "place"]


def test_a_file_does_not_take_the_place_of_a_folder_a_pipe_or_a_device(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as told:
        write_whole(tmp_path / "folder", "x")
    assert told.value.filename == str(tmp_path / "folder")
    (tmp_path / "folder").rmdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a device or a pipe, and no file"):
        write_whole(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["pipe"]


def test_drafts_of_killed_programs_are_deleted_and_those_of_others_are_not(tmp_path):
    long_ago = time.time() - LEFTOVER_SECONDS - 60
    fill(tmp_path, **{".a.draft-1-0": "", ".a.draft-2-0": "", ".b.draft-1-0": ""})
    fill(tmp_path / ".a.draft-3-0", c="")
    for draft in (".a.draft-1-0", ".b.draft-1-0", ".a.draft-3-0"):
        os.utime(tmp_path / draft, (long_ago, long_ago))
    write_whole(tmp_path / "a", "x")
    assert names(tmp_path) == [".a.draft-2-0", ".b.draft-1-0", "a"]
    delete_drafts(tmp_path)
    assert names(tmp_path) == ["a"]


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    def work(letter):
        for _ in range(20):
            write_whole(tmp_path / "a", letter * 10_000)

    threads = [threading.Thread(target=work, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / "a").read_text()
    assert len(content) == 10_000 and len(set(content)) == 1 and names(tmp_path) == ["a"]


def killed(program: str, *arguments: object, after: float | None = None) -> None:
    """Runs a program that kills itself, or is killed after so many seconds."""
    command = [sys.executable, "-c", f"from training.storage.whole import *; import os, sys, itertools\n{program}"]
    with Programs() as programs:
        process = programs.start([*command, *arguments], stdout=subprocess.PIPE)
        if after is not None:
            assert process.stdout.read(1) == b"."
            time.sleep(after)
            process.kill()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.programs
def test_a_kill_amid_the_writing_leaves_the_old_content(tmp_path):
    write_whole(tmp_path / "a", "old")
    killed(
        "with whole_file(Path(sys.argv[1])) as draft:\n draft.write_text('ne'); os.kill(os.getpid(), 9)", tmp_path / "a"
    )
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.programs
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_kill_at_each_call_of_the_system_leaves_one_content_or_the_other(tmp_path, step):
    """At the first, second, ... call of `os.fsync` or `os.replace`, before it and behind it."""
    program = (
        "real, left = getattr(os, sys.argv[2]), int(sys.argv[3])\n"
        "def stumbling(*given):\n"
        " global left; left -= 1\n"
        " if left == 0: os.kill(os.getpid(), 9)\n"
        " real(*given); left -= 1\n"
        " if left == 0: os.kill(os.getpid(), 9)\n"
        "setattr(os, sys.argv[2], stumbling)\n"
        "write_whole(Path(sys.argv[1]), 'new')\n"
        "os.kill(os.getpid(), 9)"
    )
    found = []
    for call in range(1, 6):
        write_whole(tmp_path / "a", "old")
        killed(program, tmp_path / "a", step, call)
        found.append((tmp_path / "a").read_text())
    assert set(found) == {"old", "new"} and found == sorted(found, reverse=True)


@pytest.mark.programs
def test_a_kill_at_any_instant_leaves_whole_content(tmp_path):
    size, chance = 200_000, random.Random(0)
    write_whole(tmp_path / "a", "0" * size)
    program = (
        "for n in itertools.count():\n write_whole(Path(sys.argv[1]), str(n % 10) * 200_000)\n"
        " if n == 0: print(end='.', flush=True)"
    )
    for _ in range(8):
        killed(program, tmp_path / "a", after=chance.uniform(0, 0.05))
        content = (tmp_path / "a").read_text()
        assert len(content) == size and len(set(content)) == 1
    assert len(names(tmp_path)) <= 9, "at most a draft for each kill"


@pytest.mark.programs
def test_a_full_disk_leaves_the_old_content_and_no_draft(tmp_path):
    """A disk of 64 KiB in a namespace of our own."""
    program = (
        "mount -t tmpfs -o size=64k none $2 && exec $0 -c '\n"
        "import sys; from pathlib import Path; from training.storage.whole import write_whole\n"
        'place = Path(sys.argv[1], "a"); write_whole(place, "old")\n'
        'for content in (b"x" * 10**5, b"x" * 10**6):\n'
        "  try: write_whole(place, content)\n"
        "  except OSError as error: print(error.strerror, place.read_text(), len(list(place.parent.iterdir())))\n"
        "' $2"
    )
    if run_program(["unshare", "-Urm", "true"]).returncode:
        pytest.skip("needs the right to mount a small disk (unshare)")
    command = ["unshare", "-Urm", "sh", "-c", program, sys.executable, "-", tmp_path]
    done = run_program(command)
    assert done.stdout.splitlines() == ["No space left on device old 1"] * 2, done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "training").rglob("*.py")), ids=lambda path: path.name)
def test_nobody_else_renames(path):
    """Other modules take these functions, so that none forgets the flush, the draft or the permissions."""
    if path == ROOT / "training" / "storage" / "whole.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_os = isinstance(node.func.value, ast.Name) and node.func.value.id in ("os", "shutil")
            assert not (of_os and node.func.attr in ("replace", "rename", "renames", "move")), f"line {node.lineno}"
            renames = node.func.attr == "rename" or (node.func.attr == "replace" and len(node.args) == 1)
            assert not renames or node.keywords, f"line {node.lineno}"
