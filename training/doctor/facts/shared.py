"""What several checks need, each found once: the recipe, the manifest, the peers' answers, and two probes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from training.doctor.facts import addresses, recipe, shards, web
from training.doctor.facts.shards import NoShards
from training.doctor.facts.web import Unfetched
from training.doctor.probes.children import Child, NoAnswer

if TYPE_CHECKING:
    from training.data.store.shards import Manifest
    from training.recipe import RunConfig

LIMIT_SECONDS = 18.0
"""The whole examination; what is not known by then is reported as such."""
LIFE_MARGIN_SECONDS = 10.0
"""If the doctor is killed, its children end themselves so long after the examination's end."""
MARGIN_SECONDS = 1.5
"""So long before the end of the examination, the children have answered, or their checks say that they have not."""

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the volunteer gave, as `join` takes it."""

    recipe: str | None = None
    """A name, a TOML file or a URL."""
    initial_peers: tuple[str, ...] = ()
    """Full addresses, or URLs of the run's site."""
    shards: str | None = None
    """Folder or URL; None: the recipe's."""
    state_dir: Path | None = None
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on."""
    client_mode: bool = False
    device: str | None = None


class Once(Generic[Found]):
    """Something that several checks need: the first that asks finds it, the others wait for it.

    Raises on each call what it raised on the first.
    """

    def __init__(self, find: Callable[[], Found]):
        self._find = find
        self._lock = threading.Lock()
        self._found: tuple[Found | None, BaseException | None] | None = None

    def __call__(self) -> Found:
        with self._lock:
            if self._found is None:
                try:
                    self._found = self._find(), None
                except Exception as error:
                    self._found = None, error
        found, error = self._found
        if error is not None:
            raise error
        return found


class PlanUnknown(Exception):
    """There is no plan: no recipe, or torch does not answer."""


class Shared:
    """What several checks need; each part is found once, by the first that asks.

    Use it as a context manager: it ends its children, which start when they are first asked.

    Args:
        asked: What the volunteer gave.
        limit_seconds: How long the examination may take, from now on.
    """

    def __init__(self, asked: Asked, *, limit_seconds: float = LIMIT_SECONDS):
        self.asked = asked
        self._deadline = time.monotonic() + limit_seconds - MARGIN_SECONDS
        self._children: list[Child] = []
        self._compute = Once(lambda: self._start("training.doctor.probes.compute_probe"))
        self._swarm = Once(lambda: self._start("training.doctor.probes.swarm_probe", *asked.host_maddrs))
        self._recipe = Once(lambda: recipe.read(asked.recipe))
        self._manifest = Once(lambda: shards.read(self.source()))
        self.answers: Callable[[], list[addresses.Answer]] = Once(
            lambda: addresses.connect_all(addresses.addresses_of(asked.initial_peers))
        )
        """What each address of a peer has answered. Raises Unfetched if a site does not list them."""
        self._told = Once(self._tell_children)

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.end()

    def run(self) -> RunConfig:
        """The recipe. Raises `recipe.Unread`."""
        return self._recipe()[0]

    def run_or_none(self) -> RunConfig | None:
        """The recipe; None if there is none to be read."""
        if self.asked.recipe is None:
            return None
        with suppress(recipe.Unread):
            return self.run()
        return None

    def source(self) -> str | None:
        """Where the shards are; None if nobody says."""
        run = self.run_or_none() if self.asked.shards is None else None
        return self.asked.shards or (run.data.shards if run else None)

    def manifest(self) -> Manifest:
        """Of the shards. Raises `NoShards`."""
        return self._manifest()[0]

    def shard_bytes(self) -> list[int]:
        """Sizes of the files that will be fetched; none if there are none or they are not known."""
        source = self.source()
        if source is None or not web.is_url(source):
            return []
        with suppress(NoShards):
            return [entry.bytes for entry in self.manifest().files.values()]
        return []

    def site_clock(self) -> float | None:
        """Seconds by which this clock is ahead of that of the run's site; None if no site says its time."""
        if self.asked.recipe is not None:
            with suppress(recipe.Unread):
                if (ahead := self._recipe()[1]) is not None:
                    return ahead
        if self.source() is not None:
            with suppress(NoShards):
                return self._manifest()[1]
        return None

    def compute(self, step: str) -> dict:
        """A step of the child that uses torch. Raises NoAnswer."""
        return self._compute().fact(step, within=self._left())

    def plan(self) -> dict | None:
        """What training this recipe takes here; None if there is no recipe, or torch does not answer."""
        if self.run_or_none() is None:
            return None
        self._told()
        with suppress(NoAnswer):
            plan = self.compute("plan")
            return plan if not plan["fault"] else None
        return None

    def needed_mbits(self) -> float:
        """Bandwidth that an average needs in each direction. Raises `PlanUnknown`."""
        from calculator.swarm.exchange import vector_bytes

        plan, run = self.plan(), self.run_or_none()
        if plan is None or run is None:
            raise PlanUnknown
        sent = 2 * vector_bytes(plan["trained_parameters"], 0, run.swarm.gradient_codec)
        return sent * 8 / run.swarm.allreduce_timeout_seconds / 1e6

    def visit(self, step: str) -> dict:
        """A step of the child that uses hivemind. Raises NoAnswer."""
        if step not in ("codecs", "node"):
            self._told()
        return self._swarm().fact(step, within=self._left())

    def _start(self, module: str, *arguments: str) -> Child:
        self._children.append(child := Child(module, *arguments, life_seconds=self._left() + LIFE_MARGIN_SECONDS))
        return child

    def _tell_children(self) -> None:
        """Once recipe and addresses are known, or known to fail."""
        run = self.run_or_none()
        told = run.model_dump(mode="json", by_alias=True) if run else None
        self._compute().tell({"recipe": told, "device": self.asked.device})
        reached = []
        with suppress(Unfetched):
            reached = [answer.address for answer in self.answers() if answer.seconds is not None]
        self._swarm().tell({"recipe": told, "initial_peers": reached})

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())
