"""The command line, the batch and the browser's entry: names, units, exit codes."""

import io
import json
import os
import shlex
import sys
import tracemalloc
from subprocess import PIPE

import pytest

from calculator import PRESETS, Setup, browser, estimate
from calculator.__main__ import main
from tests.support.programs import run_program

KEYS = {
    "model", "gpus", "parameters", "parameters_by_part", "trained_parameters", "gpu", "saved_activations",
    "autocast_weight_copies", "gradient_bytes", "optimizer_state_bytes", "host", "peak", "timeline", "transfer",
    "overhead", "notes",
}  # fmt: skip


def test_json_has_the_public_keys(capsys):
    assert main(["gpt2-large", "--optimizer", "adamw8bit", "--checkpointing", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == KEYS
    assert set(result["gpu"]) == {"weights", "gradients", "optimizer_state", "activations", "temporary", "total"}
    assert set(result["peak"]) == {"phase", "instant"}
    assert set(result["transfer"]) == {"bytes_per_step", "seconds"}
    assert {"cuda_context", "total"} <= set(result["overhead"])
    assert result["parameters"] == 774_030_080
    assert isinstance(result["gpu"]["total"], int)


def test_report_shows_parts_totals_and_the_peak(capsys):
    assert main(["gpt2-large", "--optimizer", "adamw8bit", "--checkpointing"]) == 0
    report = capsys.readouterr().out
    result = estimate(Setup(model="gpt2-large", optimizer="adamw8bit", checkpointing=True))
    for size in (*result.as_dict()["gpu"].values(), result.host.total, result.saved_activations):
        assert f"{size:,} B" in report
    assert result.peak.instant in report


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_answered(name, capsys):
    assert main([name]) == 0
    assert capsys.readouterr().out.startswith(f"{name}: ")


def test_flags_and_keys_are_the_same(capsys):
    flags = [
        "t5-small", "--micro-batch-size", "2", "--sequence-length", "64", "--target-length", "32", "--precision",
        "bf16", "--attention", "eager", "--dropout", "0", "--checkpointing", "2", "--shared-groups", "3",
        "--optimizer", "lamb", "--offload-optimizer", "--delta-rule", "--accumulation-steps", "4", "--json",
    ]  # fmt: skip
    assert main(flags) == 0
    keys = {
        "model": "t5-small", "micro_batch_size": 2, "sequence_length": 64, "target_length": 32, "precision": "bf16",
        "attention": "eager", "dropout": 0, "checkpointing": 2, "shared_groups": 3, "optimizer": "lamb",
        "offload_optimizer": True, "delta_rule": True, "accumulation_steps": 4,
    }  # fmt: skip
    saved = json.loads(json.loads(browser.export(json.dumps({"setup": keys})))["json"])
    assert json.loads(capsys.readouterr().out) == saved["estimate"]


def test_the_page_and_the_command_line_judge_a_card_by_its_memory_alike(capsys):
    assert main(["gpt2", "--gpu", "cuda-20gb", "--json"]) == 0
    asked = json.dumps({"setup": {"model": "gpt2"}, "gpu": "cuda-20gb"})
    saved = json.loads(json.loads(browser.export(asked))["json"])
    assert json.loads(capsys.readouterr().out) == saved["estimate"]
    assert saved["command"].endswith("--gpu cuda-20gb")
    texts = json.loads(browser.answer(asked))["texts"]
    assert texts["verdict"].startswith("Fits the CUDA card with 20 GB, ") and texts["usable"] == "19.25 GiB"


def test_batch_answers_in_order_and_goes_on_after_a_refusal(monkeypatch, capsys):
    lines = ['{"model": "gpt2"}', "", '{"model": "gpt9"}', "not json", "1" * 5000, "[" * 100_000]
    lines += ['{"model": "bert-base", "precision": "bf16"}']
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    assert main(["batch"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [result.get("model") for result in results] == ["gpt2", None, None, None, None, "bert-base"]
    assert all(set(result) == {"error"} for result in results[1:5])


def test_config_file(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 6}), encoding="utf-8-sig")  # as Windows' editors write
    assert main(["--config", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 81_912_576  # distilgpt2


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["gpt9"], ["gpt2", "--precision", "int4"], ["gpt2", "--micro-batch-size", "many"],
        ["gpt2", "--micro-batch-size", "-1"], ["--config", "missing.json"], ["gpt2", "--config", "missing.json"],
        ["gpt2", "--checkpointing", "often"], ["gpt2", "--nonsense"], ["batch", "--gpu", "t4"],
        ["gpt2", "--gpu", "voodoo2"], ["gpt2", "--gpu", "cuda-0gb"], ["gpt2", "--gpu", ""],
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.rstrip().endswith(".")


def test_runs_as_a_program():
    done = run_program([sys.executable, "-m", "calculator", "gpt2", "--json"])
    assert json.loads(done.stdout)["parameters"] == 124_439_808


def test_a_batch_goes_on_after_a_line_that_is_no_text(programs):
    """As in most terminals, where Python expects UTF-8, and as after PowerShell, which writes a byte order mark."""
    lines = b'\xef\xbb\xbf{"model": "gpt2"}\n{"model": "gpt2"\xff}\n{"model": "\xff"}\n{"model": "bert-base"}\n'
    running = programs.start(
        [sys.executable, "-m", "calculator", "batch"],
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, stdin=PIPE, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    output, errors = running.communicate(lines, timeout=120)
    results = [json.loads(line) for line in output.splitlines()]
    assert errors == b"" and running.returncode == 0
    assert [result.get("model") for result in results] == ["gpt2", None, None, "bert-base"]
    assert "not JSON" in results[1]["error"] and "The nearest to the model" in results[2]["error"]


def test_browser_catalogue_names_every_choice_that_is_accepted():
    catalogue = json.loads(browser.catalogue())
    assert [model["name"] for model in catalogue["models"]] == list(PRESETS)
    for key, choices in catalogue["choices"].items():
        for choice in choices:
            values = {"model": "smollm2-135m", key: choice["value"]}
            assert "error" not in json.loads(browser.answer(json.dumps({"setup": values}))), values
    assert set(catalogue["defaults"]) == set(Setup.__dataclass_fields__) - {"config"}
    assert "error" not in json.loads(browser.answer(json.dumps({"setup": catalogue["defaults"]})))


def test_the_pages_command_gives_the_same_answer(capsys):
    setup = {"model": "smollm2-135m", "lora_rank": 4, "lora_targets": "q_proj, v_proj", "lora_dropout": None}
    command = json.loads(browser.answer(json.dumps({"setup": setup})))["texts"]["command"]
    assert main([*shlex.split(command)[3:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"] == estimate(Setup(**setup)).as_dict()["gpu"]


def test_a_config_of_absurd_size_is_not_read_whole(tmp_path, capsys):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(300 << 20)
    tracemalloc.start()
    assert main(["--config", str(tmp_path / "config.json")]) == 2
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "too long for a config.json" in capsys.readouterr().err and most < 50 << 20


def test_browser_refuses_in_words():
    for ask in (browser.answer, browser.advise, browser.sweep, browser.export, browser.read_config):
        assert json.loads(ask("{"))["error"].startswith("This is not JSON")
        assert json.loads(ask("[]"))["error"].startswith("A request is an object")
        assert json.loads(ask("[" * 100_000))["error"].startswith("This cannot be read")
        assert json.loads(ask(f'{{"setup": {"1" * 5000}}}'))["error"].startswith("This cannot be read")
    assert json.loads(browser.answer('{"setup": {"model": "x"}}'))["error"].startswith("The nearest to the model")
    assert json.loads(browser.answer('{"setup": {"model": "gpt2"}, "gpu": "voodoo2"}'))["error"].startswith("gpu is")
