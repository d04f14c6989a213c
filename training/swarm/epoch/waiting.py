"""Waiting for a group's average: how long depends on the progress of the others."""

from __future__ import annotations

import time
from collections.abc import Callable

from training.errors import TrainingError
from training.swarm.peers.groups import AveragedGroup
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.averager import Round
from training.swarm.round.pipe import Stage

LOOKS = 2
"""Looks at the others' progress during the usual time of a wait, and the pace after it. All peers answer each look, so
more looks could fill a slow link for which the group waits."""


class LeftBehindError(TrainingError):
    """The others have averaged without this peer and begun the next epoch."""


class NobodyElseError(TrainingError):
    """The others are gone."""


def await_group(
    round_: Round,
    *,
    usual_seconds: float,
    lonely_seconds: float,
    timeout_seconds: float,
    newest_epoch: int,
    look_around: Callable[[], tuple[int, int]],
) -> AveragedGroup:
    """Waits for a round's average, as long as the others' progress leaves hope for one.

    Args:
        round_: The round; it is cancelled when this peer gives up.
        usual_seconds: A group is found within this time if there is one.
        lonely_seconds: If nobody else is seen for so long, they are gone.
        timeout_seconds: The longest wait.
        newest_epoch: If the others are at a newer one, they no longer look for a group for this one.
        look_around: The newest epoch that most peers have begun and how many others train; raises TimeoutError if that
            is not known.

    Raises:
        LeftBehindError: If no group was found and most others have begun a newer epoch by now.
        NobodyElseError: If nobody else is left after `lonely_seconds`.
        TimeoutError: If there is no average in time.
    """
    began, looks = time.monotonic(), 0
    while True:
        try:
            return round_.result(timeout=POLL_SECONDS)
        except TimeoutError:
            waited = time.monotonic() - began
            if round_.done() or waited >= timeout_seconds:  # a round may itself have failed with a TimeoutError
                raise
            # A round with a group ends by itself, within the time-outs of the all-reduce.
            if round_.stage is not Stage.SEARCHING or waited < usual_seconds * (looks + 1) / LOOKS:
                continue
            looks += 1
            try:
                epoch, others = look_around()
            except TimeoutError:  # a busy node has not answered, which says nothing of the others
                continue
            if epoch > newest_epoch:
                round_.cancel()
                raise LeftBehindError("the others have gone on without this peer") from None
            if not others and waited >= lonely_seconds:
                round_.cancel()
                raise NobodyElseError("nobody else trains any more") from None
