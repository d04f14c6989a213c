"""A run in one process: its programs decide as the real ones do, over real files, a moved clock and a given network.

Each program has a thread, but only one runs at a time: a program that waits hands the turn back, and the world goes on
with the one that wakes next. So a run of minutes takes a second, and is the same each time.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from training.checkpoints.branches import set_aside_damaged
from training.checkpoints.checkpoint import ancestors_of, latest_checkpoint, lineage_of, save_checkpoint
from training.checkpoints.facts import damage_of
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.checkpoints.keep import EVERY_SECONDS, KeptWeights
from training.recipe import parse_recipe
from training.swarm.run import lineage, server_lineage
from training.swarm.run.lineage import Lineage
from training.swarm.run.server_lineage import ServerLineage
from training.swarm.state.alignment import AlignmentState
from training.tasks.known import task_of
from training.volunteer import arrival, belonging
from training.volunteer.belonging import Belonging
from training.volunteer.stored import Stored

RECORD_SECONDS, MESSAGE_SECONDS = 30.0, 600.0
"""Time after which a peer's record, and a server's message, disappear from the DHT."""
EPOCH_SECONDS, LOOK_SECONDS = 10.0, 5.0
CHECKPOINT_EVERY = 10
SITE = "http://run.example"
SERVERS = ("bootstrap", "monitor")


class Killed(BaseException):
    """The program was killed while it waited."""


class World:
    """The clock, the network, and the folders of all programs, which outlive these."""

    def __init__(self, folder: Path, recipe_toml: str):
        self.folder, self.recipe_toml, self.run = folder, recipe_toml, parse_recipe(recipe_toml)
        self.model = task_of(self.run).build_trained_part()
        self.now, self.programs, self.failed = 0.0, {}, None
        self.records: dict[str, tuple[float, SimpleNamespace]] = {}
        self.messages: dict[tuple[str, str], tuple[float, object]] = {}
        self.acquainted: set[str] = set()
        """Volunteers that have met the others, and so find the run without its bootstrap peer."""

    # -- programs ------------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Starts a program with its folder of before."""
        kind = {"bootstrap": Bootstrap, "monitor": Monitor}.get(name, Volunteer)
        self.programs[name] = kind(name, self)

    def kill(self, *names: str) -> None:
        """Ends programs without a word, as a power cut does."""
        for name in names:
            self.programs.pop(name).end()
        if not self.programs:
            self.records.clear()  # the network was they
            self.messages.clear()

    def stop(self, name: str) -> None:
        """Ends a program as Ctrl-C does."""
        self.programs[name].leave()
        self.kill(name)

    def wait(self, seconds: float) -> None:
        """Lets time pass, in which the programs do what they do."""
        until = self.now + seconds
        while self.programs:
            waking = min(self.programs.values(), key=lambda program: program.wakes)
            if waking.wakes > until:
                break
            self.now = max(self.now, waking.wakes)
            waking.go_on()
            if self.failed is not None:
                raise self.failed
        self.now = until

    def save(self, folder: Path, epoch: int, of: Lineage) -> Path:
        """Writes a checkpoint."""
        facts = {"metrics": {}, "shards": "s", "lineage": of, "recipe_toml": self.recipe_toml}
        return save_checkpoint(folder, model=self.model, epoch=epoch, **facts)

    # -- network -------------------------------------------------------------------------------------------------------

    def post(self, key: str, program: str, content: object) -> None:
        self.messages[key, program] = (self.now + MESSAGE_SECONDS, content)

    def posted(self, key: str) -> dict[str, object]:
        return {one: what for (of, one), (until, what) in self.messages.items() if of == key and until > self.now}

    def report(self, volunteer: Volunteer, status: str) -> None:
        """Puts a volunteer's record into the DHT."""
        facts = {"name": volunteer.name, "peer_id": volunteer.name, "time": self.now, "status": status}
        record = SimpleNamespace(**facts, epoch=volunteer.local_epoch, lineage=volunteer.belonging.lineage.id)
        self.records[volunteer.name] = (self.now + RECORD_SECONDS, record)

    def current_records(self) -> list[SimpleNamespace]:
        return [record for until, record in self.records.values() if until > self.now]

    @property
    def volunteers(self) -> list[Volunteer]:
        return [program for program in self.programs.values() if isinstance(program, Volunteer)]

    def training(self, lineage_id: str) -> list[Volunteer]:
        """Volunteers of a lineage that train."""
        there = [one for one in self.volunteers if one.trains and one.belonging.lineage.id == lineage_id]
        return sorted(there, key=lambda one: one.local_epoch)

    # -- what the programs take for the real thing ---------------------------------------------------------------------

    def patches(self) -> list[tuple[object, str, object]]:
        """Functions by which the programs see the network, the time and the run's site."""
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        thread = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: None), Lock=threading.Lock)

        def lineages(_dht, _run_id, *, total_epochs):
            return [lineage.LineageMessage.read(str(one), who) for who, one in self.posted("lineage").items()]

        def sites(_dht, _run_id, trusted):
            return sorted(url for who, url in self.posted("site").items() if who in trusted)

        read = {
            "read_records": lambda dht, run_id: self.current_records(),
            "read_believable": lambda dht, run: self.current_records(),
            "accounts_of_records": lambda dht, records: {},
            "posted_lineages": lineages,
            "posted_sites": sites,
            "post_lineage": lambda dht, run_id, message, who: self.post("lineage", who.peer_id, message.packed()),
            "post_site": lambda dht, run_id, url, who: self.post("site", who.peer_id, url),
            "progress_validator": lambda prefix: prefix,
            "id_in": lambda folder: folder.name if folder.is_dir() else None,
            "time": clock,
            "threading": thread,
            "time_of_day": lambda: self.now,
            "any_answers": lambda dht, peers, seconds: any(peer in self.programs for peer in peers),
            "check_node": lambda dht: None,
            "fetch_stored": self.fetch_stored,
        }
        places = (server_lineage, belonging, arrival)
        return [(place, name, what) for place in places for name, what in read.items() if hasattr(place, name)]

    def sleep(self, seconds: float) -> None:
        """Waits in the program that has the turn."""
        next(one for one in self.programs.values() if one.thread is threading.current_thread()).sleep(seconds)

    def fetch_stored(self, of: Belonging, run, *, stop, tell) -> Stored:
        """The newest checkpoint of the monitor's site, as `training.checkpoints.fetch` chooses it."""
        monitor = self.programs.get("monitor")
        if SITE not in of.sites() or monitor is None:
            return Stored()
        ours = [path for path in list_checkpoints(monitor.checkpoints) if lineage_of(path) == of.lineage.id]
        sound = [path for path in ours if damage_of(path) is None]
        if not sound:
            return Stored(is_nothing=True)
        return Stored(path=Path(shutil.copytree(sound[-1], of.downloads / sound[-1].name, dirs_exist_ok=True)))


