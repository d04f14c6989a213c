"""Tickets in the records of the DHT: a node adds its own to what it stores, and refuses records without one that holds.

The ticket comes behind the record's signature. It is the ticket of the key that has signed the record, or it does not
hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from hivemind.dht.node import DHTNode
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import PeerID

from training.swarm.engine.bounds import Records, unpack
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.admission import Admission, admission_of
from training.swarm.node.protocol import DHTProtocol
from training.swarm.node.slow_nodes import NODE_SECONDS
from training.swarm.node.voices import Accounts
from training.trust.check import TicketRefused
from training.trust.ticket import LARGEST_TICKET_BYTES

BEGIN, END = b"[ticket:", b"]"
"""Around a ticket, which has no brackets itself."""
MOST_TICKET_BYTES = len(BEGIN) + LARGEST_TICKET_BYTES + len(END)
"""Most bytes that a ticket adds to a record."""
LOOK_SECONDS = 1.0
"""A node looks this often whether it has to forget records, such as those of a banned peer."""


class TicketValidator(RecordValidatorBase):
    """Adds tickets to records and checks them; of a priority above that of signatures, so that it comes after these
    when a record is made, and before them when one is read.

    Args:
        admission: Whose tickets hold.
        public_key: Under which this node stores its records.
    """

    priority = 15

    def __init__(self, admission: Admission, public_key: bytes):
        self._admission, self._public_key = admission, public_key

    def sign_value(self, record: DHTRecord) -> bytes:
        """The record with this peer's ticket; as it was if this peer has none, and then every node refuses it."""
        ticket = self._admission.own_ticket
        if not ticket or self._public_key not in record.subkey:
            return record.value
        return record.value + BEGIN + ticket.encode() + END

    def validate(self, record: DHTRecord) -> bool:
        """Returns True if the record has a ticket of the peer under whose key it lies."""
        begin = record.value.rfind(BEGIN)
        if begin < 0 or not record.value.endswith(END):
            return False
        try:
            peer = peer_id_of(unpack(record.subkey))
            ticket = self._admission.check(record.value[begin + len(BEGIN) : -len(END)], str(peer), trains=False)
        except (TicketRefused, ValueError, TypeError):
            return False
        self._admission.note(ticket)
        return True

    def strip_value(self, record: DHTRecord) -> bytes:
        """The record with its signature alone."""
        begin = record.value.rfind(BEGIN)
        return record.value if begin < 0 else record.value[:begin]


def accounts_of(dht: DHT, peers: Iterable[PeerID]) -> Accounts:
    """The accounts of these peers, by the tickets in the records that the node has read.

    Empty in an open run, and without peers that have no record.
    """
    if admission_of(dht) is None:
        return {}
    asked = dht.run_coroutine(partial(_accounts_of, tuple(peers)), return_future=True)
    try:
        return asked.result(timeout=NODE_SECONDS)
    except TimeoutError:  # a busy node; the next look asks again
        return {}


async def _accounts_of(peers: tuple[PeerID, ...], dht: DHT, _node: DHTNode) -> Accounts:
    accounts = dht.admission.accounts
    return {peer.to_bytes(): accounts[str(peer)] for peer in peers if str(peer) in accounts}


async def forget_refused(protocol: DHTProtocol, admission: Admission) -> None:
    """Runs in the node's process: at each news, such as bans, forgets records whose tickets no longer hold."""
    number = admission.news.number
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if admission.news.number != number:
            number = admission.news.number
            for key, (records, _) in list(protocol.storage.items()):
                if not isinstance(records, Records) or not protocol.drop_refused(key, records):
                    del protocol.storage[key]
