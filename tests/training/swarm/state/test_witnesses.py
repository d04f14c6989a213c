"""Samples of weights: the same places everywhere, and peers of one run agree while a spoiled model does not."""

import numpy as np
import pytest
import torch
from hivemind.utils.serializer import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

from training.swarm.engine import engine
from training.swarm.round.averager import Averager
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.parameters import ParameterAverager
from training.swarm.state.witnesses import APART, EPOCHS_APART, Sample, agree, draw, is_believed, sizes

engine.prepare()
SHAPES = [torch.Size(shape) for shape in ((64, 48), (48,), (), (5,))]
SEED = b"8 bytes."


def weights(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 0.02 for shape in SHAPES]


def sample(tensors, epoch=7, drifted=False):
    return Sample(epoch=epoch, drifted=drifted, values=draw(tensors, SEED))


def moved(share, seed=1):
    """Weights at this relative distance from those of seed 0."""
    return [one + share * step for one, step in zip(weights(), weights(seed), strict=True)]


def agrees(tensors, epoch=7):
    return agree(sample(tensors), sample(weights(), epoch=epoch), sizes(SHAPES))


def test_a_sample_has_values_of_each_tensor_at_places_that_depend_on_the_seed_alone():
    tensors = [torch.arange(float(shape.numel())).reshape(shape) + 10_000 * n for n, shape in enumerate(SHAPES)]
    values = draw(tensors, SEED)
    assert [int((values // 10_000 == number).sum()) for number in range(4)] == [32, 32, 1, 5] == sizes(SHAPES)
    assert (draw(tensors, SEED) == values).all() and not (draw(tensors, b"another!") == values).all()
    assert values[:3].tolist() == [2105.0, 1293.0, 2389.0]


@pytest.mark.parametrize("share, epoch, agreed", [(0.0, 7, True), (0.05, 7, True), (0.3, 7, False), (0.3, 10, True)])
def test_peers_of_one_run_are_near_each_other_and_less_so_from_epoch_to_epoch(share, epoch, agreed):
    assert agrees(moved(share), epoch) == agreed


def spoiled(kind):
    tensors = weights()
    match kind:
        case "constant":
            return [torch.full(shape, 0.5) for shape in SHAPES]
        case "negated":
            return [-tensor for tensor in tensors]
        case "zero":
            return [torch.zeros(shape) for shape in SHAPES]
        case "one bias":
            return [*tensors[:1], tensors[1] + 1.0, *tensors[2:]]
        case "large":
            return [tensor * 1e30 for tensor in tensors]


@pytest.mark.parametrize("kind", ["constant", "negated", "zero", "one bias", "large"])
def test_a_spoiled_model_agrees_with_nobody(kind):
    assert not agrees(spoiled(kind))


def test_most_of_those_that_can_tell_must_agree_the_donor_included():
    good, bad, counts = sample(weights()), sample(spoiled("constant")), sizes(SHAPES)
    assert is_believed(bad, [], counts)  # nobody else is there
    assert is_believed(good, [good, bad], counts) and not is_believed(bad, [good, good, bad], counts)
    assert not is_believed(good, [bad], counts) and not is_believed(good, [good, bad, bad], counts)
    far = sample(spoiled("constant"), epoch=7 + EPOCHS_APART + 1)
    assert is_believed(good, [far, sample(spoiled("zero"), drifted=True)], counts)  # these cannot tell


def test_a_donor_that_is_far_ahead_of_most_witnesses_is_not_believed():
    """The run is not where it says: newcomers would take the schedule's last epoch for done."""
    here, counts = sample(weights(), epoch=100), sizes(SHAPES)
    for epoch, believed in ((103, True), (104, False), (10**9, False)):
        assert is_believed(sample(weights(), epoch=epoch), [here] * 6, counts) is believed
    ahead = sample(weights(), epoch=104)
    assert is_believed(ahead, [ahead, here], counts) and not is_believed(ahead, [ahead, here, here], counts)
    newcomer, catching_up = sample(spoiled("zero"), epoch=0), sample(weights(), epoch=100, drifted=True)
    assert is_believed(ahead, [newcomer] * 6 + [catching_up] * 6, counts)  # these do not know where the run is


def test_a_peer_that_is_behind_says_that_its_weights_are_not_those_of_the_others(monkeypatch):
    given, alignment = {}, AlignmentState()
    monkeypatch.setattr(Averager, "__init__", lambda self, weights, **facts: given.update(facts))
    master = MasterWeights(
        [{"params": list(torch.nn.Linear(3, 2).parameters())}], torch.optim.Adam, lambda epoch: 0.001
    )
    ParameterAverager(master, alignment, dht=None, settings=None, codec=None)
    drifted = []
    for event in (Event.LOADED_STATE, Event.OVERTAKEN, Event.SKIPPED_EPOCHS, Event.PARAMETERS_AVERAGED):
        alignment.note(event)
        drifted.append(Sample.read(given["give"](SEED), 8).drifted)
    assert drifted == [False, True, True, False]


@given(
    st.binary(max_size=64)
    | st.dictionaries(st.text(max_size=8), st.integers(0, 9) | st.binary()).map(MSGPackSerializer.dumps)
)
def test_anything_else_is_no_sample(packed):
    with pytest.raises(ValueError):
        Sample.read(packed, 70)


def test_a_sample_travels():
    there = Sample.read(sample(weights()).packed(), sum(sizes(SHAPES)))
    assert (there.values == draw(weights(), SEED)).all() and (there.epoch, there.drifted) == (7, False)
    spoiled_values = np.full(70, np.nan, np.float32)
    with pytest.raises(ValueError):
        Sample.read(Sample(epoch=7, drifted=False, values=spoiled_values).packed(), 70)
    assert APART < 1
