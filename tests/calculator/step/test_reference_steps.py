"""Training steps of real model code, followed storage by storage.

benchmarks/memory/steps holds byte counts of steps of transformers 5.23 and diffusers 0.42 under PyTorch 2.13, on fake
CUDA tensors: every storage rounded up to 512 bytes, optimizer state present, no CUDA context. No constant in the
calculator comes from them. All but `chosen` were drawn at random, most of them after the rules of their kind had been
written; `odd` are those of unusual configs that found a wrong rule. A model in 4 bits runs bitsandbytes 0.50's own
code, GaLore and APOLLO run that of galore-torch 1.0 and apollo-torch 1.0.3, a loss in pieces Liger 0.8.5's, and FP8
torchao 0.18's; only the launches of kernels do nothing.
"""

import pytest

from calculator.step.estimate import estimate
from calculator.step.setups import setup_from
from tests.calculator.recorded_steps import steps_of
from tests.tiers import sample

FILES = (
    "reference", "decoders", "adapters", "pictures", "optimizers", "liger", "redrawn", "odd", "families", "in_backward",
)  # fmt: skip
STEPS = [step for file in FILES for step in steps_of(file)]


def _name(step):
    values = dict(step["setup"])
    config = values.pop("config", None)
    kind = [config.get("model_type") or config["_class_name"]] if config else []
    return " ".join(str(value) for value in kind + list(values.values()))


@pytest.mark.parametrize("step", sample(STEPS, every=10), ids=_name)
def test_step(step):
    result = estimate(setup_from(step["setup"]))
    assert result.parameters == step["parameters"]
    assert result.trained_parameters == step.get("trained_parameters", step["parameters"])
    assert result.saved_activations == step["saved_activations"]
    assert result.autocast_weight_copies == step["autocast_weight_copies"]
    assert result.gradient_bytes == step["gradient_bytes"]
    assert result.optimizer_state_bytes == step["optimizer_state_bytes"]
    assert result.host.total == pytest.approx(step["host_total"], rel=1e-6)
    assert result.gpu.total == pytest.approx(step["peak"], rel=1e-6)
    assert result.peak.phase == step["peak_phase"]
    for phase, peak in step.get("peaks", {}).items():
        assert max(instant.bytes for instant in result.timeline if instant.phase == phase) == peak
