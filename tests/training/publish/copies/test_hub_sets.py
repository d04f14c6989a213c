"""Shards on a hub: a server that answers as it does, real programs, one of which is killed in the middle."""

import os
import sys

import pytest

from tests.support.hub_server import Repository, hub_server
from tests.support.programs import run_program, until
from tests.training.data.numbered_shards import write_numbered
from tests.training.publish.copies.test_sets import contents, other

pytestmark = pytest.mark.programs

PUSH = """
import sys; from pathlib import Path; from training.errors import TrainingError
from training.storage.remote import open_source
from training.publish.copies import hub_sets
from training.publish.copies.sets import push_set
from training.data.store.sets import open_shards
hub_sets.COMMIT_FILES = int(sys.argv[1])
for command in sys.argv[2:]:
    folder, address, replace = command.split("|")
    try: print("sent", push_set(Path(folder), address, replace=bool(replace)))
    except TrainingError as error: print(type(error).__name__, " ".join(error.sentence.split()))
    try: print("read", open_shards(address.replace("hf://us", "hf://datasets/us")).samples)
    except TrainingError as error: print("not read")
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = write_numbered(tmp_path_factory.mktemp("prepared") / "shards")
    (folder / "README.md").write_text("---\nlicense: unknown\n---\ncard\n")
    return folder


@pytest.fixture
def hub(tmp_path):
    with hub_server() as running:
        yield running


@pytest.fixture
def environment(hub, tmp_path):
    # The storage that the hub has besides Git LFS has a protocol of its own, which the server here does not speak.
    return {**os.environ, **hub.environment(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}


def pushing(environment, files, *commands):
    done = run_program([sys.executable, "-c", PUSH, str(files), *commands], env=environment, within=150)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_shards_get_there_once_and_are_read_from_there(prepared, hub, environment, tmp_path):
    older = other(prepared, tmp_path)
    total = len(contents(prepared))
    push, again = f"{prepared}|hf://us/new|", f"{prepared}|hf://datasets/us/new|"
    refused, replaced = f"{older}|hf://us/new|", f"{older}|hf://us/new|replace"
    said = pushing(environment, 50, push, again, refused, replaced, f"{prepared}|hf://us/new|replace")
    assert said[0] == f"sent {total}" and said[1].startswith("read ") and said[2] == "sent 0"
    assert "hf://us/new holds other shards. Give another --push, or --replace." in said[4]
    assert said[6].startswith("sent ") and said[8].startswith("sent ")
    commits = hub.repositories["us/new"].commits
    assert len(commits) == 3, "each set is one commit"
    assert commits[0] == contents(prepared) == commits[2]
    assert commits[1] == {**contents(older), "README.md": commits[0]["README.md"]}
    assert int(said[1].split()[1]) > 0 and said[1] == said[3]


def test_killed_it_sends_only_what_is_missing_and_nobody_reads_half_a_set(
    prepared, hub, environment, programs, tmp_path
):
    """Two files a commit; the program dies when it is about to make the third one."""
    total, waits = len(contents(prepared)), []

    def silent(handler):
        there = hub.repositories.get("us/new", Repository()).commits
        if "/commit/" in handler.path and len(there) == 2:
            waits.append(handler.path)
            until(lambda: not waits)
            return True
        return False

    hub.fault = silent
    command = f"{prepared}|hf://us/new|"
    try:
        started = programs.start([sys.executable, "-c", PUSH, "2", command], env=environment)
        until(lambda: waits)
        started.kill()
        started.wait()
    finally:
        hub.fault = lambda handler: False
        waits.clear()
    commits = hub.repositories["us/new"].commits
    assert len(commits) == 2 and len(commits[-1]) == 4 and "manifest.json" not in commits[-1]
    hub.requests.clear()
    said = pushing(environment, 2, command)
    assert said[0] == f"sent {total - 4}" and said[1].startswith("read ")
    assert hub.repositories["us/new"].commits[-1] == contents(prepared)
    assert all("manifest.json" not in commit for commit in hub.repositories["us/new"].commits[:-1])


def test_a_hub_that_refuses_says_why(prepared, hub, environment):
    hub.fault = lambda handler: "repos/create" in handler.path and (handler.refuse(403, "Forbidden") or True)
    said = pushing(environment, 50, f"{prepared}|hf://us/new|")
    assert said[0].startswith("BadInput The hub refuses shards for hf://us/new") and "HF_TOKEN" in said[0]
