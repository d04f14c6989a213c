"""Monitor: watches a run, keeps its history and checkpoints, draws its prompts, and publishes all of it on the web.

The monitor only observes: it reads the peers' metric records, downloads the state as a newcomer would, and never joins
an averaging group, so the run continues unchanged without it. It welcomes newcomers as the bootstrap peer does, so that
they also find the run while the bootstrap peer is away.
"""

from __future__ import annotations

import json
import re
import socket
import time
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from fastapi import FastAPI
from rich.console import Console

from training.checkpoints.branches import set_aside_damaged
from training.checkpoints.checkpoint import ancestors_of, checkpoint_epoch, latest_checkpoint, lineage_of
from training.checkpoints.folders import STATE_FOLDER
from training.checkpoints.serve.site import CheckpointSite
from training.data.store.sets import open_manifest
from training.errors import BadInput, BeginsAnew, RefusedByRun, TrainingError, reason_of
from training.generate.clip import check_scores
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.processes.role import StopRequest
from training.processes.servers.ports import LOOPBACK, SITE_PORT, listens_at
from training.processes.servers.web import listen_at, serve_in_thread
from training.publish.card import model_card
from training.publish.copies.push import Pusher, Target, open_target
from training.publish.history.history import History
from training.publish.invitation import join_command
from training.publish.keeper import Keeper, codec_of_run
from training.publish.live import live
from training.publish.live.watch import Watch
from training.publish.needs import needs_of
from training.recipe import RunConfig, parse_recipe, read_recipe
from training.storage.room import await_room, beginning
from training.swarm.node.addresses import address_to_tell, id_of, settle_ports, widest
from training.swarm.node.admission import Admission
from training.swarm.node.dht import DHT, MESSAGE_SECONDS, check_node, check_recipe, full_addresses, post_recipe
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import PeerRecord, named_accounts, read_believable
from training.swarm.node.tokens import check_tokens, post_tokens
from training.swarm.run.lineage import Lineage
from training.swarm.run.online import go_online
from training.swarm.run.redial import Redial
from training.swarm.run.server_lineage import ServerLineage
from training.trust.client import Credentials
from training.trust.member import Member, MemberStop

ALONE_SECONDS = 5.0
"""Time for which a monitor that comes back before all others looks for volunteers who announce another recipe."""
POLL_SECONDS = 1.0
"""Interval at which the peers' records are read."""


