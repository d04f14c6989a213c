"""The DHT of a run: starting a node, finding the run, and agreeing on its recipe."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hivemind.dht.protocol import ValidationError
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from pydantic.v1 import BaseModel, constr

from training.errors import ProcessEnded, RefusedByRun, TrainingError
from training.processes.servers.ports import listens_at
from training.recipe import RunConfig
from training.swarm.engine import engine
from training.swarm.engine.bounds import MOST_RECORD_BYTES, record_bounds
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node import metrics
from training.swarm.node.addresses import REACH_SECONDS, check_full, parse, why_unreached
from training.swarm.node.admission import Admission
from training.swarm.node.clocks import blame_clock
from training.swarm.node.identity import Identity, Signer
from training.swarm.node.record_tickets import MOST_TICKET_BYTES, TicketValidator, forget_refused
from training.swarm.node.run_node import RunNode

START_SECONDS = 45.0
"""Longest start of the network daemon, on a loaded machine."""
ANSWER_TRIES, ANSWER_SECONDS = 4, 15.0
"""Number of tries to read from the DHT, and the longest wait for an answer to each."""
DAEMON_LOOK_SECONDS = 2.0
"""Pause between two looks at whether the network daemon runs."""
MESSAGE_SECONDS = 600.0
"""Validity of a peer's message in the DHT, such as its recipe's digest; the peer renews it well before."""
LONGEST_MESSAGE, LONGEST_SERVER_MESSAGE = 64, 256
"""Most characters of an announcement of a peer, and of one of a server: its lineage or its site."""


ASKED_NODES = 5
"""Number of nodes that a search asks. A record lies on the five nodes nearest to its key; one of them that lives is
enough. hivemind asks 20, each of which answers with the records of all peers."""


class Node(DHT):
    """This peer's node. It asks few other nodes, and knows the key that signs this peer's records.

    Args:
        public_key: Public key that verifies this peer's signatures; the subkey of all records of this peer.
        admission: Checks the tickets of other peers; None in an open run.
        signer: Signs other statements than records with the same key.
        settings: Arguments of `DHT`.
    """

    def __init__(self, *, public_key: bytes, admission: Admission | None, signer: Signer, **settings):
        self.public_key, self.admission, self.signer = public_key, admission, signer
        super().__init__(**settings)

    def get(self, key: str, *args, **kwargs):
        """Gets a value from the `ASKED_NODES` nodes nearest to the key."""
        return super().get(key, *args, **{"beam_size": ASKED_NODES, **kwargs})

    async def make_node(self, **settings: object) -> RunNode:
        """Makes the node, in its own process. The node ends with its network daemon; in a run for members, it drops the
        records of peers without a valid ticket."""
        node = await RunNode.create(own_subkey=self.public_key, **settings)
        self.hold(asyncio.create_task(_end_with_daemon(node)))
        if self.admission is not None:
            self.hold(asyncio.create_task(forget_refused(node.protocol, self.admission)))
        return node


def start_dht(
    run: RunConfig,
    identity: Identity,
    *,
    initial_peers: Sequence[str] = (),
    host_maddrs: Sequence[str] = (listens_at(),),
    announce_maddrs: Sequence[str] = (),
    client_mode: bool = False,
    is_server: bool = False,
    is_relayed: bool = False,
    admission: Admission | None = None,
) -> DHT:
    """Starts a DHT node that signs its records and refuses invalid ones.

    Args:
        run: The recipe; other runs may share the DHT.
        identity: Key that signs this node's records and gives it its id.
        initial_peers: Full addresses (`/ip4/ADDRESS/tcp/PORT/p2p/ID`) of running peers; without any, a new DHT starts.
        host_maddrs: Addresses to listen on; port 0 picks a free one.
        announce_maddrs: Addresses at which others reach this node, if they differ from those that it sees.
        client_mode: Accept no incoming connections.
        is_server: The node is one of the run's servers, which relays for peers that others cannot reach.
        is_relayed: Others cannot reach this node; the initial peers, which are the run's servers, relay for it.
        admission: Checks the tickets of other peers; needed in a run that admits members only. To store anything there,
            the node needs this peer's ticket, which the admission has.

    Raises:
        BadInput: If an address is malformed.
        TrainingError: If no initial peer answers or shows the same time, or the node does not start within a minute.
    """
    assert run.membership.open == (admission is None), "a peer of a run for members needs to know them"
    engine.prepare()
    for address in (*initial_peers, *host_maddrs, *announce_maddrs):
        parse(address)
    # A plain connection shows within seconds which addresses do not answer, and why; the node's own error may not.
    answer = answering(initial_peers) if initial_peers else []
    reach: dict[str, object] = {}
    if is_server:
        reach = {"force_reachability": "public"}
    elif is_relayed and answer:
        reach = {"force_reachability": "private", "use_auto_relay": True, "trusted_relays": answer}
    try:
        dht = Node(
            public_key=identity.signer().local_public_key,
            admission=admission,
            signer=Signer(identity.public_key, identity.sign),
            initial_peers=answer,
            record_validators=record_validators(run.run_id, identity, admission),
            host_maddrs=list(host_maddrs),
            announce_maddrs=list(announce_maddrs) or None,
            identity_path=str(identity.path),
            # hivemind starts another network daemon to see whether a peer with this identity runs; the lock on the
            # state folder (`identity`) has checked that.
            check_if_identity_free=False,
            client_mode=client_mode,
            startup_timeout=START_SECONDS,
            **reach,
            start=True,
            await_ready=False,  # DHT's own wait has no time-out
        )
        dht.wait_until_ready(timeout=START_SECONDS + REACH_SECONDS)
    except (P2PDaemonError, ValidationError, RuntimeError, OSError, TimeoutError) as error:
        blame_clock(str(error))
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TrainingError(f"The network node did not start: {reason}.", cure=_cure_of(reason)) from None
    return dht


_TOO_BUSY = "This machine is too busy to start it: end other programs, and try again."
_CURES = {
    "answers a ping": "The servers' network daemons answer, but their programs hang or are overloaded. Try again in "
    "some minutes; if it stays so, tell the run's maintainer.",
    "bootstrap peers": "Peers answer at the addresses of --initial-peers, but not those of the ids at their ends: give "
    "the address of the run's site instead, which has the current ids.",
    "failed to start in": _TOO_BUSY,
    "in time": _TOO_BUSY,
    "address already in use": "Another program has the port: end it, or give another in --host-maddrs.",
}
"""Advice by a part of the reason why a node has not started: of hivemind 1.1.12, of its daemon, or of this package."""


def _cure_of(reason: str) -> str:
    """Returns what the volunteer can do about a node that has not started."""
    usual = "Check the addresses in --initial-peers (the id at the end included) and that the port is free."
    return next((cure for part, cure in _CURES.items() if part in reason), usual)


async def _end_with_daemon(node: RunNode) -> None:
    """Ends this process once its network daemon has ended, so that `check_node` notices.

    Without its daemon, hivemind's node would run on without a connection to anybody.
    """
    while node.p2p.is_alive:
        await asyncio.sleep(DAEMON_LOOK_SECONDS)
        try:
            await node.p2p.list_peers()
        except OSError:
            os._exit(1)
        except Exception:  # the daemon ends just now, or is busy: the next look shows it
            continue


_Message = constr(strict=True, max_length=LONGEST_MESSAGE, regex=rf"\Z|{metrics.PLAIN}")
_ServerMessage = constr(strict=True, max_length=LONGEST_SERVER_MESSAGE, regex=rf"\Z|{metrics.PLAIN}")


class _Messages(BaseModel):
    """Schema of a run's announcements, under the keys `{run_id}_recipe` and so on."""

    recipe: dict[BytesWithPublicKey, _Message]
    tokens: dict[BytesWithPublicKey, _Message]
    lineage: dict[BytesWithPublicKey, _ServerMessage]
    site: dict[BytesWithPublicKey, _ServerMessage]


