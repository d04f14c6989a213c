"""A volunteer's peer: streams samples, computes gradients, and trains the model together with the others."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from training.checkpoints.folders import KEPT_FOLDER
from training.checkpoints.keep import KeptWeights
from training.compute.choices import Choices
from training.config import RunConfig
from training.data.store.shards import AnyManifest
from training.errors import ProcessEnded, TrainingError
from training.model.kernels.memory import give_back_freed_memory, keep_freed_memory
from training.model.trained import count_trained, load_trained_state, trained_state
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.processes.priority import lower_priority
from training.processes.role import StopRequest
from training.swarm.node.dht import full_addresses
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import read_records
from training.swarm.optimizer import SwarmOptimizer
from training.tasks.known import task_of
from training.volunteer.arrival import arrive
from training.volunteer.belonging import Belonging, LeaveRequest
from training.volunteer.connection import Connection, connect
from training.volunteer.contribution import Contribution
from training.volunteer.loop import TrainingLoop
from training.volunteer.membership import Membership, MemberStop
from training.volunteer.preparation import (
    check_settings,
    choose_settings,
    model_on_device,
)
from training.volunteer.recent import RECENT_FILE, RecentEpochs
from training.volunteer.reporter import PeerStatus, Reporter
from training.volunteer.samples import PLACE_FILE, own_samples, sample_seed
from training.volunteer.settings import PeerSettings
from training.volunteer.startup import link_in_use, link_warning


def check_peer(run: RunConfig, settings: PeerSettings, state_dir: Path, *, events: EventLog, console: Console) -> None:
    """Checks everything that training needs (codecs, shards, network, recipe) without training.

    Raises:
        TrainingError: If something does not work; the message says what.
    """
    notices = Notices(events=events, console=console)
    check_settings(run, settings, notices)
    console.print("Averaging in 8 and 16 bit works on this machine.")
    identity = Identity(state_dir)
    membership = Membership(run, identity, settings.credentials, state_dir, notices)
    membership.begin()
    connection = connect(run, settings, identity, notices.warn, membership.admission)
    connection.check_tokens(connection.own_manifest().tokens_digest)
    choices = choose_settings(run, settings, notices, build=cache(partial(model_on_device, run, settings)))
    notices.show(link_in_use(connection.link))
    size = choices.micro_batch_size
    samples = own_samples(run, settings, state_dir / PLACE_FILE, seed=0, micro_batch_size=size, tell=notices.warn)
    told = task_of(run).describe(next(samples), connection.shards)
    console.print(f"The shards can be read; {told}.", markup=False)
    samples.close()
    others = [record.name for record in read_records(connection.dht, run.run_id) if record.status != "leaving"]
    console.print(
        f"The run {run.run_id} was found and uses this recipe ({run.digest}); it trains with {len(others)} peers.",
        markup=False,
    )
    console.print("All checks passed: omit --dry-run to train.")


def run_peer(
    run: RunConfig,
    settings: PeerSettings,
    state_dir: Path,
    *,
    stop: StopRequest,
    events: EventLog,
    console: Console,
) -> None:
    """Trains until the run ends, `settings.epochs` is reached, or `stop` is requested.

    Raises:
        RefusedByRun: If the run trains another recipe, or on other tokens.
        TrainingError: If something does not work; the message says what.
    """
    keep_freed_memory()
    notices = Notices(events=events, console=console)
    check_settings(run, settings, notices)

    identity = Identity(state_dir)
    membership = Membership(run, identity, settings.credentials, state_dir, notices)
    membership.begin()
    connection = connect(run, settings, identity, notices.warn, membership.admission)
    stop.listen()
    events.write("ready", addresses=[] if settings.client_mode else full_addresses(connection.dht))
    belonging = Belonging(connection, state_dir, notices)
    membership.bind(belonging.lineage)
    stop = membership.until_refused(stop)
    manifest = connection.own_manifest()
    tokens = manifest.tokens_digest
    connection.check_tokens(tokens)

    build = cache(partial(model_on_device, run, settings))
    choices = choose_settings(run, settings, notices, build=build)
    reporter = Reporter(
        run,
        connection.dht,
        connection.identity,
        name=connection.name,
        micro_batch_size=choices.micro_batch_size,
        tokens=tokens,
        belonging=belonging,
        recent=RecentEpochs(state_dir / RECENT_FILE),
    )
    peer = _Peer(connection, belonging, membership, choices, build(), reporter, notices, manifest, state_dir)
    reporter.update(PeerStatus(contribution=Contribution.read(peer.contribution_file)))
    epoch = 0
    try:
        epoch = peer.take_part(settings.resume, stop)
        while belonging.is_left and not stop.asked:
            peer.go_over(epoch)
            epoch = peer.take_part(None, stop)
    finally:
        connection.redial.stop()
        reporter.leave()
        events.write("stopped", epoch=epoch)
    if membership.refusal is not None:
        raise membership.refusal
    console.print(f"{connection.name} leaves at epoch {epoch}. Thank you!", markup=False)


@dataclass(frozen=True)
class _Peer:
    """What a volunteer's peer keeps when it goes over to another lineage."""

    connection: Connection
    belonging: Belonging
    membership: Membership
    choices: Choices
    model: torch.nn.Module
    reporter: Reporter
    notices: Notices
    manifest: AnyManifest
    state_dir: Path

    @property
    def contribution_file(self) -> Path:
        """What this volunteer has given so far."""
        return self.state_dir / "contribution.json"

    @property
    def kept(self) -> KeptWeights:
        """What it keeps when it leaves."""
        return KeptWeights(
            folder=self.state_dir / KEPT_FOLDER,
            recipe_toml=self.connection.settings.recipe_toml,
            shards=self.connection.shards,
            codec_digest=self.manifest.codec_digest,
        )

    def take_part(self, resume: Path | None, stop: MemberStop) -> int:
        """Trains in the lineage that it belongs to until that is left or the peer stops; the epoch that it came to."""
        connection, belonging = self.connection, self.belonging
        run, settings = connection.run, connection.settings
        until = belonging.until_left(stop)
        with belonging.resting, self.membership.resting:
            optimizer = SwarmOptimizer(
                self.model,
                run,
                dht=connection.dht,
                identity=connection.identity,
                lineage=belonging.lineage,
                micro_batch_size=self.choices.micro_batch_size,
                client_mode=settings.client_mode,
            )
        stop.listen()
        try:
            source = arrive(
                optimizer,
                run,
                belonging=belonging,
                resume=resume,
                kept=self.kept,
                shards=connection.shards,
                stop=until,
                console=self.notices.console,
            )
            if source is not None:
                connection.check_tokens(
                    self.manifest.tokens_digest
                )  # another peer, with other tokens, may have come meanwhile
                self._train(optimizer, source, until)
        finally:
            optimizer.say_goodbye()
            belonging.remember(optimizer.local_epoch)
        if source is not None and not belonging.is_left:
            self.reporter.leave()  # first: writing takes time, and the peer may be ended meanwhile
            self.kept.keep(optimizer, self.model, belonging.lineage)
        if belonging.is_left and not stop.asked:  # otherwise the processes end with the role
            optimizer.shutdown()
        return optimizer.local_epoch

    def go_over(self, epoch: int) -> None:
        """To the lineage that the run's servers announce, from the weights with which every peer begins."""
        self.reporter.update(PeerStatus(contribution=self.reporter.status.contribution))
        self.belonging.go_over(epoch)
        self.membership.bind(self.belonging.lineage)
        run = self.connection.run
        load_trained_state(self.model, trained_state(task_of(run).build_trained_part()))

    def _train(self, optimizer: SwarmOptimizer, source: str, until: LeaveRequest) -> None:
        give_back_freed_memory()
        self.reporter.update(replace(self.reporter.status, epoch=optimizer.local_epoch))
        self.belonging.remember(optimizer.local_epoch)
        connection, settings = self.connection, self.connection.settings
        loop = TrainingLoop(
            connection.run,
            settings,
            self.choices,
            self.model,
            optimizer,
            self.reporter,
            self.contribution_file,
            self.notices,
        )
        _announce(loop, connection, source)
        if not settings.normal_priority:
            lower_priority()
        _train(loop, connection, until)


