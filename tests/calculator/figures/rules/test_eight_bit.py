"""The 8-bit type in pure Python beside this project's own and bitsandbytes'."""

from __future__ import annotations

import numpy
import pytest

from calculator.figures.quantization import LENGTH, error_of_ordinary, ordinary_values, outlier_places, tensor
from calculator.figures.rules.eight_bit import dynamic_values, even_values, stored

torch = pytest.importorskip("torch")


def example(shape: str = "normal", size: int = 128, outliers: int = 1) -> tuple[float, ...]:
    return tensor({"shape": shape, "size": size, "outliers": outliers})


def test_values_are_those_of_the_optimizer():
    from training.optim.eight_bit.codebook import codebook

    ours = codebook(signed=True).values.double().numpy()
    numpy.testing.assert_allclose(dynamic_values(), ours, rtol=2e-7, atol=1e-12)


@pytest.mark.exhaustive
def test_values_are_those_of_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    theirs = functional.create_dynamic_map(signed=True).double().numpy()
    numpy.testing.assert_allclose(dynamic_values(), theirs, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("shape", ["normal", "tails"])
@pytest.mark.parametrize("block", [64, 256, 1024])
def test_tensors_are_stored_as_bitsandbytes_stores_them(shape, block):
    functional = pytest.importorskip("bitsandbytes.functional")
    numbers = torch.tensor(example(shape), dtype=torch.float32)
    codes, state = functional.quantize_blockwise(numbers, blocksize=block)
    ours = stored([float(number) for number in numbers], block)
    theirs = functional.dequantize_blockwise(codes, state).double().numpy()
    numpy.testing.assert_allclose(ours.scales, state.absmax.double().numpy(), rtol=1e-6)
    away = numpy.array(ours.codes) - codes.numpy()
    assert abs(away).max() <= 2 and (away == 0).mean() > 0.97
    numpy.testing.assert_allclose(numpy.array(ours.restored)[away == 0], theirs[away == 0], rtol=1e-6, atol=1e-9)
    wrong = [numpy.abs(numbers.double().numpy() - back) for back in (numpy.array(ours.restored), theirs)]
    assert (wrong[0] <= wrong[1] + 1e-6).all(), "here it is the nearest value, on their CPU at times one beside it"


def test_what_comes_back_is_the_nearest_value():
    numbers = example("tails", 16, 4)
    for table, dynamic in ((dynamic_values(), True), (even_values(), False)):
        kept = stored(numbers, 128, dynamic=dynamic)
        scaled = numpy.array(numbers).reshape(-1, 128) / numpy.array(kept.scales)[:, None]
        nearest = numpy.abs(scaled[:, :, None] - numpy.array(table)).min(axis=2) * numpy.array(kept.scales)[:, None]
        wrong = numpy.abs(numpy.array(numbers) - numpy.array(kept.restored)).reshape(-1, 128)
        numpy.testing.assert_allclose(wrong, nearest, atol=1e-12)


def test_an_outlier_spoils_only_its_block():
    calm, wild = example(size=1), example(size=1024)
    places = set(outlier_places(1))
    for block in (64, 256):
        pairs = zip(stored(calm, block).restored, stored(wild, block).restored, strict=True)
        changed = {place for place, (one, other) in enumerate(pairs) if one != other}
        spoiled = {place // block for place in changed - places}
        assert spoiled == {place // block for place in places}
    kept, whole = stored(wild, 64), stored(wild, LENGTH)
    assert error_of_ordinary(wild, kept, [*places]) < error_of_ordinary(wild, whole, [*places]) / 3


def test_bytes_and_magnitude():
    assert stored(example(), 256).size_bytes == LENGTH + 4 * 4
    for shape in ("normal", "tails"):
        assert sum(map(abs, ordinary_values(shape))) / LENGTH == pytest.approx(1)
