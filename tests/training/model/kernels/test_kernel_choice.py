"""Fused kernels compute what separate products compute, and GPUs use them."""

import pytest
import torch

from training.model.attention import AttentionPattern
from training.model.config import ModelConfig
from training.model.kernels.fused import FusedPattern
from training.model.kernels.kernel_choice import choose_kernels
from training.model.layout import Layout
from training.model.sampling import sample_codes
from training.model.transformer import build_model

LAYOUT = Layout(text_len=9, grid=14)
KINDS = ("row", "column", "conv", "full")
SIZES = dict(
    hidden_size=24,
    num_layers=3,
    num_heads=2,
    head_dim=16,
    text_vocab_size=11,
    text_seq_len=5,
    image_grid=4,
    image_vocab_size=13,
    text_padding_id=1,
)


SAMPLES, HEADS, WIDTH = 4, 2, 8


def errors(kind, dtype):
    """Relative errors of fused kernels and of separate products against float64, on samples that end in padding."""
    generator, folded = torch.Generator().manual_seed(0), SAMPLES * HEADS
    shapes = [(3, folded, LAYOUT.text_len, WIDTH), (3, folded, LAYOUT.image_len, WIDTH)]
    exact = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    grads = [torch.randn(shape[1:], generator=generator, dtype=torch.float64) for shape in shapes]
    for part in exact:
        part[0] *= WIDTH**-0.5
    padding = torch.zeros(folded, 1, LAYOUT.text_len, dtype=torch.float64)
    padding[:, :, LAYOUT.text_len // 2 :] = float("-inf")

    def run(pattern, dtype):
        text, image, grad_text, grad_image, bias = (part.to(dtype) for part in (*exact, *grads, padding))
        text_out, image_out, *kept = pattern.attend(text, image, bias)
        back = pattern.backward(text, image, tuple(kept), grad_text, grad_image)
        return torch.cat([part.double().flatten() for part in (text_out, image_out, *back)])

    reference, precise = torch.empty((), dtype=dtype), torch.empty((), dtype=torch.float64)
    with torch.no_grad():
        true = run(AttentionPattern(kind, LAYOUT, precise), torch.float64)
        found = [
            run(pattern, dtype)
            for pattern in (
                FusedPattern(kind, LAYOUT, reference, HEADS),
                AttentionPattern(kind, LAYOUT, reference),
            )
        ]
    return [float((one - true).norm() / true.norm()) for one in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-14), (torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_both_ways_are_as_exact_as_their_type(kind, dtype, error):
    """On padded samples, whose image goes through in four bands; outputs and gradients together."""
    assert max(errors(kind, dtype)) < error


@pytest.mark.parametrize("device, kernels", [("cpu", "products"), ("cuda", "fused")])
def test_gpus_take_fused_kernels(device, kernels):
    assert choose_kernels(torch.device(device)).kernels == kernels


def test_a_model_trains_with_fused_kernels_also_after_sampling():
    """Sampling runs in inference mode, whose tensors autograd does not take."""
    model = build_model(ModelConfig(**SIZES), seed=0)
    model.attention_kernels = "fused"
    text, codes = torch.tensor([[1, 2, 3, 0, 0]]), torch.arange(16)[None] % 13
    sampled = sample_codes(model, text, top_k=1)
    model(text, codes).loss.backward()
    assert type(model.patterns(torch.float32)["row"]) is FusedPattern
    fused = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.attention_kernels = "products"
    assert torch.equal(sample_codes(model, text, top_k=1), sampled)
    model(text, codes).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, fused[name], rtol=1e-4, atol=1e-6, msg=name)