@dataclass(frozen=True, kw_only=True)
class MonitorFlags:
    """Settings of the monitor on this machine; the recipe has those of the run."""

    recipe: str
    initial_peers: tuple[str, ...]
    run_dir: Path
    """Folder for `history.sqlite`, `checkpoints/` and `pictures/`."""
    shards: Path | None = None
    """Prepared shards to serve to volunteers; the served recipe then points to them."""
    site: Path | None = None
    host: str = "127.0.0.1"
    port: int = SITE_PORT
    public_url: str | None = None
    """Address under which others reach this monitor; None: http://host:port."""
    join_command: str | None = None
    """Command that the join page shows; None: the usual command."""
    host_maddrs: tuple[str, ...] = (listens_at(),)
    """Addresses to listen on for peers; port 0 becomes a free one, which the run's folder keeps."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses at which peers reach this monitor, if they differ from `host_maddrs`."""
    credentials: Credentials = field(default=Credentials(), repr=False)
    """Credentials that this monitor may show to the membership server, in a run that admits members only."""
    push_to: str | None = None
    """Place to which checkpoints are copied; see `training.publish.copies.push`."""
    clip: str | None = None
    """Folder or name of the CLIP model that scores pictures of held-out captions; None: none does."""
    log_json: Path | None = None
    one_machine: bool = False
    """True if all volunteers are programs on one machine, as in the demo; pages say so."""

    @property
    def url(self) -> str:
        """Address of the site, without a trailing slash."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def announced_url(self) -> str | None:
        """Address of the site for volunteers; None if this monitor knows no address at which they reach it."""
        return None if self.public_url is None and self.host in LOOPBACK else self.url


def run_monitor(flags: MonitorFlags, stop: StopRequest, *, meanwhile: CheckpointSite) -> None:
    """Watches until `stop` is requested.

    Args:
        flags: Settings of this monitor.
        stop: Request to the monitor to end.
        meanwhile: Site that serves at the monitor's port until the monitor itself serves.

    Raises:
        BadInput: If the recipe, the port or a folder cannot be used, or the shards are not those of the checkpoints.
        RefusedByRun: If the run has another recipe, or trains on tokens other than those of the shards, or the
            membership server gives this monitor no ticket.
        TrainingError: If another monitor is writing the same history.
        DiskFilled: If the disk fills up before the monitor watches; at its next start it waits for room.
    """
    recipe_toml = read_recipe(flags.recipe)
    run = parse_recipe(recipe_toml, source=flags.recipe)
    if flags.clip is not None:
        check_scores(run.kind)
    if flags.shards is not None:
        recipe_toml = with_shards(recipe_toml, f"{flags.url}/shards")
    shards = str(flags.shards or run.data.shards)
    target = open_target(flags.push_to, run.monitor) if flags.push_to is not None else None
    torch.set_num_threads(1)
    events = EventLog(flags.log_json)
    await_room(flags.run_dir, stop.wait, partial(_warn, events))
    if stop.asked:
        return
    identity = Identity(flags.run_dir / STATE_FOLDER)
    damaged = set_aside_damaged(flags.run_dir / "checkpoints")
    codec_digest = codec_of_run(run, shards, flags.run_dir)
    admission = Admission.of(run)
    member = _member(flags, run, identity, admission, events)
    # hivemind forks processes that inherit open files, so we take the history's lock and the port only after the DHT
    # has started; otherwise a leftover child would keep both.
    redial = _go_online(flags, run, identity, admission)
    dht = redial.dht
    has_stored = latest_checkpoint(flags.run_dir / "checkpoints") is not None
    tokens = _Tokens(dht, run, identity, shards, trusted=redial.servers.ids, has_stored=has_stored)
    lineage = _lineage(flags, redial, run, identity)
    member.bind(lineage.lineage)
    with ExitStack() as running:
        with beginning(flags.run_dir):
            history = running.enter_context(closing(_history(flags, run)))
            _note_damage(history, events, damaged)
            pusher = _pusher(flags, run, target, history, events)
            kept = {"run_dir": flags.run_dir, "shards": shards, "codec_digest": codec_digest, "clip": flags.clip}
            keeper = Keeper(run, recipe_toml, **kept, dht=dht, history=history, events=events, pusher=pusher)
            invitation = _invitation(flags, redial, members_only=not run.membership.open)
            facts = {"servers": lineage.servers, "parameters": keeper.parameters, "one_machine": flags.one_machine}
            facts["reconstruction_error"] = _reconstruction_error(run, shards)
            live.store_run(history, run, recipe_toml, **invitation, **facts, **needs_of(run))
            _enter(lineage.lineage, history, keeper)
            watch = Watch(history, run.swarm, reach=redial.reachability)
            meanwhile.end()
            running.enter_context(_serving(_app(history, flags, watch), flags.host, flags.port))
            running.enter_context(watch)
            history.add_event("started", "monitor", f"watches at {flags.url}")
        events.write("ready", url=flags.url, lineage=lineage.lineage.id, **invitation)
        print(f"Watching the run {run.run_id} at {flags.url}", flush=True)
        _watch(watch, history, dht, run, keeper, tokens, lineage, member, member.until_refused(stop))
        _note_end(history, events)
        watch.let_pages_know()
    redial.stop()
    member.check()


def _reconstruction_error(run: RunConfig, shards: str) -> float | None:
    """Reads the error of the codec of pictures from the shards' manifest; None for text, or if it cannot be read."""
    with suppress(BadInput):
        return getattr(open_manifest(shards, kind=run.kind), "reconstruction_error", None)
    return None


def _history(flags: MonitorFlags, run: RunConfig) -> History:
    return History(
        flags.run_dir / "history.sqlite",
        run_id=run.run_id,
        recipe_digest=run.digest,
        expiration_seconds=run.swarm.metrics_expiration_seconds,
        target_batch_size=run.swarm.target_batch_size,
    )


def _note_damage(history: History, events: EventLog, checkpoints: Sequence[str]) -> None:
    """Notes what was found to be damaged when the monitor started, in the history and the event log."""
    for sentence in [*([history.mended] if history.mended is not None else []), *checkpoints]:
        _warn(events, f"Warning: {sentence}")
    for sentence in checkpoints:
        history.add_event("warning", "monitor", sentence)


def _note_end(history: History, events: EventLog) -> None:
    """Notes in the history and the event log that the monitor has ended. Only warns of a full disk."""
    try:
        history.add_event("stopped", "monitor", "has stopped watching")
    except TrainingError as error:
        _warn(events, f"Warning: {error}")
    events.write("stopped")


def _warn(events: EventLog, text: str) -> None:
    print(text, flush=True)
    events.write("warning", text=text)


def _member(
    flags: MonitorFlags, run: RunConfig, identity: Identity, admission: Admission | None, events: EventLog
) -> Member:
    """Makes the monitor a member, and gets its first ticket."""
    notices = Notices(events=events, console=Console(highlight=False, soft_wrap=True))
    return Member(run, identity, flags.credentials, admission, identity.path.parent, notices)


