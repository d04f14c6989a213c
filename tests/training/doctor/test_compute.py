"""PyTorch, GPU, compiler and codecs. There is no GPU here: what driver and PyTorch say of one is given as text."""

import json
import os
import sys

import pytest

from tests.programs import run_program
from training.doctor.checks.compute import (
    check_codecs,
    check_compiler,
    check_gpu,
    check_torch,
    driver_says,
    judge_fit,
    judge_gpu,
)
from training.doctor.checks.memory import check_memory
from training.doctor.checks.peers import check_node
from training.doctor.facts.shared import Asked, Shared
from training.recipe import RECIPES

GIB = 1 << 30
NONE = {"gpus": [], "version": "", "programs": [], "fault": "", "cards": ""}
TESLA = {**NONE, "gpus": ["Tesla T4"], "version": "450.80.02"}
CUDA = {"version": "2.13.0+cu128", "cuda": "12.8", "hip": None}
CPU = {"version": "2.13.0+cpu", "cuda": None, "hip": None}
BUILT_FOR = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "compute_120"]
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11000). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.107"


def gpus(*ones, reason=""):
    return {"usable": bool(ones), "reason": reason, "gpus": list(ones), "built_for": BUILT_FOR}


def gpu(title="Tesla T4", capability=(7, 5), free=15 * GIB, total=16 * GIB, fault=None):
    told = {"title": title, "capability": list(capability), "fault": fault}
    return {**told, "free_bytes": free, "total_bytes": total}


@pytest.mark.parametrize(
    "torch, told, driver, visible, names",
    [
        (CUDA, gpus(gpu()), TESLA, None, [""]),
        (CPU, gpus(), NONE, None, [""]),
        (CPU, gpus(), TESLA, None, ["torch-without-gpu"]),
        (CUDA, gpus(reason=TOO_OLD), TESLA, None, ["gpu-driver-old"]),
        (CUDA, gpus(reason="No CUDA GPUs are available"), TESLA, "", ["gpu-hidden"]),
        (CUDA, gpus(reason="No CUDA GPUs are available"), TESLA, "-1", ["gpu-hidden"]),
        (CUDA, gpus(reason="No CUDA GPUs are available"), TESLA, "1", ["gpu-hidden"]),
        (CUDA, gpus(reason="No CUDA GPUs are available"), TESLA, "7,0", ["gpu-hidden"]),
        (CUDA, gpus(reason=TOO_OLD), {**TESLA, "gpus": ["Tesla T4"] * 2}, "1", ["gpu-driver-old"]),
        (CUDA, gpus(reason="CUDA driver initialization failed"), TESLA, "0", ["gpu-unusable"]),
        (CUDA, gpus(reason="CUDA driver initialization failed"), TESLA, None, ["gpu-unusable"]),
        (CUDA, gpus(), {**NONE, "fault": MISMATCH}, None, ["gpu-driver-fails"]),
        (CPU, gpus(), {**NONE, "cards": "0000:01:00.0"}, None, ["gpu-without-driver"]),
        (
            CUDA,
            gpus(gpu("Tesla K80", (3, 7))),
            TESLA,
            None,
            ["gpu-unsupported", "gpu-without-half-precision"],
        ),
        (
            CUDA,
            gpus(gpu(free=9 * GIB)),
            {**TESLA, "programs": ["/usr/bin/blender (6000 MiB)"]},
            None,
            ["gpu-memory-occupied"],
        ),
        (CUDA, gpus(gpu(), gpu(free=GIB)), TESLA, None, ["", "gpu-memory-occupied"]),
    ],
)
def test_what_pytorch_and_driver_say(torch, told, driver, visible, names):
    findings = judge_gpu(torch, told, driver, visible)
    assert [finding.name for finding in findings] == names
    assert all(finding.found.endswith(".") for finding in findings)
    if names == ["gpu-memory-occupied"]:
        assert "blender (6000 MiB)" in findings[0].found


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
    told = {**gpus(gpu("Some GPU", capability)), "built_for": built_for.split()}
    names = [finding.name for finding in judge_gpu(CUDA, told, TESLA, None)]
    assert ("gpu-unsupported" in names) == (not runs)


@pytest.mark.parametrize(
    "device, names",
    [
        (None, ["gpu-unsupported", "gpu-without-half-precision"]),
        ("cuda", ["gpu-unsupported", "gpu-without-half-precision"]),
        ("cuda:1", [""]),
        ("cuda:2", ["device-missing", "gpu-unsupported", "gpu-without-half-precision", ""]),
        ("cpu", [""]),
    ],
)
def test_only_the_device_that_computes_is_judged(monkeypatch, device, names):
    """A machine with an old and a new GPU: `join` works on the new one, and with `--device cpu`, as the remedy says."""
    shared = Shared(Asked(device=device))
    steps = {"torch": CUDA, "gpus": gpus(gpu("Tesla K80", (3, 7)), gpu())}
    monkeypatch.setattr(shared, "compute", steps.__getitem__)
    assert [finding.name for finding in check_gpu(shared)] == names


