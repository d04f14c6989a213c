"""A volunteer's peer: streams samples, computes gradients, and trains the model together with the others."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import torch
from hivemind.dht import DHT
from rich.console import Console

from training.compute.choices import Choice, Choices, Wishes, choose
from training.compute.machine import torch_device, usable_cores
from training.compute.micro_batches import MicroBatches, is_out_of_memory
from training.compute.plan import built_on_paper
from training.config import RunConfig
from training.data.stream import Batch, open_manifest, open_shards, sample_stream
from training.errors import TrainingError
from training.model.memory import give_back_freed_memory, keep_freed_memory
from training.model.transformer import TextToImageTransformer, build_model
from training.optim.lamb import parameter_groups
from training.processes.events import EventLog
from training.processes.role import StopRequest
from training.swarm.build import build_swarm_optimizer
from training.swarm.codecs import exchange_codec
from training.swarm.dht import WORD_SECONDS, check_recipe, connection_seconds, full_addresses, post_recipe, start_dht
from training.swarm.early import EarlyDownload
from training.swarm.epochs import EpochReport
from training.swarm.identity import Identity
from training.swarm.metrics import MetricsBoard, PeerRecord, read_records
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.selftest import check_exchange
from training.swarm.tokens import check_tokens, tell_tokens
from training.volunteer.arrival import arrive
from training.volunteer.startup import (
    Link,
    check_files,
    check_flags,
    check_times,
    link_in_use,
    link_warning,
    settings_in_use,
)

SERVE_SECONDS = 30.0
"""After the last epoch of the schedule a peer serves its state for so long, for the last checkpoint."""
NOT_FINITE_IN_A_ROW = 10
"""A peer whose loss is not finite so many times takes the state of the others anew."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """What belongs to this peer alone; the run does not mind."""

    initial_peers: tuple[str, ...]
    """Full addresses of peers that are there."""
    name: str | None = None
    """Shown on the leaderboard; None: made from the peer's id."""
    wishes: Wishes = field(default_factory=Wishes)
    """What the volunteer has said about device, memory and precision."""
    threads: int | None = None
    """Threads that compute; None: one for each core."""
    epochs: int | None = None
    """Stop when the run has done so many; None: at the end of its schedule."""
    resume: Path | None = None
    """Folder of checkpoints; the latest is used unless the run is already further."""
    shards: str | None = None
    """Folder or URL of the shards, if not where the recipe says."""
    bandwidth_mbits: float | None = None
    """What its link carries, in Mbit/s; None: as measured, if it was."""
    client_mode: bool = False
    """Accept no incoming connections."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses at which others reach it, if they differ."""
    seed: int | None = None
    """Seed of the order of samples; None: from the peer's id."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a peer has done in all, over restarts."""

    samples: int = 0
    seconds: float = 0.0
    averaged_epochs: int = 0
    alone_epochs: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    @classmethod
    def read(cls, path: Path) -> Contribution:
        """From its file; an empty one if there is none or it cannot be read."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        return cls()

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(self.__dict__), encoding="utf-8")
        os.replace(draft, path)

    def plus(self, report: EpochReport, seconds: float) -> Contribution:
        """With one more epoch."""
        return Contribution(
            samples=self.samples + report.samples,
            seconds=self.seconds + seconds,
            averaged_epochs=self.averaged_epochs + (report.senders > 1),
            alone_epochs=self.alone_epochs + report.alone,
            bytes_sent=self.bytes_sent + report.bytes_sent,
            bytes_received=self.bytes_received + report.bytes_received,
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How the peer is doing now; the trainer replaces it, the reporter reads it."""

    status: str = "joining"
    epoch: int = 0
    loss: float | None = None
    samples_per_second: float = 0.0
    group_size: int = 0
    contribution: Contribution = field(default_factory=Contribution)


