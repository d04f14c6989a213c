"""What a peer makes of an update of its own gradients alone."""

import pytest

from training.swarm.state.alignment import AlignmentState, Event


def test_who_was_alone_wants_the_others_weights_as_soon_as_it_meets_them():
    state = AlignmentState()
    state.updated_alone()
    assert not state.drifted  # nobody else has an update that could differ
    state.met_others()
    assert state.drifted
    state.note(Event.PARAMETERS_AVERAGED)
    state.met_others()
    assert not state.drifted


@pytest.mark.parametrize("event", [Event.LOADED_STATE, Event.PARAMETERS_AVERAGED])
def test_whoever_has_the_others_weights_since_does_not(event):
    state = AlignmentState()
    state.updated_alone()
    state.note(event)
    state.met_others()
    assert not state.drifted


def test_a_peer_that_was_never_alone_does_not():
    state = AlignmentState()
    state.met_others()
    assert not state.drifted
