"""Alignment of a peer's weights with those of the others, as a small state machine.

ALIGNED   same epoch, and no sign of other weights: the peer trains. A peer that has updated with its own gradients
          alone is ALIGNED until it meets peers that want no weights: these may have made another update, so then it
          is DRIFTED.
DRIFTED   same epoch, other weights: it trains, but gives its own weights next to no weight in the next round of
          parameters, and so takes the others'. If it has skipped epochs, its moments lack their updates too, so its
          next updates differ from the others'. For `MOMENTS_UPDATES`, and until the round of parameters after these,
          its weights count for next to nothing even when it is ALIGNED again, or they would change the others'.
BEHIND    the others have begun a later epoch, so its gradients are of no use to them: it drops them. It goes on with
          their epoch if it missed a few updates only (DRIFTED), or downloads their state. If nobody sends one it
          trains on (DRIFTED): a report of an epoch without a state of it may be false.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

MOMENTS_UPDATES = 20
"""Number of updates after which 88 % of the moments of LAMB (beta1 0.9) come from gradients that the peer has seen."""


class Alignment(Enum):
    """Relation of a peer's weights to those of the others; the module describes each."""

    ALIGNED = auto()
    DRIFTED = auto()
    BEHIND = auto()


class Event(Enum):
    """Event that may change a peer's alignment."""

    AVERAGE_TORN = auto()
    """An average was not equal for all peers of its group, so the update is not equal either."""
    OVERTAKEN = auto()
    """The others averaged without this peer, or it has heard of their newer epoch from a groupmate or the progress."""
    SKIPPED_EPOCHS = auto()
    """The peer went on to the others' epoch with weights that lack the updates in between."""
    LOADED_STATE = auto()
    """The peer has loaded the state with which the others' epoch began."""
    LOADED_OLDER_STATE = auto()
    """The peer has loaded a state that lacks updates, or one whose donor's weights or moments lacked some."""
    PARAMETERS_AVERAGED = auto()
    """A whole round of parameters with others has ended."""
    NO_STATE = auto()
    """The peer has heard of a newer state, and no peer has sent it."""
    NOBODY_ELSE = auto()
    """No other peer trains any more."""


_A, _D, _B = Alignment.ALIGNED, Alignment.DRIFTED, Alignment.BEHIND

TRANSITIONS: dict[Event, dict[Alignment, Alignment]] = {
    Event.AVERAGE_TORN: {_A: _D, _D: _D, _B: _B},
    Event.OVERTAKEN: {_A: _B, _D: _B, _B: _B},
    Event.SKIPPED_EPOCHS: {_A: _D, _D: _D, _B: _D},
    Event.LOADED_STATE: {_A: _A, _D: _A, _B: _A},
    Event.LOADED_OLDER_STATE: {_A: _D, _D: _D, _B: _D},
    Event.PARAMETERS_AVERAGED: {_A: _A, _D: _A, _B: _B},
    Event.NO_STATE: {_A: _D, _D: _D, _B: _D},
    Event.NOBODY_ELSE: {_A: _A, _D: _D, _B: _A},
}
"""Next alignment by event and current alignment."""
_LACKING = {Event.SKIPPED_EPOCHS: MOMENTS_UPDATES, Event.LOADED_OLDER_STATE: MOMENTS_UPDATES, Event.LOADED_STATE: 0}
"""Number of updates after an event until the moments nearly equal the others'."""


class AlignmentState:
    """Alignment of a peer. The trainer's thread and the one that updates in the background may both change it."""

    def __init__(self) -> None:
        self.now = Alignment.ALIGNED
        self.skipped = 0
        """Number of epochs that the peer has skipped on reports alone since its weights last equalled the others'."""
        self._lacking = 0
        self._has_lacked = False
        """True if moments that lacked updates have changed the weights since the last round of parameters."""
        self._was_alone = False
        self._is_arriving = False

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Context in which the peer does not train yet. It looks for the run's newest state, and offers its current
        state to others; this state is no evidence against a newer one."""
        self._is_arriving = True
        try:
            yield
        finally:
            self._is_arriving = False

    def note(self, event: Event) -> None:
        """Changes the alignment by an event; see `TRANSITIONS`."""
        self.now = TRANSITIONS[event][self.now]
        self._lacking = _LACKING.get(event, self._lacking)
        if event in (Event.LOADED_STATE, Event.PARAMETERS_AVERAGED):
            self._was_alone = self._has_lacked = False
            self.skipped = 0

    def updated_alone(self) -> None:
        """Notes an update with this peer's gradients alone."""
        self._was_alone = True

    def met_others(self) -> None:
        """Notes an update with gradients of peers that have made updates before."""
        if self._was_alone:
            self._was_alone = False
            self.note(Event.AVERAGE_TORN)

    def updated(self) -> None:
        """Notes an update of any kind."""
        self._has_lacked |= self._lacking > 0
        self._lacking = max(self._lacking - 1, 0)

    @property
    def lacks_updates(self) -> bool:
        """True if the peer's weights or moments are known to differ from the others'."""
        return self.drifted or self._has_lacked or self._lacking > 0

    @property
    def may_differ(self) -> bool:
        """True if peers at the same epoch may have other weights or moments, as far as this peer knows."""
        return self.lacks_updates or self._was_alone

    @property
    def drifted(self) -> bool:
        """True if this peer wants the others' weights."""
        return self.now is Alignment.DRIFTED

    @property
    def behind(self) -> bool:
        """True if the others are at a later epoch."""
        return self.now is Alignment.BEHIND

    @property
    def is_witness(self) -> bool:
        """True if the peer's weights are evidence of what the others' weights should be; see `witnesses`."""
        return not (self.drifted or self.behind or self._is_arriving)


class Minorities:
    """Decides when a peer asks for the others' weights because its groups had at most half of the volunteers.

    The others may have averaged among themselves. Or they report progress and never come to an average; a round of
    parameters after each update would then double the traffic. So a peer asks after 1, 2, 4, 8 ... such groups in a
    row, and once more when a group has the majority of the volunteers again.

    >>> minorities = Minorities()
    >>> [minorities.want_weights(is_minority) for is_minority in (True, True, True, False, False)]
    [True, True, False, True, False]
    """

    def __init__(self) -> None:
        self._in_a_row = 0

    def want_weights(self, is_minority: bool) -> bool:
        """Notes an average. Returns True if this peer asks for a round of parameters now."""
        before, self._in_a_row = self._in_a_row, self._in_a_row + 1 if is_minority else 0
        return _is_power_of_two(self._in_a_row) if is_minority else before > 0 and not _is_power_of_two(before)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
