"""Tickets: what is signed, what is refused, and that nothing else than a ticket is one."""

from __future__ import annotations

import base64
import doctest

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from tests.training.trust.tickets import NOW, OTHER_PEER, PEER, ticket
from training.trust import ticket as tickets
from training.trust.bans import MOST_BANS, BanList, Pulse, read_bans
from training.trust.check import (
    AWAY_SECONDS,
    RETURN_SECONDS,
    Rules,
    ServerSight,
    TicketRefused,
    check_ticket,
    newer_bans,
)
from training.trust.keys import MembershipKey
from training.trust.ticket import (
    ANY_LINEAGE,
    CLOCK_SECONDS,
    LONGEST_SECONDS,
    parse_ticket,
    read_ticket,
)

KEY = MembershipKey(bytes(range(32)))
STRANGER = MembershipKey.begin()
TEXT = ticket().signed(KEY)
LINEAGE = frozenset({"a" * 16})


def rules(**changes):
    return Rules(**{"public_key": KEY.public, "run_id": "demo", "lineages": LINEAGE, **changes})


def fault(text, *, peer_id=PEER, now=NOW + 60, **changes):
    """Why a ticket is refused; empty if it holds."""
    try:
        check_ticket(text, peer_id=peer_id, rules=rules(**changes), now=now)
    except TicketRefused as refused:
        assert "\n" not in str(refused) and str(refused).endswith(".")
        return refused.fault
    return ""


def test_the_examples_hold():
    assert doctest.testmod(tickets).failed == 0 < doctest.testmod(tickets).attempted


def test_a_ticket_is_its_lines_and_a_signature_of_them():
    *lines, signature = TEXT.split("\n")
    assert lines == [
        "training-ticket 1",
        *("demo", "a" * 16, "hf:ada", PEER, "vouched"),
        *(str(NOW), str(NOW + 3600), "18000"),
    ]
    own = Ed25519PrivateKey.from_private_bytes(bytes(range(32))).sign("\n".join(lines).encode())
    assert base64.urlsafe_b64decode(signature + "==") == own
    assert read_ticket(TEXT, KEY.public) == read_ticket(TEXT.encode(), KEY.public) == ticket()


@pytest.mark.parametrize(
    "changes, wanted",
    [
        ({}, ""),
        ({"peer_id": OTHER_PEER}, "other peer"),
        ({"run_id": "other"}, "other run"),
        ({"public_key": STRANGER.public}, "malformed"),
        ({"public_key": "no key"}, "malformed"),
        ({"lineages": frozenset({"b" * 16})}, "other lineage"),
        ({"lineages": frozenset({"b" * 16, "a" * 16})}, ""),  # a branch, whose peers know what it branched off
        ({"lineages": None}, ""),
        ({"now": NOW - CLOCK_SECONDS - 1}, "early"),
        ({"now": NOW - CLOCK_SECONDS}, ""),
    ],
)
def test_a_ticket_holds_for_its_peer_run_and_lineage(changes, wanted):
    assert fault(TEXT, **changes) == wanted


def test_a_ticket_of_any_lineage_is_not_good_for_averaging():
    text = ticket(lineage=ANY_LINEAGE).signed(KEY)
    assert fault(text) == fault(text, lineages=LINEAGE | {ANY_LINEAGE}) == "other lineage"
    assert fault(text, lineages=None) == ""


@pytest.mark.parametrize(
    "now, server_since, wanted",
    [
        (NOW + 3600 + CLOCK_SECONDS - 1, NOW, ""),
        (NOW + 3600 + CLOCK_SECONDS, NOW, "expired"),
        (NOW + 3600 + CLOCK_SECONDS, None, ""),  # the server is away
        (NOW + 6 * 3600 + CLOCK_SECONDS - 1, None, ""),
        (NOW + 6 * 3600 + CLOCK_SECONDS, None, "expired"),
        (NOW + 3 * 3600, NOW + 3 * 3600 - RETURN_SECONDS + 1, ""),  # it has just come back
        (NOW + 3 * 3600, NOW + 3 * 3600 - RETURN_SECONDS, "expired"),
    ],
)
def test_a_ticket_ends_in_time_and_later_while_the_server_is_away(now, server_since, wanted):
    assert fault(TEXT, now=now, server_since=server_since) == wanted


def test_the_server_is_there_as_long_as_it_signs():
    sight = ServerSight()
    assert sight.since(NOW) is None
    for second in range(0, 600, 60):
        sight.note(NOW + second)
    sight.note(NOW - 1000)  # an old ticket
    assert sight.since(NOW + 600) == NOW
    assert sight.since(NOW + 540 + AWAY_SECONDS) == NOW
    assert sight.since(NOW + 541 + AWAY_SECONDS) is None
    sight.note(NOW + 5000)
    assert sight.since(NOW + 5001) == NOW + 5000


@pytest.mark.parametrize("changed", [{"account": "hf:eve"}, {"standing": "open"}, {"peer_id": OTHER_PEER}])
def test_a_signature_is_good_for_one_ticket_only(changed):
    signature = TEXT.rsplit("\n", 1)[1]
    body = ticket(**changed).signed(STRANGER).rsplit("\n", 1)[0]
    assert parse_ticket(f"{body}\n{signature}") is not None
    assert read_ticket(f"{body}\n{signature}", KEY.public) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "Demo"},
        {"run_id": "demo\n"},
        {"lineage": "A" * 16},
        {"lineage": ""},
        {"account": "ada"},
        {"account": "hf:"},
        {"account": "hf:[/]"},
        {"account": "hf:ad‮a"},
        {"account": "hf:" + "a" * 97},
        {"peer_id": "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"},
        {"peer_id": PEER[:-1] + "0"},
        {"standing": "maintainer"},
        {"issued": NOW + 3600},
        {"expires": NOW - 1},
        {"grace_seconds": LONGEST_SECONDS},
        {"issued": -1},
        {"expires": 10**13},
    ],
)
def test_what_the_server_would_never_sign_is_no_ticket_even_if_it_is_signed(changed):
    assert read_ticket(ticket(**changed).signed(KEY), KEY.public) is None


