"""Exchanges that run while peers train on: no step is lost or counts twice, and real peers do not wait."""

import itertools

import pytest
import torch

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.scenarios import SIZES
from tests.training.swarm.real_peers.started_peers import meet, relative_error
from training.errors import BadInput
from training.recipe import parse_recipe, read_recipe
from training.swarm.epoch.sparse import WEIGHT, SparseMean
from training.swarm.epoch.strategies.local_updates import CommonWeights

SHAPES = (torch.Size((96, 64)), torch.Size((50,)))
PEERS, EXCHANGES, RATE, MOMENTUM = 3, 6, 0.7, 0.9


def steps_of(peer, stretch):
    """Way of a peer's own weights in a stretch, in two halves."""
    generator = torch.Generator().manual_seed(1 + 100 * peer + stretch)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(2)]


def common_weights(momentum):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    sgd = lambda groups: torch.optim.SGD(groups, lr=RATE, momentum=momentum, nesterov=momentum > 0)  # noqa: E731
    master = CommonWeights([{"params": parameters}], sgd, lambda epoch: RATE)
    master.use_gradients([torch.zeros(shape) for shape in SHAPES])
    return master


@torch.no_grad()
def move(master, ways):
    for own, way in zip(master.model_parameters, ways, strict=True):
        own.sub_(way)


def offered(master):
    distances = [parameter.grad for parameter in master.parameters]
    master.offer(distances)
    return distances


def nesterov(common, momentum, mean):
    """The update of DiLoCo in float64: the common weights and the momentum after it."""
    momentum = MOMENTUM * momentum + mean
    return common - RATE * (mean + MOMENTUM * momentum), momentum


@pytest.mark.parametrize("half", [0, 1, 2], ids=["at once", "in the middle", "at the end"])
def test_common_weights_take_each_step_once_and_own_weights_keep_what_is_not_exchanged(half):
    """The average arrives after none, one or both halves of the next stretch; recomputed in float64."""
    peers = [common_weights(MOMENTUM) for _ in range(PEERS)]
    for master in peers:
        master.allow_overlap()
    common = [parameter.detach().double() for parameter in peers[0].parameters]
    momenta = [torch.zeros_like(weights) for weights in common]
    mean = None
    for stretch in range(EXCHANGES):
        for number, master in enumerate(peers):
            for way in steps_of(number, stretch)[:half]:
                move(master, way)
        if mean is not None:
            updated = [nesterov(*three) for three in zip(common, momenta, mean, strict=True)]
            common, momenta = [one for one, _ in updated], [one for _, one in updated]
        for number, master in enumerate(peers):
            if mean is not None:
                master.update(stretch - 1)
                master.update_model()
            for weights, expected in zip(master.parameters, common, strict=True):
                assert relative_error(weights.detach().double(), expected) < 1e-6
            so_far = [sum(ways) for ways in zip(*steps_of(number, stretch)[:half], strict=True)] or [0.0] * len(SHAPES)
            for own, expected, way in zip(master.model_parameters, common, so_far, strict=True):
                assert relative_error(own.detach().double(), expected - way) < 1e-5
            for way in steps_of(number, stretch)[half:]:
                move(master, way)
        offers = [offered(master) for master in peers]
        mean = []
        for kind in range(len(SHAPES)):
            ways = [sum(half[kind].double() for half in steps_of(number, stretch)) for number in range(PEERS)]
            mean.append(sum(ways) / PEERS)
            for offer, way in zip(offers, ways, strict=True):
                assert relative_error(offer[kind].double(), way) < 1e-5
            average = sum(offer[kind] for offer in offers) / PEERS
            for offer in offers:
                offer[kind].copy_(average)


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_peer_sets_out_ahead_of_the_common_weights_by_its_share_of_what_it_has_not_sent(overlaps):
    """Of one peer alone: what it has moved is what it sent and what is left, and its own weights are ahead."""
    master = common_weights(0.0)
    mean = SparseMean(SHAPES, kept=64)
    master.unsent, master.own_share = mean.unsent, 0.75
    if overlaps:
        master.allow_overlap()
    common = [parameter.detach().double() for parameter in master.parameters]
    for stretch in range(EXCHANGES):
        first, second = steps_of(0, stretch)
        move(master, first), move(master, second)
        distances = offered(master)
        before = [unsent.double() for unsent in mean.unsent]
        code = mean.pack(distances, 1.0)[WEIGHT.size :]
        sent = [torch.zeros(shape) for shape in SHAPES]
        for piece, places, values in mean.code.decode(code):
            piece.of(sent)[places] = values
        for kind, (unsent, distance) in enumerate(zip(mean.unsent, distances, strict=True)):
            assert relative_error(distance, first[kind] + second[kind]) < 1e-5
            unsent.add_(distance).sub_(sent[kind])
            distance.copy_(sent[kind])
            assert relative_error(unsent.double(), before[kind] + (first[kind] + second[kind]) - sent[kind]) < 1e-5
        going_on = [torch.full(shape, 0.25) for shape in SHAPES] if overlaps else None
        if overlaps:
            move(master, going_on)
        master.update(stretch)
        master.update_model()
        common = [weights - RATE * one.double() for weights, one in zip(common, sent, strict=True)]
        for kind, own in enumerate(master.model_parameters):
            expected = common[kind] - 0.75 * mean.unsent[kind].double() - (0.25 if overlaps else 0.0)
            assert relative_error(own.detach().double(), expected) < 1e-5
        if overlaps:  # so that the next stretch is moved by its own steps alone
            move(master, [-way for way in going_on])


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_peer_that_goes_on_elsewhere_drops_its_progress_and_what_it_has_not_sent(overlaps):
    master, mean = common_weights(0.0), SparseMean(SHAPES, kept=64)
    master.unsent, master.own_share = mean.unsent, 0.5
    if overlaps:
        master.allow_overlap()
    move(master, steps_of(0, 0)[0])
    offered(master)
    mean.unsent[0].fill_(1.0)
    weights = [torch.full(shape, 3.0) for shape in SHAPES]
    master.load(weights, 7)
    master.copy_to_model()
    assert all(torch.equal(own, expected) for own, expected in zip(master.model_parameters, weights, strict=True))
    assert not any(bool(unsent.any()) for unsent in mean.unsent)
    assert not any(bool(distance.any()) for distance in offered(master))


