"""hivemind, on which the swarm is built: the required version, and the changes to its behaviour.

hivemind gives the DHT, connections between peers, codecs and messages. Our classes override public methods of its
classes. In addition, this package uses or replaces the following private names of hivemind, and no others (a test
counts them). The faults are described in site/reference/hivemind.md.

| name | where | why |
|---|---|---|
| `P2P._UNIX_SOCKET_PREFIX` | engine | sockets of a program that was killed stay behind in /tmp |
| `timed_storage.get_dht_time` | steady_clock | a step of the machine's clock spoils an epoch |
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.utils.multiaddr import Multiaddr

from training.errors import TrainingError
from training.swarm.engine.calls import Connection
from training.swarm.engine.process import DHT, Answer
from training.swarm.engine.steady_clock import use_steady_clock

HIVEMIND_VERSION = "1.1.12"
"""Required version of hivemind, as in pyproject.toml; its source was read for each override."""
NODE_SECONDS = 60.0
"""Longest wait for an answer of this peer's own node, on a loaded machine."""
SOCKET_FOLDER_CHARACTERS = 70
"""Longest path of a folder for local sockets. A socket's path may have 104 characters; hivemind's names take 33."""


class NodeSilent(TrainingError):
    """This peer's node has not answered in time: it has ended, or its machine is far too busy."""


def check_version() -> None:
    """Refuses any version of hivemind except `HIVEMIND_VERSION`.

    Raises:
        TrainingError: If another version is installed.
    """
    if (found := version("hivemind")) != HIVEMIND_VERSION:
        raise TrainingError(
            f"hivemind {found} is installed; this program overrides parts of hivemind {HIVEMIND_VERSION} and "
            f"works with that version only. Install it: pip install hivemind=={HIVEMIND_VERSION}"
        )


def prepare() -> None:
    """Prepares hivemind in this process and its later forks. Call it before a node or an averager is made.

    Raises:
        TrainingError: If another version than `HIVEMIND_VERSION` is installed.
    """
    check_version()
    use_steady_clock()
    if len(tempfile.gettempdir()) <= SOCKET_FOLDER_CHARACTERS:
        # A role's temporary folder is removed when the role ends; hivemind would leave its sockets behind in /tmp.
        Connection._UNIX_SOCKET_PREFIX = f"/unix{tempfile.gettempdir()}/hivemind-"
    # The node and the averagers are forks of this process, and share its memory until one of them writes to it. A
    # garbage collection writes to every object that it visits: each process would soon have its own copy of all
    # libraries' objects, 59 MB. It does not visit frozen objects.
    gc.collect()
    gc.freeze()


async def open_connection(dht: DHT) -> Connection:
    """Opens a connection of this process and event loop to the node's network daemon; shut it down after use.

    `DHT.replicate_p2p` keeps one connection for the whole process, bound to the event loop that asked first.

    Raises:
        NodeSilent: If the node does not answer.
    """
    return await Connection.replicate(await asyncio.to_thread(answer_of_node, dht.run_coroutine, _daemon_address))


def answer_of_node(ask: Callable[..., Answer], *what: object, **more: object) -> Any:
    """Returns the node's answer to `dht.get` or `dht.run_coroutine`, within a time limit.

    Raises:
        NodeSilent: If the node does not answer.
    """
    try:
        return ask(*what, **more, return_future=True).result(timeout=NODE_SECONDS)
    except TimeoutError:
        raise NodeSilent("This peer's own network node does not answer.") from None


async def _daemon_address(_dht: DHT, node: DHTNode) -> Multiaddr:
    return node.p2p.daemon_listen_maddr
