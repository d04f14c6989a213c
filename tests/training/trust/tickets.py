"""Tickets and peers for tests."""

from __future__ import annotations

import base64
import hashlib

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from training.trust.ticket import Ticket

NOW = 1_800_000_000
PEER = "QmYwAPJzv5CZsnA625s3Xf2nemtYgPpHdWEz79ojWnPbdG"
OTHER_PEER = "QmPZ9gcCEpqKTo6aq61g2nXGUhM4iCL3ewB6LDXZCtioEB"


def ticket(**changes) -> Ticket:
    """A member's, for an hour from `NOW`, and five more while the server is away."""
    values = {"run_id": "demo", "lineage": "a" * 16, "account": "hf:ada", "peer_id": PEER, "standing": "vouched"}
    times = {"issued": NOW, "expires": NOW + 3600, "grace_seconds": 5 * 3600}
    return Ticket(**{**values, **times, **changes})


class Holder:
    """A peer's identity of its own making: the same keys and signatures as hivemind's, without hivemind."""

    def __init__(self, bits: int = 2048):
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
        self.public_key = self.key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        self.peer_id = peer_id_by_hand(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        """The signature in base64."""
        salted = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)
        return base64.b64encode(self.key.sign(message, salted, hashes.SHA256()))


def peer_id_by_hand(key: rsa.RSAPublicKey) -> str:
    """By the specification, with an encoding of base58 of its own."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert 128 <= len(der) < 16384
    wrapped = b"\x08\x00\x12" + bytes([len(der) % 128 + 128, len(der) // 128]) + der
    number, letters = int.from_bytes(b"\x12\x20" + hashlib.sha256(wrapped).digest()), ""
    while number:
        number, digit = divmod(number, 58)
        letters = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"[digit] + letters
    return letters
