"""Redialling: a peer stays in touch with the run's servers, and finds the run again after they were gone.

hivemind connects to the initial peers once, at the node's start, and forgets a peer that does not answer. A bootstrap
peer that restarts has an empty routing table; nobody would call it, and the newcomers that it welcomes would find
nobody.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from calculator.units import show_time
from training.errors import TrainingError
from training.swarm.engine.engine import NODE_SECONDS
from training.swarm.engine.process import DHT
from training.swarm.node.addresses import GREETING, REACH_SECONDS, id_of, is_plain, place_of, reach_of
from training.swarm.node.clocks import HOW_TO_SET, WrongClock, check_clock, is_settling
from training.swarm.run.address_book import AddressBook
from training.swarm.run.reach import SAYS, Reach, find_reach, find_relay
from training.swarm.run.servers import Servers, ask_site

CALL_SECONDS = 10.0
"""Longest wait for an encrypted connection, and for the search for neighbours."""
CALLS_AT_ONCE = 8
"""Most peers of the address book that are called at a time. One answer is enough, since that peer leads to all
others."""
WAKE_SECONDS = 25.0
"""Longest wait for the first calls after the machine has slept."""
NOTED_AT_ONCE = 32
"""Most peers whose addresses are noted at a time."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Intervals at which `Redial` calls peers or looks at something."""

    look_seconds: float = 5.0
    """Seconds between two looks at this peer's own node, without any traffic."""
    ping_seconds: float = 20.0
    """Seconds between two pings of a server that seems connected, so that a server that is cut off is noticed within a
    minute."""
    first_retry_seconds: float = 1.0
    longest_retry_seconds: float = 10.0
    """Longest pause before a server that does not answer is called again. The pause begins shorter and doubles each
    time."""
    acquaintance_seconds: float = 40.0
    """Longest such pause for a peer of the address book, so that two halves of a run without servers find each other in
    a minute."""
    calm_acquaintance_seconds: float = 600.0
    """Longest such pause while a server answers: most peers of the book that do not answer have left."""
    site_seconds: float = 20.0
    """Seconds after which a site is asked again while a server does not answer."""
    calm_site_seconds: float = 900.0
    """Seconds after which a site is asked again while all servers answer."""
    book_seconds: float = 60.0
    """Seconds between two writes of the address book; it is written sooner if a new peer is connected."""
    alarm_seconds: float = 60.0
    """Seconds without any server after which the volunteer gets a message."""
    clock_seconds: float = 60.0
    """Seconds between two comparisons of this machine's clock with those of others."""
    reach_seconds: float = 1500.0
    """Seconds between two questions to the servers whether they reach this peer. If that has changed, the peer begins
    anew, and `processes.servers.again` permits no shorter interval."""
    doubt_seconds: float = 60.0
    """Seconds after which the peer asks them again if their answer was new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reachability:
    """Connections of a peer to its run."""

    servers: int
    """Number of servers that the peer knows, itself not counted."""
    answering: int
    """Number of servers that answered the last call."""
    peers: int
    """Number of nodes to which the peer is connected, servers included, without those that accept no connections."""
    silent_seconds: float
    """Seconds since a server last answered, or since the start; 0 if the peer knows no server."""


@dataclass
class _Contact:
    """A peer that is called repeatedly."""

    peer_id: str
    addresses: tuple[str, ...] = ()
    linked: bool = False
    """True if the peer has answered and the connection has lasted since then."""
    failures: int = 0
    due: float = 0.0
    answered: float | None = None


class Redial:
    """A thread that keeps calling the run's servers, and the peers of the address book while servers are missing.

    Args:
        dht: This peer's node.
        servers: Addresses of the run's servers; may be empty.
        book: Address book, which the thread fills and writes.
        tell: Called with a sentence when no server has answered for a minute, and when one answers again; and when the
            clock of this machine has become wrong, and when it is right again, and when others reach it in another way.
        pace: Intervals of the calls and looks.

    As a context manager it starts with the block and ends with it.
    """

    def __init__(
        self,
        dht: DHT,
        servers: Servers,
        book: AddressBook,
        *,
        tell: Callable[[str], None] = lambda sentence: None,
        pace: Pace | None = None,
    ):
        self.dht, self.servers, self.book = dht, servers, book
        self.met_before = len(book.peers())
        """Number of peers in the address book at the start."""
        self.reach: Reach | None = None
        """How others reach this peer; None if nobody looks: it is a server, or accepts no connections."""
        self.has_moved = False
        """True if the peer should begin anew, because others reach it in another way than at its start."""
        self.note_reach: Callable[[Reach], None] = lambda reach: None
        """Called with the new reach when it has changed."""
        self._tell, self._pace = tell, pace or Pace()
        self._own_id = str(dht.peer_id)
        self._servers: dict[str, _Contact] = {}
        self._acquaintances: dict[str, _Contact] = {}
        self._linked: frozenset[str] = frozenset()
        self._began = time.monotonic()
        self._site_asked, self._book_due, self._alarmed = self._began, self._began, False
        self._clock_due, self._clock_wrong = self._began + self._pace.clock_seconds, False
        self._reach_due, self._doubted = self._began + self._pace.reach_seconds, None
        self._stopped, self._called, self._writing = threading.Event(), threading.Event(), threading.Lock()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="redial")

    def __enter__(self) -> Redial:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, wait_seconds: float = 0.0) -> Redial:
        """Starts the thread and waits until all known peers were called once, at most `wait_seconds`."""
        self._thread.start()
        self._called.wait(wait_seconds)
        return self

    def stop(self) -> None:
        """Ends the thread after its current call. Waits until the book is written, but does not wait for a call."""
        self._stopped.set()
        with self._writing:  # the program may end now: without the wait, half a book would stay
            pass

    def wake(self, wait_seconds: float = WAKE_SECONDS) -> None:
        """Makes all connections anew after the machine has slept: the others have given them up, and this peer's
        network daemon would notice that late. Waits until all known peers were called once."""
        self._called.clear()
        self._woken.set()
        self._called.wait(wait_seconds)

    def look_for_relay(self) -> None:
        """Notes whether a server relays for this node, which was started to be relayed."""
        self.reach = self._run(find_relay)

    def find_reach(self) -> Reach | None:
        """Asks the servers whether they reach this peer, for up to six seconds; see `reach.find_reach`."""
        with suppress(Exception):  # a busy node has not answered in time
            return self._run(partial(find_reach, self.servers.ids - {self._own_id}))
        return None

    def reachability(self) -> Reachability:
        """Connections of this peer as of the last look; takes no time."""
        servers = list(self._servers.values())
        return Reachability(
            servers=len(servers),
            answering=sum(server.linked for server in servers),
            peers=len(self._linked),
            silent_seconds=self._silent_seconds(servers),
        )

    def _silent_seconds(self, servers: Iterable[_Contact]) -> float:
        answers = [server.answered for server in servers]
        if not answers:
            return 0.0
        return time.monotonic() - max([self._began, *(answered for answered in answers if answered is not None)])

    def _work(self) -> None:
        while not self._stopped.is_set():
            with suppress(Exception):  # a busy node has not answered in time: look again soon
                self._round()
                self._watch()
                self._watch_clock()
                self._watch_reach()
            self._stopped.wait(self._seconds_to_next())

    def _round(self) -> None:
        """Looks at the node, and calls the peers that are due."""
        if self._woken.is_set():
            self._woken.clear()
            self._run(_hang_up)
        self._linked = self._run(_look)
        now = time.monotonic()
        self._update_servers(now)
        lost = any(not server.linked for server in self._servers.values())
        if now >= self._site_asked + (self._pace.site_seconds if lost else self._pace.calm_site_seconds):
            self._site_asked = now
            self._ask_sites()
            self._update_servers(now)
        due = [server for server in self._servers.values() if server.due <= now]
        # At the start a server may answer that has just come back itself, and knows no other peer yet.
        if lost or not self._linked or not self._called.is_set():
            due += self._due_acquaintances(now)
        if due:
            self._call(due)
        self._called.set()
        self._keep_book(now)

    def _update_servers(self, now: float) -> None:
        """Updates the servers' contacts from their addresses and the last look."""
        for peer_id in self.servers.ids - {self._own_id} - self._servers.keys():
            self._servers[peer_id] = _Contact(peer_id=peer_id)
        for peer_id in self._servers.keys() - self.servers.ids:
            del self._servers[peer_id]
        for server in self._servers.values():
            named = [address for address in self.servers.addresses if id_of(address) == server.peer_id]
            known = tuple(dict.fromkeys((*named, *self.book.addresses(server.peer_id))))
            if (server.linked and server.peer_id not in self._linked) or known != server.addresses:
                server.due = now  # the connection has broken, or there is another way to try
            server.addresses = known
            server.linked &= server.peer_id in self._linked

    def _due_acquaintances(self, now: float) -> list[_Contact]:
        """Peers of the book that are due for a call, those with the fewest failures first."""
        there = self._linked | self._servers.keys() | {self._own_id}
        missing = [peer for peer in self.book.peers() if peer.peer_id not in there]
        before = self._acquaintances
        self._acquaintances = {one.peer_id: before.get(one.peer_id) or _Contact(peer_id=one.peer_id) for one in missing}
        for peer in missing:
            self._acquaintances[peer.peer_id].addresses = peer.addresses
        due = [contact for contact in self._acquaintances.values() if contact.due <= now]
        return sorted(due, key=lambda contact: contact.failures)[:CALLS_AT_ONCE]

    def _call(self, contacts: list[_Contact]) -> None:
        new = any(not contact.linked for contact in contacts)
        answered = self._run(partial(_call, {one.peer_id: one.addresses for one in contacts}, new))
        now, pace = time.monotonic(), self._pace
        for contact in contacts:
            if contact.peer_id in answered:
                contact.linked, contact.failures, contact.answered = True, 0, now
                contact.due = now + pace.ping_seconds * random.uniform(0.8, 1.2)
                continue
            longest = pace.longest_retry_seconds
            if contact.peer_id not in self._servers:
                alone = not any(server.linked for server in self._servers.values())
                longest = pace.acquaintance_seconds if alone else pace.calm_acquaintance_seconds
            delay = min(longest, pace.first_retry_seconds * 2 ** min(contact.failures, 20))
            contact.linked, contact.failures = False, contact.failures + 1
            # Jitter, so that all volunteers of a run do not call a server that has come back at the same moment.
            contact.due = now + delay * random.uniform(0.5, 1.0)
        if answered - self._linked:
            self._linked = self._run(_look)

    def _ask_sites(self) -> None:
        """Asks the sites in the node's process, so that looking up names does not delay the trainer."""
        for site in self.servers.sites:
            if addresses := self._run(partial(_ask_site, site)):
                self.servers.name(site, addresses)

    def _keep_book(self, now: float) -> None:
        strangers = [peer_id for peer_id in self._linked if peer_id not in self.book]
        if not self._linked or (now < self._book_due and not strangers):
            return
        self._book_due = now + self._pace.book_seconds
        known = random.sample(sorted(self._linked - set(strangers)), k=len(self._linked) - len(strangers))
        for peer_id, addresses in self._run(partial(_addresses, [*strangers, *known][:NOTED_AT_ONCE])).items():
            self.book.note(peer_id, addresses)
        with self._writing:
            if not self._stopped.is_set():
                self.book.write()

    def _watch(self) -> None:
        """Tells the volunteer when all servers are gone, and when they are back."""
        if not self._servers:
            return
        now = self.reachability()
        if now.silent_seconds >= self._pace.alarm_seconds and not self._alarmed:
            self._alarmed = True
            met = f"{now.peers} other peers" if now.peers > 1 else "one other peer" if now.peers else "nobody"
            self._tell(
                f"No server of the run has answered for {show_time(now.silent_seconds)}. This peer still reaches "
                f"{met}, and goes on calling the servers."
            )
        elif now.answering and self._alarmed:
            self._alarmed = False
            self._tell("A server of the run answers again.")

    def _watch_clock(self) -> None:
        """Tells the volunteer when the clock has become wrong, and when it is right again."""
        if time.monotonic() < self._clock_due or is_settling():
            return
        self._clock_due = time.monotonic() + self._pace.clock_seconds
        wrong = None
        try:
            check_clock(self.dht, self.servers.ids)
        except WrongClock as error:
            wrong = error
        if wrong is not None and not self._clock_wrong:
            self._tell(f"{wrong} {HOW_TO_SET}; then this peer goes on.")
        elif wrong is None and self._clock_wrong:
            self._tell("The clock of this machine is right again.")
        self._clock_wrong = wrong is not None

    def _watch_reach(self) -> None:
        """Asks now and then whether others still reach this peer as before. A second answer must confirm a change."""
        if self.reach is None or time.monotonic() < self._reach_due:
            return
        self._reach_due = time.monotonic() + self._pace.reach_seconds * random.uniform(0.8, 1.2)
        found = self.find_reach()
        if found not in (None, self.reach, self._doubted):
            self._reach_due = time.monotonic() + self._pace.doubt_seconds
        elif found not in (None, self.reach):
            # A new start changes nothing for a relayed peer whose servers are away: they come back.
            self.has_moved |= "direct" in (found, self.reach)
            self.reach = found
            self.note_reach(found)
            self._tell(f"The way to this peer has changed: {SAYS[found]}.")
        self._doubted = found

    def _seconds_to_next(self) -> float:
        due = [server.due for server in self._servers.values() if not server.linked]
        return max(0.1, min([self._pace.look_seconds, *(moment - time.monotonic() for moment in due)]))

    def _run(self, coroutine: Callable[[DHT, DHTNode], Awaitable[Result]]) -> Result:
        return self.dht.run_coroutine(coroutine, return_future=True).result(timeout=NODE_SECONDS)


