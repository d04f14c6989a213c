"""The lineage of a run's servers (the bootstrap peer and the monitor): made once, kept on disk, and always
announced."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from training.errors import TrainingError, reason_of
from training.recipe import RunConfig
from training.swarm.engine.process import DHT
from training.swarm.node.dht import MESSAGE_SECONDS
from training.swarm.node.identity import Identity, id_in
from training.swarm.node.metrics import PeerRecord, accounts_of_records, of_voices, read_believable
from training.swarm.peers.records import progress_validator
from training.swarm.run.lineage import (
    BRANCH_FILE,
    PATIENCE_SECONDS,
    Lineage,
    LineageMessage,
    choose,
    keep,
    post_lineage,
    post_site,
    posted_lineages,
    posted_sites,
    read_kept,
    run_prefix,
    taken_over,
)
from training.swarm.run.servers import Servers

LOOK_SECONDS = 4.0
"""Seconds between two looks at the others' announcements, and between two announcements of new epochs."""


class ServerLineage:
    """Lineage of a run as one of its servers knows and announces it.

    A server that publishes nothing itself repeats the address at which a trusted server publishes the run, so that
    volunteers who know only the first one find the checkpoints too.

    A server whose lineage has no update yet takes over a lineage that most of the others train: it has nothing to lose,
    and would otherwise lead newcomers to a second run. A server whose lineage has updates changes only to a branch of
    that lineage, which another trusted server announces, or which `restore` has put into its state folder.

    Args:
        dht: A running node.
        run: The recipe.
        identity: Signs the announcements.
        folder: State folder; keeps the lineage.
        servers: Servers of the run, whose messages are trusted.
        stored: Lineage of this server's newest checkpoint, if it names one.
        stored_epoch: Epoch of that checkpoint.
        site: Address at which this server publishes the run; None: nowhere.
        beside: State folder of another server of the run on this machine, which is trusted; need not exist yet.
        tell: Called with sentences on what happens to the lineage.

    Raises:
        BadInput: If the file in the state folder is damaged.
        TrainingError: If the DHT does not answer.
    """

    def __init__(
        self,
        dht: DHT,
        run: RunConfig,
        identity: Identity,
        folder: Path,
        *,
        servers: Servers,
        stored: Lineage | None = None,
        stored_epoch: int = 0,
        site: str | None = None,
        beside: Path | None = None,
        tell: Callable[[str], None],
    ):
        self._dht, self._run, self._identity, self._folder = dht, run, identity, folder
        self._own_id, self._servers = str(identity.peer_id), servers
        self._site, self._publishes, self._beside, self._tell = site, site is not None, beside, tell
        self._ids_beside: frozenset[str] = frozenset()
        self._look_beside()
        self._looked = self._posted = -math.inf
        self._news, self._warned_of, self._is_kept = True, "", True
        first = read_kept(folder)
        if first is None and stored is not None:
            first = LineageMessage(lineage=stored, epoch=stored_epoch)
        if first is None:
            first = self._find() or LineageMessage(lineage=Lineage.begin(), epoch=0)
        self.lineage, self.epoch = first.lineage, max(first.epoch, stored_epoch)
        self._check_progress()
        self.renew(())

    @property
    def servers(self) -> list[str]:
        """Peer ids of the servers that this server knows, itself included."""
        return sorted({self._own_id, *self._trusted})

    @property
    def _trusted(self) -> frozenset[str]:
        return (self._servers.ids | self._ids_beside) - {self._own_id}

    def renew(self, records: Sequence[PeerRecord]) -> bool:
        """Keeps and announces news, and follows the other servers; call it every few seconds.

        Args:
            records: Current believable records of all peers.

        Returns:
            True if the lineage has changed.
        """
        before = self.lineage.id
        self._look_beside()
        self._take_branch()
        self._note_epochs(records)
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            with suppress(TrainingError):  # a busy node; the next look may be answered
                self._follow(self._posted_messages(), records)
                self._note_site()
        if self.lineage.id != before or now - self._posted >= (LOOK_SECONDS if self._news else MESSAGE_SECONDS / 3):
            self._posted, self._news = now, False
            self._keep()
            message = LineageMessage(lineage=self.lineage, epoch=self.epoch)
            post_lineage(self._dht, self._run.run_id, message, self._identity)
            if self._site is not None:
                post_site(self._dht, self._run.run_id, self._site, self._identity)
        return self.lineage.id != before

    def _look_beside(self) -> None:
        """Reads the id of the server beside this one, which may have made its key since the last look."""
        if self._beside is not None and not self._ids_beside and (found := id_in(self._beside)) is not None:
            self._ids_beside = frozenset([found])

    def _note_site(self) -> None:
        """Takes over the address at which a trusted server publishes the run, if this server publishes nothing."""
        if self._publishes:
            return
        found = next(iter(posted_sites(self._dht, self._run.run_id, self._trusted)), None)
        if found != self._site:
            self._site, self._news = found, True

    def _find(self) -> LineageMessage | None:
        """Finds the lineage that the others train; waits for trusted servers, in case these announce one in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            messages = self._posted_messages()
            if not self._trusted or any(message.signer in self._trusted for message in messages):
                break
            if time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        trusted = [message for message in messages if message.signer in self._trusted]
        with suppress(TimeoutError):
            return choose(trusted, self._trusted) or self._taken_over(messages, read_believable(self._dht, self._run))
        return choose(trusted, self._trusted)

    def _taken_over(self, messages: Sequence[LineageMessage], records: Sequence[PeerRecord]) -> LineageMessage | None:
        return taken_over(messages, of_voices(records, accounts_of_records(self._dht, records)))

    def _posted_messages(self) -> list[LineageMessage]:
        return posted_lineages(self._dht, self._run.run_id, total_epochs=self._run.schedule.total_epochs)

    def _take_branch(self) -> None:
        branch = read_kept(self._folder, BRANCH_FILE)
        if branch is None:
            return
        if branch.lineage.id != self.lineage.id:
            self._go_over(branch, "it was put into the state folder")
        if self._keep():  # before the order is deleted, so that the order is not lost by a kill or a full disk
            (self._folder / BRANCH_FILE).unlink()

    def _keep(self) -> bool:
        """Writes the lineage into the state folder. A failure is reported once, and the next call tries again."""
        try:
            keep(self._folder, LineageMessage(lineage=self.lineage, epoch=self.epoch))
        except OSError as error:
            if self._is_kept:
                self._tell(
                    f"Warning: the run's lineage cannot be written to {self._folder}: {reason_of(error)}. It is still "
                    "announced. Make room on the disk before this server is restarted."
                )
            self._is_kept = False
        else:
            self._is_kept = True
        return self._is_kept

    def _note_epochs(self, records: Sequence[PeerRecord]) -> None:
        """Raises the lineage's newest epoch to the newest one in the records."""
        newest = max((record.epoch for record in records if record.lineage == self.lineage.id), default=0)
        if newest > self.epoch:
            self.epoch, self._news = newest, True

    def _follow(self, messages: Sequence[LineageMessage], records: Sequence[PeerRecord]) -> None:
        """Changes to the lineage that the others announce, if the rules of the class allow it."""
        own = LineageMessage(lineage=self.lineage, epoch=self.epoch, signer=self._own_id)
        others = [message for message in messages if message.signer != self._own_id]
        believed = [own, *(message for message in others if message.signer in self._trusted)]
        choice = choose(believed, [message.signer for message in believed])
        if choice.lineage.id == self.lineage.id and not self.epoch:
            found = self._taken_over(others, records)
            choice = own if found is None or self.lineage.descends_from(found.lineage.id) else found
        if choice.lineage.id == self.lineage.id:
            self._note_strangers(others)
            return
        if choice.lineage.descends_from(self.lineage.id) or not self.epoch:
            self._go_over(choice, f"{choice.signer} announces it")
        else:
            self._warn_of(
                choice,
                f"{choice.signer} announces another lineage of this run, {choice.lineage.id} at epoch {choice.epoch}; "
                f"this server keeps {self.lineage.id}, which is at epoch {self.epoch}. Stop the server whose weights "
                "are not wanted, and start it with an empty state folder.",
            )

    def _note_strangers(self, others: Sequence[LineageMessage]) -> None:
        """Warns of branches that untrusted servers announce: volunteers of this server do not follow them."""
        for message in others:
            if message.lineage.descends_from(self.lineage.id) and message.signer not in self._trusted:
                self._warn_of(
                    message,
                    f"{message.signer} announces the branch {message.lineage.id} of this run, from epoch "
                    f"{message.lineage.first_epoch} on. If it is yours, give `restore` this server's --state-dir, or "
                    "start this server with the address of the one that announces it in --initial-peers.",
                )

    def _warn_of(self, message: LineageMessage, text: str) -> None:
        if self._warned_of != message.lineage.id:
            self._warned_of = message.lineage.id
            self._tell(f"Warning: {text}")

    def _go_over(self, message: LineageMessage, reason: str) -> None:
        began = f", which branched off at epoch {message.lineage.first_epoch}" if message.lineage.ancestors else ""
        self._tell(f"From now on this run is the lineage {message.lineage.id}{began}: {reason}.")
        self.lineage, self.epoch = message.lineage, message.epoch
        self._check_progress()

    def _check_progress(self) -> None:
        """Makes this node refuse records under this lineage's progress key that are not a peer's progress."""
        prefix = run_prefix(self._run.run_id, self.lineage)
        self._dht.add_validators([progress_validator(prefix)])
