"""The join command can be pasted: it names the program and the site, and is quoted where it must be."""

from __future__ import annotations

import shlex

from tests.support.installed import SCRIPT
from training.cli import COMMANDS
from training.publish.invitation import MEMBERS_FLAGS, join_command


def test_the_command_is_the_installed_program_and_the_sites_address():
    program, command, url = join_command("http://x:1").split()
    assert (program, url) == (SCRIPT, "http://x:1") and command in COMMANDS


def test_a_program_elsewhere_is_quoted():
    words = shlex.split(join_command("http://x:1", program=["/my tools/python", "-m", "training"]))
    assert words == ["/my tools/python", "-m", "training", "join", "http://x:1"]


def test_newcomers_of_a_run_for_members_are_told_what_to_add():
    assert join_command("http://x:1", members_only=True) == f"{join_command('http://x:1')} {MEMBERS_FLAGS}"