class Reporter:
    """A thread that posts the peer's record as often as the recipe says, also while an epoch runs.

    Now and then it says the peer's recipe and tokens as well.
    """

    def __init__(self, run: RunConfig, dht: DHT, identity: Identity, *, name: str, micro_batch_size: int, tokens: str):
        self._run, self._dht, self._identity = run, dht, identity
        self._name, self.micro_batch_size, self._tokens = name, micro_batch_size, tokens
        self._board = MetricsBoard(dht=dht, run_id=run.run_id, expiration_seconds=run.swarm.metrics_expiration_seconds)
        self._version = importlib.metadata.version("training-transformers-together") if _installed() else "checkout"
        self.standing = Standing()
        self._news, self._finished = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="reporter")
        self._thread.start()

    def update(self, standing: Standing) -> None:
        """Has the new standing posted soon."""
        self.standing = standing
        self._news.set()

    def leave(self, timeout_seconds: float = 1.5) -> None:
        """Posts the last word."""
        self._finished.set()
        self._news.set()
        self._thread.join(timeout_seconds)
        with suppress(Exception):  # the network may be gone already
            tell_tokens(self._dht, self._run, self._identity, "")
            self._post(replace(self.standing, status="leaving")).result(timeout=timeout_seconds)

    def _work(self) -> None:
        renewed = -math.inf
        while not self._finished.is_set():
            with suppress(Exception):  # a record that is lost now is posted again soon
                self._post(self.standing)
                if time.monotonic() - renewed > WORD_SECONDS / 3:
                    post_recipe(self._dht, self._run, self._identity)
                    tell_tokens(self._dht, self._run, self._identity, self._tokens)
                    renewed = time.monotonic()
            self._news.wait(self._run.swarm.metrics_every_seconds)
            self._news.clear()

    def _post(self, standing: Standing):
        done = standing.contribution
        record = PeerRecord(
            name=self._name,
            peer_id=str(self._identity.peer_id),
            status=standing.status,
            epoch=standing.epoch,
            loss=standing.loss,
            samples=done.samples,
            samples_per_second=standing.samples_per_second,
            seconds=done.seconds,
            group_size=standing.group_size,
            averaged_epochs=done.averaged_epochs,
            alone_epochs=done.alone_epochs,
            micro_batch_size=self.micro_batch_size,
            bytes_sent=done.bytes_sent,
            bytes_received=done.bytes_received,
            version=self._version,
            time=time.time(),
        )
        return self._board.post(record, self._identity)


def check_peer(run: RunConfig, settings: PeerSettings, state_dir: Path, *, events: EventLog, console: Console) -> None:
    """Everything but training: codecs, shards, network, recipe.

    Raises:
        TrainingError: What does not work, in a sentence.
    """
    _check(run, settings, events, console)
    console.print("Averaging in 8 and 16 bit works here.")
    identity = Identity(state_dir)
    dht, link = _connect(run, settings, identity)
    _check_tokens(dht, run, settings, identity)
    choices = _choose(run, settings, events, console, build=cache(partial(_model, run, settings)))
    _show(link_in_use(link), console)
    batch = next(_batches(run, settings, seed=0, micro_batch_size=choices.micro_batch_size))
    console.print(f"The shards can be read; one begins with {batch.captions[0]!r}.")
    others = [record.name for record in read_records(dht, run.run_id) if record.status != "leaving"]
    console.print(
        f"The run {run.run_id} is there, with this recipe ({run.digest}); it trains with {len(others)} peers."
    )
    console.print("All is well: leave --dry-run away to train.")