def record_validators(run_id: str, identity: Identity, admission: Admission | None = None) -> list[RecordValidatorBase]:
    """Returns the validators by which a node signs its own records, and refuses malformed records and those of
    non-members.

    A peer adds the validator of its lineage's progress (`training.swarm.peers.progress.progress_validator`).
    """
    signer, messages = identity.signer(), SchemaValidator(_Messages, prefix=run_id)
    if admission is None:
        return [metrics.validator(run_id), messages, *record_bounds(), signer]
    bounds = record_bounds(most_bytes=MOST_RECORD_BYTES + MOST_TICKET_BYTES)
    return [metrics.validator(run_id), messages, *bounds, signer, TicketValidator(admission, signer.local_public_key)]


def own_subkey(dht: DHT) -> bytes:
    """Subkey under which this peer's averagers announce themselves: the key that signs the record.

    A node of hivemind's own class signs nothing; there the subkey is the peer id, as with hivemind's averagers.
    """
    return dht.public_key if isinstance(dht, Node) else dht.peer_id.to_bytes()


def signer_of(dht: DHT) -> Signer | None:
    """Returns what signs with this peer's key; None at a node of hivemind's own class, which has no key."""
    return dht.signer if isinstance(dht, Node) else None


def announced_peer(dht: DHT, subkey: bytes) -> PeerID | None:
    """Peer that has announced itself under a subkey; None if the subkey is not valid. See `own_subkey`."""
    return peer_id_of(subkey) if isinstance(dht, Node) else PeerID(subkey)


