"""Reach of a peer: how others connect to it. The peer finds it out, since its volunteer may not know of a router.

Servers of the run are asked to connect back (`dial_back`). If none of them can, this peer's network daemon reserves a
place at the servers, which then pass on others' connections, encrypted between the two ends. Only a peer that no server
relays is a client, to which nobody connects.

Source: circuit relay v2, github.com/libp2p/specs, relay/circuit-v2.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Literal

from hivemind.dht.node import DHTNode
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.utils.multiaddr import Multiaddr

from training.errors import BeginsAnew
from training.swarm.engine.process import DHT
from training.swarm.run.dial_back import ask_dial_back

Reach = Literal["direct", "relay", "client"]
"""How others connect to a peer: by its own address, through a server of the run, or not at all."""
SAYS: dict[Reach, str] = {
    "direct": "others connect to this machine directly",
    "relay": "others reach this machine through the run's servers",
    "client": "others cannot reach this machine; it calls them",
}
MOST_ASKED = 3
"""Most servers that are asked at a time; each takes 3 questions a minute from a peer."""
RELAY_SECONDS, LOOK_SECONDS = 5.0, 0.1
"""Longest wait for a place at a server, and the pause between two looks."""


class ReachChanged(BeginsAnew):
    """Error of a peer that others now reach in another way; its next start uses that way."""


async def find_reach(servers: Collection[str], _dht: DHT, node: DHTNode) -> Reach | None:
    """Finds out how others reach this node; runs in the node's process.

    Args:
        servers: Peer ids of the run's servers.

    Returns:
        The reach; None if no server can tell, as in a local network: servers connect back to public addresses only.
    """
    daemon = await Client.create(control_maddr=node.p2p.daemon_listen_maddr)
    try:
        own, addresses = await daemon.identify()
        plain = [address for address in addresses if not _is_relayed(address)]
        asked = [_connects_back(daemon, server, own, plain) for server in list(servers)[:MOST_ASKED]]
        answers = await asyncio.gather(*asked)
        if True in answers:
            return "direct"
        if len(plain) < len(addresses):
            return "relay"
        return "client" if False in answers else None
    finally:
        daemon.close()


async def find_relay(_dht: DHT, node: DHTNode) -> Reach:
    """Waits until a server relays for this node, which was started to be relayed; "client" if none does."""
    daemon = await Client.create(control_maddr=node.p2p.daemon_listen_maddr)
    try:
        for _ in range(round(RELAY_SECONDS / LOOK_SECONDS)):
            if any(map(_is_relayed, (await daemon.identify())[1])):
                return "relay"
            await asyncio.sleep(LOOK_SECONDS)
        return "client"
    finally:
        daemon.close()


async def _connects_back(daemon: Client, server: str, own: PeerID, addresses: list[Multiaddr]) -> bool | None:
    """Asks a server to connect back. Returns whether it could; None if it does not try."""
    try:
        answer = await ask_dial_back(daemon, PeerID.from_base58(server), own, addresses)
    except Exception:  # the server is not connected, or does not offer dial-back
        return None
    return {"reached": True, "failed": False}.get(answer.outcome)


def _is_relayed(address: Multiaddr) -> bool:
    return "p2p-circuit" in address
