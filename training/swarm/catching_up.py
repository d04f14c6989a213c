"""How a peer that is behind comes to where the others are: by their parameters, their whole state, or a checkpoint."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

from hivemind.dht import DHT
from torch import Tensor, nn

from training.config import RunConfig
from training.errors import TrainingError
from training.optim.lamb import load_optimizer_tensors, parameter_groups
from training.swarm.alignment import AlignmentState, Event
from training.swarm.download import TrainingState, download_newer_state
from training.swarm.early import EarlyDownload
from training.swarm.host import Host
from training.swarm.progress import Progress

logger = logging.getLogger(__name__)

RETRY_SECONDS, COMPLAIN_SECONDS = 1.0, 30.0
"""A peer that needs the others' state and gets none asks again, and says so, this often."""
CATCH_UP_EPOCHS = 3
"""A peer that has missed no more updates than this takes only the others' parameters, not all of their state."""


class CatchingUp:
    """Brings a peer to where the others are, so that it never trains on old weights.

    Args:
        run: The recipe.
        dht: A running node.
        host: The peer's weights and optimizer.
        progress: Who trains.
        alignment: Told how the weights stand to the others' afterwards.
        let_rounds_end: Ends what the peer takes part in, before its weights change.
        begin_epoch: Lets the peer go on with an epoch and the host's weights; called while `progress` is paused.
    """

    def __init__(
        self,
        run: RunConfig,
        dht: DHT,
        host: Host,
        progress: Progress,
        alignment: AlignmentState,
        *,
        let_rounds_end: Callable[[], None],
        begin_epoch: Callable[[int], None],
    ):
        self._run, self._dht, self._host, self._progress, self._alignment = run, dht, host, progress, alignment
        self._let_rounds_end, self._begin_epoch = let_rounds_end, begin_epoch
        self._complained = -math.inf
        self.last_download = (0, 0.0)
        """Bytes and seconds of the last state that was downloaded; zeros before."""

    def skip_epochs(self, epoch: int) -> bool:
        """Goes on with the others' epoch if this peer is at an epoch a few updates before; whether it is.

        Nothing is downloaded. After the next update all average their parameters, which brings the others' weights;
        the moments lack the updates that were missed.
        """
        if not epoch:  # it has no weights of the run yet
            return False
        try:
            newest_epoch, others = self._progress.look_around()
        except TimeoutError:
            return False
        if not others or not 0 < newest_epoch - epoch <= CATCH_UP_EPOCHS:
            return False
        self._let_rounds_end()
        self._go_on(newest_epoch, Event.SKIPPED_EPOCHS)
        return True

    def load_state_from_peers(self, oldest_epoch: int, early: EarlyDownload | None = None) -> bool:
        """Takes the state of the run from a peer; whether one gave it. Every wait has an end.

        A download may take longer than an epoch: the peer goes on with the epoch that the others have by then, and
        takes their parameters with the next update (see `skip_epochs`).

        Args:
            oldest_epoch: An older state is of no use.
            early: A download that was begun before; what has come of it is used, unless a new one would be better.
        """
        self._let_rounds_end()
        state = early.take() if early is not None else None
        if state is None or not self.is_as_good_as_new(state, oldest_epoch):
            try:
                state = download_newer_state(self._dht, self._run, shapes=self._host.shapes, first_epoch=oldest_epoch)
            except TrainingError as error:
                self._go_without_state(str(error))
                return False
        self.last_download = (state.received_bytes, state.seconds)
        try:
            self._host.load_state(state.tensors, state.optimizer_metadata, state.epoch)
        except Exception as error:  # the metadata is a stranger's
            logger.warning("The optimizer state of %s cannot be read: %s", state.donor, error)
            return False
        newest_epoch = state.epoch
        with suppress(TimeoutError):
            newest_epoch = max(newest_epoch, self._progress.look_around()[0])
        is_older = newest_epoch > state.epoch or state.wants_weights
        self._go_on(newest_epoch, Event.LOADED_OLDER_STATE if is_older else Event.LOADED_STATE)
        return True

    def is_as_good_as_new(self, state: TrainingState, oldest_epoch: int) -> bool:
        """Whether a state that was downloaded before is of use: not if it has lain for epochs, longer than it came."""
        if state.epoch < oldest_epoch:
            return False
        if time.monotonic() - state.ended <= state.seconds:  # a new download would take longer than this one has lain
            return True
        with suppress(TimeoutError):
            return self._progress.look_around()[0] - state.epoch <= CATCH_UP_EPOCHS
        return False

    def load_checkpoint(self, model: nn.Module, optimizer_state: dict[str, Tensor], epoch: int) -> None:
        """Goes on from a checkpoint of the run: weights, moments (none: they start from zero) and epoch."""
        groups = parameter_groups(model, self._run.optimizer.weight_decay)
        self._host.load([parameter.detach() for group in groups for parameter in group["params"]], epoch)
        if optimizer_state:
            with self._host.lock:
                load_optimizer_tensors(self._host.optimizer, optimizer_state)
        self._go_on(epoch, Event.LOADED_STATE)

    def _go_on(self, epoch: int, event: Event) -> None:
        self._host.copy_to_model()
        with self._progress.pause():
            self._begin_epoch(epoch)
        self._alignment.note(event)

    def _go_without_state(self, reason: str) -> None:
        """Says now and then that no peer gives its state; waits a moment, or goes on alone if nobody else trains.

        A peer that others have overtaken is alone when they end before it could take their state.
        """
        if time.monotonic() - self._complained >= COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            logger.warning("The state could not be loaded: %s", reason)
        others = 1
        with suppress(TimeoutError):
            others = self._progress.look_around()[1]
        if others:
            time.sleep(RETRY_SECONDS)
        else:
            self._alignment.note(Event.NOBODY_ELSE)
