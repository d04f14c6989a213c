"""How long a peer waits for the average of a group, by what it sees of the others meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from hivemind.averaging.control import AveragingStage, StepControl

from training.errors import TrainingError
from training.swarm.groups import AveragedGroup

LOOK_SECONDS = 0.5
"""A peer without a group sees this often whether it has one."""
LOOKS = 5
"""And looks so often in the usual time of waiting, and as often after it, whether the others still wait for one."""


class LeftBehindError(TrainingError):
    """The others have averaged without this peer and begun the next epoch."""


class NobodyElseError(TrainingError):
    """The others are gone."""


def await_group(
    control: StepControl,
    *,
    usual_seconds: float,
    timeout_seconds: float,
    newest_epoch: int,
    look_around: Callable[[], tuple[int, int]],
) -> AveragedGroup:
    """The group's average, as long as there is hope for one.

    Args:
        control: Of the round, which is cancelled when there is none.
        usual_seconds: In which a group is found if there is one.
        timeout_seconds: After which the average is not waited for any longer.
        newest_epoch: If the others have a newer one, they do not look for a group for this one.
        look_around: The newest epoch of all peers and how many others train; raises TimeoutError if that is not known.

    Raises:
        LeftBehindError: If no group was found and the others have begun a newer epoch by now.
        NobodyElseError: If nobody else is left after the usual time.
        TimeoutError: If there is no average in time.
    """
    began, looks = time.monotonic(), 0
    while True:
        try:
            return control.result(timeout=LOOK_SECONDS)
        except TimeoutError:
            waited = time.monotonic() - began
            if control.done() or waited >= timeout_seconds:
                raise
            if control.stage != AveragingStage.LOOKING_FOR_GROUP or waited < usual_seconds * (looks + 1) / LOOKS:
                continue
            looks += 1
            try:
                epoch, others = look_around()
            except TimeoutError:  # a busy node has not answered, which says nothing of the others
                continue
            if epoch > newest_epoch:
                control.cancel()
                raise LeftBehindError("the others have gone on without this peer") from None
            if not others and waited >= usual_seconds:
                control.cancel()
                raise NobodyElseError("nobody else trains any more") from None