@dataclass
class Program:
    """A program that runs in a thread of its own, whenever it has the turn."""

    name: str
    world: World
    wakes: float = 0.0
    is_over: bool = False
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.wakes = self.world.now
        self.mine, self.theirs = threading.Semaphore(0), threading.Semaphore(0)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def folder(self) -> Path:
        return self.world.folder / self.name

    @property
    def identity(self) -> SimpleNamespace:
        return SimpleNamespace(peer_id=self.name)

    @property
    def dht(self) -> SimpleNamespace:
        return SimpleNamespace(peer_id=self.name, is_alive=lambda: True, add_validators=lambda validators: None)

    def go_on(self) -> None:
        """Gives the program the turn, until it waits again."""
        self.mine.release()
        self.theirs.acquire()

    def end(self) -> None:
        """Kills the program."""
        self.is_over = True
        if not self.has_ended:
            self.go_on()
        self.thread.join()

    def sleep(self, seconds: float) -> None:
        self.wakes = self.world.now + seconds
        self.theirs.release()
        self.mine.acquire()
        if self.is_over:
            raise Killed

    def leave(self) -> None:
        """What the program does when it is stopped."""

    def _run(self) -> None:
        self.mine.acquire()
        try:
            if not self.is_over:
                self.work()
        except Killed:
            pass
        except BaseException as error:
            self.world.failed = error
        self.has_ended = True
        self.theirs.release()


class Bootstrap(Program):
    """The bootstrap peer, beside the monitor's folder."""

    def work(self) -> None:
        server = self.lineage(beside=self.world.folder / "monitor")
        while True:
            self.sleep(LOOK_SECONDS)
            server.renew(self.world.current_records())

    def lineage(self, *, trusted: frozenset[str] = frozenset(), **more) -> ServerLineage:
        world, servers = self.world, SimpleNamespace(ids=trusted)
        facts = {"servers": servers, "tell": lambda text: None, **more}
        return ServerLineage(self.dht, world.run, self.identity, self.folder, **facts)


