"""Validators' reports over HTTP: who may suspend whom, what is refused, and what moderators see."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serving import serving
from tests.training.trust.hub import hub_serving
from tests.training.trust.servers import HOLDERS, HTTP, TOKEN, Server
from tests.training.trust.tickets import NOW, OTHER_PEER
from training.errors import RefusedByRun, TrainingError
from training.trust.evidence import show_evidence
from training.trust.keys import MembershipKey
from training.trust.proof import LARGEST_KEY_BYTES, LARGEST_PROOF_BYTES, proof_message
from training.trust.refusals import REASONS
from training.trust.reports import LARGEST_DETAIL_BYTES, LARGEST_SHARE, MOST_CHECKS, MOST_COPIED, Findings
from training.trust.server import app as apps
from training.trust.server.app import LARGEST_BODY_BYTES, LIMITS
from training.trust.server.desk import NONCE_SECONDS, PER_VALIDATOR
from training.trust.server.policy import Policy
from training.trust.server.register import Admission

VAL, EVE, BO = HOLDERS
CHECK = {"epoch": 7, "samples": 8, "share": 0.125, "error": 0.25}
FOUND = {"checks": [CHECK], "undeclared": 0}


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with a validator, another one, and a member who has two peers."""
    monkeypatch.setattr(apps, "LIMITS", {})
    server = Server(tmp_path, Policy(validators=("invited:val", "hf:mo")))
    with serving(server.app) as server.url:
        server.client(VAL, invitation=server.invite("val")).ticket()
        code = server.invite("eve", uses=1)
        server.client(EVE, invitation=code).ticket()
        admit(server, "invited:eve", OTHER_PEER)
        yield server


def admit(server, account, peer_id, **more):
    """Makes a member without asking."""
    admission = Admission(account=account, standing="vouched", **more)
    server.register.admit(admission, peer_id, ticket_ends=NOW + 3600, most_peers=8)


def report_of(server, holder=VAL, *, about=EVE.peer_id, detail=None, key=None, **changes):
    """A report as a validator's program makes it, with the signed words spelled out."""
    text = json.dumps(FOUND) if detail is None else detail
    nonce = HTTP.get(f"{server.url}/challenge", params={"peer_id": holder.peer_id}).json()["nonce"]
    digest = hashlib.sha256(text.encode()).hexdigest()
    words = ("training-report 1", key or server.key.public, "demo", holder.peer_id, nonce, about, digest)
    fields = {"peer_id": holder.peer_id, "public_key": holder.public_key.decode(), "nonce": nonce, "about": about}
    fields |= {"detail": text, "signature": holder.sign("\n".join(words).encode()).decode()}
    return {**fields, **changes}


def send(server, asked):
    """The refusal, or nothing if the report was taken."""
    answer = HTTP.post(f"{server.url}/reports", json=asked)
    if answer.status_code == 200:
        assert answer.json() == {"reported": True}
        return ""
    assert set(answer.json()) <= {"refused", "seconds"}  # nothing of what came
    return answer.json()["refused"]


def is_untouched(server):
    """Whether nobody is banned, and nothing is stored."""
    return server.register.banned() == [] and server.register.evidence("eve")[1] == []


# -- what a report does ------------------------------------------------------------------------------------------------


def test_a_report_suspends_a_member_with_all_peers_until_a_moderator_lifts_it(server):
    before = server.client(VAL).bans(None)
    server.client(VAL).report(EVE.peer_id, {**FOUND, "checks": [CHECK] * 12})
    bans = server.client(VAL).bans(before.version)
    assert set(bans.until) == {"invited:eve", EVE.peer_id, OTHER_PEER} and bans.version > before.version
    with pytest.raises(RefusedByRun, match="have banned this account or this peer"):
        server.client(EVE).ticket()
    reason = (
        "suspended by the validator invited:val after 12 checks of work; `moderate evidence invited:eve` shows them"
    )
    entry = server.register.audit()[0]
    told = ("validator invited:val", "suspended", "invited:eve", reason)
    assert (entry["who"], entry["what"], entry["subject"], entry["detail"]) == told
    page = HTTP.get(f"{server.url}/page", auth=("", TOKEN)).text
    assert reason in page and '<td data-column="Reports">1</td>' in page
    server.register.unban("eve", who="mo")
    assert server.read(server.client(EVE).ticket()).account == "invited:eve"


def test_a_report_can_be_written_by_hand(server):
    """So that the words that are signed stay what they are."""
    assert send(server, report_of(server)) == ""
    assert server.register.banned()[0]["name"] == "invited:eve"


