"""`draw`, `prepare` and `data` as a maintainer calls them."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from training.cli import build_app
from training.commands.data import draw, prepare
from training.commands.data import show as data
from training.data.demo.captions import SPLITS
from training.data.store.sets import open_shards
from training.errors import BadInput


@pytest.fixture
def call():
    app = typer.Typer()
    app.command(name="draw")(draw.run)
    app.command(name="prepare")(prepare.run)
    app.command(name="data")(data.run)

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


def test_what_is_left_out_is_counted_and_the_first_ones_are_named(call, tmp_path):
    call("draw", "--out", tmp_path / "pictures", "--count", 12, "--seed", 1)
    lines = (tmp_path / "pictures" / "captions.jsonl").read_text().splitlines()
    (tmp_path / "captions.jsonl").write_text("\n".join([*lines[:6], "{", '{"file": "none.png", "caption": "gone"}']))
    flags = ["--images", tmp_path / "pictures", "--captions", tmp_path / "captions.jsonl", "--codec-steps", 2]
    output = call("prepare", *flags, "--out", tmp_path / "shards").output
    assert "Left out of 14 pictures: 1 broken line, 1 missing file, 6 not in the captions.\n" in output
    assert "  broken line: captions.jsonl, line 7\n  missing file: none.png\n  not in the captions: " in output
    assert re.search(r"not in the captions: (\S+\.png; ){2}\S+\.png and 3 more\n", output)
    assert len((tmp_path / "shards" / "left-out.jsonl").read_text().splitlines()) == 8


def test_help_names_every_flag():
    for command, flags in (("draw", ("--out", "--count", "--seed")), ("prepare", ("--images", "--codec", "--replace"))):
        output = CliRunner().invoke(build_app(), [command, "--help"]).output
        assert all(flag in output for flag in flags)


def test_a_missing_folder_is_bad_input(call, tmp_path):
    with pytest.raises(BadInput, match="--captions"):
        call("prepare", "--images", tmp_path, "--captions", tmp_path / "none.jsonl", "--out", tmp_path / "shards")


def test_from_text_to_shards(call, tmp_path):
    lines = [json.dumps({"text": f"The fox has the ball number {number}. " * 3}) for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{"]))
    flags = ["--text", tmp_path / "a.jsonl", "--vocabulary", 300, "--block-length", 32, "--out", tmp_path / "shards"]
    result = call("prepare", *flags)
    shards = open_shards(tmp_path / "shards", kind="text")
    assert f"Prepared {shards.samples} train, 0 held-out, 0 new-pairs blocks of 32 tokens in " in result.output
    assert f"Tokens: {32 * shards.samples}, each one of {shards.tokenizer.vocab_size}, in 16 bit." in result.output
    assert "Left out of 61 documents: 1 broken line.\n  broken line: a.jsonl, line 61\n" in result.output
    again = call("prepare", *flags, "--push", tmp_path / "copy").output
    assert "Nothing to do" in again and f"Sent 5 files to {tmp_path / 'copy'}." in again
    assert open_shards(tmp_path / "copy", kind="text").samples == shards.samples
    assert "Nothing to send: all files are at " in call("prepare", *flags, "--push", tmp_path / "copy").output
    result = call("data", tmp_path / "shards", "--out", tmp_path / "below" / "page.html", "--count", 5)
    assert result.exit_code == 0 and "Wrote 5 samples of " in result.output
    assert "the ball number" in (tmp_path / "below" / "page.html").read_text()
    with pytest.raises(BadInput, match="There is no part 'valid'; there are train, held-out, new-pairs"):
        call("data", tmp_path / "shards", "--split", "valid")
    with pytest.raises(BadInput, match="have no 'held-out' samples"):
        call("data", tmp_path / "shards", "--split", "held-out")


@pytest.mark.parametrize(
    "flags, words",
    [
        (["--text", "a", "--vocabulary", 300, "--images", "b", "--workers", 2], "--images, --workers: .* for pictures"),
        (["--images", "b", "--block-length", 32], "--block-length: this is for text, and there is no --text"),
        (["--text", "a"], "--tokenizer, or a number of ids with --vocabulary"),
        ([], "Give one of both, or --text"),
        (["--images", "b", "--device", "cuda:99"], "PyTorch finds no device 'cuda:99' on this machine; .* one of: cpu"),
    ],
)
def test_flags_that_do_not_go_together_are_named(call, tmp_path, flags, words):
    with pytest.raises(BadInput, match=words):
        call("prepare", *flags, "--out", tmp_path / "shards")
