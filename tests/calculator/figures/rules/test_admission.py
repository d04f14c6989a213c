"""The checks of the figure beside hivemind's own authorizer, with real keys, on the same requests."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from calculator.figures.rules.admission import (
    CASES,
    CHECKS,
    PEER,
    TICKET_SECONDS,
    VOLUNTEER,
    failed_check,
    honest_request,
)
from calculator.figures.tickets import ATTACKS
from training.swarm.engine.coroutine import wait_for_result

EXPECTED = {
    "honest": None,
    "forged": 0,
    "expired": 1,
    "stolen": 2,
    "altered": 2,
    "redirected": 3,
    "delayed": 4,
    "replayed": 5,
}
"""The check at which each ends."""


def outcome(name: str) -> int | None:
    case = CASES[name]()
    return failed_check(case.request, peer=case.peer, now=case.now, seen=case.seen)


@pytest.mark.parametrize("name", CASES)
def test_each_attack_ends_at_its_check(name):
    assert outcome(name) == EXPECTED[name]


def test_every_attack_is_offered_and_every_check_stops_one():
    assert set(ATTACKS) == set(CASES) == set(EXPECTED)
    assert {place for place in EXPECTED.values() if place is not None} == set(range(len(CHECKS)))


def test_a_ticket_ends_with_the_minute_that_it_names():
    request = replace(honest_request(), time=TICKET_SECONDS - 1.0).signed(VOLUNTEER)
    assert failed_check(request, peer=PEER, now=TICKET_SECONDS - 1.0, seen=()) is None
    assert failed_check(request, peer=PEER, now=float(TICKET_SECONDS), seen=()) == 1


@pytest.fixture(scope="module")
def keys():
    """RSA keys of five people, which take a second to find."""
    crypto = pytest.importorskip("hivemind.utils.crypto")
    return [crypto.RSAPrivateKey() for _ in range(5)]


def authorizer_of(authority, clock):
    """A class as in the example in hivemind's tests: tickets are checked by the authority's public key."""
    from hivemind.proto.auth_pb2 import AccessToken
    from hivemind.utils import auth
    from hivemind.utils.crypto import RSAPrivateKey

    class Authorizer(auth.TokenAuthorizerBase):
        def __init__(self, key: RSAPrivateKey, token: AccessToken):
            super().__init__(key)
            self.token = token

        async def get_token(self) -> AccessToken:
            return self.token

        def is_token_valid(self, token: AccessToken) -> bool:
            unsigned = AccessToken()
            unsigned.CopyFrom(token)
            unsigned.signature = b""
            if not authority.get_public_key().verify(unsigned.SerializeToString(), token.signature):
                return False
            return datetime.fromisoformat(token.expiration_time).timestamp() > clock[0]

        def does_token_need_refreshing(self, token: AccessToken) -> bool:
            return False

    return Authorizer


@pytest.mark.parametrize("name", CASES)
def test_hivemind_refuses_the_same_requests(name, keys, monkeypatch):
    """A request of hivemind's averager, signed with RSA keys; the same thing is wrong with it as in the figure."""
    auth = pytest.importorskip("hivemind.utils.auth")
    from hivemind.proto.auth_pb2 import AccessToken
    from hivemind.proto.dht_pb2 import PingRequest
    from hivemind.utils.crypto import RSAPrivateKey

    began = auth.get_dht_time()
    clock = [began]
    monkeypatch.setattr(auth, "get_dht_time", lambda: clock[0])
    authority, volunteer, peer, other, attacker = keys

    def ticket(key: RSAPrivateKey, signer: RSAPrivateKey) -> AccessToken:
        expires = datetime.fromtimestamp(began + TICKET_SECONDS, UTC).isoformat()
        token = AccessToken(username="ada", public_key=key.get_public_key().to_bytes(), expiration_time=expires)
        token.signature = signer.sign(token.SerializeToString())
        return token

    Authorizer = authorizer_of(authority, clock)

    def signed_request(key: RSAPrivateKey, token: AccessToken) -> PingRequest:
        sender = Authorizer(key, token)
        sender._local_access_token = token
        request = PingRequest()
        wait_for_result(sender.sign_request(request, peer.get_public_key()))
        return request

    own = ticket(volunteer, authority)
    receiver = Authorizer(peer, ticket(peer, authority))
    request = signed_request(volunteer, own)
    match name:
        case "forged":
            request = signed_request(attacker, ticket(attacker, attacker))
        case "expired":
            receiver._local_access_token = receiver.token
            clock[0] += TICKET_SECONDS + 5
            request = signed_request(volunteer, own)
        case "stolen":
            request = signed_request(attacker, own)
        case "altered":
            request.validate = not request.validate
        case "redirected":
            receiver = Authorizer(other, ticket(other, authority))
        case "delayed":
            clock[0] += 61
        case "replayed":
            first = PingRequest()
            first.CopyFrom(request)
            assert wait_for_result(receiver.validate_request(first))
    assert wait_for_result(receiver.validate_request(request)) == (EXPECTED[name] is None)
