"""Programs that measure: on a CPU what a step leaves is as predicted, and recorded measurements hold the calculator."""

import csv
import json
import os
import random
import sys
from pathlib import Path

import pytest

from benchmarks.memory import memory_on_gpu as on_gpu
from benchmarks.memory import memory_on_host as on_host
from calculator import Setup

ROOT = Path(__file__).parents[3]
CASES = int(os.environ.get("CASES", "6"))


@pytest.mark.exhaustive
def test_matrix_is_sized_to_the_card():
    small, large = (on_gpu.matrix(small=False, usable_bytes=size * 2**30, cases=None) for size in (8, 80))
    assert len(large) >= len(small) >= 150
    assert sum(s.micro_batch_size for s in large) > sum(s.micro_batch_size for s in small)
    chosen = on_gpu.matrix(small=False, usable_bytes=16 * 2**30, cases=200)
    assert len(chosen) == 200
    fields = ("precision", "attention", "checkpointing", "optimizer", "shared_groups", "offload_optimizer")
    for field in (*fields, "lora_rank", "offload_activations", "base_bits"):
        assert len({getattr(setup, field) for setup in chosen}) > 1
    pictures = {on_gpu.name_of(Setup(config=config)) for config in on_gpu.PICTURES.values()}
    assert set(map(on_gpu.name_of, chosen)) == {*on_gpu.SIZES, *on_gpu.DECODERS, *pictures}


DENSE = {"llama", "qwen3", "phi3", "gemma2", "gemma3_text"}


@pytest.mark.exhaustive
def test_what_needs_packages_is_measured_where_its_kernels_run(monkeypatch):
    def found(*, small: bool) -> dict[str, set[str]]:
        setups = on_gpu.decoders(small=small, usable_bytes=2**34)
        return {
            "Liger's loss": {on_gpu.name_of(setup) for setup in setups if setup.loss == "liger"},
            "FP8": {on_gpu.name_of(setup) for setup in setups if setup.fp8},
        }

    assert not any(found(small=False).values())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert not any(found(small=True).values())
    assert found(small=False) == {"Liger's loss": {*on_gpu.DECODERS}, "FP8": DENSE}


KINDS = {
    "QLoRA": lambda setup: setup.base_bits == 4 and setup.rest_32bit,
    "QLoRA in bfloat16": lambda setup: setup.base_bits == 4 and setup.precision == "bf16",
    "latent attention": lambda setup: on_gpu.name_of(setup) == "deepseek_v3",
    "ViT": lambda setup: on_gpu.name_of(setup) == "vit",
    "Stable Diffusion 3 with LoRA": lambda setup: on_gpu.name_of(setup).startswith("SD3") and setup.lora_rank,
    "Flux": lambda setup: on_gpu.name_of(setup).startswith("Flux") and not setup.lora_rank,
}


@pytest.fixture(scope="module")
def small_cases():
    sizes = {"small": True, "usable_bytes": 2**34}
    return on_gpu.decoders(**sizes) + on_gpu.pictures(**sizes)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_leaves_is_as_predicted(small_cases, kind):
    pytest.importorskip("torch")
    some = [setup for setup in small_cases if KINDS[kind](setup)]
    setup = random.Random(len(some)).choice(some)
    row = on_gpu.judge(setup, "cpu")
    assert row["predicted_left"] == row["measured_left"], setup
    assert row["predicted_host"] == row["host_growth"], setup


@pytest.mark.exhaustive
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


@pytest.mark.skipif(not RECORDED.exists(), reason="no GPU has run benchmarks/memory/memory_on_gpu.py yet")
def test_recorded_peaks_on_a_gpu_hold_the_calculator():
    errors = [abs(float(row["peak_error_percent"])) for row in csv.DictReader(RECORDED.open())]
    found = on_gpu.summary(errors)
    assert found["median"] <= 1 and found["p95"] <= 3 and found["worst"] <= 6


def test_recorded_host_memory_holds_the_calculator():
    recorded = json.loads((ROOT / "benchmarks/results/memory_on_host.json").read_text())
    assert len(recorded["results"]) == len(on_host.CASES)
    for entry, case in zip(recorded["results"], on_host.CASES.values(), strict=True):
        expected = on_host.predicted(case)
        assert entry["ours"] == expected, "measure again: python benchmarks/memory/memory_on_host.py"
        assert expected == pytest.approx(entry["peer"], rel=0.03)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_memory_follows_what_is_held():
    before = on_host.resident_bytes()
    held = bytearray(b"1") * (64 << 20)
    assert 0.9 < (on_host.resident_bytes() - before) / len(held) < 1.2
