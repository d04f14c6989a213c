"""What attention's kernels hold, by hand from PyTorch's sources: flash_api.cpp, attention_backward.cu, cutlassB.h."""

import pytest

from calculator import Setup, estimate
from calculator.tape.attention_kernels import (
    efficient_backward_bytes,
    efficient_forward_bytes,
    flash_backward_bytes,
)
from calculator.tape.autograd import rounded

LOCK = 16
"""Bytes of a lock, a counter and two numbers that align each block of the queries' gradient."""


@pytest.mark.parametrize(("head_dim", "width"), [(8, 32), (96, 96), (128, 128), (136, 192), (200, 256), (256, 256)])
def test_flash_rounds_heads_above_128_to_multiples_of_64(head_dim, width):
    taken = flash_backward_bytes(rows=6, queries=200, head_dim=head_dim, expanded=0)
    assert taken == 4 * 6 * 256 * width + 4 * 6 * 256


def test_flash_has_gradients_of_keys_for_each_query_head():
    alone, shared = (flash_backward_bytes(rows=8, queries=128, head_dim=64, expanded=n) for n in (0, 8 * 128 * 64))
    assert shared - alone == 2 * 2 * 8 * 128 * 64


def backward(itemsize, head_dim, **changes):
    given = {"rows": 4, "queries": 256, "keys": 256, "value_dim": head_dim, "transposed": True}
    return efficient_backward_bytes(itemsize=itemsize, head_dim=head_dim, **given | changes)


@pytest.mark.parametrize(("head_dim", "tall", "columns"), [(64, 64, 1), (80, 128, 2), (128, 128, 2), (192, 128, 3)])
def test_32_bits_hold_a_product_and_then_sums_by_block(head_dim, tall, columns):
    numbers = 4 * 4 * 256
    product, sums = backward(4, head_dim)
    assert product == 4 * 4 * 256 * head_dim + 2 * numbers
    assert sums == numbers + rounded(4 * (256 // tall) * columns * (4 * tall * 64 + LOCK))
    assert backward(4, head_dim, transposed=False)[0] == product - numbers


@pytest.mark.parametrize(("head_dim", "block"), [(32, 64), (64, 64), (72, 128), (128, 128)])
def test_16_bits_have_blocks_of_64_and_128(head_dim, block):
    (sums,) = backward(2, head_dim)
    assert sums == 4 * 4 * 256 + rounded(4 * (256 // block) * (4 * block * block + LOCK))


@pytest.mark.parametrize(("rows", "splits"), [(4, 4), (100, 2), (300, 1)])
def test_wide_heads_of_16_bits_also_sum_gradients_of_keys_and_values(rows, splits):
    (sums,) = backward(2, 192, value_dim=128, rows=rows)
    queries = 2 * 3 * (4 * 128 * 64 + LOCK)
    assert sums == rounded(4 * rows * 256) + rounded(rows * (queries + 4 * splits * 64 * (256 + 128)))


def test_wide_heads_of_16_bits_have_a_result_in_32_bits():
    assert efficient_forward_bytes(itemsize=2, values=4096, widest=136) == 4 * 4096
    assert not efficient_forward_bytes(itemsize=2, values=4096, widest=128)
    assert not efficient_forward_bytes(itemsize=4, values=4096, widest=256)


def test_a_step_in_32_bits_has_the_sums_of_the_queries_gradient():
    config = {"model_type": "llama", "vocab_size": 64, "hidden_size": 1024, "intermediate_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 8, "head_dim": 128}  # fmt: skip
    setup = Setup(config=config, precision="fp32", sequence_length=2048, optimizer="sgd")
    instants = {one.instant: one for one in estimate(setup).timeline if one.phase == "backward"}
    assert instants["fused attention"].temporary > 4 * 2048 * 1024 + 4 * 8 * 2048
