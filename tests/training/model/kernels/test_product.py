"""The products of sampling are the matrix' own, by the compiled loop and without it."""

import pytest
import torch

from training.model.kernels import product
from training.model.kernels.product import MOST_ROWS, product_with

WAYS = [pytest.param(True, marks=pytest.mark.compiler, id="compiled"), pytest.param(False, id="PyTorch")]


@pytest.fixture
def way(monkeypatch, request):
    """Has products computed by the loop, or as where no C compiler is."""
    if request.param:
        assert product._loop() is not None
    else:
        monkeypatch.setattr(product, "_loop", lambda: None)


@pytest.mark.parametrize("way", WAYS, indirect=True)
@pytest.mark.parametrize("batch", [1, 3, MOST_ROWS, MOST_ROWS + 1])
@pytest.mark.parametrize("rows, columns", [(1, 1), (33, 7), (7, 300), (768, 256)])
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_the_product(way, batch, rows, columns, biased):
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(rows + 2, columns, generator=generator)
    weight, bias = whole[1:-1], torch.randn(rows, generator=generator) if biased else None
    inputs = torch.randn(batch, 2 * columns, generator=generator)[:, columns:]  # not contiguous
    exact = inputs.double() @ weight.double().t() + (bias.double() if biased else 0)
    out = product_with(weight, bias, batch)(inputs)
    assert out.shape == exact.shape and out.dtype == torch.float32
    assert float((out - exact).norm()) <= 1e-6 * float(exact.norm())


@pytest.mark.compiler
def test_what_the_loop_reads_lives_as_long_as_the_product():
    made = product_with(torch.ones(200, 300), torch.ones(200), 1)
    others = [torch.zeros(200, 300) for _ in range(20)]
    assert torch.equal(made(torch.ones(1, 300)), torch.full((1, 200), 301.0)) and len(others) == 20


def test_other_types_are_left_to_pytorch():
    out = product_with(torch.ones(2, 3, dtype=torch.float64), None, 1)(torch.ones(1, 3, dtype=torch.float64))
    assert out.dtype == torch.float64 and out.tolist() == [[3.0, 3.0]]
