"""Names as people write them stand for presets and GPUs, or for nothing."""

from __future__ import annotations

import pytest

from calculator.architectures import PRESETS
from calculator.devices import DEVICES
from calculator.names import HUB, gpu_of, preset_of


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


def test_series_and_memory_may_be_left_out():
    assert [gpu_of(name) for name in ("4090", "GTX 1080 Ti", "1080ti", "H100", "CUDA 20GB")] == [
        "rtx-4090", "gtx-1080-ti", "gtx-1080-ti", "h100-80gb", "cuda-20gb"
    ]  # fmt: skip
