"""Peer of a volunteer: streams samples, computes gradients, and trains the model together with the others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from subprocess import DEVNULL

from rich.console import Console
from rich.text import Text

from training.checkpoints.folders import KEPT_FOLDER
from training.checkpoints.keep import Keeping, KeptWeights
from training.compute.choices import Choices
from training.data.store.sets import open_manifest
from training.errors import ProcessEnded, TrainingError
from training.model.kernels.memory import give_back_freed_memory, keep_freed_memory
from training.model.trained import load_trained_state, trained_state
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.processes.priority import lower_priority
from training.processes.role import StopRequest
from training.recipe import RunConfig
from training.swarm.node.admission import Admission
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import read_records
from training.swarm.node.tokens import check_tokens
from training.swarm.optimizer import SwarmOptimizer
from training.tasks.known import task_of
from training.tasks.task import Task, TrainedModel
from training.trust.member import Member, MemberStop
from training.volunteer.arrival import arrive
from training.volunteer.belonging import Belonging, LeaveRequest
from training.volunteer.connection import Connection, connect
from training.volunteer.copies import Copies
from training.volunteer.loop import TrainingLoop
from training.volunteer.manners.awake import Awake
from training.volunteer.manners.commands import obey_all
from training.volunteer.manners.manners import Manners
from training.volunteer.preparation import check_settings, choose_settings, model_on_device
from training.volunteer.reporter import TOTAL_FILE, Reporter
from training.volunteer.samples import PLACE_FILE, own_samples, sample_seed
from training.volunteer.settings import PeerSettings
from training.volunteer.startup import link_in_use, link_warning
from training.volunteer.terminal.counted import Counted

SIGNAL_SECONDS = 1.0
"""A signal to all processes of a program, as at a shutdown, reaches them within this time of each other."""


def check_peer(run: RunConfig, settings: PeerSettings, state_dir: Path, *, events: EventLog, console: Console) -> None:
    """Checks everything that training needs (codecs, shards, network, recipe) without training.

    Raises:
        TrainingError: If something does not work; the message says what.
    """
    notices = Notices(events=events, console=console)
    check_settings(run.swarm, settings, notices)
    console.print("Averaging in 8 and 16 bit works on this machine.")
    identity, admission = Identity(state_dir), Admission.of(run)
    Member(run, identity, settings.credentials, admission, state_dir, notices)
    connection = connect(run, settings, identity, notices.warn, admission)
    task, shards = task_of(run), settings.shards or run.data.shards
    tokens, trusted = open_manifest(shards, kind=run.kind).tokens_digest, connection.redial.servers.ids
    check_tokens(connection.dht, run, identity, tokens, shards=shards, trusted=trusted)
    choices = choose_settings(task, settings, notices, build=_builder(task, settings))
    notices.show(link_in_use(connection.link))
    size = choices.micro_batch_size
    samples = own_samples(task, settings, state_dir / PLACE_FILE, seed=0, micro_batch_size=size, tell=notices.warn)
    console.print(f"The shards can be read; {task.describe(next(samples), shards)}.", markup=False)
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
    manners: Manners,
    events: EventLog,
    console: Console,
) -> None:
    """Trains until the run ends, `settings.epochs` is reached, or `stop` is requested.

    Args:
        run: The recipe.
        settings: Settings of this peer.
        state_dir: Folder that keeps this peer's identity and weights; commands to it come there too.
        stop: Asks the peer to leave.
        manners: Say when the peer may compute.
        events: Log of the peer's events.
        console: Shows technical lines.

    Raises:
        RefusedByRun: If the run trains another recipe, or on other tokens.
        TrainingError: If something does not work; the message says what.
    """
    keep_freed_memory()
    notices = Notices(events=events, console=console)
    check_settings(run.swarm, settings, notices)
    identity, admission = Identity(state_dir), Admission.of(run)
    obey_all(state_dir, manners)
    awake = Awake(partial(stop.start, stderr=DEVNULL))
    member = Member(run, identity, settings.credentials, admission, state_dir, notices)
    connection = connect(run, settings, identity, notices.warn, admission)
    stop.listen()
    events.write("ready", addresses=connection.addresses)
    connection.redial.note_reach = lambda reach: events.write("reach", reach=reach)
    copies = Copies(connection.dht, run.run_id, identity, name=connection.name, tell=notices.warn)
    belonging = Belonging(connection, state_dir, notices, copies)
    stop = member.until_refused(stop)
    task, shards = task_of(run), settings.shards or run.data.shards
    manifest = open_manifest(shards, kind=run.kind)
    tokens, trusted = manifest.tokens_digest, connection.redial.servers.ids
    check_tokens(connection.dht, run, identity, tokens, shards=shards, trusted=trusted)
    member.bind(belonging.lineage)
    build = _builder(task, settings)
    choices = choose_settings(task, settings, notices, build=build)
    facts = {"shards": shards, "codec_digest": manifest.codec_digest}
    kept = KeptWeights(folder=state_dir / KEPT_FOLDER, recipe_toml=settings.recipe_toml, **facts)
    reporter = Reporter(
        run,
        connection,
        belonging,
        state_dir,
        micro_batch_size=choices.micro_batch_size,
        tokens=tokens,
        warn=notices.warn,
    )
    model = build()
    peer = _Peer(
        task,
        settings,
        connection,
        belonging,
        member,
        choices,
        model,
        reporter,
        notices,
        tokens,
        kept,
        state_dir,
        manners,
        awake,
    )
    epoch = 0
    try:
        epoch = peer.take_part(settings.resume, stop)
        while belonging.is_left and not (stop.asked or copies.is_second or belonging.has_moved):
            peer.go_over(epoch)
            epoch = peer.take_part(None, stop)
    finally:
        connection.redial.stop()
        if not copies.is_second:  # the other process stays, so this one posts no last record
            reporter.leave()
        events.write("stopped", epoch=epoch)
    member.check()
    if not stop.asked:
        copies.check(TOTAL_FILE)  # the contribution so far stays with the other process
        connection.check_reach()
    console.print(f"{connection.name} leaves at epoch {epoch}. Thank you!", markup=False)


def _builder(task: Task, settings: PeerSettings) -> Callable[[], TrainedModel]:
    """Makes a function that builds the model on its device at the first call, and returns that model afterwards."""
    return cache(partial(model_on_device, task, settings.wishes.device))


@dataclass(frozen=True)
class _Peer:
    """Parts of a volunteer's peer that stay when it changes to another lineage."""

    task: Task
    settings: PeerSettings
    connection: Connection
    belonging: Belonging
    member: Member
    choices: Choices
    model: TrainedModel
    reporter: Reporter
    notices: Notices
    tokens: str
    """Digest of the tokens that the peer trains on."""
    kept: KeptWeights
    """Weights that the peer keeps on disk."""
    state_dir: Path
    manners: Manners
    awake: Awake

    def take_part(self, resume: Path | None, stop: MemberStop) -> int:
        """Trains in the current lineage until the lineage is left or the peer stops. Returns the last epoch."""
        connection, belonging, run = self.connection, self.belonging, self.task.run
        keeping = Keeping(self.kept)
        until = belonging.until_left(stop)
        with belonging.resting, self.member.resting:
            optimizer = SwarmOptimizer(
                self.model,
                run,
                dht=connection.dht,
                identity=connection.identity,
                lineage=belonging.lineage,
                micro_batch_size=self.choices.micro_batch_size,
                client_mode=connection.client_mode,
            )
        stop.listen()
        try:
            source = arrive(
                optimizer,
                run,
                belonging=belonging,
                resume=resume,
                kept=self.kept,
                stop=until,
                notices=self.notices,
            )
            if source is not None:
                # Another peer with other tokens may have come meanwhile.
                facts = {"shards": self.kept.shards, "trusted": connection.redial.servers.ids}
                check_tokens(connection.dht, run, connection.identity, self.tokens, **facts)
                self._train(optimizer, source, until, keeping)
        finally:
            if not belonging.copies.is_second:
                optimizer.say_goodbye()
            belonging.remember(optimizer.local_epoch)
        if source is not None and not (belonging.is_left or belonging.copies.is_second):
            self.reporter.leave()  # first: writing takes time, and the peer may be ended meanwhile
            keeping.leave(optimizer, self.model, belonging.lineage)
        if belonging.is_left and not stop.asked:  # otherwise the processes end with the role
            optimizer.shutdown()
            keeping.finish()  # a folder has one writer
        return optimizer.local_epoch

    def go_over(self, epoch: int) -> None:
        """Changes to the lineage that the run's servers announce, with the weights with which every peer begins."""
        self.reporter.begin_anew()
        self.belonging.go_over(epoch)
        self.member.bind(self.belonging.lineage)
        load_trained_state(self.model, trained_state(self.task.build_trained_part()))

    def _train(self, optimizer: SwarmOptimizer, source: str, until: LeaveRequest, keeping: Keeping) -> None:
        """Trains to the end. If training fails and the run can no longer be reached, the error says so."""
        give_back_freed_memory()
        self.reporter.begin(optimizer.local_epoch)
        self.belonging.remember(optimizer.local_epoch)
        self._announce(optimizer, source)
        peer_id, reporter = str(self.connection.identity.peer_id), self.reporter
        counted = Counted(peer_id, sites=self.belonging.sites, brought=lambda: reporter.samples, tell=self.notices.warn)
        self.belonging.look_also = counted.look
        if not self.settings.normal_priority:
            lower_priority()
        try:
            samples = own_samples(
                self.task,
                self.settings,
                self.state_dir / PLACE_FILE,
                seed=sample_seed(self.settings, self.connection.identity, optimizer.local_epoch),
                micro_batch_size=self.choices.micro_batch_size,
                tell=self.notices.warn,
            )
            with closing(samples):  # otherwise its threads would fetch on beside those of another lineage
                loop = TrainingLoop(
                    schedule=self.task.run.schedule,
                    swarm=self.task.run.swarm,
                    choices=self.choices,
                    model=self.model,
                    optimizer=optimizer,
                    samples=samples,
                    reporter=self.reporter,
                    notices=self.notices,
                    manners=self.manners,
                    awake=self.awake,
                    reconnect=self.connection.redial.wake,
                    keep=partial(keeping.look, optimizer, self.model, self.belonging.lineage),
                )
                loop.train(self.settings.epochs, until)
        except ProcessEnded:
            if not until.wait(SIGNAL_SECONDS):  # without its node a peer reaches no other
                raise
        except TrainingError as error:
            if self.connection.reaches_servers:
                raise
            raise TrainingError(
                f"{error} The run's servers no longer answer either: the run is over, or this machine is offline.",
                cure="Check your connection; if it works, the run's page says whether the run is still on.",
            ) from None

    def _announce(self, optimizer: SwarmOptimizer, source: str) -> None:
        """Announces this peer's bandwidth to the other peers, and prints the epoch at which it joined."""
        connection, run, notices = self.connection, self.task.run, self.notices
        link = replace(
            connection.link,
            download_bytes=optimizer.last_download[0],
            download_seconds=optimizer.last_download[1],
            told_mbits=self.settings.max_upload_mbits,
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
            credit_samples=self.reporter.samples,
        )
        notices.show(link_in_use(link))
        parameters = self.choices.trained_parameters
        notices.console.print(
            Text.assemble(
                (connection.name, "bold"),
                f" joins {run.run_id} at epoch {optimizer.local_epoch} with {source}: {parameters:,} parameters.",
            )
        )
        if (slow := link_warning(run.swarm, link, parameters)) is not None:
            notices.warn(slow)
