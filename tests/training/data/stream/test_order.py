"""The order of samples: each once a pass, the same on every machine, mixed over the whole set, continued anywhere."""

import hashlib
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.stream.order import Order, Place, permuted, read_place

ROWS = [40] * 11 + [7]
SAMPLES = 447


def samples_of(order, place, count):
    """Numbers of samples in order, counted through the blocks."""
    drawn = []
    for window in order.windows(place):
        for at, row in window.picks.tolist():
            drawn.append(40 * window.blocks[at] + row)
        if len(drawn) >= count:
            return drawn[:count]


@given(count=st.integers(1, 3000), key=st.text(max_size=5))
@settings(max_examples=60, deadline=None)
def test_every_number_comes_once(count, key):
    assert sorted(permuted(np.arange(count), count, key).tolist()) == list(range(count))


def plain_feistel(value, count, key):
    """The same network in whole numbers of Python, one value at a time."""
    half = 1
    while 4**half < count:
        half += 1
    digest = hashlib.blake2b(key.encode(), digest_size=64).digest()
    while True:
        left, right = divmod(value, 2**half)
        for at in range(0, 64, 8):
            mixed = right ^ int.from_bytes(digest[at : at + 8], "little")
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ (mixed ^ mixed >> 31) % 2**half
        value = left * 2**half + right
        if value < count:
            return value


@pytest.mark.parametrize("count", [1, 2, 5, 64, 1000, 10**11 + 3])
def test_a_place_is_computed_without_the_others(count):
    places = np.unique(np.linspace(0, count - 1, 20, dtype=np.int64))
    expected = [plain_feistel(int(place), count, "7/0") for place in places]
    assert permuted(places, count, "7/0").tolist() == expected


@pytest.mark.parametrize("window", [1, 40, 100, 10_000])
def test_each_pass_has_every_sample_once_and_another_order(window):
    drawn = samples_of(Order(ROWS, window_samples=window), Place(seed=3), 3 * SAMPLES)
    passes = [drawn[at : at + SAMPLES] for at in range(0, 3 * SAMPLES, SAMPLES)]
    assert all(sorted(one) == list(range(SAMPLES)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_windows_grow_so_that_the_first_batch_needs_one_block():
    sizes = [len(window.blocks) for window in islice(Order([10] * 30, window_samples=85).windows(Place(seed=0)), 6)]
    assert sizes == [1, 2, 4, 8, 8, 7]


def test_a_set_that_fits_into_windows_is_mixed_as_by_a_complete_shuffle():
    """A complete shuffle moves samples by a third of the set on average: (n^2 - 1) / (3n)."""
    count = 40 * 64
    order = Order([40] * 64, window_samples=40 * 32)
    shifts = [np.abs(np.array(samples_of(order, Place(seed=seed), count)) - np.arange(count)).mean() for seed in (0, 1)]
    assert shifts == pytest.approx([(count**2 - 1) / (3 * count)] * 2, rel=0.05)


@given(first=st.integers(0, 900), second=st.integers(0, 900), window=st.sampled_from([1, 90, 500]))
@settings(max_examples=40, deadline=None)
def test_a_peer_killed_twice_repeats_and_skips_nothing(first, second, window):
    order = Order(ROWS, window_samples=window)
    whole = samples_of(order, Place(seed=5), 2000)
    at, drawn = Place(seed=5), []
    for count in (first, second, 2000 - first - second):
        drawn += samples_of(order, at, count) if count else []
        finished, position = divmod(len(drawn), SAMPLES)
        at = Place(seed=5, finished_passes=finished, position=position)
    assert drawn == whole


def test_a_place_is_kept_in_less_than_64_bytes(tmp_path):
    order = Order(ROWS, window_samples=90)
    place = Place(seed=2**32 - 1, finished_passes=12, position=446)
    place.write(tmp_path / "place", order=order)
    assert read_place(tmp_path / "place", order=order) == place
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    largest = Order([10**12], window_samples=1)
    Place(seed=2**32 - 1, finished_passes=9999, position=10**12 - 1).write(tmp_path / "place", order=largest)
    assert (tmp_path / "place").stat().st_size < 64


@pytest.mark.parametrize("content", [b"", b"1 2 3", b"1 0 3 other\n", b"-1 0 3 x\n", b"\xff" * 40, None])
def test_a_place_that_cannot_be_used_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "place").write_bytes(content)
    assert read_place(tmp_path / "place", order=Order(ROWS, window_samples=90)) is None


def test_a_place_in_another_set_is_none(tmp_path):
    Place(seed=1, position=9).write(tmp_path / "place", order=Order(ROWS, window_samples=90))
    for rows, window, content in ((ROWS[1:], 90, ""), (ROWS, 900, ""), (ROWS[::-1], 90, ""), (ROWS, 90, "other")):
        other = Order(rows, window_samples=window, content=content)
        assert read_place(tmp_path / "place", order=other) is None