# The rest runs in the node's process.


async def _ask_daemon(node: DHTNode, kind: int, **details: object) -> p2pd_pb2.Response:
    """Sends a request to the network daemon and returns its answer; raises `P2PDaemonError` if that is an error."""
    reader, writer = await DaemonConnector(node.p2p.daemon_listen_maddr).open_connection()
    try:
        await write_pbmsg(writer, p2pd_pb2.Request(type=kind, **details))
        response = p2pd_pb2.Response()
        await read_pbmsg_safe(reader, response)
    finally:
        writer.close()
    raise_if_failed(response)
    return response


async def _connected(node: DHTNode) -> dict[bytes, bytes]:
    """Ids of the connected peers, each with the address at the other end."""
    response = await _ask_daemon(node, p2pd_pb2.Request.LIST_PEERS)
    return {peer.id: peer.addrs[0] if peer.addrs else b"" for peer in response.peers}


async def _hang_up(_dht: DHT, node: DHTNode) -> None:
    """Ends all connections of the network daemon."""
    for peer in await _connected(node):
        with suppress(Exception):  # it has ended meanwhile
            request = p2pd_pb2.DisconnectRequest(peer=peer)
            await _ask_daemon(node, p2pd_pb2.Request.DISCONNECT, disconnect=request)


async def _look(_dht: DHT, node: DHTNode) -> frozenset[str]:
    """Ids of the peers that are both connected and in the routing table."""
    connected = await _connected(node)
    return frozenset(str(peer) for peer in node.protocol.routing_table.peer_id_to_uid if peer.to_bytes() in connected)


