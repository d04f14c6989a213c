"""Wait for a group's average; the progress of the other peers decides how long."""

from __future__ import annotations

import time
from collections.abc import Callable

from training.errors import TrainingError
from training.swarm.peers.groups import AveragedGroup
from training.swarm.peers.times import POLL_SECONDS
from training.swarm.round.averager import Round
from training.swarm.round.pipe import Stage

LOOKS = 2
"""Number of looks at the others' progress during the usual time of a wait; later looks have the same interval. Each
look reads the records of all peers, so many looks could fill a slow link for which the group waits."""


class LeftBehindError(TrainingError):
    """The others have averaged without this peer and begun the next epoch."""


class NobodyElseError(TrainingError):
    """The other peers are gone."""


def await_group(
    round_: Round,
    *,
    usual_seconds: float,
    lonely_seconds: float,
    timeout_seconds: float,
    newest_epoch: int,
    look_around: Callable[[], tuple[int, int]],
) -> AveragedGroup:
    """Waits for a round's average, as long as the others' progress shows that it may still come.

    Args:
        round_: The round; it is cancelled when this peer gives up.
        usual_seconds: Time within which a group is found if there is one.
        lonely_seconds: Time without any other peer after which the others count as gone.
        timeout_seconds: Longest wait.
        newest_epoch: Newest epoch of peers that may still look for this group. If most peers are at a later one, none
            comes.
        look_around: Returns the newest epoch that most peers have begun, and how many others can come; raises
            TimeoutError if the node does not answer.

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
            except TimeoutError:  # a busy node has not answered, so nothing is known of the others
                continue
            if epoch > newest_epoch:
                round_.cancel()
                raise LeftBehindError("the others have gone on without this peer") from None
            if not others and waited >= lonely_seconds:
                round_.cancel()
                raise NobodyElseError(
                    "no other peer trains or answers, or another's micro-batch takes too long to wait for"
                ) from None