def test_a_model_that_does_not_fit_the_gpu():
    assert judge_fit({"device_bytes": 9 * GIB, "usable_bytes": 8 * GIB})[0].name == "gpu-memory-too-small"
    assert judge_fit({"device_bytes": 7 * GIB, "usable_bytes": 8 * GIB}) == []


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_what_nvidia_smi_answers(tmp_path, monkeypatch):
    """A program of that name, which prints what the real one does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(
        tmp_path,
        "nvidia-smi",
        'case "$1" in\n--query-gpu=*) echo "NVIDIA GeForce RTX 3090, 550.107.02";;\n'
        '*) echo "/usr/bin/python3, 10234";;\nesac',
    )
    told = driver_says(tmp_path)
    assert told["gpus"] == ["NVIDIA GeForce RTX 3090"] and told["version"] == "550.107.02"
    assert told["programs"] == ["/usr/bin/python3 (10234 MiB)"] and told["fault"] == ""
    program(tmp_path, "nvidia-smi", f"printf '{MISMATCH}\\n'; exit 18")
    told = driver_says(tmp_path)
    assert told["gpus"] == [] and told["fault"].startswith("Failed to initialize NVML: Driver/library version mismatch")


@pytest.mark.parametrize(
    "source, name, words",
    [
        ("raise ImportError('libcudart.so.12: cannot open shared object file')", "torch-broken", "libcudart.so.12"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "torch-broken", "SIGSEGV"),
        ("import time; time.sleep(100)", "torch-hangs", "within 1 s"),
    ],
    ids=["library", "crash", "hang"],
)
def test_a_pytorch_that_does_not_load(tmp_path, monkeypatch, source, name, words):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Shared(Asked(), limit_seconds=2.9 if name == "torch-hangs" else 30) as shared:
        found = check_torch(shared)
        assert found.name == name and words in found.found
        assert check_gpu(shared)[0].name == ("torch-hangs" if name == "torch-hangs" else "")
        assert check_compiler(shared).level == "skipped"
        # hivemind needs torch; whether it is broken or only slow to load is not known while nothing answers.
        slow = name == "torch-hangs"
        assert check_codecs(shared).name == ("check-too-slow" if slow else "averaging-broken")
        assert (check_node(shared).name, check_node(shared).level) == (
            ("check-too-slow", "warning") if slow else ("", "skipped")
        )


FULL = """
from types import SimpleNamespace as Names
__version__, version = "2.13.0+cu128", Names(cuda="12.8", hip=None)
def mem_get_info(number):
    raise RuntimeError("CUDA error: out of memory\\nCUDA kernel errors might be reported at some other call.")
cuda = Names(is_available=lambda: True, device_count=lambda: 1, get_arch_list=lambda: ["sm_75"],
             mem_get_info=mem_get_info, get_device_properties=lambda number: Names(
                 name="Tesla T4", major=7, minor=5, total_memory=16 << 30))
"""


def test_a_gpu_whose_memory_is_all_taken(tmp_path, monkeypatch):
    """As by a server of a language model: CUDA has none to begin with, so PyTorch cannot even ask what is free."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(FULL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Shared(Asked(), limit_seconds=30) as shared:
        (found,) = check_gpu(shared)
    assert found.name == "gpu-not-available" and "CUDA error: out of memory" in found.found


def test_a_machine_without_compiler_and_memory_for_a_giant(tmp_path, monkeypatch):
    """One start of PyTorch for all that its process tells."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    text = (RECIPES / "demo.toml").read_text().replace("num_heads = 4", "num_heads = 1024")
    recipe = tmp_path / "giant.toml"
    recipe.write_text(text.replace("hidden_size = 128", "hidden_size = 32768").replace("shared_groups = ", "# "))
    with Shared(Asked(device="cuda", recipe=str(recipe)), limit_seconds=60) as shared:
        assert check_torch(shared).level == "ok"
        assert "no C compiler" in check_compiler(shared).found and check_compiler(shared).name == "no-compiler"
        assert check_gpu(shared)[0].name == "device-missing"
    with Shared(Asked(recipe=str(recipe)), limit_seconds=60) as shared:
        assert check_memory(shared).name == "memory-too-small"


@pytest.mark.programs
def test_codecs_that_cannot_read_what_they_wrote(monkeypatch):
    """What numpy 2.4 does to hivemind 1.1.12, in a process of its own."""
    program = """
from training.processes.environment import prepare_environment
prepare_environment()
from hivemind.compression.quantization import Quantization
from training.doctor.probes import swarm_probe
swarm_probe.try_codecs()
def unreadable(self, serialized_tensor):
    raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
Quantization.extract = unreadable
swarm_probe.try_codecs()
"""
    well, broken = map(json.loads, run_program([sys.executable, "-c", program]).stdout.splitlines())
    shared = Shared(Asked())
    for told, name in ((well, ""), (broken, "averaging-broken")):
        monkeypatch.setattr(shared, "visit", {"codecs": told}.__getitem__)
        assert check_codecs(shared).name == name
    assert "only 0-dimensional arrays" in check_codecs(shared).found