async def _call(peers: Mapping[str, tuple[str, ...]], new: bool, _dht: DHT, node: DHTNode) -> frozenset[str]:
    """Connects to peers and introduces this node to them. Returns the ids of those that answer.

    Args:
        peers: Ids of the peers, with their addresses.
        new: True if this node has no link to one of them yet: if that one answers, it looks for the neighbours that it
            knows.
    """
    connected = await _connected(node)
    answers = await asyncio.gather(*(_call_one(node, peer, peers[peer], connected) for peer in peers))
    answered = frozenset(peer for peer, answer in zip(peers, answers, strict=True) if answer)
    if answered and new:
        _forget_former_ids(node)
        searches = [node.node_id, DHTID.generate(), DHTID.generate()]
        with suppress(TimeoutError):
            await asyncio.wait_for(node.find_nearest_nodes(searches), CALL_SECONDS)
    return answered


async def _call_one(node: DHTNode, name: str, addresses: Iterable[str], connected: Mapping[bytes, bytes]) -> bool:
    peer = PeerID.from_base58(name)
    try:
        if peer.to_bytes() not in connected:
            # The daemon refuses to dial an address again for up to 5 minutes, longer after each failure. So it gets an
            # address only when a peer answers there.
            answering = await asyncio.gather(*map(_answers, addresses))
            maddrs = [
                Multiaddr(address.removesuffix(f"/p2p/{name}")).to_bytes()
                for address, answers in zip(addresses, answering, strict=True)
                if answers
            ]
            if not maddrs:
                return False
            request = p2pd_pb2.ConnectRequest(peer=peer.to_bytes(), addrs=maddrs)
            await asyncio.wait_for(_ask_daemon(node, p2pd_pb2.Request.CONNECT, connect=request), CALL_SECONDS)
        uid = await node.protocol.call_ping(peer)
        if uid is None:
            return False
        await asyncio.sleep(0)  # the ping's own task puts the peer into the routing table
        node.blacklist.register_success(peer)  # otherwise hivemind would leave it out of searches, ever longer
        return True
    except Exception:  # no fault of one peer may keep us from calling the others
        return False