def _go_online(flags: MonitorFlags, run: RunConfig, identity: Identity, admission: Admission | None) -> Redial:
    """Starts this monitor's node and checks that the run has this recipe.

    A monitor that was in the run before may come back before all others, as after a power cut.
    """
    redial = go_online(
        run,
        identity,
        flags.initial_peers,
        host_maddrs=settle_ports(identity.path.parent, flags.host_maddrs),
        announce_maddrs=flags.announce_maddrs,
        may_be_alone=True,
        admission=admission,
        tell=partial(print, flush=True),
    )
    reach = redial.reachability()
    patience = {} if reach.peers else {"patience_seconds": ALONE_SECONDS}
    # Peers that answer while no server does may have come back as well, and wait for a server.
    check_recipe(redial.dht, run, may_be_alone=not reach.answering, **patience)
    return redial


def _invitation(flags: MonitorFlags, redial: Redial, *, members_only: bool) -> dict[str, object]:
    """Facts for the join page: the servers' addresses, this monitor's among them, and the command for newcomers."""
    own = full_addresses(redial.dht)
    others = [address for address in widest(redial.servers.addresses) if id_of(address) != id_of(own[0])]
    if (told := address_to_tell(own, others)) is None:
        print(
            f"Newcomers are not told this monitor's own address, {own[0]}: it is more local than the other servers'. "
            "--announce-maddrs names one at which they can reach it."
        )
    initial_peers = [*others, *([told] if told is not None else [])]
    command = flags.join_command or join_command(flags.url, members_only=members_only)
    return {"initial_peers": initial_peers, "join_command": command}


def _lineage(flags: MonitorFlags, redial: Redial, run: RunConfig, identity: Identity) -> ServerLineage:
    """The lineage that this monitor announces: the kept one, or that of its newest checkpoint or the other servers."""
    latest = latest_checkpoint(flags.run_dir / "checkpoints")
    stored = lineage_of(latest) if latest is not None else None
    return ServerLineage(
        redial.dht,
        run,
        identity,
        flags.run_dir / STATE_FOLDER,
        servers=redial.servers,
        stored=Lineage(id=stored, ancestors=ancestors_of(latest)) if stored is not None else None,
        stored_epoch=checkpoint_epoch(latest) if latest is not None else 0,
        site=flags.announced_url,
        tell=lambda text: print(text, flush=True),
    )


def _enter(lineage: Lineage, history: History, keeper: Keeper) -> None:
    """Notes that the run has this lineage from now on."""
    keeper.enter(lineage)
    history.enter_lineage(lineage.id, lineage.ancestors)


def _try_to_enter(lineage: Lineage, history: History, keeper: Keeper, watch: Watch) -> bool:
    """Calls `_enter` while the monitor watches. Returns False on a full disk; the caller then tries again.

    Until it succeeds, the history leaves out what volunteers of the new lineage report; their records repeat it.
    """
    try:
        _enter(lineage, history, keeper)
    except BeginsAnew:
        raise
    except (TrainingError, OSError) as error:
        fault = TrainingError(
            f"The run has gone over to the lineage {lineage.id}, which cannot be noted: {reason_of(error)}",
            cure="Make room on the disk; the monitor then goes on by itself.",
        )
        watch.failed(fault)
        print(f"Warning: {fault} Trying again.", flush=True)
        return False
    return True


def _pusher(
    flags: MonitorFlags, run: RunConfig, target: Target | None, history: History, events: EventLog
) -> Pusher | None:
    if target is None:
        return None
    return Pusher(
        target,
        flags.push_to,
        checkpoints=flags.run_dir / "checkpoints",
        card=lambda checkpoint: model_card(checkpoint, run, history),
        events=events,
    )


def _app(history: History, flags: MonitorFlags, watch: Watch) -> FastAPI:
    """Makes the web application that the monitor serves."""
    return live.create_app(
        history,
        pictures=flags.run_dir / "pictures",
        checkpoints=flags.run_dir / "checkpoints",
        shards=flags.shards,
        site=flags.site,
        watch=watch,
    )


