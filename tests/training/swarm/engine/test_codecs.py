"""The block-wise codec: small error on heavy tails, nothing hidden, no byte too many."""

from __future__ import annotations

import math

import pytest
import torch
from hivemind.compression import CompressionInfo
from hivemind.proto import runtime_pb2
from hivemind.proto.runtime_pb2 import BLOCKWISE_8BIT, FLOAT16, NONE, UNIFORM_8BIT
from hypothesis import given, settings
from hypothesis import strategies as st

from training.swarm.engine import engine
from training.swarm.engine.codecs import BLOCK_SIZE, BlockwiseCodec, decode, encode, exchange_codec
from training.swarm.epoch.selftest import check_exchange
from training.swarm.state.parameters import state_codec

SIZE = 1 << 18
CODEC = exchange_codec(65_536, "blockwise8")


@pytest.fixture(autouse=True, scope="module")
def prepared_engine():
    """As for each process that starts a node."""
    engine.prepare()


def gaussian(size=SIZE):
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def student_t(size=SIZE):
    """Three degrees of freedom, as gradients' tails are."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(size, generator=generator) / (torch.randn((3, size), generator=generator) ** 2).mean(0).sqrt()


def there_and_back(codec, tensor):
    message = codec.compress(tensor, CompressionInfo.from_tensor(tensor))
    again = runtime_pb2.Tensor()
    again.ParseFromString(message.SerializeToString())
    return decode(again), message


def relative_error(tensor, expected):
    return float((tensor.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("kind", [NONE, FLOAT16, UNIFORM_8BIT, BLOCKWISE_8BIT])
@pytest.mark.parametrize("named", ["S1000000", "U1000", "O", "V9", "", "Tensor", "f4"])
def test_a_message_that_is_of_no_numbers_is_refused_before_anything_is_made_of_it(kind, named):
    """Of 32 kB in 16 bits, whose type says a million bytes for each number, NumPy would make 16 GB."""
    message = encode(torch.zeros(16_000), kind)
    message.dtype = named
    with pytest.raises(ValueError):
        decode(message)


@pytest.mark.parametrize("kind", [runtime_pb2.QUANTILE_8BIT, runtime_pb2.MEANSTD_16BIT, 99])
def test_a_message_in_a_codec_that_no_peer_uses_is_refused(kind):
    message = encode(torch.zeros(3))
    message.compression = kind
    with pytest.raises(ValueError):
        decode(message)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e-20, 1e20])
@pytest.mark.parametrize("gradient, bound", [(gaussian, 0.015), (student_t, 0.02)])
def test_error_is_small_on_light_and_heavy_tails_at_any_scale(gradient, bound, scale):
    original = scale * gradient()
    restored, message = there_and_back(CODEC, original)
    assert relative_error(restored, original) <= bound
    assert len(message.buffer) / SIZE <= 1.01
    assert message.compression == runtime_pb2.BLOCKWISE_8BIT


def test_hiveminds_uniform_codec_is_lost_on_heavy_tails():
    restored, _ = there_and_back(exchange_codec(65_536, "uniform8"), student_t())
    assert relative_error(restored, student_t()) > 0.2


@settings(max_examples=50, deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
    requires_grad=st.booleans(),
    seed=st.integers(0, 99),
)
def test_shape_type_and_flag_come_back_and_the_tensor_is_left_alone(shape, dtype, requires_grad, seed):
    original = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    kept = original.clone()
    restored, _ = there_and_back(BlockwiseCodec(), original.requires_grad_(requires_grad))
    assert (restored.shape, restored.dtype, restored.requires_grad) == (torch.Size(shape), dtype, requires_grad)
    assert torch.equal(original, kept)
    # half the distance of neighbours below 1, borders that lie up to 2^-8 beside it, and the type's own rounding
    bound = 0.9 / 64 / 2 + 2**-8 + torch.finfo(dtype).eps / 2
    if original.numel():
        error = (restored.to(torch.float64) - kept.to(torch.float64)).abs().max()
        assert float(error) <= bound * float(kept.abs().max())


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_by_the_receiver(fault):
    """hivemind's block-wise codec makes a number of a NaN; its uniform one a part of NaNs."""
    original = gaussian()
    place = 3 * BLOCK_SIZE + 5
    original[place] = fault
    restored, _ = there_and_back(CODEC, original)
    assert bool(restored[place].isnan())
    others = torch.ones(SIZE, dtype=torch.bool)
    others[3 * BLOCK_SIZE : 4 * BLOCK_SIZE] = False
    assert relative_error(restored[others], original[others]) <= 0.015
    assert original[place].isnan() or original[place].isinf()


def test_large_finite_values_are_not_taken_for_faulty_ones():
    original = torch.full((SIZE,), 3e38)
    restored, _ = there_and_back(CODEC, original)
    assert relative_error(restored, original) < 0.01


def test_an_optimizers_codes_are_refused_rather_than_rounded():
    with pytest.raises(ValueError, match="uint8"):
        BlockwiseCodec().compress(torch.zeros(5, dtype=torch.uint8), CompressionInfo.from_tensor(torch.zeros(5)))
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(there_and_back(state_codec(), codes)[0], codes)


@pytest.mark.parametrize(
    "change",
    [
        {"buffer": b""},
        {"buffer": b"123"},
        {"size": [2**31, 2**31]},
        {"dtype": "uint8"},
        {"dtype": "save"},
    ],
    ids=["nothing", "too short", "another shape", "integers", "no type"],
)
def test_a_message_that_makes_no_tensor_is_refused(change):
    message = BlockwiseCodec().compress(gaussian(1000), CompressionInfo.from_tensor(gaussian(1000)))
    fields = {"buffer": message.buffer, "size": list(message.size), "dtype": message.dtype, **change}
    with pytest.raises(ValueError):
        decode(runtime_pb2.Tensor(compression=runtime_pb2.BLOCKWISE_8BIT, **fields))


def test_answers_go_the_same_way_as_questions():
    """An all-reduce returns differences by the number of the sender's codec alone."""
    message = encode(student_t(), runtime_pb2.BLOCKWISE_8BIT)
    assert len(message.buffer) == SIZE + 4 * SIZE // BLOCK_SIZE
    assert relative_error(decode(message), student_t()) <= 0.02


@pytest.mark.parametrize("large", ["blockwise8", "uniform8", "float16"])
def test_the_self_test_passes_with_every_codec(large):
    check_exchange(exchange_codec(65_536, large), 65_536)


def test_small_tensors_travel_in_16_bit():
    _, message = there_and_back(CODEC, gaussian(1000))
    assert message.compression == runtime_pb2.FLOAT16
