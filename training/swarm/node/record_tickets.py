"""Tickets in the records of the DHT: a node adds its ticket to its records, and refuses records without a valid ticket.

The ticket follows the record's signature. It is valid only if it belongs to the key that has signed the record.
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
"""Marks around a ticket in a record; a ticket has no brackets itself."""
MOST_TICKET_BYTES = len(BEGIN) + LARGEST_TICKET_BYTES + len(END)
"""Most bytes that a ticket adds to a record."""
LOOK_SECONDS = 1.0
"""Interval at which a node looks whether it must forget records, such as those of a banned peer."""


class TicketValidator(RecordValidatorBase):
    """Adds tickets to records and checks them.

    Its priority is above that of the signatures' validator: it works after that one when a record is made, and before
    it when a record is read.

    Args:
        admission: Checks the tickets.
        public_key: Key under which this node stores its records.
    """

    priority = 15

    def __init__(self, admission: Admission, public_key: bytes):
        self._admission, self._public_key = admission, public_key

    def sign_value(self, record: DHTRecord) -> bytes:
        """Returns the record's value with this peer's ticket, or unchanged without one, which every node refuses."""
        ticket = self._admission.own_ticket
        if not ticket or self._public_key not in record.subkey:
            return record.value
        return record.value + BEGIN + ticket.encode() + END

    def validate(self, record: DHTRecord) -> bool:
        """Returns True if the record has a valid ticket of the peer under whose key it is stored."""
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
        """Returns the record's value without the ticket, but with its signature."""
        begin = record.value.rfind(BEGIN)
        return record.value if begin < 0 else record.value[:begin]


def accounts_of(dht: DHT, peers: Iterable[PeerID]) -> Accounts:
    """Returns the accounts of these peers, from the tickets in the records that the node has read.

    Peers without such a record are left out. In an open run, or if the node does not answer in time, the result is
    empty.
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