async def _answers(address: str) -> bool:
    """Returns True if a peer answers at an address, or if only the daemon can try the address; see `why_unreached`."""
    place = place_of(address)
    if place is None:
        return True
    try:
        async with asyncio.timeout(REACH_SECONDS):
            reader, writer = await asyncio.open_connection(*place)
            with closing(writer):
                writer.write(GREETING)
                return not is_plain(address) or await reader.readexactly(len(GREETING)) == GREETING
    except (OSError, EOFError):
        return False


def _forget_former_ids(node: DHTNode) -> None:
    """Drops the entries that restarted peers have left in the routing table.

    A node has a new id in the DHT at each start. hivemind keeps the earlier ids, and would store the replicas of a
    record under several ids of a single peer.
    """
    table = node.protocol.routing_table
    for uid, peer in list(table.uid_to_peer_id.items()):
        if table.peer_id_to_uid.get(peer) != uid:
            with suppress(KeyError):
                del table[uid]


async def _addresses(names: Iterable[str], _dht: DHT, node: DHTNode) -> dict[str, list[str]]:
    """Full addresses of connected peers, as these have reported them to the daemon."""
    connected, found = await _connected(node), {}
    for name in names:
        peer = PeerID.from_base58(name).to_bytes()
        if peer not in connected:
            continue
        with suppress(Exception):  # the peer has left meanwhile
            request = p2pd_pb2.DHTRequest(type=p2pd_pb2.DHTRequest.FIND_PEER, peer=peer, timeout=1)
            response = await _ask_daemon(node, p2pd_pb2.Request.DHT, dht=request)
            addresses = [f"{Multiaddr(one)}/p2p/{name}" for one in response.dht.peer.addrs]
            # A peer elsewhere also reports its loopback address, which here leads to another program.
            here = reach_of(str(Multiaddr(connected[peer]))) == 0 if connected[peer] else False
            found[name] = [address for address in addresses if here or reach_of(address) > 0]
    return found


async def _ask_site(site: str, _dht: DHT, _node: DHTNode) -> tuple[str, ...]:
    """Asks a site for the servers' addresses; empty if it does not answer."""
    with suppress(TrainingError):
        return await asyncio.get_running_loop().run_in_executor(None, ask_site, site)
    return ()
