"""The membership key: the maintainer's server signs with it, and every peer knows its public half from the recipe.

It is an Ed25519 key of the library `cryptography`, and not one of hivemind's RSA keys, for two reasons. Key and
signature have 32 and 64 bytes, so that the public key fits into a line of the recipe and a ticket stays below 1 kB. And
the server needs no hivemind, which would read its key by unpickling.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from training.errors import BadInput, reason_of
from training.storage.whole import whole_file

LARGEST_SECRET_BYTES = 4096
OTHERS = 0o077
"""Bits of a file's mode that let its group or everybody use it."""
_KEY = re.compile(r"[A-Za-z0-9_-]{43}")
_SIGNATURE = re.compile(r"[A-Za-z0-9_-]{86}")


class MembershipKey:
    """The private half of a membership key.

    Args:
        secret: The key's 32 bytes.
    """

    def __init__(self, secret: bytes):
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = to_text(self._key.public_key().public_bytes_raw())
        """The public key, 43 characters, as the recipe has it."""

    @classmethod
    def begin(cls) -> MembershipKey:
        """Makes a new random key."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    def sign(self, text: str) -> str:
        """The signature of a text, 86 characters."""
        return to_text(self._key.sign(text.encode()))

    def keep(self, path: Path) -> None:
        """Writes the key to a file that only this user can read."""
        write_secret(path, to_text(self._key.private_bytes_raw()))


def open_key(path: Path) -> MembershipKey:
    """Reads the key from a file; makes key and file if there is none.

    Raises:
        BadInput: If the file cannot be used, holds no key, or others can read it.
    """
    if not path.exists():
        MembershipKey.begin().keep(path)
    secret = from_text(read_secret(path))
    if secret is None or len(secret) != 32:
        raise BadInput(
            f"{path} holds no membership key.",
            cure="Put a copy of the file back. If there is none, move it away: the next start makes a new key, which "
            "the recipe must then name.",
        )
    return MembershipKey(secret)


def is_signed(text: str, signature: str, public: str) -> bool:
    """Returns whether `signature` is that of `text` by the holder of the key `public`."""
    key = _public_key(public)
    raw = from_text(signature) if _SIGNATURE.fullmatch(signature) else None
    if key is None or raw is None:
        return False
    try:
        key.verify(raw, text.encode())
    except (InvalidSignature, UnicodeEncodeError):
        return False
    return True


def is_public_key(text: str) -> bool:
    """Returns whether a text is a public membership key in the form that recipes have."""
    return _public_key(text) is not None


def read_secret(path: Path) -> str:
    """The text of a file that holds a secret, without white space around it.

    Raises:
        BadInput: If the file cannot be read, or if others than its owner can read it.
    """
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & OTHERS:
                raise BadInput(f"Others can read the secret in {path}; run `chmod 600 {path}`.")
            return file.read(LARGEST_SECRET_BYTES).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"The secret {path} cannot be read: {reason_of(error)}.", cure="Put the file back.") from None


def write_secret(path: Path, text: str) -> None:
    """Writes a text to a file that only this user can read. Makes the file's folder if there is none.

    Raises:
        BadInput: If the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # With its mode from the first moment on: a chmod afterwards would leave it readable for a while.
        with whole_file(path) as draft, os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(text + "\n")
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {reason_of(error)}.", cure="Give another folder with --state-dir."
        ) from None


def to_text(raw: bytes) -> str:
    """Encodes bytes as letters, digits, "-" and "_" (base64 without padding)."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def from_text(text: str) -> bytes | None:
    """Decodes a text of `to_text`. Returns None for any other text: each sequence of bytes has only one text."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw if to_text(raw) == text else None


@lru_cache(maxsize=64)
def _public_key(text: str) -> Ed25519PublicKey | None:
    raw = from_text(text) if _KEY.fullmatch(text) else None
    return None if raw is None else Ed25519PublicKey.from_public_bytes(raw)
