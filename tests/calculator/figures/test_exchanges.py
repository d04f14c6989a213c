"""The figures of what peers exchange, each beside another way to the same number."""

from __future__ import annotations

import math
from operator import add

import numpy
import pytest
import torch

from calculator.figures.catalogue import FIGURES
from calculator.figures.exchanges import feedback, local_updates, poison, sparse
from calculator.figures.kit.controls import read_values
from calculator.figures.kit.drawing import Canvas
from calculator.figures.rules import distances, poisoned
from calculator.figures.rules import local_updates as rule
from calculator.swarm.sparse import coded, exchanged
from training.swarm.config import SwarmConfig
from training.swarm.epoch.sparse_code import SparseCode
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.sparse import SparseUpdates


def values_of(name: str, **texts: object) -> dict:
    values, sentences = read_values(FIGURES[name].controls, texts)
    assert sentences == []
    return values


def caption_of(name: str, **texts: object) -> str:
    return FIGURES[name].draw(values_of(name, **texts), Canvas()).caption


# -- sparse exchanges and error feedback -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits, decay", [(1, 1.0), (2, 1.0), (2, 0.5), (32, 1.0)])
def test_what_was_sent_and_the_rest_are_all_distances(bits, decay):
    random = numpy.random.default_rng(5)
    given, sent, unsent = numpy.zeros(100), numpy.zeros(100), [0.0] * 100
    for _ in range(30):
        distance = random.normal(size=100)
        new, unsent = exchanged(distance.tolist(), unsent, kept=7, bits=bits, decay=decay)
        assert len(new) == 7
        given, sent = decay * given + distance, decay * sent
        sent[list(new)] += list(new.values())
    assert sent + unsent == pytest.approx(given, abs=1e-9)


def test_values_are_sent_in_one_bit_by_their_signs_and_in_32_as_they_are():
    values = [4.0, -2.0, 1.0, 0.5]
    assert coded(values, 2, 1) == {0: 3.0, 1: -3.0}
    assert coded(values, 2, 32) == {0: 4.0, 1: -2.0}


@pytest.mark.parametrize("kept", [64, 1024])
def test_a_course_loses_nothing_without_a_decay(kept):
    run = distances.course(kept, 2, 30, 1.0)
    for sent, unsent, moved in zip(run.sent, run.unsent, distances.moved(30), strict=True):
        assert list(map(add, sent, unsent)) == pytest.approx(moved, abs=1e-9)
    dropped = distances.course(kept, 2, 30, 0.0)
    assert dropped.missing[-1] > 1.5 * run.missing[-1], "what is dropped is missing for ever"


def test_sparse_bytes_are_those_of_the_trainers_code():
    """A model of 20 M parameters fills its blocks; each of the other peers gets one message."""
    shapes = [torch.Size((4096, 4096)), torch.Size((3_222_784,))]
    parameters = sum(shape.numel() for shape in shapes)
    for kept, peers in ((64, 8), (256, 2)):
        values = values_of("sparse", kept=kept, peers=peers) | {"parameters": parameters}
        way = sparse.ways_of(values)[-1]
        assert way.sent_bytes == pytest.approx((peers - 1) * SparseCode(shapes, kept).bytes, rel=1e-3)
        assert way.seconds == pytest.approx(8 * way.sent_bytes / 20e6)
        assert way.computing == pytest.approx(900 / (900 + way.seconds))


def test_the_figures_begin_with_what_recipes_begin_with():
    fields = SwarmConfig.model_fields
    assert values_of("sparse")["kept"] == fields["sparse_kept"].default
    assert local_updates.OUTER["nesterov"] == (LocalUpdates.outer_learning_rate, LocalUpdates.outer_momentum)
    assert local_updates.OUTER["mean"] == (SparseUpdates.outer_learning_rate, SparseUpdates.outer_momentum)


def test_a_small_steady_value_is_sent_with_feedback_only():
    kept = int(values_of("feedback")["kept"])
    place = feedback.watched("steady", kept)
    with_it, without = (distances.course(kept, feedback.BITS, feedback.INNER, decay) for decay in (1, 0))
    assert feedback.times_sent(with_it, place) > 0 and feedback.times_sent(without, place) == 0
    assert abs(with_it.sent[-1][place]) > abs(distances.moved(feedback.INNER)[-1][place]) / 2


@pytest.mark.parametrize("kept", FIGURES["feedback"].controls[0].stops)
def test_the_missing_share_falls_with_feedback_and_stays_above_a_half_without(kept):
    with_it, without = (distances.course(kept, feedback.BITS, feedback.INNER, decay).missing for decay in (1, 0))
    assert with_it[-1] < 0.75 * with_it[0]
    assert without[-1] > 0.5


# -- local updates -----------------------------------------------------------------------------------------------------


