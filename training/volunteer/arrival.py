"""Arrival of a newcomer: it obtains the run's current state, or finds that the run has ended.

It begins with fresh weights only if no record, no server's report and no checkpoint mentions an update. Otherwise it
takes the state of a peer that trains. If no peer trains, as after a power cut of all, it loads the weights that it has
kept itself and offers them to returning peers. If some peer has reported a newer epoch, it waits for peers that may
have kept its weights, and takes their offers. At the end of the wait it goes on with the newest state that has come, or
with a newer checkpoint of the run's site, whatever epoch the servers remember. If no peer has weights, and the site
says that it has no checkpoint, the run begins anew.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from training.checkpoints.checkpoint import Checkpoint, check_codec, load_checkpoint
from training.checkpoints.facts import damage_of
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.checkpoints.keep import MAY_DIFFER, KeptWeights
from training.data.store.sets import open_manifest
from training.errors import TrainingError
from training.processes.notices import Notices
from training.recipe import RunConfig
from training.swarm.node.addresses import protocols
from training.swarm.node.clocks import time_of_day
from training.swarm.node.dht import check_node
from training.swarm.node.metrics import PeerRecord, accounts_of_records, believable, of_right_clocks, read_records
from training.swarm.node.slow_nodes import any_answers
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.run.lineage import STATE_FILE
from training.swarm.state.catching_up import CATCH_UP_EPOCHS
from training.volunteer.belonging import Belonging, LeaveRequest
from training.volunteer.stored import fetch_stored

LOOK_SECONDS = 1.0
"""Pause between two attempts of a newcomer to download the run's weights."""
KEPT_SECONDS = 1.0
"""Seconds that a peer with kept weights of the newest epoch looks for others before it starts from them; peers that
come with older weights or none then get these weights from it."""
DIFFERING_SECONDS = 4.0
"""Same for a peer whose weights may differ from others' kept weights of the same epoch: those others go first."""
NOBODY_SECONDS = 5.0
"""Seconds without an offer of a training peer after which a newcomer goes on with the site's checkpoint, or with kept
weights that lack a few updates. It can take part at once then, and takes newer weights from a peer that it finds
later."""
ANSWER_SECONDS = 5.0
"""Longest wait for a peer's answer to a ping."""
FORGOTTEN_SECONDS = 60.0
"""Seconds without a training peer after which the run goes on from kept weights of any age, or begins anew if no
checkpoint was ever written. A network that was split needs up to a minute to heal."""
TOLD_SECONDS = 60.0
"""Seconds before a waiting newcomer prints the same sentence again."""


def arrive(
    optimizer: SwarmOptimizer,
    run: RunConfig,
    *,
    belonging: Belonging,
    resume: Path | None,
    kept: KeptWeights,
    stop: LeaveRequest,
    notices: Notices,
) -> str | None:
    """Loads the run's current state into model and optimizer. Returns a text that names the state's source.

    Returns None if the run has ended, which it prints, or if the peer has to stop or to leave the lineage.

    Args:
        optimizer: A new optimizer, without any state.
        run: The recipe.
        belonging: The lineage that this peer joins, and what is known of it.
        resume: Folder of checkpoints; this peer starts from the latest sound one, unless the run is ahead of it. None:
            no folder.
        kept: Weights of the run that this peer has kept.
        stop: Ends the wait when the peer has to stop, or to leave the lineage.
        notices: Tell the volunteer what the peer waits for.

    Raises:
        BadInput: If the checkpoint cannot be read, or belongs to another recipe or codec.
        ProcessEnded: If the node has ended.
    """
    newcomer = _Newcomer(optimizer, run, belonging, kept, stop, notices)
    with optimizer.alignment.arriving():
        return newcomer.arrive(resume)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Others:
    """State of the run by the records of the other peers of the lineage."""

    epoch: int = 0
    """Latest epoch that any of the peers has reached, including peers that have just left."""
    there: tuple[PeerRecord, ...] = ()
    """Records of peers that have weights of the run and are still in it."""


