"""Names as people write them stand for presets and GPUs, or for nothing."""

from __future__ import annotations

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.devices import DEVICES, device_named
from calculator.choose.names import HUB, gpu_of, preset_of
from calculator.models.architectures import PRESETS


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_found_by_its_own_name_and_the_hubs(preset):
    names = {preset, preset.upper(), preset.replace("-", "_"), HUB.get(preset, preset)}
    names |= {HUB.get(preset, preset).rpartition("/")[2]}
    assert {preset_of(name) for name in names} == {preset}


@pytest.mark.parametrize("gpu", DEVICES)
def test_a_gpu_is_found_however_it_is_written(gpu):
    written = (gpu, gpu.upper(), gpu.replace("-", " "), f"NVIDIA {gpu}")
    assert {gpu_of(name) for name in written} == {gpu}


@pytest.mark.parametrize("name", ["llama-9b", "meta-llama/Llama-4-Scout", "batch", ""])
def test_another_models_name_stays(name):
    assert preset_of(name) == name


@pytest.mark.parametrize("name", ["a100", "v100", "40gb", "apple", "8gb", "", "4090 ti", "cuda-0gb", "cuda-20gb"])
def test_what_names_no_single_gpu_stays(name):
    assert gpu_of(name) == name


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
    ],
)
def test_names_as_drivers_write_them(name, gpu):
    assert gpu_of(name) == gpu


def test_who_errs_is_told_what_is_near():
    with pytest.raises(BadSetup, match="Did you mean a100-40gb or a100-80gb"):
        device_named("a100")
    with pytest.raises(BadSetup, match=r"The nearest: llama-3\.1-8b.*config\.json"):
        estimate(Setup(model="meta-llama/Llama-3.1-8B-Instruct"))
