"""Dial-back: asks another peer to connect to this node by a new connection, to find out whether this node is reachable.

hivemind's own check (a ping that asks for a ping back) succeeds for every peer, since the answer comes through the
connection that the question has opened. libp2p's AutoNAT, which every peer of a run offers, opens a new connection to
the address that it sees, from a node of its own. It works on the Internet only: it refuses private addresses.

Source: AutoNAT v1, github.com/libp2p/specs, autonat/autonat-v1.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.utils.multiaddr import Multiaddr

from training.swarm.engine.quoted import quoted

PROTOCOL = "/libp2p/autonat/1.0.0"
REACHED, DIAL_ERROR = 0, 100
"""Codes of the answer; other codes are refusals."""
LARGEST_ANSWER = 1 << 12
DIAL_BACK_SECONDS = 6.0
"""Longest wait for a peer that connects back, which takes a few round trips. If a firewall drops its packets, the peer
tries for 15 s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DialBack:
    """Answer of the peer that was asked to connect back."""

    outcome: Literal["reached", "failed", "refused"]
    text: str
    """Address at which this node was reached, or the reason why it was not; safe to print."""


async def ask_dial_back(daemon: Client, other: PeerID, own: PeerID, addresses: Sequence[Multiaddr]) -> DialBack:
    """Asks a connected peer to connect to this node, and waits for `DIAL_BACK_SECONDS` at most.

    Args:
        daemon: Client of this node's network daemon.
        other: Id of the peer to ask.
        own: Id of this node's peer.
        addresses: Addresses at which this node listens. The other peer uses their ports with the address that it sees.

    Raises:
        Exception: Of any kind, if the peer does not offer dial-back or the connection breaks off.
    """
    try:
        return await asyncio.wait_for(_ask(daemon, other, own, addresses), DIAL_BACK_SECONDS)
    except TimeoutError:
        return DialBack(outcome="failed", text=f"it tried for {DIAL_BACK_SECONDS:g} s")


async def _ask(daemon: Client, other: PeerID, own: PeerID, addresses: Sequence[Multiaddr]) -> DialBack:
    """Sends the question, and reads the answer."""
    info = _field(1, own.to_bytes()) + b"".join(_field(2, address.to_bytes()) for address in addresses)
    message = b"\x08\x00" + _field(2, _field(1, info))  # message type DIAL, then the addresses
    _, reader, writer = await daemon.stream_open(other, [PROTOCOL])
    try:
        writer.write(_varint(len(message)) + message)
        await writer.drain()
        size = shift = 0
        while (byte := (await reader.readexactly(1))[0]) & 0x80:
            size, shift = size | (byte & 0x7F) << shift, shift + 7
        size |= byte << shift
        fields = _fields(await reader.readexactly(min(size, LARGEST_ANSWER)))
    finally:
        writer.close()
    answer = _fields(fields[3])
    code, text = answer.get(1, REACHED), quoted(answer.get(2, b"").decode(errors="replace"))
    if code == REACHED:
        return DialBack(outcome="reached", text=quoted(str(Multiaddr(answer[3]))) if 3 in answer else "its address")
    return DialBack(outcome="failed" if code == DIAL_ERROR else "refused", text=text or f"code {code}")


def _varint(number: int) -> bytes:
    """Encodes a number as protobuf does: seven bits a byte, the lowest first.

    >>> _varint(300).hex()
    'ac02'
    """
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def _field(number: int, content: bytes) -> bytes:
    """Encodes bytes as a protobuf field."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Reads a protobuf message. Returns its numbers and bytes by the numbers of their fields.

    >>> _fields(bytes.fromhex("0864") + _field(2, b"dial failed"))
    {1: 100, 2: b'dial failed'}
    """
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        key = message[at]
        value, shift, at = 0, 0, at + 1
        while message[at] & 0x80:
            value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
        value, at = value | message[at] << shift, at + 1
        if key & 7 == 2:
            found[key >> 3], at = message[at : at + value], at + value
        else:
            found[key >> 3] = value
    return found