@dataclass(frozen=True, slots=True)
class _Newcomer:
    """A peer without weights of the run, on its way into the run."""

    optimizer: SwarmOptimizer
    run: RunConfig
    belonging: Belonging
    kept: KeptWeights
    stop: LeaveRequest
    notices: Notices
    told: dict[str, float] = field(default_factory=dict)
    """Time at which each sentence was printed last."""

    def arrive(self, resume: Path | None) -> str | None:
        """Loads the run's current state; see the function `arrive`."""
        optimizer = self.optimizer
        source = self.resume(resume) if resume is not None else None
        is_told = source is not None  # given by the volunteer, whatever the servers remember
        began = time.monotonic()
        while not self.stop.asked:
            others = self.others_now()
            if others is None:
                continue
            ahead = max(others.epoch, optimizer.progress.reported_epoch)
            newest = ahead if is_told else max(ahead, self.belonging.newest_epoch(), self.kept_epoch)
            if newest <= optimizer.local_epoch:
                return source or "fresh weights"
            may_hold = source is None and not others.there and time.monotonic() - began >= self.kept_seconds
            if may_hold and (source := self.take_kept()) is not None:
                continue
            # A peer at epoch 0 is another newcomer: it has no weights of the run either.
            is_held = source is not None and not is_told
            if optimizer.load_state_from_peers(oldest_epoch=optimizer.local_epoch + 1 if is_held else 1):
                source = "the state of another peer"
                if is_told or others.there or optimizer.local_epoch >= newest:
                    return source
            waited = time.monotonic() - began
            unheard = bool(others.there) and waited >= NOBODY_SECONDS and self.hears_nothing_of(others.there)
            if unheard or not others.there:
                if is_told:
                    return source
                if self.kept_epoch >= self.run.schedule.total_epochs:
                    self.notices.tell(_end_of_run(self.run, self.kept_epoch))
                    return None
                found = self.take_stored(source, waited, newest, may_begin_anew=not others.there)
                if found is not None:
                    return found
            if source is not None and waited >= FORGOTTEN_SECONDS:
                return source  # the newer epoch may be a false report; if it is not, training catches up with it
            self.tell(self.waits_for(others, newest, unheard=unheard, is_late=waited >= FORGOTTEN_SECONDS))
            self.stop.wait(LOOK_SECONDS)
        return None

    def tell(self, sentence: str) -> None:
        """Prints a sentence, but the same sentence only once in `TOLD_SECONDS`."""
        if time.monotonic() - self.told.get(sentence, -math.inf) >= TOLD_SECONDS:
            self.told[sentence] = time.monotonic()
            self.notices.tell(sentence)

    def others_now(self) -> _Others | None:
        """Reads the other peers' records. Returns None if the DHT did not answer in time: other peers may be there
        then.

        Raises:
            ProcessEnded: If the node has ended, so that it will never answer.
        """
        check_node(self.optimizer.dht)
        own, lineage = str(self.optimizer.dht.peer_id), self.belonging.lineage.id
        with suppress(TimeoutError):
            records = read_records(self.optimizer.dht, self.run.run_id)
            others = [record for record in records if record.peer_id != own and record.lineage == lineage]
            accounts = accounts_of_records(self.optimizer.dht, others)
            others = believable(others, self.run.schedule.total_epochs, accounts)
            current = of_right_clocks(others, time_of_day())
            return _Others(
                epoch=max((record.epoch for record in others), default=0),
                there=tuple(record for record in current if record.status != "leaving" and record.epoch),
            )
        return None

    @property
    def kept_epoch(self) -> int:
        """Epoch of the weights that this peer has kept; 0 if it has none."""
        return self.kept.newest(self.belonging.lineage)[1]

    @property
    def kept_seconds(self) -> float:
        """Seconds that this peer looks for others before it starts from its kept weights."""
        path, _epoch = self.kept.newest(self.belonging.lineage)
        return DIFFERING_SECONDS if path is not None and self.kept.may_differ(path) else KEPT_SECONDS

    def resume(self, folder: Path) -> str | None:
        """Loads the latest sound checkpoint of a folder. Returns a text that names it; None if there is none, or if it
        belongs to another lineage."""
        for path in reversed(list_checkpoints(folder)):
            if (damage := damage_of(path)) is None:
                return self._load(path)
            self.notices.tell(f"{path} is not used: {damage}.")
        return None

    def hears_nothing_of(self, peers: Sequence[PeerRecord]) -> bool:
        """Returns True if none of these peers answers. A record outlives its peer, for long if the peer's clock was
        ahead."""
        with suppress(TimeoutError):
            return not any_answers(self.optimizer.dht, [record.peer_id for record in peers], ANSWER_SECONDS)
        return False

    def take_stored(self, held: str | None, waited_seconds: float, newest: int, *, may_begin_anew: bool) -> str | None:
        """Goes on without the others: with the loaded or kept weights, with the site's newest checkpoint if that has
        more updates, or with fresh weights. Returns a text that names the source; None while a better state may still
        come.

        Args:
            held: Source of the weights that this peer has loaded; None: it has loaded none.
            waited_seconds: Seconds since this peer came.
            newest: Newest epoch that this peer has heard of.
            may_begin_anew: True if the run may begin anew when no peer has any weights.
        """
        if waited_seconds < NOBODY_SECONDS:
            return None
        held = held or self.take_kept()
        stored = fetch_stored(self.belonging, self.run, stop=self.stop, tell=self.tell)
        if stored.path is not None:
            is_newer = checkpoint_epoch(stored.path) > self.optimizer.local_epoch
            source = self._load(stored.path) if is_newer else held
            shutil.rmtree(stored.path, ignore_errors=True)
            return source
        is_late = waited_seconds >= FORGOTTEN_SECONDS
        if held is not None:
            return held if is_late or self.optimizer.local_epoch >= newest - CATCH_UP_EPOCHS else None
        if is_late and stored.is_nothing and may_begin_anew and not self.belonging.lineage.first_epoch:
            return "fresh weights, because nobody has any of the run's"
        return None

    def take_kept(self) -> str | None:
        """Loads the weights that this peer has kept, and returns a text that names them.

        Returns None if it has none, or cannot use them, or the run has ended with them.
        """
        path, epoch = self.kept.newest(self.belonging.lineage)
        try:
            is_loaded = 0 < epoch < self.run.schedule.total_epochs and self._load(path) is not None
        except TrainingError as error:
            self.tell(f"The weights that this peer has kept are not used: {error.sentence}")
            return None
        return f"the weights of epoch {epoch} that it had kept" if is_loaded else None

    def _load(self, path: Path) -> str | None:
        checkpoint = load_checkpoint(path, recipe=self.run, computes=False)
        if not self._is_of_this_lineage(checkpoint):
            return None
        if checkpoint.codec_digest is not None:
            found = open_manifest(self.kept.shards, kind=None).codec_digest
            check_codec(path, checkpoint.codec_digest, shards=self.kept.shards, found=found)
        made = (checkpoint.model, checkpoint.extra_tensors, checkpoint.epoch)
        self.optimizer.load_checkpoint(*made, may_differ=bool(checkpoint.metrics.get(MAY_DIFFER)))
        return f"the checkpoint {path.name}"

    def _is_of_this_lineage(self, checkpoint: Checkpoint) -> bool:
        lineage = self.belonging.lineage
        if lineage.has(checkpoint.lineage, checkpoint.epoch) or not self.belonging.newest_epoch():
            return True  # a lineage without any update may begin with weights of another lineage
        self.notices.tell(
            f"{checkpoint.path} is not used: it belongs to the lineage {checkpoint.lineage} at epoch "
            f"{checkpoint.epoch}, and the run trains {lineage.id}."
        )
        return False

    def waits_for(self, others: _Others, newest: int, *, unheard: bool = False, is_late: bool = False) -> str:
        """Message for the volunteer while no peer sends the run's newest weights.

        Args:
            others: The other peers.
            newest: Newest epoch that this peer has heard of.
            unheard: True if none of those that have the weights answers.
            is_late: True if this peer has waited for so long that it would have begun the run anew by itself, if it
                could; see `take_stored`.
        """
        held, now = self.optimizer.local_epoch, f"The run is at epoch {newest}"
        names = " or ".join(record.name for record in others.there[:3])
        if unheard:
            lack = "" if "IPv4" in protocols() else " This machine has no IPv4, on which volunteers usually listen."
            return (
                f"{now}; its weights are with {names}, but this peer gets no connection there.{lack} It tries again. "
                "`doctor` with the run's address says what is in the way; another network may have nothing in the way."
            )
        if others.there:
            return f"{now}; waiting for {names} to send its weights."
        if held:
            return (
                f"{now} as the run's servers remember it, and nobody trains now. This peer has the weights of epoch "
                f"{held}; it waits up to {FORGOTTEN_SECONDS:.0f} s for a volunteer who has newer ones, and goes on."
            )
        sites = self.belonging.sites()
        site = f" or for a checkpoint at {sites[0]}" if sites else ""
        waiting = f"{now}, and nobody who has its weights is here now; waiting for a volunteer who comes back{site}."
        if not is_late:
            return waiting
        return (
            f"{waiting} Anybody who has a checkpoint can go on with it: --resume FOLDER. If nobody has one, the run's "
            f"maintainer can begin it anew: stop its servers, delete {STATE_FILE} in the state folder of each "
            f"(runs/{self.run.run_id}/bootstrap, unless --state-dir names another), start them, and then the "
            "volunteers."
        )


def _end_of_run(run: RunConfig, epoch: int) -> str:
    """Message for a newcomer that arrives when the run has ended."""
    return (
        f"The run {run.run_id} has reached its end: all of its {epoch} epochs are done, and there is nothing left "
        "to train. The run's page shows the result. Thank you for coming!"
    )