@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"\xff" * 10,
        TEXT + "\n",
        TEXT + " ",
        " " + TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("\n", "\x0b"),
        TEXT.replace(str(NOW), "0" + str(NOW)),
        TEXT.replace(str(NOW), "+" + str(NOW)),
        TEXT.replace(str(NOW), str(NOW).replace("1", "\u0661")),
        TEXT + "=",
        TEXT[:-1] + "*",
        TEXT * 100,
        "\n" * 999,
        None,
        ["training-ticket 1"],
    ],
)
def test_there_is_one_way_to_write_a_ticket(odd):
    assert read_ticket(odd, KEY.public) is None


@given(st.data())
def test_a_ticket_that_is_changed_anywhere_is_none(data):
    place = data.draw(st.integers(0, len(TEXT) - 1))
    put = data.draw(st.text(max_size=3) | st.sampled_from(["\n", "0", "-", "a"]))
    cut = data.draw(st.integers(0, 3))
    changed = TEXT[:place] + put + TEXT[place + cut :]
    assert changed == TEXT or read_ticket(changed, KEY.public) is None


@given(
    st.builds(
        ticket,
        run_id=st.from_regex(r"\A[a-z0-9][a-z0-9-]{0,62}\Z"),
        lineage=st.from_regex(r"\A[0-9a-f]{16}\Z") | st.just("-"),
        account=st.from_regex(r"\A(hf|invited|open):[A-Za-z0-9][A-Za-z0-9._-]{0,95}\Z"),
        standing=st.sampled_from(["vouched", "open"]),
        issued=st.integers(0, NOW),
        expires=st.integers(NOW + 1, 2 * NOW),
    )
)
def test_what_is_signed_reads_as_it_was(made):
    valid = made.ends - made.issued <= LONGEST_SECONDS
    assert read_ticket(made.signed(KEY), KEY.public) == (made if valid else None)


# -- bans --------------------------------------------------------------------------------------------------------------

BANS = BanList(run_id="demo", version=7, issued=NOW + 30, until={"hf:eve": NOW + 3600, OTHER_PEER: NOW + 3600})


def test_a_ban_list_is_its_lines_and_a_signature_of_them():
    text = BANS.signed(KEY)
    *lines, signature = text.split("\n")
    assert lines == [
        *("training-bans 1", "demo", "7", str(NOW + 30)),
        *(f"{OTHER_PEER} {NOW + 3600}", f"hf:eve {NOW + 3600}"),
    ]
    public = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(KEY.public + "="))
    public.verify(base64.urlsafe_b64decode(signature + "=="), "\n".join(lines).encode())
    assert read_bans(text, KEY.public, "demo") == BANS
    assert read_bans(text, KEY.public, "other") is read_bans(text, STRANGER.public, "demo") is None


def test_the_banned_are_out_by_account_and_by_peer():
    assert fault(TEXT, bans=BANS) == ""
    assert fault(ticket(account="hf:eve").signed(KEY), bans=BANS) == "banned"
    assert fault(ticket(peer_id=OTHER_PEER).signed(KEY), peer_id=OTHER_PEER, bans=BANS) == "banned"
    again = ticket(
        account="hf:eve", issued=NOW + 31
    )  # the server gives none to whom it bans: this is a later admission
    assert fault(again.signed(KEY), bans=BANS) == ""


def test_lists_are_canonical_and_bounded():
    def signed(*entries):
        body = "\n".join(("training-bans 1", "demo", "7", "9", *entries))
        return read_bans(f"{body}\n{KEY.sign(body)}", KEY.public, "demo")

    assert signed("hf:a 1", "hf:b 2").until == {"hf:a": 1, "hf:b": 2}
    for wrong in (("hf:b 2", "hf:a 1"), ("hf:a 1", "hf:a 1"), ("hf:a  1",), ("hf:a",), ("",), ("hf:a 01",)):
        assert signed(*wrong) is None, wrong
    full = [f"hf:{number:05}{'x' * 91} {10**11}" for number in range(MOST_BANS + 1)]
    assert len(signed(*full[1:]).until) == MOST_BANS
    assert signed(*full) is None


def test_a_pulse_says_that_the_server_is_there():
    pulse = Pulse(run_id="demo", version=7, issued=NOW + 90)
    assert read_bans(pulse.signed(KEY), KEY.public, "demo") == pulse
    assert read_bans(pulse.signed(KEY).replace("pulse", "bans"), KEY.public, "demo") is None
    assert read_bans(BANS.signed(KEY).replace("bans", "pulse"), KEY.public, "demo") is None


def test_an_older_list_lifts_no_ban():
    older = BanList(run_id="demo", version=6, issued=NOW + 500)
    newer = BanList(run_id="demo", version=8, issued=NOW + 40)
    pulse = Pulse(run_id="demo", version=9, issued=NOW + 90)
    assert newer_bans(BANS, older) is newer_bans(BANS, pulse) is newer_bans(BANS, None) is BANS
    assert newer_bans(BANS, newer) is newer_bans(None, newer) is newer