def run_peer(
    run: RunConfig,
    settings: PeerSettings,
    state_dir: Path,
    *,
    stop: StopRequest,
    events: EventLog,
    console: Console,
) -> None:
    """Trains until the run's end, `settings.epochs`, or until it is asked to stop.

    Raises:
        RefusedByRun: If the run trains another recipe, or on other tokens.
        TrainingError: If something does not work; the message says what.
    """
    keep_freed_memory()
    _check(run, settings, events, console)
    identity = Identity(state_dir)
    dht, link = _connect(run, settings, identity)
    stop.listen()
    events.write("ready", addresses=[] if settings.client_mode else full_addresses(dht))
    early = _download_early(dht, run) if settings.resume is None else None
    tokens = _check_tokens(dht, run, settings, identity)
    build = cache(partial(_model, run, settings))
    choices = _choose(run, settings, events, console, build=build)

    name = settings.name or f"volunteer-{str(identity.peer_id)[-4:]}"
    reporter = Reporter(run, dht, identity, name=name, micro_batch_size=choices.micro_batch_size, tokens=tokens)
    contribution_file = state_dir / "contribution.json"
    reporter.update(Standing(contribution=Contribution.read(contribution_file)))
    model = build()
    model.activation_budget_bytes = choices.activation_budget_bytes
    optimizer = build_swarm_optimizer(
        model,
        run,
        dht=dht,
        identity=identity,
        micro_batch_size=choices.micro_batch_size,
        client_mode=settings.client_mode,
    )
    stop.listen()
    try:
        source = arrive(
            optimizer,
            run,
            early=early,
            resume=settings.resume,
            shards=settings.shards or run.data.shards,
            stop=stop,
            console=console,
        )
        if early is not None:
            early.drop()
        if source is None:
            return
        # another one may have come at the same time
        check_tokens(dht, run, identity, tokens, shards=settings.shards or run.data.shards)
        give_back_freed_memory()
        parameters = sum(parameter.numel() for parameter in model.parameters())
        link = replace(
            link,
            download_bytes=optimizer.last_download[0],
            download_seconds=optimizer.last_download[1],
            told_mbits=settings.bandwidth_mbits,
        )
        optimizer.declare_bandwidth(link.mbits)
        events.write(
            "joined",
            name=name,
            peer_id=str(identity.peer_id),
            epoch=optimizer.local_epoch,
            state=source,
            link=asdict(link),
        )
        _show(link_in_use(link), console)
        console.print(
            f"[bold]{name}[/bold] joins {run.run_id} at epoch {optimizer.local_epoch} with {source}: "
            f"{parameters:,} parameters."
        )
        if (slow := link_warning(run, link, parameters)) is not None:
            _warn(slow, events, console)
        trainer = _Trainer(run, settings, choices, model, optimizer, reporter, contribution_file, events, console)
        seed = _sample_seed(settings, identity, optimizer.local_epoch)
        try:
            trainer.train(_batches(run, settings, seed=seed, micro_batch_size=choices.micro_batch_size), stop)
        except TrainingError as error:
            if _answers(settings):
                raise
            raise TrainingError(
                f"{error} The run's initial peers do not answer any more either: the run is over, or this machine is "
                "offline."
            ) from None
    finally:
        optimizer.say_goodbye()
        reporter.leave()
        events.write("stopped", epoch=optimizer.local_epoch)
    console.print(f"{name} leaves at epoch {optimizer.local_epoch}. Thank you!")


@dataclass
class _WeightedMean:
    """Of losses, by samples."""

    total: float = 0.0
    samples: int = 0

    def add(self, value: float, samples: int) -> None:
        self.total += value * samples
        self.samples += samples

    @property
    def mean(self) -> float:
        return self.total / self.samples


