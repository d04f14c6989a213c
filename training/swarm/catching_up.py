"""How a peer that is behind comes to where the others are: by their parameters, their whole state, or a checkpoint."""

from __future__ import annotations

import logging
import math
import time
import warnings
from contextlib import suppress

import hivemind
import torch
from hivemind.optim.state_averager import load_optimizer_state
from torch import Tensor, nn

from training.config import RunConfig
from training.errors import TrainingError
from training.optim.lamb import load_optimizer_tensors, parameter_groups
from training.swarm.download import TrainingState, download_newer_state
from training.swarm.early import EarlyDownload

logger = logging.getLogger(__name__)

RETRY_SECONDS, COMPLAIN_SECONDS = 1.0, 30.0
"""A peer that needs the others' state and gets none asks again, and says so, this often."""
CATCH_UP_EPOCHS = 3
"""A peer that has missed no more updates than this takes only the others' parameters, not all of their state."""


class CatchingUpOptimizer(hivemind.Optimizer):
    """The part of `SwarmOptimizer` that brings a peer up to the others; with it a peer never trains on old weights."""

    def __init__(self, *, run: RunConfig, **kwargs):
        self._run = run
        self._out_of_step = False
        self._complained = -math.inf
        self.last_download = (0, 0.0)
        """Bytes and seconds of the last state that was downloaded; zeros before."""
        super().__init__(run_id=run.run_id, **kwargs)

    @property
    def parameter_shapes(self) -> list[torch.Size]:
        """Shapes of the parameters in the order in which they travel."""
        return [parameter.shape for group in self.opt.param_groups for parameter in group["params"]]

    def step(self, *args, **kwargs) -> Tensor | None:
        """See hivemind; a peer that is behind comes up to the others instead."""
        if self._should_load_state_from_peers():
            if not self._catch_up():
                self.load_state_from_peers()
            return None
        return super().step(*args, **kwargs)

    def _look_around(self) -> tuple[int, int]:
        """The newest epoch of all peers and how many others train; the tracker itself stands still in an average."""
        found = self.dht.get(self.tracker.training_progress_key, latest=True, return_future=True).result(timeout=5)
        progress = self.tracker._parse_swarm_progress_data(found.value if found is not None else None)
        return progress.epoch, max(self.tracker.lively_peers - 1, 0)

    def _should_load_state_from_peers(self) -> bool:
        """As in hivemind, and at once when a group has shown that this peer is behind the others."""
        return self._out_of_step or super()._should_load_state_from_peers()

    def _catch_up(self) -> bool:
        """Goes on with the others' epoch if it is a few updates behind; its parameters become theirs after the next.

        Only they are exchanged then, in a round that takes place anyway for all, and nothing is downloaded. The moments
        lack the updates that were missed.
        """
        if not self.local_epoch:
            return False
        try:
            newest_epoch, others = self._look_around()
        except TimeoutError:
            return False
        if not others or not 0 < newest_epoch - self.local_epoch <= CATCH_UP_EPOCHS:
            return False
        self._let_rounds_end()
        with self.tracker.pause_updates():
            self._begin_epoch(newest_epoch)
        self._want_weights(True)
        return True

    def _want_weights(self, wanted: bool) -> None:
        self.state_averager.wants_weights = wanted

    def _let_rounds_end(self) -> None:
        """Before the state changes: a group that waits for this peer goes on without weight, updates end."""
        scheduled = self.scheduled_grads
        if scheduled is not None and not scheduled.done() and not scheduled.triggered:
            self._tag_along_with_zero_weight(scheduled)
        self.scheduled_grads = None
        self.state_averager.step(wait_for_delayed_updates=True)

    def load_state_from_peers(self, early: EarlyDownload | None = None) -> bool:
        """Takes the state of the run from a peer; whether one gave it. Every wait has an end.

        Unlike hivemind's own, it does not try again without end, downloads no gradient buffers, checks what comes,
        and refuses an older state than its own. A download may take longer than an epoch: the peer goes on with the
        epoch that the others have by then, and takes their parameters with the next update (see `_catch_up`).

        Args:
            early: A download that was begun before; what has come of it is used, unless a new one were better.
        """
        self._let_rounds_end()
        state = early.take() if early is not None else None
        if state is None or not self._is_as_good_as_new(state):
            try:
                state = download_newer_state(
                    self.dht, self._run, shapes=self.parameter_shapes, first_epoch=self._oldest_of_use
                )
            except TrainingError as error:
                self._go_without_state(str(error))
                return False
        self.last_download = (state.received_bytes, state.seconds)
        with self.tracker.pause_updates():
            parameters = [parameter for group in self.opt.param_groups for parameter in group["params"]]
            with torch.no_grad(), self.state_averager.lock_averaged_tensors:
                settings = [{**group} for group in self.opt.param_groups]
                try:
                    load_optimizer_state(self.opt, state.optimizer_metadata, state.tensors[len(parameters) :])
                except Exception as error:  # the metadata is a stranger's
                    logger.warning("The optimizer state of %s cannot be read: %s", state.donor, error)
                    return False
                for group, own in zip(self.opt.param_groups, settings, strict=True):
                    group.update(own)  # the recipe says the settings, not the donor
                for parameter, tensor in zip(parameters, state.tensors, strict=False):
                    parameter.copy_(tensor)
            newest_epoch = state.epoch
            with suppress(TimeoutError):
                newest_epoch = max(newest_epoch, self._look_around()[0])
            self._begin_epoch(newest_epoch)
        self._want_weights(newest_epoch > state.epoch or state.wants_weights)
        return True

    @property
    def _oldest_of_use(self) -> int:
        """The epoch of a state that is not behind this peer; one whose delayed update is under way is not."""
        return max(self.local_epoch - self.delay_optimizer_step, 0)

    def _is_as_good_as_new(self, state: TrainingState) -> bool:
        """Whether one that was downloaded before is of use: not if it has lain for epochs, longer than it came."""
        if state.epoch < self._oldest_of_use:
            return False
        if time.monotonic() - state.ended <= state.seconds:
            return True
        with suppress(TimeoutError):
            return self._look_around()[0] - state.epoch <= CATCH_UP_EPOCHS
        return False

    def _go_without_state(self, reason: str) -> None:
        """Says now and then that no peer gives its state; waits a moment, or goes on alone if nobody else trains.

        A peer that others have overtaken is alone when they end before it could take their state.
        """
        if time.monotonic() - self._complained >= COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            logger.warning("The state could not be loaded: %s", reason)
        others = 1
        with suppress(TimeoutError):
            others = self._look_around()[1]
        if not others:
            self._out_of_step = False
        else:
            time.sleep(RETRY_SECONDS)

    def load_checkpoint(self, model: nn.Module, optimizer_state: dict[str, Tensor], epoch: int) -> None:
        """Goes on from a checkpoint of the run: weights, moments (none: they start from zero) and epoch."""
        with torch.no_grad(), self.state_averager.lock_averaged_tensors:
            groups = parameter_groups(model, self._run.optimizer.weight_decay)
            loaded = (parameter for group in groups for parameter in group["params"])
            parameters = (parameter for group in self.opt.param_groups for parameter in group["params"])
            for parameter, tensor in zip(parameters, loaded, strict=True):
                parameter.copy_(tensor)
            if optimizer_state:
                load_optimizer_tensors(self.opt, optimizer_state)
        with self.tracker.pause_updates():
            self._begin_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Uses the host's parameters for the model and counts samples anew; the tracker must be paused."""
        self._out_of_step = False
        self.state_averager._apply_optimizer_parameters_()
        self.state_averager.local_epoch = epoch
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*lr_scheduler.step", category=UserWarning)
            self.state_averager._update_scheduler()
        self.grad_averager.reset_accumulated_grads_()
        self.tracker.update_epoch(epoch)
        self._should_check_synchronization_on_update = True
        if not self.client_mode:
            self.state_averager.state_sharing_priority = epoch
