"""Probe of a run's network for the doctor, step by step and without training.

The probe's node listens, so that others can be asked to connect back to it, but it enters no routing table: it uses the
DHT as a client does. It reports each step as soon as its result is known, because a later step may take too long.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from hivemind.dht.validation import CompositeValidator
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.proto import dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.multiaddr import Multiaddr

from training.errors import RefusedByRun, TrainingError
from training.recipe import RunConfig
from training.swarm.engine import engine
from training.swarm.engine.calls import Connection
from training.swarm.node.addresses import why_unreached
from training.swarm.node.admission import Admission
from training.swarm.node.dht import check_recipe, record_validators
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import read_records
from training.swarm.node.run_node import RunNode
from training.swarm.node.tokens import posted_tokens
from training.swarm.run.dial_back import ask_dial_back

CONNECT_SECONDS = 5.0
NODE_SECONDS = 8.0
"""Longest start of the network node, which usually takes half a second."""
FIND_SECONDS = 5.0
"""Longest search for the run."""

Whom = Callable[[], tuple[RunConfig | None, Sequence[str]]]
"""Function that returns the recipe and the addresses of peers; it may take long."""
Tell = Callable[..., None]
"""Function that takes the name of a step and its facts."""


async def probe(host_maddrs: Sequence[str], folder: Path, whom: Whom, tell: Tell) -> None:
    """Starts a node, and probes a run with it.

    Args:
        host_maddrs: Addresses to listen on.
        folder: Empty folder for the probe's identity.
        whom: Returns the recipe and the peers' addresses; see `Whom`.
        tell: Called with each step and its facts; see `Tell`. Steps: `node`, `peers`, `clock`, `dial-back`, `recipe`,
            `tokens`.
    """
    engine.prepare()
    began = time.monotonic()
    try:
        node = await Connection.create(host_maddrs=list(host_maddrs), startup_timeout=NODE_SECONDS)
    except Exception as error:  # after any error: the daemon does not work
        tell("node", fault=" ".join(str(error).split()) or type(error).__name__)
        return
    tell("node", fault=None, seconds=time.monotonic() - began)
    daemon = await Client.create(control_maddr=node.daemon_listen_maddr)
    try:
        await _probe_run(node, daemon, folder, whom, tell)
    finally:
        daemon.close()
        await node.shutdown()


async def _probe_run(node: P2P, daemon: Client, folder: Path, whom: Whom, tell: Tell) -> None:
    """Does the steps after `node`."""
    run, addresses = await asyncio.to_thread(whom)
    if not addresses:
        return
    faults = dict(zip(addresses, await asyncio.gather(*map(partial(_fault, daemon), addresses)), strict=True))
    tell("peers", faults=faults)
    reached = [address for address, fault in faults.items() if fault is None]
    if not reached:
        return
    ids = [PeerID.from_base58(Multiaddr(address)["p2p"]) for address in reached]
    clocks = [ahead for ahead in await asyncio.gather(*map(partial(_ahead, node), ids)) if ahead is not None]
    tell("clock", seconds_ahead=clocks)
    await asyncio.gather(_dial_back(node, daemon, ids, tell), _look(node, reached, run, folder, tell))


async def _fault(daemon: Client, address: str) -> str | None:
    """Reason why the peer of this id cannot be reached at an address; None if it can."""
    place, _, peer = address.rpartition("/p2p/")
    looks = asyncio.create_task(asyncio.to_thread(why_unreached, address, CONNECT_SECONDS))
    try:
        await asyncio.wait_for(daemon.connect(PeerID.from_base58(peer), [Multiaddr(place)]), CONNECT_SECONDS)
        return None
    except TimeoutError:
        fault = f"no peer answers within {CONNECT_SECONDS:g} s"
    except Exception as error:
        fault = " ".join(str(error).split("* [")[-1].split()) or type(error).__name__
    unreached = await looks
    return unreached.seen if unreached is not None else fault


async def _ahead(node: P2P, peer: PeerID) -> float | None:
    """Seconds by which this machine's clock is ahead of a peer's; None if the peer does not send its time."""
    began = get_dht_time()
    try:
        answer = await asyncio.wait_for(
            node.call_protobuf_handler(peer, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(), dht_pb2.PingResponse),
            CONNECT_SECONDS,
        )
    except Exception:  # the peer is no node of the DHT, or too slow: others may answer
        return None
    return (began + get_dht_time()) / 2 - answer.dht_time if answer.dht_time else None


async def _dial_back(node: P2P, daemon: Client, peers: Sequence[PeerID], tell: Tell) -> None:
    """Asks peers to connect back until one of them reports success or failure."""
    _, addresses = await daemon.identify()
    outcome, text = "unknown", "no peer of the run connects back to others"
    for peer in peers:
        try:
            answer = await ask_dial_back(daemon, peer, node.peer_id, addresses)
        except Exception:  # the peer does not offer dial-back
            continue
        if answer.outcome != "refused":
            outcome, text = answer.outcome, answer.text
            break
        text = "peers connect back to public addresses only, and this one is in their network: nothing needs to be done"
    tell("dial-back", outcome=outcome, text=text)


async def _look(node: P2P, addresses: Sequence[str], run: RunConfig | None, folder: Path, tell: Tell) -> None:
    """Looks for the run's recipe, its tokens and its volunteers."""
    if run is None:
        return
    identity = await asyncio.to_thread(Identity, folder)
    try:
        client = await RunNode.create(
            node,
            own_subkey=identity.signer().local_public_key,
            initial_peers=list(addresses),
            client_mode=True,
            strict=False,  # a wrong clock is reported by its own step
            record_validator=CompositeValidator(record_validators(run.run_id, identity, Admission.of(run))),
        )
    except RuntimeError:  # hivemind's error if no peer answers a ping
        tell("recipe", outcome="silent", text="The peers at the given addresses do not answer as nodes of a run do.")
        return
    dht = _Reader(client, asyncio.get_running_loop())
    with suppress(TimeoutError):
        await asyncio.to_thread(_tell_of_run, dht, run, tell)


def _tell_of_run(dht: _Reader, run: RunConfig, tell: Tell) -> None:
    try:
        check_recipe(dht, run, patience_seconds=FIND_SECONDS)
    except RefusedByRun as error:  # a run with another recipe is reported with this recipe's digest
        tell("recipe", outcome="other" if run.digest in str(error) else "unknown", text=str(error))
    except TrainingError as error:
        tell("recipe", outcome="silent", text=str(error))
    else:
        members = [record for record in read_records(dht, run.run_id) if record.status != "leaving"]
        tell("recipe", outcome="same", members=len(members))
    tell("tokens", digests=Counter(posted_tokens(dht, run).values()))


class _Reader:
    """Reads from the DHT with the interface of `DHT` on a node of this process, in threads other than the event
    loop's."""

    def __init__(self, node: RunNode, loop: asyncio.AbstractEventLoop):
        self._node, self._loop = node, loop

    def get(self, key: str, *, latest: bool, return_future: bool) -> Future:
        assert return_future
        return asyncio.run_coroutine_threadsafe(self._node.get(key, latest=latest), self._loop)
