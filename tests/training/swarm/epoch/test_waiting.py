"""How long a peer waits for a group: what it makes of what it sees of the others meanwhile."""

import pytest

from training.swarm.epoch.waiting import LeftBehindError, NobodyElseError, await_group
from training.swarm.round.pipe import Stage


class Round:
    """A round that finds its group when it was waited for so many times."""

    stage = Stage.SEARCHING
    cancelled = False

    def __init__(self, looks, group="a group"):
        self.looks, self.group = looks, group

    def result(self, timeout):
        self.looks -= 1
        if self.looks >= 0:
            raise TimeoutError
        return self.group

    def done(self):
        return False

    def cancel(self):
        self.cancelled = True


def wait(round_, *seen, lonely_seconds=0.0):
    """What comes of waiting where each look at the others sees this: an error, or the newest epoch and how many."""
    looks = iter(seen)

    def look_around():
        if isinstance(what := next(looks), Exception):
            raise what
        return what

    seconds = {"usual_seconds": 0, "lonely_seconds": lonely_seconds, "timeout_seconds": 60}
    return await_group(round_, **seconds, newest_epoch=7, look_around=look_around)


def test_a_look_that_is_not_answered_is_no_reason_to_go_on_alone():
    assert wait(Round(3), TimeoutError(), (7, 2), TimeoutError()) == "a group"


@pytest.mark.parametrize("seen, error", [((8, 2), LeftBehindError), ((7, 0), NobodyElseError)])
def test_a_peer_stops_waiting_when_the_others_have_gone_on_or_are_gone(seen, error):
    round_ = Round(3)
    with pytest.raises(error):
        wait(round_, (7, 2), seen)
    assert round_.cancelled


def test_a_peer_believes_only_after_a_while_that_all_others_are_gone():
    """Two looks at nobody, and then somebody: it was this peer's own link."""
    assert wait(Round(3), (7, 0), (7, 0), (7, 2), lonely_seconds=60.0) == "a group"