def test_an_overheard_report_brings_no_ban_back(server):
    asked = report_of(server)
    assert send(server, asked) == ""
    server.register.unban("eve", who="mo")
    assert send(server, asked) == ""
    assert server.register.banned() == [] and len(server.register.evidence("eve")[1]) == 1


def test_numbers_that_json_has_not_and_many_digits_travel(server):
    odd = [(math.nan, math.inf), (-math.inf, math.inf), (1e300, 0.0), (1 / 3, 2 / 3)]
    checks = [{**CHECK, "share": share, "error": error} for share, error in odd]
    long = {"epoch": 9_999_999, "samples": 9_999, "share": -math.pi / 4, "error": math.pi / 4}
    checks += [long] * (MOST_CHECKS - len(odd))
    peers = [f"{OTHER_PEER[:-1]}{letter}" for letter in "abcdefghij"]
    assert len(peers) == MOST_COPIED
    server.client(VAL).report(EVE.peer_id, {"checks": checks, "copied_from": peers, "undeclared": 10**6})
    (report,) = server.register.evidence("eve")[1]
    stored = Findings.model_validate_json(report["detail"])
    assert [(one.share, one.error) for one in stored.checks[: len(odd)]] == [
        (LARGEST_SHARE, LARGEST_SHARE),
        (-LARGEST_SHARE, LARGEST_SHARE),
        (LARGEST_SHARE, 0.0),
        (0.3333, 0.6667),
    ]
    assert stored.checks[-1].share == -0.7854 and len(stored.checks) == MOST_CHECKS
    assert stored.copied_from == tuple(peers) and stored.undeclared == 10**6


def test_the_largest_report_fits_into_a_body():
    """Also of a peer with the longest key; every quotation mark of the detail travels as two bytes."""
    check = '{"epoch":0,"samples":0,"share":0.0,"error":0.0}'
    quotes = check.count('"') * LARGEST_DETAIL_BYTES // len(check)
    assert LARGEST_DETAIL_BYTES + quotes + LARGEST_KEY_BYTES + LARGEST_PROOF_BYTES + 500 < LARGEST_BODY_BYTES


# -- who may report whom -----------------------------------------------------------------------------------------------


def test_only_validators_report(server):
    assert send(server, report_of(server, BO)) == "no-validator"  # nobody
    server.client(BO, invitation=server.invite("bo")).ticket()
    assert send(server, report_of(server, BO)) == "no-validator"  # a member
    with pytest.raises(RefusedByRun, match="from the run's validators only") as refused:
        server.client(BO).report(EVE.peer_id, FOUND)
    assert "--validator" in refused.value.told and "\n" not in refused.value.told
    assert is_untouched(server) and server.desk.refused["no-validator"] == 3


def test_a_validator_who_is_banned_or_must_show_a_token_reports_nobody(server):
    server.register.ban("val", reason="", who="mo")
    assert send(server, report_of(server)) == "banned"
    server.register.unban("val", who="mo")
    admit(server, "hf:mo", BO.peer_id, shown_until=NOW + 60)
    server.now += 60
    assert send(server, report_of(server, BO)) == "show-again"
    assert is_untouched(server)


def test_nobody_reports_validators_or_strangers(server):
    admit(server, "hf:mo", BO.peer_id)
    for validator in (VAL, BO):
        with pytest.raises(RefusedByRun, match="no report on a validator's work"):
            server.client(VAL).report(validator.peer_id, FOUND)
    server.register.remove("eve", who="mo")
    assert send(server, report_of(server)) == "malformed"
    assert server.register.banned() == []


def test_a_validator_cannot_suspend_ever_more(server):
    most = PER_VALIDATOR["at_once"]
    reports = [{**FOUND, "checks": [{**CHECK, "epoch": epoch}]} for epoch in range(most + 1)]
    for one in reports[:most]:
        server.client(VAL).report(EVE.peer_id, one)
    with pytest.raises(TrainingError, match=r"asks to wait [0-9]+ s"):
        server.client(VAL).report(EVE.peer_id, reports[most])
    assert len(server.register.evidence("eve")[1]) == most


def test_too_many_reports_of_an_address_are_put_off(tmp_path):
    server = Server(tmp_path, Policy())
    with serving(server.app) as server.url:
        most = LIMITS["/reports"]["at_once"]
        codes = [HTTP.post(f"{server.url}/reports", content=b"{}").status_code for _ in range(most + 1)]
        assert codes == [422] * most + [429]


