"""Recovery of a peer that is behind, by the others' parameters, their whole state, or a checkpoint."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

from torch import Tensor, nn

from training.errors import TrainingError
from training.optim.groups import parameter_groups
from training.optim.saved import load_optimizer_tensors
from training.recipe import RunConfig
from training.swarm.engine.process import DHT
from training.swarm.engine.quoted import quoted
from training.swarm.peers.progress import Progress
from training.swarm.peers.table import furthest_epoch
from training.swarm.run.lineage import Lineage
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.download import download_newer_state
from training.swarm.state.master_weights import MasterWeights

logger = logging.getLogger(__name__)

COMPLAIN_SECONDS = 30.0
"""Seconds between two warnings that no peer sends the state that this peer needs."""
CATCH_UP_EPOCHS = 3
"""Most missed updates after which a peer takes only the others' parameters and not their whole state."""


class CatchingUp:
    """Brings a peer that is behind to the epoch of the others.

    A peer that is many epochs behind downloads a state, and drops its gradients until it has one. A peer that has
    missed a few updates goes on at once: it trains with weights that lack these updates until the next round of
    parameters, in which its own weights count for next to nothing (`alignment`: DRIFTED).

    Args:
        run: The recipe.
        dht: A running node.
        master: The peer's weights and optimizer.
        progress: The swarm's progress.
        alignment: Notes how the weights relate to the others' afterwards.
        let_rounds_end: Ends the rounds that the peer takes part in, before its weights change.
        begin_epoch: Makes the peer continue with an epoch and its master weights; called while `progress` is paused.
        lineage: Only states of this lineage are taken; None: states of peers without a lineage.
    """

    def __init__(
        self,
        run: RunConfig,
        dht: DHT,
        master: MasterWeights,
        progress: Progress,
        alignment: AlignmentState,
        *,
        let_rounds_end: Callable[[], None],
        begin_epoch: Callable[[int], None],
        lineage: Lineage | None = None,
    ):
        self._run, self._dht, self._master, self._progress, self._alignment = run, dht, master, progress, alignment
        self._let_rounds_end, self._begin_epoch = let_rounds_end, begin_epoch
        self._lineage = lineage
        self._complained = -math.inf
        self.last_download = (0, 0.0)
        """Bytes and seconds of the last downloaded state; zeros before the first."""

    def skip_epochs(self, epoch: int) -> bool:
        """Jumps to the others' epoch if this peer is only a few updates behind. Returns True if it did.

        Downloads nothing. The peer asks its next group for a round of parameters, which brings its weights up to date;
        its moments lack the missed updates.
        """
        if not epoch:  # its weights are random and contain no update: it needs the whole state
            return False
        try:
            newest_epoch, others = self._progress.look_who_stays()
        except TimeoutError:
            return False
        skipped = newest_epoch - epoch
        # Reports alone move a peer no further than this from the weights that it has, and not to the schedule's end.
        most = min(CATCH_UP_EPOCHS - self._alignment.skipped, self._run.schedule.total_epochs - 1 - epoch)
        if not others or not self._progress.has_voices or not 0 < skipped <= most:
            return False
        self._let_rounds_end()
        self._alignment.skipped += skipped
        self._go_on(newest_epoch, Event.SKIPPED_EPOCHS)
        return True

    def load_state_from_peers(self, oldest_epoch: int) -> bool:
        """Downloads the run's state from a peer. Returns False if no peer sent it. Every wait has a limit.

        A download may take longer than an epoch. The peer then continues with the epoch that the others have reached
        meanwhile (`furthest_epoch`), and takes over their parameters with the next update (see `skip_epochs`).

        Args:
            oldest_epoch: Oldest epoch of a state that is accepted.
        """
        # Otherwise an update that is still under way would change the downloaded weights.
        self._let_rounds_end()
        try:
            state = download_newer_state(
                self._dht,
                self._run,
                shapes=self._master.shapes,
                first_epoch=oldest_epoch,
                lineage=self._lineage,
                peers=self._progress.peers,
            )
        except TrainingError as error:
            self._go_without_state(str(error))
            return False
        self.last_download = (state.received_bytes, state.seconds)
        try:
            self._master.load_state(state.tensors, state.optimizer_metadata, state.epoch)
        except Exception as error:  # the metadata comes from another peer and may be anything
            logger.warning("The optimizer state of %s cannot be read: %s", state.donor, quoted(str(error)))
            return False
        # The others may have gone on during the download; for an epoch that they have ended no group forms.
        newest_epoch = state.epoch
        with suppress(TimeoutError):
            newest_epoch = furthest_epoch(
                state.epoch,
                self._progress.look_who_stays()[0],
                seconds=state.seconds,
                shortest_epoch_seconds=self._run.swarm.matchmaking_seconds,
                total_epochs=self._run.schedule.total_epochs,
            )
        is_older = newest_epoch > state.epoch or state.wants_weights
        self._go_on(newest_epoch, Event.LOADED_OLDER_STATE if is_older else Event.LOADED_STATE)
        self._alignment.skipped = newest_epoch - state.epoch
        return True

    def train_on(self) -> None:
        """Trains on when no peer sends the state of the epoch that others report; asks for it again after a pause.

        The report may be false, since nobody has shown a state of that epoch.
        """
        if self._alignment.behind:
            self._alignment.note(Event.NO_STATE)
            self._progress.doubt()

    def load_checkpoint(
        self, model: nn.Module, optimizer_state: dict[str, Tensor], epoch: int, *, may_differ: bool
    ) -> None:
        """Continues from a checkpoint of the run: weights, epoch and moments (without any, they start at zero).

        Args:
            model: Model with the checkpoint's weights.
            optimizer_state: Moments of the checkpoint; may be empty.
            epoch: Epoch of the checkpoint.
            may_differ: True if other peers at that epoch may have other weights or moments.
        """
        groups = parameter_groups(model, self._run.optimizer)
        self._master.load([parameter.detach() for group in groups for parameter in group["params"]], epoch)
        if optimizer_state:
            with self._master.lock:
                load_optimizer_tensors(self._master.optimizer, optimizer_state)
        self._go_on(epoch, Event.LOADED_OLDER_STATE if may_differ else Event.LOADED_STATE)

    def _go_on(self, epoch: int, event: Event) -> None:
        self._master.copy_to_model()
        # A look of the progress's thread must not end during these steps: it would show the old epoch's samples.
        with self._progress.pause():
            self._progress.believe()
            self._begin_epoch(epoch)
        self._alignment.note(event)

    def _go_without_state(self, reason: str) -> None:
        """Warns at intervals that no peer sends its state; continues alone if no other peer trains.

        This happens if the others were ahead of this peer, and left before it could download their state.
        """
        if time.monotonic() - self._complained >= COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            logger.warning("The state could not be loaded: %s", reason)
        newest_epoch, others = 0, 1  # a node that does not answer says nothing of the others: they count as present
        with suppress(TimeoutError):
            newest_epoch, others = self._progress.look_around()
        if not others:
            self._alignment.note(Event.NOBODY_ELSE)
        elif newest_epoch > self._master.epoch:
            # Otherwise two peers that have resumed from an old checkpoint would be witnesses for each other that the
            # run is no further, against the only donor that could help them.
            self._alignment.note(Event.OVERTAKEN)
