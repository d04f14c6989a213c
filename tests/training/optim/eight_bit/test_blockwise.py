"""8-bit blocks against bitsandbytes' own table and against the nearest value found by trying all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.optim.eight_bit import blockwise
from training.optim.eight_bit.codebook import codebook


@pytest.mark.parametrize("signed", [True, False])
def test_the_values_are_those_of_bitsandbytes(signed):
    functional = pytest.importorskip("bitsandbytes.functional")
    assert torch.equal(codebook(signed).values, functional.create_dynamic_map(signed=signed))


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 700), block_size=st.sampled_from([1, 64, 256]), signed=st.booleans(), seed=st.integers(0, 999)
)
def test_a_value_comes_back_as_its_nearest_neighbour(size, block_size, signed, seed):
    generator = torch.Generator().manual_seed(seed)
    original = torch.randn(size, generator=generator) * 10 ** (4 * torch.rand(size, generator=generator) - 6)
    original = original if signed else original.abs()
    codes = torch.zeros(size, dtype=torch.uint8)
    scales = torch.zeros(blockwise.block_count(size, block_size))
    blockwise.quantize(original.clone(), codes, scales, block_size=block_size, signed=signed)
    restored = torch.empty(size)
    blockwise.dequantize(codes, scales, restored, block_size=block_size, signed=signed)

    values = codebook(signed).values
    for start in range(0, size, block_size):
        block = original[start : start + block_size]
        scale = block.abs().max()
        distances = (block[:, None] - scale * values).abs()
        ours = (restored[start : start + block_size] - block).abs()
        # upper 16 bits of the quotient decide: the border may lie 0.4 % of the value off
        assert bool((ours <= distances.min(dim=1).values + 0.008 * block.abs() + 1e-30).all())


def test_zero_stays_zero():
    codes, scales, out = torch.zeros(10, dtype=torch.uint8), torch.zeros(1), torch.ones(10)
    for signed in (True, False):
        blockwise.quantize(torch.zeros(10), codes, scales, block_size=16, signed=signed)
        blockwise.dequantize(codes, scales, out, block_size=16, signed=signed)
        assert not out.any()