class Monitor(Bootstrap):
    """The monitor, which knows the bootstrap peer and takes checkpoints."""

    @property
    def checkpoints(self) -> Path:
        return self.world.folder / "checkpoints"

    def work(self) -> None:
        set_aside_damaged(self.checkpoints)
        latest = latest_checkpoint(self.checkpoints)
        stored = {}
        if latest is not None:
            of = Lineage(id=lineage_of(latest), ancestors=ancestors_of(latest))
            stored = {"stored": of, "stored_epoch": checkpoint_epoch(latest)}
        self.server = self.lineage(trusted=frozenset(["bootstrap"]), site=SITE, **stored)
        while True:
            self.sleep(LOOK_SECONDS)
            self.server.renew(self.world.current_records())
            self.save(every=CHECKPOINT_EVERY)

    def save(self, *, every: int) -> None:
        """Takes a checkpoint of a volunteer that trains, if its epoch is due."""
        donors = self.world.training(self.server.lineage.id)
        latest = latest_checkpoint(self.checkpoints)
        if donors and donors[0].local_epoch >= every + (checkpoint_epoch(latest) if latest is not None else 0):
            self.world.save(self.checkpoints, donors[0].local_epoch, self.server.lineage)

    def leave(self) -> None:
        if hasattr(self, "server"):
            self.save(every=1)


@dataclass
class Volunteer(Program):
    """A volunteer that knows the bootstrap peer's address; it is its own optimizer, as far as the arrival sees it."""

    local_epoch: int = 0
    trains: bool = False
    keeps_at: float = 0.0
    said: list[str] = field(default_factory=list)
    source: str | None = None
    alignment: AlignmentState = field(default_factory=AlignmentState)
    progress: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(reported_epoch=0))
    belonging: Belonging | None = None

    def work(self) -> None:
        world, notices = self.world, SimpleNamespace(tell=self.said.append, warn=self.said.append)
        redial = SimpleNamespace(servers=SimpleNamespace(ids=frozenset(["bootstrap"]), sites=()))
        connection = SimpleNamespace(
            dht=self.dht, run=world.run, identity=self.identity, redial=redial, named=frozenset(),
            settings=SimpleNamespace(site=None),
        )  # fmt: skip
        while not self.finds_the_run():
            self.sleep(LOOK_SECONDS)
        world.acquainted.add(self.name)
        copies = SimpleNamespace(is_second=False, look=lambda: None)
        self.belonging = Belonging(connection, self.folder, notices, copies)
        stop = SimpleNamespace(asked=False, wait=self.sleep)
        facts = {"belonging": self.belonging, "kept": self.kept, "stop": stop, "notices": notices}
        self.source = arrival.arrive(self, world.run, resume=None, **facts)
        assert self.source is not None
        self.trains = True
        while True:
            world.report(self, "training")
            self.belonging.remember(self.local_epoch)
            self.sleep(EPOCH_SECONDS)
            others = world.training(self.belonging.lineage.id)
            self.local_epoch = max(self.local_epoch + 1, others[-1].local_epoch)
            self.keep()

    def finds_the_run(self) -> bool:
        """Returns True if the bootstrap peer is up, or any program, if this volunteer has met the others before."""
        if self.name in self.world.acquainted:
            return len(self.world.programs) > 1
        return "bootstrap" in self.world.programs

    @property
    def kept(self) -> KeptWeights:
        facts = {"recipe_toml": self.world.recipe_toml, "shards": "s", "codec_digest": None}
        return KeptWeights(folder=self.folder / "kept", **facts)

    def keep(self, *, leaving: bool = False) -> None:
        """Keeps the weights after the first epoch, every ten minutes, and on leaving."""
        if not self.local_epoch or (self.world.now < self.keeps_at and not leaving):
            return
        self.keeps_at = self.world.now + EVERY_SECONDS
        older = list_checkpoints(self.kept.folder)
        new = self.world.save(self.kept.folder, self.local_epoch, self.belonging.lineage)
        for path in older:
            if path != new:
                shutil.rmtree(path)

    def leave(self) -> None:
        if self.trains:
            self.world.report(self, "leaving")
            self.keep(leaving=True)

    # -- its optimizer -------------------------------------------------------------------------------------------------

    def load_state_from_peers(self, *, oldest_epoch: int) -> bool:
        """Takes the oldest state that is offered: the real download takes any."""
        offered = [
            one.local_epoch
            for one in self.world.volunteers
            if one is not self and one.belonging is not None and one.belonging.lineage.id == self.belonging.lineage.id
            if one.local_epoch >= max(1, oldest_epoch)
        ]
        if offered:
            self.local_epoch = min(offered)
        return bool(offered)

    def load_checkpoint(self, _model, _moments, epoch: int, *, may_differ: bool) -> None:
        self.local_epoch = epoch