def _announce(loop: TrainingLoop, connection: Connection, source: str) -> None:
    """Declares this peer's bandwidth to the other peers, and tells the volunteer at which epoch the peer joined."""
    run, optimizer, notices = loop.run, loop.optimizer, loop.notices
    link = replace(
        connection.link,
        download_bytes=optimizer.last_download[0],
        download_seconds=optimizer.last_download[1],
        told_mbits=loop.settings.bandwidth_mbits,
    )
    optimizer.declare_bandwidth(link.mbits)
    notices.events.write(
        "joined",
        name=connection.name,
        peer_id=str(connection.identity.peer_id),
        epoch=optimizer.local_epoch,
        state=source,
        lineage=optimizer.lineage.id,
        link=asdict(link),
    )
    notices.show(link_in_use(link))
    parameters = count_trained(loop.model)
    notices.console.print(
        Text.assemble(
            (connection.name, "bold"),
            f" joins {run.run_id} at epoch {optimizer.local_epoch} with {source}: {parameters:,} parameters.",
        )
    )
    if (slow := link_warning(run, link, parameters)) is not None:
        notices.warn(slow)


def _train(loop: TrainingLoop, connection: Connection, stop: LeaveRequest) -> None:
    """Trains to the end; if training fails and the run can no longer be reached, the error says so."""
    seed = sample_seed(loop.settings, connection.identity, loop.optimizer.local_epoch)
    size, file = loop.choices.micro_batch_size, loop.contribution_file.with_name(PLACE_FILE)
    try:
        samples = own_samples(
            loop.run,
            loop.settings,
            file,
            seed=seed,
            micro_batch_size=size,
            tell=loop.notices.warn,
        )
        with closing(samples):  # else its threads would fetch on beside those of another lineage
            loop.train(samples, stop)
    except ProcessEnded:
        raise  # without its node a peer reaches nobody
    except TrainingError as error:
        if connection.reaches_servers:
            raise
        raise TrainingError(
            f"{error} The run's servers no longer answer either: the run is over, or this machine is offline.",
            cure="Check your connection; if it works, the run's page says whether the run is still on.",
        ) from None