def test_own_weights_that_are_not_finite_become_the_common_ones():
    master = common_weights(0.0)
    master.allow_overlap()
    move(master, [torch.full(shape, torch.nan) for shape in SHAPES])
    for distance in offered(master):
        distance.zero_()  # as the averager does with what is not finite
    master.update(0)
    master.update_model()
    for own, common in zip(master.model_parameters, master.parameters, strict=True):
        assert torch.equal(own, common)


@pytest.mark.swarm
def test_real_peers_train_on_while_they_exchange_and_have_the_same_common_weights(tmp_path):
    """Each exchange's update is recomputed in float64 from what both peers offered; it shows in the next exchange."""
    (met,) = meet(tmp_path, [scenarios.train_with_overlap])
    peers = list(met.values())
    for found in peers:
        assert found["awaited in the background"] and all(found["awaited in the background"])
    both = [found["exchanges"] for found in peers]
    epochs = sorted(both[0].keys() & both[1].keys())
    pairs = [(one, two) for one, two in itertools.pairwise(epochs) if two == one + 1]
    assert len(pairs) >= 2, epochs
    for one, two in pairs:
        weights = [exchanges[one]["samples"] for exchanges in both]
        assert weights[0] > weights[1] > 0  # the slower one is not waited for
        for kind in range(len(SIZES)):
            ways = [exchanges[one]["offered"][kind].double() for exchanges in both]
            mean = sum(weight * way for weight, way in zip(weights, ways, strict=True)) / sum(weights)
            for exchanges in both:
                momentum = MOMENTUM * exchanges[one]["momentum"][kind].double() + mean
                expected = RATE * (mean + MOMENTUM * momentum)
                step = exchanges[one]["before"][kind].double() - exchanges[two]["before"][kind].double()
                assert relative_error(step, expected) < 0.02, (one, kind)


@pytest.mark.parametrize("mode", ["synchronous", "delayed"])
def test_gradients_have_no_outer_step_to_delay(mode):
    lines = [line for line in read_recipe("demo").splitlines() if not line.startswith("mode =")]
    text = "\n".join(lines).replace("[swarm]", f'[swarm]\nmode = "{mode}"\ndelay_outer_step = true')
    with pytest.raises(BadInput, match="delay_outer_step"):
        parse_recipe(text)