# -- proofs ------------------------------------------------------------------------------------------------------------


def test_nobody_reports_in_a_validators_name(server):
    asked, own = report_of(server), report_of(server, BO)
    wrong = {"public_key": own["public_key"]}, {"signature": own["signature"]}, {"about": OTHER_PEER}
    for changes in (*wrong, {"detail": json.dumps({**FOUND, "undeclared": 1})}, {"signature": ""}):
        assert send(server, {**asked, **changes}) == "proof-wrong"
    assert send(server, {**own, "peer_id": VAL.peer_id}) == "nonce-over"  # the nonce was given to another peer
    assert send(server, report_of(server, key=MembershipKey.begin().public)) == "proof-wrong"
    assert is_untouched(server)


def test_nonces_of_reports_end(server):
    asked = report_of(server)
    server.now += NONCE_SECONDS + 1
    assert send(server, asked) == "nonce-over" and is_untouched(server)
    assert send(server, {**asked, "nonce": "99999999999.ab.cd"}) == "nonce-over"


def test_the_proof_of_a_ticket_is_none_of_a_report_nor_the_other_way_round(server):
    """Though both messages have as many lines."""
    asked = report_of(server)
    fields = {"public": server.key.public, "run_id": "demo", "nonce": asked["nonce"], "peer_id": VAL.peer_id}
    message = proof_message(**fields, lineage="-", credential=("none", ""))
    assert send(server, {**asked, "signature": VAL.sign(message).decode()}) == "proof-wrong"
    ticket = {name: asked[name] for name in ("peer_id", "public_key", "nonce", "signature")}
    ticket |= {"lineage": "-", "credential": {"kind": "none", "text": ""}}
    assert HTTP.post(f"{server.url}/tickets", json=ticket).json()["refused"] == "proof-wrong"


# -- what is malformed -------------------------------------------------------------------------------------------------


def with_check(**changes):
    return json.dumps({**FOUND, "checks": [{**CHECK, **changes}]})


MALFORMED = {
    "no JSON": "no JSON",
    "empty": "",
    "a number": "1",
    "a list": "[]",
    "an empty object": "{}",
    "no checks": json.dumps({**FOUND, "checks": []}),
    "too many checks": json.dumps({**FOUND, "checks": [{"epoch": 1, "samples": 1, "share": 1, "error": 1}] * 51}),
    "a check that is none": json.dumps({**FOUND, "checks": [1]}),
    "more than is asked": json.dumps({**FOUND, "more": 1}),
    "more in a check": with_check(more=1),
    "nothing of undeclared": json.dumps({"checks": [CHECK]}),
    "NaN": with_check(share=math.nan),
    "infinite": with_check(error=math.inf),
    "a number beyond floats": with_check(share=7.25).replace("7.25", "1e999"),
    "a share beyond all": with_check(share=1e10),
    "an error below 0": with_check(error=-0.1),
    "a share in words": with_check(share="1"),
    "a share that is true": with_check(share=True),
    "a huge epoch": with_check(epoch=7).replace("7", "9" * 3000),
    "an epoch below 0": with_check(epoch=-1),
    "an epoch with a fraction": with_check(epoch=1.5),
    "an epoch that is true": with_check(epoch=True),
    "no peers": json.dumps({**FOUND, "copied_from": ["hf:ada"]}),
    "too many peers": json.dumps({**FOUND, "copied_from": [OTHER_PEER] * (MOST_COPIED + 1)}),
    "peers in no list": json.dumps({**FOUND, "copied_from": OTHER_PEER}),
    "deep lists": "[" * 4000,
    "deep objects": '{"checks":' * 390,
    "half a letter": '{"checks": "\\ud800"}',
    "another script": json.dumps({**FOUND, "é": 1}, ensure_ascii=False),
    "a line break": json.dumps(FOUND, indent=1),
    "too long": json.dumps(FOUND) + " " * LARGEST_DETAIL_BYTES,
}