@dataclass
class _Trainer:
    """The loop over micro-batches, with its count of the current epoch."""

    run: RunConfig
    settings: PeerSettings
    choices: Choices
    model: torch.nn.Module
    optimizer: SwarmOptimizer
    reporter: Reporter
    contribution_file: Path
    events: EventLog
    console: Console
    not_finite: int = 0

    def train(self, batches: Iterator[Batch], stop: StopRequest) -> None:
        last = min(self.settings.epochs or self.run.schedule.total_epochs, self.run.schedule.total_epochs)
        micro_batches = MicroBatches(
            self.model,
            micro_batch_size=self.choices.micro_batch_size,
            precision=self.choices.precision,
            tell=self._warn,
        )
        losses = _WeightedMean()
        began = time.monotonic()
        self.model.train()
        while self.optimizer.local_epoch < last and not stop.asked:
            for piece in micro_batches.gradients_of(next(batches)):
                self.reporter.micro_batch_size = micro_batches.micro_batch_size
                if not self._is_finite(piece.loss):
                    continue
                losses.add(piece.loss, piece.samples)
                self.optimizer.step(batch_size=piece.samples)
                self.optimizer.zero_grad()
                for report in self.optimizer.take_epoch_reports():
                    if report.missed:
                        self._warn(f"Epoch {report.epoch + 1} was missed: {report.fault}.")
                        continue
                    seconds, began = time.monotonic() - began, time.monotonic()
                    self._end_epoch(report, losses.mean, seconds)
                    losses = _WeightedMean()
                if self.optimizer.local_epoch >= last or stop.asked:
                    break
        if self.optimizer.local_epoch >= self.run.schedule.total_epochs and not stop.asked:
            self.console.print(f"The schedule is done; serving the result for {SERVE_SECONDS:.0f} s.")
            stop.wait(SERVE_SECONDS)

    def _is_finite(self, loss: float) -> bool:
        """Whether this loss can be trained on; a peer that has met many that cannot takes the others' state."""
        if math.isfinite(loss):
            self.not_finite = 0
            return True
        self.not_finite += 1
        self._warn(f"The loss is {loss}; this micro-batch is left out.")
        if self.not_finite >= NOT_FINITE_IN_A_ROW and not self.optimizer.load_state_from_peers():
            raise TrainingError(f"The loss was not finite {self.not_finite} times, and no peer gives a better state.")
        return False

    def _end_epoch(self, report: EpochReport, loss: float, seconds: float) -> None:
        speed = report.samples / seconds if seconds else 0.0
        contribution = self.reporter.standing.contribution.plus(report, seconds)
        contribution.write(self.contribution_file)
        self.reporter.update(
            Standing(
                status="training",
                epoch=report.epoch,
                loss=loss,
                samples_per_second=speed,
                group_size=report.senders,
                contribution=contribution,
            )
        )
        self.events.write(
            "epoch",
            epoch=report.epoch,
            loss=loss,
            samples=report.samples,
            group_size=report.group_size,
            senders=report.senders,
            own_share=report.own_share,
            step_seconds=seconds,
            averaging_seconds=report.averaging_seconds,
            waiting_seconds=report.waiting_seconds,
            bytes_sent=report.bytes_sent,
            bytes_received=report.bytes_received,
            update_samples=report.update_samples,
        )
        together = f"with {report.senders - 1} others" if report.senders > 1 else "alone"
        self.console.print(
            f"epoch {report.epoch:>5}  loss {loss:.4f}  {report.samples:>5} samples  {speed:6.1f}/s  {together}"
        )
        if report.alone:
            self._warn(f"Epoch {report.epoch} was not averaged though {report.others} others train: {report.fault}.")
        elif report.fault:
            self._warn(f"Epoch {report.epoch} was averaged in part: {report.fault}; the weights are averaged soon.")
        if report.note:
            self._warn(f"Epoch {report.epoch}: {report.note}.")

    def _warn(self, text: str) -> None:
        _warn(text, self.events, self.console)


def _warn(text: str, events: EventLog, console: Console) -> None:
    events.write("warning", text=text)
    console.print(f"[yellow]{text}[/yellow]")


def _connect(run: RunConfig, settings: PeerSettings, identity: Identity) -> tuple[DHT, Link]:
    """A node that has found the run, and what was seen of the network on the way."""
    dht = start_dht(
        run,
        identity,
        initial_peers=settings.initial_peers,
        host_maddrs=settings.host_maddrs,
        announce_maddrs=settings.announce_maddrs,
        client_mode=settings.client_mode,
    )
    check_recipe(dht, run)
    return dht, Link(answer_seconds=tuple(seconds for seconds in _answers(settings) if seconds is not None))


