"""Training steps of real model code, followed storage by storage.

`benchmarks/reference_steps.json` holds byte counts of one step of transformers 5.23 models, run on fake CUDA tensors
under PyTorch 2.13: every storage rounded up to 512 bytes, optimizer state present, no CUDA context. No constant in the
calculator comes from them; those with `held_out` were drawn at random after it was written, with a few layers; of
these, some checkpoint every k-th block and some share layers. `later_steps.json` holds steps that were drawn after the
last rule was changed: none of them has taught the calculator anything. The same holds for `decoder_steps.json`, with
the families of today's decoders, and for `lora_steps.json`, where peft 0.21 puts LoRA's adapters on them. There, a
model in 4 bits runs bitsandbytes 0.50's own code; only the launches of its kernels do nothing. `picture_steps.json`
holds models of pictures, and `diffusion_steps.json` the diffusion transformers of diffusers 0.42, with the peaks of
forward and of backward besides that of the step; in `diffusion_lora_steps.json`, peft puts adapters on these, and in
`vit_lora_steps.json` and `deepseek_lora_steps.json` on other models. In
`low_rank_steps.json`, galore-torch 1.0 and apollo-torch 1.0.3 update decoders, with the peak of the update as well;
in `muon_steps.json`, torch's Muon and AdamW do so. In `offloaded_steps.json`, torch's `save_on_cpu` keeps on the host
what backward needs. In `liger_steps.json`, Liger 0.8.5 computes output head and loss in pieces; in
`packed_steps.json`, each sequence is a pack of samples; in `eight_bit_steps.json`, torchao 0.18 multiplies in FP8.
`redrawn_steps.json` holds steps of all these kinds, drawn anew after the last correction, and `odd_steps.json` those of
unusual configs that found a wrong rule.
"""

import json
from pathlib import Path

import pytest

from calculator.step.estimate import estimate
from calculator.step.setups import setup_from
from tests.tiers import sample

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
NAMES = (
    "reference_steps", "later_steps", "decoder_steps", "picture_steps", "diffusion_steps", "lora_steps",
    "diffusion_lora_steps", "low_rank_steps", "muon_steps",
    "offloaded_steps", "liger_steps", "packed_steps", "eight_bit_steps", "mixture_lora_steps",
    "older_lora_steps", "encoder_lora_steps", "vit_lora_steps", "deepseek_lora_steps",
    "deepseek_liger_steps", "redrawn_steps", "odd_steps",
)  # fmt: skip
STEPS = [step for name in NAMES for step in json.loads((BENCHMARKS / f"{name}.json").read_text())]


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
