"""Ids of peers, which follow from their keys, and digests that name groups and statements."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import PeerID

from training.trust.proof import peer_id_of_key

MOST_ID_BYTES = 64
"""Longest id of a peer; an id of this program's keys has 34 bytes."""


def named_peer(peer: bytes) -> PeerID:
    """Reads the id of a peer from a message.

    Raises:
        ValueError: If the id is too long: `PeerID` writes it in base 58, which takes five seconds for 80 kB.
    """
    if len(peer) > MOST_ID_BYTES:
        raise ValueError(f"a peer's id has {len(peer)} bytes, more than {MOST_ID_BYTES}")
    return PeerID(peer)


@lru_cache(maxsize=1024)
def peer_id_of(subkey: bytes) -> PeerID | None:
    """The peer id of the key that signed a record; None if the subkey does not hold exactly one RSA key."""
    found = re.findall(RSASignatureValidator.PUBLIC_KEY_REGEX, subkey)
    if len(found) != 1:
        return None
    try:
        public_key = serialization.load_ssh_public_key(found[0])
    except (ValueError, UnsupportedAlgorithm):
        return None
    return PeerID.from_base58(peer_id_of_key(public_key))


def digest_of(*pieces: bytes) -> bytes:
    """Returns a digest of several byte strings. Strings with other boundaries have another digest."""
    found = hashlib.sha256()  # most processors have instructions for SHA-256: with them it is twice as fast as BLAKE2
    for piece in pieces:
        found.update(len(piece).to_bytes(8, "little"))
        found.update(piece)
    return found.digest()
