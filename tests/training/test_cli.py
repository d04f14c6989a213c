"""What the command line says of itself, in a terminal of the usual width."""

import sys

import pytest
import typer
from typer.testing import CliRunner

from tests.support.programs import run_program
from training.cli import COMMANDS, build_app
from training.commands.options import Invitation
from training.errors import BadInput

APP = build_app()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_flag_in_full(name):
    shown = CliRunner().invoke(APP, [name, "--help"], terminal_width=80).output
    parameters = typer.main.get_command(APP).commands[name].params
    flags = {flag for one in parameters for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}
    assert flags and flags <= set(shown.split())
    assert "…" not in shown


def test_the_help_of_join_begins_with_what_every_volunteer_gives():
    shown = CliRunner().invoke(APP, ["join", "--help"], terminal_width=80).output
    first, advanced = shown.split("\nAdvanced:\n")
    asked = {word for word in first.split() if word.startswith("--")}
    assert asked == {"--name", "--hours", "--max-upload", "--state-dir", "--invitation", "--help"}
    assert "URL" in first.split()
    assert {"--recipe", "--initial-peers", "--device", "--dry-run", "--seed"} <= set(advanced.split())


def test_help_says_what_every_command_does():
    shown = " ".join(CliRunner().invoke(APP, ["--help"], terminal_width=80).output.split())
    for command in typer.main.get_command(APP).commands.values():
        assert " ".join(command.help.split()) in shown


def test_a_monitor_of_no_run_is_refused_at_once(tmp_path):
    ended = CliRunner().invoke(APP, ["monitor", "--run-dir", str(tmp_path)])
    assert isinstance(ended.exception, BadInput) and "Give --initial-peers" in str(ended.exception)


SAYS_BEFORE_IT_LOADS = """
import sys
from training.cli import main
sys.argv[1:] = sys.argv[1].split()
try:
    main()
finally:
    print(sorted({"torch", "hivemind"} & sys.modules.keys()))
"""


@pytest.mark.programs
@pytest.mark.parametrize("command", ["join", "bootstrap", "monitor", "serve", "membership"])
def test_a_log_that_cannot_be_written_is_refused_before_anything_slow_is_loaded(tmp_path, command):
    peers = "" if command == "membership" else "--initial-peers /ip4/127.0.0.1/tcp/9"
    flags = f"{command} --recipe demo {peers} --log-json {tmp_path}"
    ended = run_program([sys.executable, "-c", SAYS_BEFORE_IT_LOADS, flags])
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
    assert f"{tmp_path} cannot be written: is a directory. Give --log-json a file" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


def test_an_invitation_comes_from_a_file_or_a_question(tmp_path):
    """Other users of a machine see what stands on a command line."""
    app = typer.Typer()

    @app.command()
    def tell(invitation: Invitation = None):
        print(f"code={invitation}")

    file = tmp_path / "code.txt"
    file.write_text("abc-def\n")
    run = CliRunner().invoke
    for given, typed in (
        (["--invitation", "abc-def"], None),
        (["--invitation", f"@{file}"], None),
        (
            ["--invitation", "-"],
            "abc-def\n",
        ),
    ):
        assert "code=abc-def" in run(app, given, input=typed).output
    assert "code=abc-def" in run(app, [], env={"TRAINING_INVITATION": "abc-def"}).output
    assert isinstance(run(app, ["--invitation", f"@{file}.none"]).exception, BadInput)
