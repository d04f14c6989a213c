"""Proofs for the membership server: a peer holds the key of its peer id, and has done a proof of work.

A peer id is the hash of a public key (github.com/libp2p/specs, peer-ids/peer-ids.md). The server gives a nonce, and the
peer signs it with its identity key, along with the whole request: an eavesdropper, or the server of another run, cannot
use the signature for another request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
from typing import Protocol

import base58
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

LARGEST_KEY_BYTES = 1200
"""Largest public key as OpenSSH writes it; a key of 4096 bits has 730 bytes."""
LARGEST_PROOF_BYTES = 700
"""Largest signature in base64; a signature by a key of 4096 bits has 684 bytes."""
KEY_BITS = (2048, 3072, 4096)
PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
"""The padding with which hivemind signs by a peer's key (hivemind/utils/crypto.py)."""
_PROTOBUF_RSA = b"\x08\x00\x12"
"""libp2p's message PublicKey: field 1, the type RSA; field 2, the key in DER, whose length follows."""
_SHA256 = b"\x12\x20"
"""Multihash: code and length of a SHA-256."""


class Identity(Protocol):
    """A peer's identity; `training.swarm.node.identity.Identity` is one."""

    peer_id: object
    """Object whose text is the peer id."""
    public_key: bytes
    """Public key as OpenSSH writes it."""

    def sign(self, message: bytes) -> bytes:
        """Signs a message; returns the signature in base64."""


def proof_message(
    *, public: str, run_id: str, lineage: str, peer_id: str, nonce: str, credential: tuple[str, str]
) -> bytes:
    """Builds the message that a peer signs to get a ticket.

    Args:
        public: Public half of the server's membership key.
        run_id: Id of the run.
        lineage: Id of the lineage that the ticket is for.
        peer_id: Id of the peer.
        nonce: Nonce from the server.
        credential: Kind and text of the credential; only their hash is part of the message.
    """
    digest = hashlib.sha256("\n".join(credential).encode()).hexdigest()
    return "\n".join(("training-proof 1", public, run_id, lineage, peer_id, nonce, digest)).encode()


def voucher_statement(run_id: str, peer_id: str) -> bytes:
    """Builds the statement by which an earlier key of a volunteer vouches for another peer of the same volunteer."""
    return f"training-volunteer 1\n{run_id}\n{peer_id}".encode()


def proven_peer_id(public_key: str, message: bytes, signature: str) -> str | None:
    """Peer id of the key that has signed a message; None if the key is malformed or the signature is not valid."""
    if len(public_key) > LARGEST_KEY_BYTES or len(signature) > LARGEST_PROOF_BYTES:
        return None
    try:
        key = serialization.load_ssh_public_key(public_key.encode("ascii"))
        raw = base64.b64decode(signature, validate=True)
        if not isinstance(key, rsa.RSAPublicKey) or key.key_size not in KEY_BITS:
            return None
        key.verify(raw, message, PADDING, hashes.SHA256())
    except (ValueError, binascii.Error, UnsupportedAlgorithm, InvalidSignature):
        return None
    return peer_id_of_key(key)


def peer_id_of_key(key: rsa.RSAPublicKey) -> str:
    """The libp2p peer id of a public key."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    wrapped = _PROTOBUF_RSA + _varint(len(der)) + der
    return base58.b58encode(_SHA256 + hashlib.sha256(wrapped).digest()).decode()


def find_work(nonce: str, peer_id: str, bits: int) -> str:
    """Searches for an answer for which `has_worked` is true; takes 2^bits attempts on average."""
    begun = _begun(nonce, peer_id)
    most = 1 << (256 - bits)
    for number in itertools.count():
        attempt = begun.copy()
        attempt.update(b"%d" % number)
        if int.from_bytes(attempt.digest()) < most:
            return str(number)
    raise AssertionError("the count never ends")


def has_worked(nonce: str, peer_id: str, answer: str, bits: int) -> bool:
    """Returns whether the hash of nonce, peer and answer begins with this number of zero bits."""
    if not (answer.isascii() and answer.isdecimal() and len(answer) <= 20):
        return False
    attempt = _begun(nonce, peer_id)
    attempt.update(answer.encode())
    return int.from_bytes(attempt.digest()) < 1 << (256 - bits)


def _begun(nonce: str, peer_id: str) -> hashlib._Hash:
    return hashlib.sha256(f"training-work 1\n{nonce}\n{peer_id}\n".encode())


def _varint(number: int) -> bytes:
    """Encodes a number as protobuf does: seven bits in each byte, the lowest first."""
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
