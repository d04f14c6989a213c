"""A peer's place: whatever it is killed in, each sample enters one update, and none is left out."""

import errno

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.random_shards import SAMPLES, write_shards
from training.data.stream.order import Order, Place, read_place
from training.recipe import load_recipe
from training.tasks.known import task_of
from training.volunteer.samples import OwnSamples, own_samples, sample_seed
from training.volunteer.settings import PeerSettings

RUN = load_recipe("demo")
ORDER = Order([50, 50], window_samples=10)


class Batch:
    def __init__(self, numbers):
        self.captions = numbers

    def __len__(self):
        return len(self.captions)


class NumberedStream:
    """Batches of three numbers, counted from a place on for ever."""

    order = ORDER

    def __init__(self, place):
        self.place = place

    def __next__(self):
        first = self.place.finished_passes * ORDER.samples + self.place.position
        self.place = ORDER.behind(self.place, 3)
        return Batch(list(range(first, first + 3)))


lives = st.lists(
    st.tuples(
        st.integers(0, 40),  # pieces until it is killed
        st.sampled_from([1, 2, 3]),  # samples of a piece
        st.integers(4, 20),  # samples of an epoch
        st.integers(2, 9),  # every so many pieces, one is not finite
    ),
    min_size=1,
    max_size=5,
)


@given(lives)
@settings(max_examples=40, deadline=None)
def test_each_sample_enters_one_update(tmp_path_factory, lives):
    """Three numbers of a piece that is not finite enter none; those of a killed peer's open epoch come again."""
    file = tmp_path_factory.mktemp("state") / "place"
    entered, dropped = [], []
    for life in lives:
        live(file, entered, dropped, life)
    everything = sorted(entered + dropped)
    kept = read_place(file, order=ORDER)
    behind = 0 if kept is None else kept.finished_passes * ORDER.samples + kept.position
    assert set(range(behind)) <= set(everything)
    # The last batch of an epoch may be cut by the epoch's end: its first pieces are in the update, and come once more.
    twice = len(entered) - len(set(entered))
    assert twice <= 2 * len(lives)


def live(file, entered, dropped, life):
    """One life of a peer, until it is killed."""
    pieces, size, epoch, not_finite = life
    samples = OwnSamples(NumberedStream(read_place(file, order=ORDER) or Place(seed=1)), file, print)
    held, count = [], 0
    while True:
        numbers = next(samples).captions
        while numbers:
            if count == pieces:
                return
            count += 1
            piece, numbers = numbers[:size], numbers[size:]
            if count % not_finite:
                held += piece
                if len(held) >= epoch:
                    entered += held
                    held = []
            else:
                dropped += piece
            samples.computed(len(piece), is_added=bool(count % not_finite), held=len(held))


def test_with_whole_batches_nothing_is_repeated_or_skipped(tmp_path):
    """Killed twice, in the middle of an epoch of 12 samples and at its end."""
    entered, dropped = [], []
    for pieces in (7, 4, 9):
        live(tmp_path / "place", entered, dropped, (pieces, 3, 12, 1000))
    assert entered == list(range(len(entered))) and len(entered) == 12 + 12 + 24
    assert read_place(tmp_path / "place", order=ORDER).position == len(entered)


def test_samples_whose_gradients_are_dropped_are_used(tmp_path):
    """A peer that catches up holds none any more."""
    samples = OwnSamples(NumberedStream(Place(seed=1)), tmp_path / "place", print)
    next(samples)
    samples.computed(3, is_added=True, held=3)
    next(samples)
    samples.computed(3, is_added=True, held=0)
    assert read_place(tmp_path / "place", order=ORDER).position == 6


def test_a_full_disk_is_told_once(tmp_path, monkeypatch):
    def full(*arguments, **settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Place, "write", full)
    told = []
    samples = OwnSamples(NumberedStream(Place(seed=1)), tmp_path / "place", told.append)
    for _ in range(3):
        next(samples)
        samples.computed(3, is_added=True, held=0)
    assert len(told) == 1 and "no space left on device. After a restart, samples come again" in told[0]


@pytest.fixture
def opened(tmp_path):
    """Opens a peer's samples; they are closed at the end."""
    shards = write_shards(tmp_path / "shards", RUN)
    made = []

    def open_samples(*, seed, said=None):
        peer = PeerSettings(initial_peers=(), shards=str(shards), seed=said)
        samples = own_samples(task_of(RUN), peer, tmp_path / "place", seed=seed, micro_batch_size=4, tell=print)
        made.append(samples)
        return samples

    yield open_samples
    for samples in made:
        samples.close()


def take(samples, batches):
    found = []
    for _ in range(batches):
        batch = next(samples)
        found += [tuple(row) for row in batch.codes.tolist()]
        samples.computed(4, is_added=True, held=0)
    return found


def test_a_restarted_peer_goes_on(opened, tmp_path):
    whole = take(opened(seed=3), 2 * SAMPLES // 4)
    (tmp_path / "place").unlink()
    first = take(opened(seed=3), 5)
    second = take(opened(seed=99), 20)  # another seed, as a peer has in a later epoch; the kept one counts
    assert first + second + take(opened(seed=100), 7) == whole
    assert len((tmp_path / "place").read_bytes()) < 64


def test_a_seed_that_the_volunteer_says_begins_its_own_order(opened):
    first = take(opened(seed=3), 5)
    assert take(opened(seed=8, said=8), 5) != first
    assert take(opened(seed=3, said=3), 5) == first


def test_seeds_differ_between_peers_and_restarts():
    class Peer:
        def __init__(self, peer_id):
            self.peer_id = peer_id

    ours, said = PeerSettings(initial_peers=()), PeerSettings(initial_peers=(), seed=-1)
    seeds = {sample_seed(ours, Peer(name), epoch) for name in ("ada", "grace") for epoch in (0, 1)}
    assert len(seeds) == 4 and sample_seed(said, Peer("ada"), 5) == 2**32 - 1
    assert all(0 <= seed < 2**32 for seed in seeds)