@pytest.mark.parametrize("detail", MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused_in_one_word(server, detail, caplog):
    assert send(server, report_of(server, detail=detail)) == "malformed"
    assert is_untouched(server) and "Traceback" not in caplog.text


def test_a_malformed_report_is_one_sentence_for_its_sender(server):
    with pytest.raises(RefusedByRun) as refused:
        server.client(VAL).report(EVE.peer_id, {"checks": []})
    assert "malformed" in refused.value.told and "\n" not in refused.value.told


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_report_breaks_the_server(server, data):
    """Such as are valid but for some fields, within their JSON or around it; all with a proof."""
    server.desk._per_validator.take = lambda validator: 0.0
    found = {**FOUND, "copied_from": [OTHER_PEER]}
    for field in data.draw(st.lists(st.sampled_from([*found, "more"]), max_size=2)):
        found = {**found, field: data.draw(JSON)}
    for field in data.draw(st.lists(st.sampled_from([*CHECK, "more"]), max_size=2)):
        found = {**found, "checks": [{**CHECK, field: data.draw(JSON)}]}
    detail = json.dumps(found) if data.draw(st.booleans()) else data.draw(st.text(max_size=60))
    try:
        asked = report_of(server, detail=detail)
    except UnicodeEncodeError:  # it could not be signed
        return
    for field in data.draw(st.lists(st.sampled_from([*asked, "more"]), max_size=1)):
        asked = {**asked, field: data.draw(JSON)}
    body = json.dumps(asked).encode()
    answer = HTTP.post(f"{server.url}/reports", content=body, headers={"content-type": "application/json"})
    if answer.status_code == 200:
        assert answer.json() == {"reported": True}
    else:
        assert answer.status_code in (403, 409, 422) and answer.json()["refused"] in REASONS


# -- a server that is away, or is another one --------------------------------------------------------------------------


def test_a_server_that_is_away_or_knows_no_reports_is_named(server):
    with pytest.raises(TrainingError, match="does not answer: connection refused"):
        server.client(VAL, url="http://127.0.0.1:9").report(EVE.peer_id, FOUND)
    with pytest.raises(TrainingError, match="the server of another run, or the recipe is old"):
        server.client(VAL, key=MembershipKey.begin().public).report(EVE.peer_id, FOUND)
    server.app.router.routes[:] = [route for route in server.app.router.routes if route.path != "/reports"]
    with pytest.raises(TrainingError, match="answers with HTTP 404"):
        server.client(VAL).report(EVE.peer_id, FOUND)


@pytest.mark.parametrize("answer", [b"no JSON", b"[]", b"{}", b'{"reported": 1}', b"[" * 5000])
def test_an_answer_that_confirms_nothing_is_an_error(server, answer):
    client = server.client(VAL)
    challenge = client._challenge()
    with hub_serving() as other:
        other.answer = (200, {}, answer)
        client.url, client._challenge = other.url, lambda: challenge
        with pytest.raises(TrainingError) as failed:
            client.report(EVE.peer_id, FOUND)
    assert "\n" not in failed.value.told and len(failed.value.told) < 400


# -- what moderators see -----------------------------------------------------------------------------------------------


def shown(server, capsys, *, is_banned=True):
    """The words of `moderate evidence`, with each run of spaces as one."""
    show_evidence(*server.register.evidence("eve"), is_banned=is_banned)
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_evidence_shows_each_check_and_what_to_do(server, capsys):
    assert shown(server, capsys) == ["No validator has reported invited:eve."]
    uncounted = {"epoch": 8, "samples": 0, "share": 0.0, "error": 0.0}
    server.client(VAL).report(EVE.peer_id, {"checks": [CHECK, uncounted], "undeclared": 1})
    server.now += 60
    copies = {"checks": [{**CHECK, "epoch": 123_456, "share": -0.01}], "undeclared": 2, "copied_from": [BO.peer_id]}
    server.client(VAL).report(OTHER_PEER, copies)
    lines = shown(server, capsys)
    assert lines[:8] == [
        "Reports of validators on invited:eve: 2. Times are in UTC.",
        "Time Validator Epoch Samples Share Error",
        "2027-01-15 08:00 invited:val 7 8 0.125 0.25",
        "2027-01-15 08:00 invited:val 8 0 none none",
        "2027-01-15 08:01 invited:val 123456 8 -0.01 0.25",
        f"2027-01-15 08:00, peer {EVE.peer_id}: for 1 update it declared no samples that the validator could compute "
        "again.",
        f"2027-01-15 08:01, peer {OTHER_PEER}: it and these sent copies of one another's updates: {BO.peer_id}.",
        f"2027-01-15 08:01, peer {OTHER_PEER}: for 2 updates it declared no samples that the validator could compute "
        "again.",
    ]
    assert "about 1 for an honest peer" in lines[8]
    assert lines[9:] == ["`moderate unban invited:eve` lifts the ban, if the reports are wrong."]
    assert shown(server, capsys, is_banned=False)[-1] == "invited:eve is not banned now."