def _check_tokens(dht: DHT, run: RunConfig, settings: PeerSettings, identity: Identity) -> str:
    """Digest of the tokens of this peer's shards, which are the run's.

    Raises:
        BadInput: If the shards cannot be read.
        RefusedByRun: If the others train on other tokens.
    """
    shards = settings.shards or run.data.shards
    digest = open_manifest(shards).tokens_digest
    check_tokens(dht, run, identity, digest, shards=shards)
    return digest


def _download_early(dht: DHT, run: RunConfig) -> EarlyDownload:
    """Begins to download the run's state, if it has one; meanwhile the peer is made."""
    groups = parameter_groups(built_on_paper(run.model), run.optimizer.weight_decay)
    return EarlyDownload(dht, run, shapes=[parameter.shape for group in groups for parameter in group["params"]])


def _answers(settings: PeerSettings) -> list[float | None]:
    """How soon each initial peer that answers does; None where that cannot be measured."""
    answers = []
    for address in settings.initial_peers:
        with suppress(OSError):  # another one may answer
            answers.append(connection_seconds(address))
    return answers


def _check(run: RunConfig, settings: PeerSettings, events: EventLog, console: Console) -> None:
    """Flags, recipe, this process' limits and codecs, before anything else is done.

    Raises:
        BadInput: If two settings do not suit each other, or one does not suit this machine.
        TrainingError: If averaging does not work here.
    """
    torch.set_num_threads(settings.threads or usable_cores())
    check_flags(
        run,
        micro_batch_size=settings.wishes.micro_batch_size,
        threads=settings.threads,
        client_mode=settings.client_mode,
        announce_maddrs=settings.announce_maddrs,
    )
    check_times(run)
    if (few_files := check_files(run)) is not None:
        _warn(few_files, events, console)
    swarm = run.swarm
    check_exchange(exchange_codec(swarm.compression_threshold, swarm.gradient_codec), swarm.compression_threshold)


def _choose(
    run: RunConfig,
    settings: PeerSettings,
    events: EventLog,
    console: Console,
    *,
    build: Callable[[], TextToImageTransformer],
) -> Choices:
    """How this peer trains, told with its reasons."""
    choices = choose(run, settings.wishes, build=build)
    parameters = sum(parameter.numel() for parameter in built_on_paper(run.model).parameters())
    every = (*choices.reasons, *settings_in_use(run, parameters=parameters, threads=torch.get_num_threads()))
    for choice in every:
        _show(choice, console)
    events.write("chosen", choices=[asdict(choice) for choice in every])
    return choices


def _show(choice: Choice, console: Console) -> None:
    console.print(f"{choice.name:<12} [bold]{choice.value}[/bold]: {choice.reason}.")


def _model(run: RunConfig, settings: PeerSettings) -> TextToImageTransformer:
    device = torch_device(settings.wishes.device)
    try:
        return build_model(run.model, run.seed).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"There is not memory enough for the model's weights on {device}. Close other programs, or choose another "
            "device with --device; `python -m training plan` says what the model takes."
        ) from None


def _batches(run: RunConfig, settings: PeerSettings, *, seed: int, micro_batch_size: int) -> Iterator[Batch]:
    shards = open_shards(settings.shards or run.data.shards, "train")
    return sample_stream(
        shards,
        model=run.model,
        shuffle_buffer=run.data.shuffle_buffer,
        peer_seed=seed,
        micro_batch_size=micro_batch_size,
    )


def _sample_seed(settings: PeerSettings, identity: Identity, epoch: int) -> int:
    """Another order for each peer, and for the same peer after a restart."""
    if settings.seed is not None:
        return settings.seed
    return int.from_bytes(hashlib.sha256(f"{identity.peer_id}:{epoch}".encode()).digest()[:4])


def _installed() -> bool:
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("training-transformers-together"))
    return False
