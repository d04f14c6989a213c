"""Programs that measure: on a CPU what a step leaves is as predicted, and recorded measurements hold the calculator."""

import csv
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = int(os.environ.get("CASES", "6"))


def _program(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


on_gpu, on_host = _program("memory_on_gpu"), _program("memory_on_host")


def test_matrix_is_sized_to_the_card():
    small, large = (on_gpu.matrix(small=False, usable_bytes=size * 2**30, cases=None) for size in (8, 80))
    assert len(large) >= len(small) >= 150
    assert sum(s.micro_batch_size for s in large) > sum(s.micro_batch_size for s in small)
    chosen = on_gpu.matrix(small=False, usable_bytes=16 * 2**30, cases=200)
    assert len(chosen) == 200
    fields = ("precision", "attention", "checkpointing", "optimizer", "shared_groups", "offload_optimizer")
    for field in (*fields, "lora_rank", "offload_activations"):
        assert len({getattr(setup, field) for setup in chosen}) > 1
    assert {setup.config["model_type"] for setup in chosen} == {"bert", "gpt2", "gptj", "t5", *on_gpu.DECODERS}


def test_ligers_loss_is_measured_where_its_kernels_run(monkeypatch):
    assert not any(setup.loss == "liger" for setup in on_gpu.matrix(small=False, usable_bytes=2**34, cases=None))
    monkeypatch.setattr(on_gpu.importlib.util, "find_spec", lambda name: name)
    assert not any(setup.loss == "liger" for setup in on_gpu.matrix(small=True, usable_bytes=2**34, cases=None))
    found = [setup for setup in on_gpu.matrix(small=False, usable_bytes=2**34, cases=None) if setup.loss == "liger"]
    assert {setup.config["model_type"] for setup in found} == set(on_gpu.DECODERS)


def test_dry_run_steps_real_models(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = tmp_path / "gpu.csv"
    assert on_gpu.main(["--dry-run", "--cases", str(CASES), "--csv", str(path)]) == 0
    assert "Errors of the memory in use after a step:\nmedian" in capsys.readouterr().out
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == CASES
    for row in rows:
        assert row["predicted_left"] == row["measured_left"], row
        assert int(row["predicted_host"]) == int(row["host_growth"]), row
        assert int(row["predicted_peak"]) > int(row["predicted_left"])


def test_without_a_gpu_one_sentence_says_so(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as ended:
        on_gpu.main([])
    assert ended.value.code == 2
    assert "--dry-run" in capsys.readouterr().err


RECORDED = ROOT / "benchmarks/results/memory_on_gpu.csv"


@pytest.mark.skipif(not RECORDED.exists(), reason="no GPU has run benchmarks/memory_on_gpu.py yet")
def test_recorded_peaks_on_a_gpu_hold_the_calculator():
    errors = [abs(float(row["peak_error_percent"])) for row in csv.DictReader(RECORDED.open())]
    found = on_gpu.summary(errors)
    assert found["median"] <= 1 and found["p95"] <= 3 and found["worst"] <= 6


def test_recorded_host_memory_holds_the_calculator():
    recorded = json.loads((ROOT / "benchmarks/results/memory_on_host.json").read_text())
    assert len(recorded["results"]) == len(on_host.CASES)
    for entry, case in zip(recorded["results"], on_host.CASES.values(), strict=True):
        expected = on_host.predicted(case)
        assert entry["ours"] == expected, "measure again: python benchmarks/memory_on_host.py"
        assert expected == pytest.approx(entry["peer"], rel=0.03)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_follows_what_is_held():
    before = on_host.resident_bytes()
    held = bytearray(b"1") * (64 << 20)
    assert 0.9 < (on_host.resident_bytes() - before) / len(held) < 1.2
