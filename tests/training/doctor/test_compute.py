"""PyTorch, GPU and compiler. There is no GPU here: what driver and PyTorch say of one is given."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest

from tests.support.programs import run_program
from training.doctor.catalogue import CHECKS
from training.doctor.checks import compute
from training.doctor.checks.compute import check_gpu, runs_on, system_gpus
from training.doctor.examination import run_checks
from training.doctor.facts import Asked
from training.recipe import RECIPES

GIB = 1 << 30
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107"


def findings(asked=None, seconds=60, checks=CHECKS):
    """Check -> what the children find."""
    theirs = [check for check in checks if check.child]
    return {one.check: one for one in run_checks(theirs, asked or Asked(), limit_seconds=seconds)}


@pytest.fixture
def cuda(monkeypatch):
    """Makes PyTorch find GPUs of these capabilities, by its own functions."""
    import torch

    def make(*capabilities, free=15 * GIB, built_for=("sm_75", "sm_80", "sm_90")):
        def memory(device):
            if not free:
                raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later.")
            return free, 16 * GIB

        def properties(device):
            major, minor = capabilities[torch.device(device).index or 0]
            return SimpleNamespace(name="Some GPU", major=major, minor=minor, total_memory=16 * GIB)

        made = {"is_available": lambda: True, "device_count": lambda: len(capabilities), "mem_get_info": memory}
        for name, value in {**made, "get_device_properties": properties, "get_arch_list": lambda: built_for}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    return make


@pytest.mark.parametrize(
    "device, name",
    [
        (None, "gpu-unsupported"),
        ("cuda", "gpu-unsupported"),
        ("cuda:1", ""),
        ("cuda:2", "device-unusable"),
        ("cpu", ""),
    ],
)
def test_only_the_device_that_computes_is_judged(cuda, device, name):
    """A machine with an old and a new GPU: `join` works on the new one, and with `--device cpu`, as the remedy says."""
    cuda((3, 7), (7, 5))
    assert check_gpu(device).name == name


def test_a_gpu_whose_memory_is_all_taken(cuda):
    """As by a server of a language model: CUDA has none to begin with, so PyTorch cannot even ask what is free."""
    cuda((7, 5), free=0)
    found = check_gpu(None)
    assert found.name == "device-unusable" and "CUDA error: out of memory" in found.found


@pytest.mark.parametrize("system, name", [("GPU 0: Tesla T4", "gpu-unused"), ("", "")])
def test_a_gpu_that_pytorch_does_not_find(monkeypatch, system, name):
    import torch

    def fails():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11000). Please update it")

    monkeypatch.setattr(compute, "system_gpus", lambda: system)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fails)
    assert check_gpu(None).name == name and check_gpu("cpu").name == ""
    assert ("driver on your system is too old" in check_gpu(None).found) == bool(name)


@pytest.mark.parametrize(
    "capability, built_for, runs",
    [
        ((12, 0), "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90", False),  # a build for CUDA 12.4 and a GeForce RTX 5090
        ((12, 0), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", True),
        ((12, 1), "sm_90 sm_120", True),
        ((12, 0), "sm_90 compute_90", True),  # compiled when it starts
        ((8, 9), "sm_50 sm_80 sm_86 sm_90", True),
        ((8, 0), "sm_50 sm_86 sm_90", False),
        ((6, 1), "sm_50 sm_70 sm_75", False),
        ((9, 0), "sm_80 sm_90a", True),
        ((10, 3), "sm_100a", False),
        ((10, 3), "sm_100f", True),
        ((9, 0), "gfx90a", True),  # AMD's names: nothing is known
    ],
)
def test_gpus_for_which_a_build_has_code(capability, built_for, runs):
    assert runs_on(capability, built_for.split()) == runs


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_what_the_system_says_of_its_gpus(tmp_path, monkeypatch):
    """By a program of nvidia-smi's name, or by Linux's own files."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(tmp_path, "nvidia-smi", 'echo "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-8932f937)"')
    assert system_gpus() == "GPU 0: NVIDIA GeForce RTX 3090 (UUID: GPU-8932f937)"
    program(tmp_path, "nvidia-smi", f"printf '{MISMATCH}\\n'; exit 18")
    assert system_gpus().startswith("Failed to initialize NVML: Driver/library version mismatch; NVML")
    monkeypatch.setenv("PATH", "")
    for slot, vendor in (("0000:01:00.0", "0x10de"), ("0000:02:00.0", "0x1002")):
        (tmp_path / "pci" / slot).mkdir(parents=True)
        (tmp_path / "pci" / slot / "vendor").write_text(f"{vendor}\n")
        (tmp_path / "pci" / slot / "class").write_text("0x030000\n")
    assert system_gpus(tmp_path / "pci") == "an NVIDIA card at 0000:01:00.0, without driver"
    assert system_gpus(tmp_path / "none") == ""


@pytest.mark.programs
@pytest.mark.parametrize(
    "source, name, words",
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "torch-broken", "libcudart.so.12"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "torch-broken", "SIGSEGV"),
        ("import time; time.sleep(100)", "check-too-slow", "After 3 s the doctor was still loading PyTorch"),
    ],
    ids=["library", "crash", "hang"],
)
def test_a_pytorch_that_does_not_load(tmp_path, monkeypatch, source, name, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = findings(seconds=3 if name == "check-too-slow" else 60)
    assert found["PyTorch"].name == name and words in found["PyTorch"].found
    # hivemind needs torch; while nothing answers, the doctor does not know whether it is broken or only slow to load.
    slow = name == "check-too-slow"
    assert found["averaging"].name == ("check-too-slow" if slow else "averaging-broken")
    for check in ("GPU", "compiler", "network node"):
        assert (found[check].name, found[check].level) == ("", "skipped")


@pytest.mark.programs
def test_a_machine_without_compiler_and_memory_for_a_giant(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    text = (RECIPES / "demo.toml").read_text().replace("num_heads = 4", "num_heads = 1024")
    recipe = tmp_path / "giant.toml"
    recipe.write_text(text.replace("hidden_size = 128", "hidden_size = 32768").replace("shared_groups = ", "# "))
    found = findings(Asked(recipe=str(recipe)), checks=[check for check in CHECKS if check.child == "compute"])
    assert found["PyTorch"].level == "ok"
    assert "no C compiler" in found["compiler"].found and found["compiler"].name == "no-compiler"
    assert found["memory"].name == "memory-too-small" and found["shared memory"].name == "shared-memory-small"


@pytest.mark.programs
def test_codecs_that_cannot_read_what_they_wrote():
    """What numpy 2.4 does to hivemind 1.1.12, in a process of its own."""
    program = """
import json
from dataclasses import asdict
from training.processes.environment import prepare_environment
prepare_environment()
from hivemind.compression.quantization import Quantization
from training.doctor.checks.network import check_codecs
print(json.dumps(asdict(check_codecs())))
def unreadable(self, serialized_tensor):
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
Quantization.extract = unreadable
print(json.dumps(asdict(check_codecs())))
"""
    well, broken = map(json.loads, run_program([sys.executable, "-c", program]).stdout.splitlines())
    assert (well["name"], broken["name"]) == ("", "averaging-broken")
    assert "only 0-dimensional arrays" in broken["found"]
