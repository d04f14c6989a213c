"""A peer's identity: one RSA key, kept in a file, gives it its peer id and signs its records."""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from google.protobuf.message import DecodeError
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils.crypto import PrivateKey, RSAPublicKey

from training.errors import BadInput, reason_of
from training.processes.servers.only_one import STATE_LOCK_FILE
from training.storage.whole import delete_drafts, whole_file
from training.trust.proof import PADDING, proven_peer_id

KEY_FILE = "identity.key"
"""File in the state folder with the key."""


class Key(PrivateKey):
    """RSA key of a peer. Unlike hivemind's `RSAPrivateKey`, it can be made from the content of a file.

    Args:
        der: The key in the encoding of libp2p's key files.
    """

    def __init__(self, der: bytes):
        self.der, self._key = der, serialization.load_der_private_key(der, password=None)

    def __reduce__(self) -> tuple:
        return Key, (self.der,)

    def sign(self, data: bytes) -> bytes:
        """Returns the signature in base64, as `RSAPublicKey.verify` reads it."""
        return base64.b64encode(self._key.sign(data, PADDING, hashes.SHA256()))

    def get_public_key(self) -> RSAPublicKey:
        """Returns the public key."""
        return RSAPublicKey(self._key.public_key())


def read_key(file: Path) -> Key:
    """Reads a key from a file such as `identity.key`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds no key.
    """
    stored = file.read_bytes()
    try:
        return Key(crypto_pb2.PrivateKey.FromString(stored).data)
    except (TypeError, DecodeError, UnsupportedAlgorithm):
        raise ValueError("it holds no key") from None


class Identity:
    """A peer's key, read from `state_dir/identity.key` or created there at the first start.

    The folder is locked while the object lives, since two peers with one identity would receive each other's messages.

    Raises:
        BadInput: If the folder cannot be used, another process uses it, or the key is damaged.
    """

    def __init__(self, state_dir: Path):
        self.path = state_dir / KEY_FILE
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._lock: IO = (state_dir / STATE_LOCK_FILE).open("a")
            os.set_inheritable(self._lock.fileno(), False)
        except OSError as error:
            raise BadInput(
                f"The folder {state_dir} cannot be used: {reason_of(error)}. Give another with --state-dir."
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                f"Another process is using {state_dir}; stop it, or give another folder with --state-dir."
            ) from None
        delete_drafts(state_dir)  # a file of a process that was killed while it wrote
        try:
            if not self.path.exists():
                with whole_file(self.path) as draft:
                    P2P.generate_identity(str(draft))
            self.private_key = read_key(self.path)
            self.peer_id = PeerID.from_identity(self.path.read_bytes())
        except (OSError, ValueError) as error:
            raise BadInput(
                f"{self.path} cannot be used: {reason_of(error) if isinstance(error, OSError) else 'it holds no key'}.",
                cure="Put a copy of the file back, or delete it: this machine then begins as another peer, with no "
                "contribution so far, and a server has another address.",
            ) from None

    @property
    def public_key(self) -> bytes:
        """The public key as OpenSSH writes it."""
        return self.private_key.get_public_key().to_bytes()

    def sign(self, message: bytes) -> bytes:
        """Returns the signature of a message, in base64."""
        return self.private_key.sign(message)

    def signer(self) -> RSASignatureValidator:
        """Makes a validator that signs this peer's records and checks those of other peers."""
        return RSASignatureValidator(self.private_key)


def id_in(state_dir: Path) -> str | None:
    """Peer id of the key in a state folder, which another process may use; None if there is no key that can be
    read."""
    with suppress(OSError, ValueError, TypeError, DecodeError, UnsupportedAlgorithm):
        return str(PeerID.from_identity((state_dir / KEY_FILE).read_bytes()))
    return None


@dataclass(frozen=True, slots=True)
class Signed:
    """A signature of a statement, with the public key that verifies it."""

    key: bytes
    """Public key as OpenSSH writes it."""
    signature: bytes
    """Signature in base64."""

    def signer(self, statement: bytes) -> str | None:
        """Returns the id of the peer whose key has signed the statement; None if the signature is not valid."""
        try:
            key, signature = self.key.decode("ascii"), self.signature.decode("ascii")
        except UnicodeDecodeError:
            return None
        return proven_peer_id(key, statement, signature)

    def is_of(self, peer: PeerID, statement: bytes) -> bool:
        """Returns True if the peer has signed the statement."""
        return self.signer(statement) == str(peer)


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs statements with this peer's key."""

    key: bytes
    sign: Callable[[bytes], bytes]
    """Returns the signature of bytes in base64; takes a millisecond."""

    def signed(self, statement: bytes) -> Signed:
        """Signs a statement. Returns the signature together with the public key."""
        return Signed(self.key, self.sign(statement))
