"""The membership server over HTTP: who gets a ticket, and what happens to those who should get none."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import urllib.request
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.programs import until
from tests.support.serving import serving
from tests.training.trust.hub import ADAS, BOS, hub_serving
from tests.training.trust.servers import HOLDERS, HTTP, TOKEN, Server
from tests.training.trust.tickets import NOW, OTHER_PEER
from training.errors import BadInput, RefusedByRun, TrainingError
from training.trust.bans import Pulse
from training.trust.check import Rules, TicketRefused, check_ticket
from training.trust.keys import MembershipKey
from training.trust.proof import find_work, proof_message
from training.trust.refusals import REASONS, Refusal
from training.trust.server import app as apps
from training.trust.server import ledger as ledger_module
from training.trust.server.app import LARGEST_BODY_BYTES, LIMITS, create_app
from training.trust.server.desk import NONCE_SECONDS
from training.trust.server.hub import MOST_WAITING
from training.trust.server.policy import Policy

LINEAGE = "a" * 16
WORK_BITS = 8


@pytest.fixture(scope="module")
def hub():
    with hub_serving() as hub:
        yield hub


@pytest.fixture(autouse=True)
def _fresh_hub(hub):
    hub.asked.clear()
    hub.answer = None


@pytest.fixture
def start(tmp_path, hub, monkeypatch):
    """Starts a server with a policy; of most limits this test would only be slower."""
    monkeypatch.setattr(apps, "LIMITS", {})
    policy = {"organizations": ("shapes",), "hub_endpoint": hub.url, "work_bits": WORK_BITS}

    def start(**changes):
        server = Server(tmp_path, Policy(**{**policy, **changes}))
        context = serving(server.app)
        server.url = context.__enter__()
        contexts.append(context)
        return server

    contexts = []
    yield start
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.fixture
def server(start):
    return start()


def hub_client(server, token=ADAS, **more):
    return server.client(hub_token=lambda: token, **more)


# -- who gets a ticket -------------------------------------------------------------------------------------------------


def test_a_member_of_the_organization_gets_a_ticket_for_their_own_peer(server, hub):
    ticket = hub_client(server).ticket(LINEAGE)[1]
    assert (ticket.account, ticket.standing, ticket.lineage) == ("hf:ada", "vouched", LINEAGE)
    assert (ticket.run_id, ticket.peer_id) == ("demo", HOLDERS[0].peer_id)
    policy = server.desk.policy
    assert (ticket.issued, ticket.expires) == (NOW, NOW + policy.ticket_seconds)
    assert ticket.ends == ticket.expires + policy.grace_seconds
    assert hub.asked == [("/api/whoami-v2", f"Bearer {ADAS}")]
    assert any(server.url in one for one in server.told)  # the volunteer is told who sees the token


def test_a_ticket_from_the_server_passes_the_check_of_a_peer(server):
    text, _ = server.client(invitation=server.invite()).ticket(LINEAGE)
    rules = Rules(public_key=server.key.public, run_id="demo", lineages=frozenset({LINEAGE}))
    assert check_ticket(text, peer_id=HOLDERS[0].peer_id, rules=rules, now=NOW).account == "invited:ada"
    with pytest.raises(TicketRefused):
        check_ticket(text, peer_id=HOLDERS[1].peer_id, rules=rules, now=NOW)


def test_renewing_shows_no_credential_until_the_check_is_old(server, hub):
    client = hub_client(server)
    client.ticket()
    server.now += 3000
    assert client.ticket()[1].issued == NOW + 3000
    assert len(hub.asked) == 1
    server.now = NOW + server.desk.policy.recheck_seconds
    client.ticket()
    assert len(hub.asked) == 2
    hub.users[ADAS]["orgs"].clear()
    try:
        server.now += server.desk.policy.recheck_seconds
        with pytest.raises(RefusedByRun, match="belongs to none of the run's organizations"):
            client.ticket()
    finally:
        hub.users[ADAS]["orgs"].append({"name": "Shapes"})


def test_an_invited_peer_comes_back_without_the_code(server):
    code = server.invite()
    assert server.client(invitation=code).ticket()[1].account == "invited:ada"
    assert server.client(invitation=code).ticket()[1].account == "invited:ada"
    assert server.client().ticket()[1].account == "invited:ada"
    with pytest.raises(RefusedByRun, match="used up, its time is over, or the run's maintainers have ended"):
        server.client(HOLDERS[1], invitation=code).ticket()


def test_work_makes_an_open_member_who_may_become_a_vouched_one(server):
    ticket = server.client().ticket()[1]
    assert (ticket.account, ticket.standing) == (f"open:{HOLDERS[0].peer_id}", "open")
    assert server.client().ticket()[1].standing == "open"
    ticket = server.client(invitation=server.invite()).ticket()[1]
    assert (ticket.account, ticket.standing) == ("invited:ada", "vouched")
    assert server.client().ticket()[1].standing == "vouched"


@pytest.mark.parametrize(
    "policy, credentials, words, cure",
    [
        ({"work_bits": 0}, {}, "Only members may take part", "--invitation CODE"),
        ({}, {"invitation": "abcdef-abcdef"}, "does not know this invitation", "Copy the code again"),
        ({}, {"hub_token": lambda: BOS}, "belongs to none of the run's organizations (shapes)", "Ask to be added"),
        ({}, {"hub_token": lambda: "hf_" + "x" * 34}, "does not know your token", "hf auth login"),
        ({"organizations": ()}, {"hub_token": lambda: ADAS}, "does not admit members in this way", "--invitation CODE"),
    ],
)
def test_who_has_no_valid_credential_is_told_why_and_what_to_do(start, policy, credentials, words, cure):
    server = start(**policy)
    with pytest.raises(RefusedByRun) as refused:
        server.client(**credentials).ticket()
    assert words in str(refused.value) and cure in refused.value.sentence and refused.value.exit_code == 3
    assert "\n" not in refused.value.sentence
    assert server.register.members() == [] and sum(server.desk.refused.values()) >= 1


def test_a_run_without_organizations_never_sees_a_token(start, hub):
    with pytest.raises(RefusedByRun):
        hub_client(start(organizations=())).ticket()
    assert hub.asked == []


def test_the_banned_are_told_and_the_list_says_so_at_once(server):
    client = server.client(invitation=server.invite())
    text, _ = client.ticket(LINEAGE)
    before = client.bans(None)
    server.now += 5
    assert client.bans(before.version) == Pulse(run_id="demo", version=before.version, issued=NOW + 5)
    server.register.ban("ada", reason="spam", who="mo")
    bans = client.bans(before.version)
    rules = Rules(public_key=server.key.public, run_id="demo", bans=bans)
    with pytest.raises(TicketRefused) as refused:
        check_ticket(text, peer_id=HOLDERS[0].peer_id, rules=rules, now=NOW + 5)
    assert refused.value.fault == "banned"
    with pytest.raises(RefusedByRun, match="maintainers have banned this account or this peer"):
        client.ticket(LINEAGE)


def test_an_account_cannot_have_ever_more_peers(start):
    server = start(peers_per_account=2)
    for holder in HOLDERS[:2]:
        hub_client(server, holder=holder).ticket()
    with pytest.raises(RefusedByRun, match="as many peers in the run"):
        hub_client(server, holder=HOLDERS[2]).ticket()


# -- the Hub -----------------------------------------------------------------------------------------------------------


def test_a_banned_member_who_changes_their_name_on_the_hub_stays_banned(server, hub):
    hub_client(server).ticket()
    server.register.ban("ada", reason="", who="mo")
    hub.answer = (200, {}, json.dumps({**hub.users[ADAS], "name": "eva"}).encode())
    with pytest.raises(RefusedByRun, match="have banned"):
        hub_client(server, holder=HOLDERS[1]).ticket()


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}, b"{}"),
        (429, {}, b"{}"),
        (200, {}, b"no JSON"),
        (200, {}, b"[]"),
        (200, {}, b'{"type": "user", "name": "ada", "orgs": [{}]}'),
        (200, {}, b'{"type": "user", "id": "1", "name": "a\\u202eda", "orgs": [{"name": "shapes"}]}'),
        (302, {"Location": "/elsewhere"}, b""),
    ],
)
def test_a_hub_that_has_a_fault_is_nobodys_fault(server, hub, answer):
    hub.answer = answer
    with pytest.raises(TrainingError, match="cannot ask the Hugging Face Hub") as failed:
        hub_client(server).ticket()
    assert not isinstance(failed.value, RefusedByRun)
    assert server.register.members() == []


def test_a_hub_that_is_slow_holds_up_few(server, hub, monkeypatch):
    asked, answered = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(server.desk._hub, "_whoami", lambda token: asked.release() or (answered.wait(20) and {}))
    waiting = [threading.Thread(target=refusal_of, args=(server,)) for _ in range(MOST_WAITING)]
    for thread in waiting:
        thread.start()
    assert asked.acquire(timeout=10)
    until(lambda: not server.desk._hub._places._value, within=10)
    assert refusal_of(server) == "hub-away" and HTTP.get(f"{server.url}/bans").status_code == 200
    answered.set()
    for thread in waiting:
        thread.join(20)


def refusal_of(server):
    with pytest.raises(Refusal) as refusal:
        server.desk._hub.member(ADAS)
    return refusal.value.reason


def test_the_token_goes_to_the_hub_only_and_is_nowhere_kept(server, hub, tmp_path, caplog, capfd):
    caplog.set_level(0)
    with hub_serving() as elsewhere:
        hub.answer = (302, {"Location": f"{elsewhere.url}/api/whoami-v2"}, b"")
        with pytest.raises(TrainingError):
            hub_client(server).ticket()
        assert elsewhere.asked == [] and len(hub.asked) == 1
    hub.answer = None
    hub_client(server).ticket()
    printed = capfd.readouterr()
    everywhere = caplog.text + printed.out + printed.err + repr(server.told) + repr(vars(server.desk))
    everywhere += repr([path.read_bytes() for path in tmp_path.iterdir()])
    everywhere += HTTP.get(f"{server.url}/page", auth=("", TOKEN)).text
    assert ADAS not in everywhere


def test_a_server_that_redirects_gets_no_token_for_another(server):
    """The challenge is answered, and then the server sends the request with the token elsewhere."""
    with hub_serving() as elsewhere:
        redirecting = SimpleNamespace(url="")

        async def app(scope, receive, send):
            if scope["type"] != "http":
                return
            if scope["path"] == "/challenge":
                facts = {"run_id": "demo", "key": server.key.public, "nonce": "1.a.b", "work_bits": 0}
                body, status = json.dumps({**facts, "organizations": []}).encode(), 200
            else:
                body, status = b"", 307
            location = [(b"location", f"{elsewhere.url}/tickets".encode())]
            await send({"type": "http.response.start", "status": status, "headers": location})
            await send({"type": "http.response.body", "body": body})

        with serving(app) as redirecting.url, pytest.raises(TrainingError, match="answers with HTTP 307"):
            hub_client(server, url=redirecting.url).ticket()
        assert elsewhere.asked == []


# -- proofs ------------------------------------------------------------------------------------------------------------


def request_of(server, holder=HOLDERS[0], credential=("work", ""), **changes):
    """A request as a client would make it."""
    challenge = HTTP.get(f"{server.url}/challenge", params={"peer_id": holder.peer_id}).json()
    fields = {"peer_id": holder.peer_id, "lineage": LINEAGE, "nonce": challenge["nonce"]}
    if credential[0] == "work":
        credential = "work", find_work(challenge["nonce"], holder.peer_id, WORK_BITS)
    message = proof_message(public=server.key.public, run_id="demo", credential=credential, **fields)
    asked = {**fields, "public_key": holder.public_key.decode(), "signature": holder.sign(message).decode()}
    return {**asked, "credential": {"kind": credential[0], "text": credential[1]}, **changes}


def ask(server, asked):
    """The refusal, or nothing if there is a ticket."""
    answer = HTTP.post(f"{server.url}/tickets", json=asked)
    assert (answer.status_code == 200) == ("ticket" in answer.json())
    return answer.json().get("refused", "")


def test_nobody_gets_a_ticket_for_anothers_peer_id(server):
    assert ask(server, request_of(server)) == ""
    victim, thief = HOLDERS[0], HOLDERS[1]
    own = request_of(server, thief)
    asked = request_of(server, victim)
    assert ask(server, {**asked, "public_key": own["public_key"]}) == "proof-wrong"
    assert ask(server, {**asked, "public_key": own["public_key"], "signature": own["signature"]}) == "proof-wrong"
    assert ask(server, {**own, "peer_id": victim.peer_id}) == "nonce-over"  # the nonce was given to another peer
    assert ask(server, {**asked, "signature": own["signature"]}) == "proof-wrong"


def test_a_request_that_was_overheard_serves_no_other_purpose(server):
    asked = request_of(server)
    assert ask(server, {**asked, "lineage": "b" * 16}) == "proof-wrong"
    assert ask(server, {**asked, "credential": {"kind": "invitation", "text": server.invite()}}) == "proof-wrong"
    other = MembershipKey.begin()
    server.desk.key = other  # the server of another run, to which somebody passes it on
    assert ask(server, asked) == "proof-wrong"


def test_nonces_end_and_are_no_ones_own_invention(server):
    asked = request_of(server)
    server.now += NONCE_SECONDS + 1
    assert ask(server, asked) == "nonce-over"
    begun, seal = asked["nonce"].rsplit(".", 1)
    later = f"{int(begun.split('.')[0]) + 500}.{begun.split('.')[1]}"
    assert ask(server, {**asked, "nonce": f"{later}.{seal}"}) == "nonce-over"
    assert ask(server, {**asked, "nonce": "99999999999.ab.cd"}) == "nonce-over"


def test_work_that_was_not_done_is_refused(server):
    asked = request_of(server, credential=("none", ""))
    assert ask(server, asked) == "no-credential"
    holder, nonce = HOLDERS[0], asked["nonce"]
    wrong = next(str(n) for n in range(100) if str(n) != find_work(nonce, holder.peer_id, WORK_BITS))
    fields = {"peer_id": holder.peer_id, "lineage": LINEAGE, "nonce": nonce}
    message = proof_message(public=server.key.public, run_id="demo", credential=("work", wrong), **fields)
    asked |= {"signature": holder.sign(message).decode(), "credential": {"kind": "work", "text": wrong}}
    assert ask(server, asked) == "work-wrong"


# -- what may come in --------------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("method, path", [("GET", "/challenge"), ("POST", "/tickets"), ("GET", "/bans")])
def test_no_request_that_is_drawn_from_the_schema_breaks_the_server(server, method, path, mode):
    """Nor one that is against it. The server keeps its schema to itself; FastAPI makes it of the types all the same."""
    drawn = schemathesis.openapi.from_dict(server.app.openapi())[path][method].as_strategy(generation_mode=mode)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn)
    def ask(case):
        answer = case.call(base_url=server.url, timeout=20)
        assert answer.status_code in (200, 403, 404, 405, 409, 422, 429)
        if answer.status_code not in (200, 404, 405):
            assert json.loads(answer.text)["refused"] in REASONS
            assert set(json.loads(answer.text)) <= {"refused", "seconds"}

    ask()


def test_a_body_that_is_too_long_is_not_read(server):
    answer = HTTP.post(f"{server.url}/tickets", content=b"x" * (LARGEST_BODY_BYTES + 1))
    assert answer.json()["refused"] == "malformed"
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        head = "POST /tickets HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"2000\r\n" + b"x" * 0x2000 + b"\r\n1\r\nx\r\n")
        connection.settimeout(20)
        assert b" 422 " in connection.recv(1000)  # while the body goes on


def test_too_many_requests_of_an_address_are_put_off(tmp_path, hub):
    server = Server(tmp_path, Policy())
    with serving(server.app) as server.url:
        most = LIMITS["/tickets"]["at_once"]
        answers = [HTTP.post(f"{server.url}/tickets", content=b"{}") for _ in range(most + 1)]
        assert [answer.status_code for answer in answers] == [422] * most + [429]
        assert 0 < int(answers[-1].headers["retry-after"]) <= 1 / LIMITS["/tickets"]["per_second"]
        assert answers[-1].json()["refused"] == "too-fast"
        assert HTTP.get(f"{server.url}/bans").status_code == 200


def test_a_register_that_is_held_is_one_to_ask_again(server, monkeypatch, caplog):
    """Another program holds the file, as a backup does: the peer keeps its ticket, and the log stays empty."""
    monkeypatch.setattr(ledger_module, "LOCK_SECONDS", 0.01)
    client = server.client(invitation=server.invite())
    client.ticket()
    with closing(sqlite3.connect(server.register.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        answer = HTTP.post(f"{server.url}/tickets", json=request_of(server, credential=("none", "")))
        assert answer.status_code == 503 and answer.json() == {"refused": "busy", "seconds": 5}
        assert answer.headers["retry-after"] == "5"
        with pytest.raises(TrainingError, match="another program holds it") as refused:
            client.ticket()
        assert not isinstance(refused.value, RefusedByRun) and "Try again in 5 s" in refused.value.cure
        assert client.bans(None).run_id == "demo"
        other.execute("ROLLBACK")
    assert client.ticket() and not caplog.records


def test_requests_that_never_come_whole_use_up_no_permits(server):
    """They may come from the address of others, as behind one router."""
    place = server.url.removeprefix("http://").split(":")
    head = b"GET /bans HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(LIMITS["/bans"]["at_once"] + 50):
            connection = opened.enter_context(socket.create_connection(place))
            connection.sendall(head)
        assert HTTP.get(f"{server.url}/bans").status_code == 200


# -- a server that is not what it should be ----------------------------------------------------------------------------


def test_the_server_of_another_run_or_none_is_named(server):
    with pytest.raises(TrainingError, match="the server of another run, or the recipe is old"):
        server.client(key=MembershipKey.begin().public).ticket()
    with pytest.raises(TrainingError, match="does not answer: connection refused"):
        server.client(url="http://127.0.0.1:9").ticket()
    with hub_serving() as other, pytest.raises(TrainingError, match="answers with HTTP 401"):
        server.client(url=other.url).ticket()
    with pytest.raises(BadInput, match="is no key"):
        server.client(key="_" * 43)


@pytest.mark.parametrize("answer", [b"no JSON", b"[]", b"{}", b"[" * 5000, b"x" * 10**6, b'{"nonce": 1}'])
def test_an_answer_that_is_none_is_one_sentence(server, hub, answer):
    hub.answer = (200, {}, answer)
    for what in (server.client(url=hub.url).ticket, lambda: server.client(url=hub.url).bans(None)):
        with pytest.raises(TrainingError) as failed:
            what()
        assert "\n" not in failed.value.sentence and len(failed.value.sentence) < 400


def test_a_ticket_of_another_key_is_not_taken(server):
    client = server.client(invitation=server.invite())
    public, server.desk.key = server.key.public, MembershipKey.begin()
    server.desk.key.public = public  # it pretends
    with pytest.raises(TrainingError, match="not signed with the recipe's key"):
        client.ticket()
    with pytest.raises(TrainingError, match="ban list is not signed"):
        client.bans(None)


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_shows_members_bans_and_the_log_and_runs_nothing(server):
    server.client(invitation=server.invite("ada")).ticket()
    server.client(HOLDERS[1]).ticket()
    server.invite("late")
    server.register.ban(OTHER_PEER, reason="<script>alert(1)</script>", who="mo")
    with pytest.raises(RefusedByRun):
        server.client(HOLDERS[2], invitation="x").ticket()
    shown = HTTP.get(f"{server.url}/page", auth=("", TOKEN)).text
    for word in (
        "invited:ada",
        f"open:{HOLDERS[1].peer_id}",
        OTHER_PEER,
        "late",
        "code-unknown",
        "banned",
        "2027-01-15",
    ):
        assert word in shown, word
    assert "<script" not in shown and "&lt;script&gt;" in shown


def test_without_a_token_there_is_no_page(tmp_path):
    app = create_app(Server(tmp_path, Policy()).desk, page_token=None)
    with serving(app) as url, pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/page")