def _watch(
    watch: Watch,
    history: History,
    dht: DHT,
    run: RunConfig,
    keeper: Keeper,
    tokens: _Tokens,
    lineage: ServerLineage,
    member: Member,
    stop: MemberStop,
) -> None:
    """Follows the run until `stop` is requested, then takes a last checkpoint and a last reading."""
    keeper.start()
    has_entered = True
    while not stop.wait(POLL_SECONDS):
        check_node(dht)
        records = _observe(watch, history, dht, run, member)
        if lineage.renew(records):
            member.bind(lineage.lineage)
            has_entered = False
        has_entered = has_entered or _try_to_enter(lineage.lineage, history, keeper, watch)
        tokens.renew()
        keeper.look()
        keeper.check()
        with suppress(OSError):  # such as too many open files: the next look may succeed
            watch.saw_loss(keeper.loss_fault, keeper.saved_epoch())
        watch.saw_members_server(member.is_server_away)
    watch.stop()
    tokens.take_back()
    keeper.finish()
    _observe(watch, history, dht, run, member)  # notes the volunteers that stopped at the same time as the monitor


class _Tokens:
    """Announces the recipe, and the tokens that the run trains on, so that even the first volunteer is checked.

    Announces no tokens where the shards cannot be read, for example in a run that was prepared elsewhere.

    Args:
        dht: This monitor's node.
        run: The recipe.
        identity: This monitor's identity.
        shards: Location of the shards.
        trusted: Peer ids of the run's other servers.
        has_stored: Whether this monitor has a checkpoint of the run. Then its shards are those of the run, and other
            announcements, which may come from strangers, do not stop it.

    Raises:
        RefusedByRun: If volunteers already train on other tokens.
    """

    def __init__(
        self, dht: DHT, run: RunConfig, identity: Identity, shards: str, *, trusted: Collection[str], has_stored: bool
    ):
        self._dht, self._run, self._identity = dht, run, identity
        self._digest = ""
        with suppress(BadInput):
            self._digest = open_manifest(shards, kind=run.kind).tokens_digest
            try:
                check_tokens(dht, run, identity, self._digest, shards=shards, trusted=trusted)
            except RefusedByRun:
                if not has_stored:
                    raise
                print(
                    f"Warning: others announce other tokens than {self._digest}, those of {shards}. This monitor has "
                    "checkpoints of the run, so it goes on, and newcomers believe it.",
                    flush=True,
                )
            print(f"Volunteers must train on the tokens {self._digest}, those of {shards}.", flush=True)
        self._told = -MESSAGE_SECONDS
        self.renew()

    def renew(self) -> None:
        """Repeats the announcements before they expire in the DHT."""
        if time.monotonic() - self._told >= MESSAGE_SECONDS / 3:
            self._told = time.monotonic()
            post_recipe(self._dht, self._run, self._identity)
            if self._digest:
                post_tokens(self._dht, self._run, self._identity, self._digest)

    def take_back(self) -> None:
        """Withdraws the announcement of the tokens; then only those of volunteers count."""
        if self._digest:
            post_tokens(self._dht, self._run, self._identity, "")


def _observe(watch: Watch, history: History, dht: DHT, run: RunConfig, member: Member) -> list[PeerRecord]:
    """Writes the peers' records to the history, and returns them; returns an empty list if they cannot be read."""
    records: list[PeerRecord] = []
    try:
        records = read_believable(dht, run)
        # Besides peers, the list has accounts, which are no peer ids.
        banned = member.bans.until.keys() if member.bans is not None else ()
        history.observe(records, accounts=named_accounts(dht, records), banned=banned)
        watch.saw(records)
    except BeginsAnew:
        raise
    except TimeoutError:
        print("Warning: the DHT did not answer in time; trying again.", flush=True)
    except TrainingError as error:
        watch.failed(error)
        print(f"Warning: {error} Trying again.", flush=True)
    return records


@contextmanager
def _serving(app: FastAPI, host: str, port: int) -> Iterator[None]:
    """Serves the application in a thread within the block; at its end, open requests get two seconds to finish."""
    with socket.socket() as listener:
        try:
            listen_at(listener, host, port)
        except OSError as error:
            raise BadInput(f"The site cannot be served at {host}:{port}: {error}. Give another --port.") from None
        with serve_in_thread(listener, app):
            yield


def with_shards(recipe_toml: str, shards: str) -> str:
    """Returns the recipe's text with another address for the shards. Loses a comment on that line; all other text
    stays.

    Raises:
        BadInput: If the recipe does not name the shards in a line of its own.

    >>> print(with_shards('[data]\\nshards = "runs/demo/shards"', "http://x/shards"))
    [data]
    shards = "http://x/shards"
    """
    changed = re.sub(r"(?m)^(\s*shards\s*=\s*).*$", lambda found: f"{found[1]}{json.dumps(shards)}", recipe_toml)
    wanted = tomllib.loads(recipe_toml)
    wanted["data"]["shards"] = shards
    if tomllib.loads(changed) != wanted:
        raise BadInput("The recipe names its shards in an unusual way; write a line `shards = ...` below [data].")
    return changed
