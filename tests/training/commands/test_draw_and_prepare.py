"""`draw` and `prepare` as a maintainer calls them."""

import pytest
import typer
from typer.testing import CliRunner

from training.commands import draw, prepare
from training.data.captions import SPLITS
from training.data.stream import open_shards
from training.errors import BadInput


@pytest.fixture
def call():
    app = typer.Typer()
    app.command(name="draw")(draw.run)
    app.command(name="prepare")(prepare.run)

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if isinstance(result.exception, BadInput):
            raise result.exception
        return result

    return call


def test_from_nothing_to_shards(call, tmp_path):
    result = call("draw", "--out", tmp_path / "pictures", "--count", 40, "--seed", 1)
    assert result.exit_code == 0 and "Drew 40 pictures" in result.output and " train, " in result.output
    flags = ["--images", tmp_path / "pictures", "--captions", tmp_path / "pictures" / "captions.jsonl"]
    result = call("prepare", *flags, "--out", tmp_path / "shards", "--codec-steps", 2)
    assert result.exit_code == 0 and "Left out of 40 pictures: none." in result.output
    assert sum(open_shards(tmp_path / "shards", split).samples for split in SPLITS) == 40
    again = call("prepare", *flags, "--out", tmp_path / "shards", "--codec-steps", 2)
    assert again.exit_code == 0 and "Nothing to do" in again.output


def test_help_names_every_flag(call):
    for command, flags in (("draw", ("--out", "--count", "--seed")), ("prepare", ("--images", "--codec", "--replace"))):
        output = call(command, "--help").output
        assert all(flag in output for flag in flags)


def test_a_missing_folder_is_bad_input(call, tmp_path):
    with pytest.raises(BadInput, match="--captions"):
        call("prepare", "--images", tmp_path, "--captions", tmp_path / "none.jsonl", "--out", tmp_path / "shards")
