"""Keys and proofs: the files that keep secrets, and whether a peer holds the key of its peer id."""

from __future__ import annotations

import hashlib
import os

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hivemind.p2p import PeerID
from hypothesis import given
from hypothesis import strategies as st

from tests.training.trust.tickets import Holder
from training.errors import BadInput
from training.swarm.node.identity import Identity
from training.trust.keys import from_text, is_public_key, is_signed, open_key, read_secret, to_text, write_secret
from training.trust.proof import find_work, has_worked, proof_message, proven_peer_id

HOLDER = Holder()


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "state" / "membership.key"
    before = os.umask(0)
    try:
        key = open_key(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert open_key(path).public == key.public
    assert is_public_key(key.public) and len(key.public) == 43
    assert is_signed("words", open_key(path).sign("words"), key.public)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_secret_that_others_can_use_is_refused(tmp_path, mode):
    path = tmp_path / "token"
    write_secret(path, "secret")
    path.chmod(mode)
    with pytest.raises(BadInput, match=r"Others can read the secret in .*; run `chmod 600 ") as refused:
        read_secret(path)
    assert "\n" not in str(refused.value)
    path.chmod(0o400)
    assert read_secret(path) == "secret"


@pytest.mark.parametrize("content", ["", "short", "A" * 42, "A" * 44, "\x00", "ä" * 43])
def test_a_file_without_a_key_is_named(tmp_path, content):
    path = tmp_path / "membership.key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(BadInput, match=r"membership.key (holds no membership key|cannot be read)"):
        open_key(path)


@given(st.binary(max_size=80))
def test_bytes_have_one_text(raw):
    assert from_text(to_text(raw)) == raw


def message(**changes):
    facts = {"public": "k", "run_id": "demo", "lineage": "-", "peer_id": HOLDER.peer_id, "nonce": "n"}
    return proof_message(**{**facts, "credential": ("invitation", "code"), **changes})


def test_the_swarms_identity_proves_its_own_peer_id(tmp_path):
    """hivemind makes key and peer id, and signs."""
    identity = Identity(tmp_path)
    by_hivemind = PeerID.from_identity((tmp_path / "identity.key").read_bytes())
    signature = identity.sign(message()).decode()
    assert proven_peer_id(identity.public_key.decode(), message(), signature) == str(by_hivemind)
    assert proven_peer_id(HOLDER.public_key.decode(), message(), signature) is None


@pytest.mark.parametrize("bits", [2048, 4096])
def test_a_proof_is_for_one_request(bits):
    holder = HOLDER if bits == 2048 else Holder(bits)
    signature = holder.sign(message()).decode()
    assert proven_peer_id(holder.public_key.decode(), message(), signature) == holder.peer_id
    for changed in ({"public": "x"}, {"run_id": "x"}, {"lineage": "a" * 16}, {"nonce": "x"}, {"peer_id": "x"}):
        assert proven_peer_id(holder.public_key.decode(), message(**changed), signature) is None
    for credential in (("invitation", "other"), ("hub", "code"), ("none", "")):
        assert proven_peer_id(holder.public_key.decode(), message(credential=credential), signature) is None


def test_other_keys_are_refused():
    weak = Holder(1024)
    assert proven_peer_id(weak.public_key.decode(), message(), weak.sign(message()).decode()) is None
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    text = other.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    assert proven_peer_id(text, message(), "AAAA") is None


def test_work_is_a_hash_that_begins_with_zeros():
    answer = find_work("nonce", "peer", 12)
    digest = hashlib.sha256(f"training-work 1\nnonce\npeer\n{answer}".encode()).hexdigest()
    assert digest.startswith("000")
    assert has_worked("nonce", "peer", answer, 12)
    assert not has_worked("nonce", "other", answer, 12) and not has_worked("other", "peer", answer, 12)
    assert not any(has_worked("nonce", "peer", odd, 0) for odd in ("", "-1", "1" * 21, "½", "٣", "0x1"))