def test_an_exchange_after_each_step_is_gradient_descent_on_all_data():
    data = rule.bowls(4, 0.7)
    weights = numpy.array(rule.START)
    for stretch in rule.train(data, inner=1, exchanges=50, outer_rate=1.0, momentum=0.0):
        slopes = [numpy.array(one.steepness) * (weights - one.lowest) for one in data]
        weights = weights - rule.LEARNING_RATE * numpy.mean(slopes, axis=0)
        assert stretch.met == pytest.approx(weights.tolist())


def test_the_outer_step_is_that_of_torch():
    data, common = rule.bowls(3, 1.0), torch.nn.Parameter(torch.tensor(rule.START, dtype=torch.float64))
    outer = torch.optim.SGD([common], lr=0.7, momentum=0.9, nesterov=True)
    for stretch in rule.train(data, inner=20, exchanges=8, outer_rate=0.7, momentum=0.9):
        ends = torch.tensor([path[-1] for path in stretch.paths], dtype=torch.float64)
        common.grad = common.detach() - ends.mean(dim=0)
        outer.step()
        assert stretch.met == pytest.approx(common.tolist())


def test_equal_data_make_rare_exchanges_free_and_different_ones_do_not():
    for difference, is_worse in ((0.0, False), (1.0, True)):
        often, seldom = (local_updates.run_of(4, inner, difference, "mean") for inner in (1, 60))
        assert (seldom.loss > 1.1 * often.loss) is is_worse
        assert (seldom.apart > often.apart) is is_worse


@pytest.mark.parametrize("outer", local_updates.OUTER)
@pytest.mark.parametrize("peers", [2, 8])
@pytest.mark.parametrize("inner", [5, 60, 240])
def test_all_paths_lie_within_the_drawing(outer, peers, inner):
    run = local_updates.run_of(peers, inner, 1.0, outer)
    for stretch in run.stretches:
        for x, y in [stretch.met, *(point for path in stretch.paths for point in path)]:
            assert local_updates.WEST < x < local_updates.EAST
            assert local_updates.SOUTH < y < local_updates.NORTH


def test_the_lowest_point_has_no_slope():
    data = rule.bowls(5, 0.8)
    slopes = [one.gradient(rule.best(data)) for one in data]
    assert [sum(column) for column in zip(*slopes, strict=True)] == pytest.approx([0, 0], abs=1e-12)
    assert rule.loss(data, rule.best(data)) == 0


# -- a poisoned run ----------------------------------------------------------------------------------------------------


def ends(**texts: object) -> list[float]:
    """Errors at the end, with the mean, CenteredClip and tickets."""
    return [run.errors[-1] for run in poison.courses(poison.poison_of(values_of("poison", **texts))).values()]


def test_without_hostile_peers_all_ways_learn_the_picture():
    assert max(ends(hostile=0)) < poison.CLEAR


@pytest.mark.parametrize("attack", poison.ATTACKS)
def test_strong_poison_spoils_the_mean_alone_while_most_are_honest(attack):
    mean, clip, tickets = ends(hostile=3, attack=attack, strength=100, members=0)
    assert mean > poison.SPOILED and clip < 2 * poison.CLEAR
    assert tickets < poison.CLEAR


def test_where_most_are_hostile_and_have_tickets_no_defence_is_left():
    assert min(ends(hostile=8, members=8, attack="picture", strength=5)) > poison.SPOILED


def test_samples_that_nobody_computed_move_the_mean_only():
    mean, clip, _ = ends(hostile=1, attack="picture", strength=1, claimed=1000)
    assert mean > poison.SPOILED and clip < poison.CLEAR


@pytest.mark.parametrize("members", range(4))
def test_tickets_let_in_the_members_alone(members):
    values = values_of("poison", hostile=3, members=members)
    assert poisoned.admitted(poison.poison_of(values)) == members


def test_the_mean_of_a_run_is_numpys():
    """Recomputed with arrays: momentum of each honest peer, what the hostile ones send, and the weighted mean."""
    hostile, strength = 3, 2.0
    course = poisoned.train(
        poisoned.Poison(hostile=hostile, members=0, attack="opposite", strength=strength, claimed=10), "mean", hostile
    )
    picture, noise = numpy.array(poisoned.PICTURE), numpy.array(poisoned.noise())
    weights, way, honest = numpy.zeros(64), numpy.zeros(64), poisoned.PEERS - hostile
    for number, found in enumerate(course.weights):
        way = poisoned.MOMENTUM * way + (1 - poisoned.MOMENTUM) * (weights - picture)
        sent = way + noise[number, :honest]
        total = sent.sum(axis=0) - 10 * hostile * strength * sent.mean(axis=0)
        weights = weights - poisoned.LEARNING_RATE * total / (honest + 10 * hostile)
        assert found == pytest.approx(weights.tolist())
    assert course.errors[-1] == pytest.approx(math.sqrt(((weights - picture) ** 2).mean()))


def test_captions_say_who_takes_part():
    assert "none of them has a ticket" in caption_of("poison", hostile=2)
    assert "1 of them has a ticket" in caption_of("poison", hostile=2, members=1)
