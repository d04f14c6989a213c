"""Muon: the bytes of PyTorch's own state, what is refused, and what a reader may type.

The steps of `benchmarks/memory/steps/optimizers.json` were traced and are in test_reference_steps.py.
"""

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.models.architectures import PRESETS
from calculator.parts.muon import is_hidden, muon_state
from calculator.parts.parameters import parameter_tensors

LLAMA = "llama-3.2-1b"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_state_is_that_of_pytorch(dtype):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, dtype)
    for tensor in parameter_tensors(PRESETS["gpt2"])[:6]:
        small = tuple(min(size, 40) for size in tensor.shape)
        parameter = torch.nn.Parameter(torch.randn(small, dtype=dtype))
        optimizer = (torch.optim.Muon if is_hidden(tensor) else torch.optim.AdamW)([parameter])
        parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        moments = [value for name, value in optimizer.state[parameter].items() if name != "step"]
        values = muon_state(tensor, dtype.itemsize) / tensor.count
        assert sum(moment.numel() * moment.element_size() for moment in moments) / parameter.numel() == pytest.approx(
            values, rel=0.01
        )


def test_it_keeps_half_of_adamws_state_for_the_layers():
    muon, adamw = (estimate(Setup(model=LLAMA, optimizer=name)) for name in ("muon", "adamw"))
    hidden = sum(t.copies * t.count for t in parameter_tensors(PRESETS[LLAMA]) if is_hidden(t))
    assert adamw.optimizer_state_bytes - muon.optimizer_state_bytes == 4 * hidden


REFUSED = {
    "Muon is counted for Gemma, Llama": {"model": "gpt2"},
    "Muon takes the gradients of whole matrices, which LoRA freezes": {"lora_rank": 8},
    "Muon is counted on the GPU only": {"offload_optimizer": True},
    "sharding zero-3 is not counted with it": {"gpus": 2, "sharding": "zero-3"},
    "Muon is not counted for layers that share weights": {"shared_groups": 4},
    "choose precision bf16": {"precision": "fp16"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_counted_is_refused(message):
    with pytest.raises(BadSetup, match=message):
        estimate(Setup(**{"model": LLAMA, "optimizer": "muon", **REFUSED[message]}))
