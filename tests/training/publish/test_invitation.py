"""The join command can be pasted: short where it can be, quoted where it must be."""

from __future__ import annotations

import shlex

from training.publish.invitation import MEMBERS_FLAGS, join_command


def test_program_below_the_folder_is_named_from_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = join_command("http://x:1", ["/a/b"], python=[f"{tmp_path}/.nox/demo/bin/python", "-m", "training"])
    assert command == ".nox/demo/bin/python -m training join --recipe http://x:1/recipe.toml --initial-peers /a/b"


def test_program_elsewhere_is_quoted_and_each_peer_is_named():
    command = join_command("http://x:1", ["/a/b", "/c/d"], python=["/my tools/python", "-m", "training"])
    words = shlex.split(command)
    assert words[0] == "/my tools/python"
    assert words[-4:] == ["--initial-peers", "/a/b", "--initial-peers", "/c/d"]


def test_newcomers_of_a_run_for_members_are_told_what_to_add():
    assert (
        join_command("http://x:1", ["/a/b"], members_only=True)
        == f"{join_command('http://x:1', ['/a/b'])} {MEMBERS_FLAGS}"
    )