def check_node(dht: DHT) -> None:
    """Checks that the node and its network daemon still run; without them a role would wait for answers for ever.

    Raises:
        TrainingError: If the node has ended, for example because memory ran out.
    """
    if not dht.is_alive():
        raise ProcessEnded(
            "The network node has ended.",
            cure="If memory ran out, give this program more; then start it again.",
        )


def full_addresses(dht: DHT) -> list[str]:
    """Addresses of this node as newcomers pass them to `--initial-peers`, those on the local machine last."""
    addresses = [str(address) for address in dht.get_visible_maddrs(latest=True)]
    return sorted(addresses, key=lambda address: "/127.0.0.1/" in address or "/::1/" in address)


def post_recipe(dht: DHT, run: RunConfig, identity: Identity) -> None:
    """Announces the digest of this peer's recipe; call it again within `MESSAGE_SECONDS`."""
    post_message(dht, f"{run.run_id}_recipe", run.digest, identity)


def post_message(dht: DHT, key: str, message: str, identity: Identity) -> None:
    """Stores an announcement of this peer for `MESSAGE_SECONDS`, in the place of the last one. See
    `posted_messages`."""
    dht.store(
        key,
        subkey=identity.signer().local_public_key,
        value=message,
        expiration_time=get_dht_time() + MESSAGE_SECONDS,
        return_future=True,
    )


def posted_messages(dht: DHT, key: str, *, longest: int = LONGEST_MESSAGE) -> dict[bytes, str]:
    """Returns the announcements of all peers, by the keys that signed them, without those longer than `longest`
    characters.

    Raises:
        TrainingError: If the DHT does not answer within a minute, because this node or its network is too slow.
    """
    for _ in range(ANSWER_TRIES):
        with suppress(TimeoutError):
            found = dht.get(key, latest=True, return_future=True).result(timeout=ANSWER_SECONDS)
            break
    else:
        seconds = ANSWER_TRIES * ANSWER_SECONDS
        raise TrainingError(f"The network has not answered within {seconds:.0f} s. Check it, and try again.")
    entries = found.value if found is not None and isinstance(found.value, dict) else {}
    values = {signer: entry.value for signer, entry in entries.items() if isinstance(entry, ValueWithExpiration)}
    return {signer: value for signer, value in values.items() if isinstance(value, str) and len(value) <= longest}


class UnknownRun(RefusedByRun):
    """The peers that answer know no run of this name."""


def check_recipe(dht: DHT, run: RunConfig, *, patience_seconds: float = 15.0, may_be_alone: bool = False) -> None:
    """Compares this peer's recipe with the recipes that the peers of the run announce.

    Args:
        dht: A running node.
        run: The recipe of this peer.
        patience_seconds: Longest wait for the first announcement.
        may_be_alone: True for a server that may have come back before all others. Then it is no error if no peer
            announces a recipe.

    Raises:
        RefusedByRun: If no peer trains this recipe.
        UnknownRun: If no peer knows a run of this name.
    """
    deadline = time.monotonic() + patience_seconds
    while not (digests := set(posted_messages(dht, f"{run.run_id}_recipe").values())):
        if time.monotonic() >= deadline:
            if may_be_alone:
                return
            raise UnknownRun(
                f"The peers at the given addresses know no run named {run.run_id!r}. "
                "Check the recipe and the addresses, or start the run with `python -m training bootstrap`."
            )
        time.sleep(0.5)
    if run.digest not in digests:
        raise RefusedByRun(
            f"The run {run.run_id!r} trains another recipe: its digest is {', '.join(sorted(digests))}, "
            f"yours is {run.digest}. Take the recipe from the run's page, and the version of this program that its "
            "servers run: another one may read the same recipe differently."
        )


def answering(initial_peers: Sequence[str]) -> list[str]:
    """Returns the addresses at which a peer answers, and those that are not TCP. Tries all at once.

    Called before a node starts, since the node would wait for each address that does not answer.

    Raises:
        BadInput: If an address is malformed.
        TrainingError: If no address answers.
    """
    addresses = [check_full(address) for address in initial_peers]
    with ThreadPoolExecutor(len(addresses)) as pool:
        faults = dict(zip(addresses, pool.map(why_unreached, addresses), strict=True))
    if all(faults.values()):
        named = "; ".join(f"{address}: {fault.seen}" for address, fault in faults.items())
        cures = dict.fromkeys(fault.cure for fault in faults.values())
        raise TrainingError(f"No initial peer answers ({named}).", cure=" ".join(cures))
    return [address for address, fault in faults.items() if fault is None]
