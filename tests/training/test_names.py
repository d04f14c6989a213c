"""A name that a peer has chosen, and whatever else it says, is text wherever it is shown, and never markup."""

from __future__ import annotations

import ast
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import CompositeValidator, DHTRecord
from hivemind.utils import get_dht_time
from hivemind.utils.serializer import MSGPackSerializer
from markdown_it import MarkdownIt
from rich.console import Console

from tests.training.publish.history.test_history import Report
from training.doctor.finding import Finding
from training.doctor.show import rows, show_remedies
from training.processes.events import EventLog
from training.processes.notices import Notices, Setting
from training.publish.card import _volunteers
from training.publish.history.history import History
from training.publish.live.live import leaderboard_document
from training.publish.live.rendered import render
from training.recipe import load_recipe
from training.roles import bootstrap, peer
from training.swarm.node.dht import record_validators
from training.swarm.node.identity import Identity
from training.volunteer.startup import Link

ROOT = Path(__file__).parents[2]
NAMES = [
    "[/]",
    "[bold]ada[/bold]",
    "[link=https://x.example]ada[/link]",
    "ada\\",
    "<b>ada</b>",
    "&#8238;ada",
    "*ada* `x`",
    "1. ada",
    "- ada",
    "---",
    "www.x.example",
    "https://x.example",
]
"""Markup of terminals' libraries, of HTML and of Markdown."""
COMMANDS = ["\x1b[2J", "a\nb", "a\x9b31m", "\u202eada", "a\u2066b", "a\u200bb", "\x00"]
"""What commands a terminal, is invisible, or turns the words around it."""


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=1000, highlight=False, force_terminal=False)


def printed(console):
    return console.file.getvalue()


# -- what peers may say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [*COMMANDS, *NAMES])
@pytest.mark.parametrize("key", ["demo_recipe", "demo_tokens", "demo_lineage", "demo_site"])
def test_no_node_stores_a_word_that_commands_a_terminal(tmp_path, key, said):
    """Messages quote such words: `its digest is ...`."""
    identity = Identity(tmp_path)
    node, signer = CompositeValidator(record_validators("demo", identity)), identity.signer()
    place, subkey = DHTID.generate(source=key).to_bytes(), MSGPackSerializer.dumps(signer.local_public_key)
    record = DHTRecord(place, subkey, MSGPackSerializer.dumps(said), get_dht_time() + 60)
    signed = DHTRecord(place, subkey, signer.sign_value(record), record.expiration_time)
    assert node.validate(signed) == (said not in COMMANDS)


# -- terminals and logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_bootstrap_peer_lists_names_as_they_are(monkeypatch, console, name):
    looks = [[SimpleNamespace(peer_id="A", name=name, status="training")], []]
    stop = SimpleNamespace(wait=lambda seconds: not looks)
    monkeypatch.setattr(bootstrap, "check_node", lambda dht: None)
    monkeypatch.setattr(bootstrap, "read_believable", lambda dht, run: looks.pop(0))
    run = SimpleNamespace(run_id="demo", schedule=SimpleNamespace(total_epochs=9))
    lineage = SimpleNamespace(renew=lambda records: False)
    bootstrap._welcome(run, None, None, lineage, None, stop, console)
    assert printed(console) == f"{name} has joined (1 in all).\n{name} has left (0 in all).\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_volunteers_own_name_is_shown_as_it_is(tmp_path, console, name):
    notices = Notices(events=EventLog(tmp_path / "log"), console=console)
    optimizer = SimpleNamespace(
        local_epoch=7,
        last_download=(0, 0.0),
        declare_bandwidth=lambda mbits: None,
        lineage=SimpleNamespace(id="a" * 16),
    )
    own = SimpleNamespace(
        connection=SimpleNamespace(name=name, identity=SimpleNamespace(peer_id="A"), link=Link()),
        task=SimpleNamespace(run=load_recipe("demo")),
        notices=notices,
        reporter=SimpleNamespace(samples=0),
        settings=SimpleNamespace(max_upload_mbits=None),
        choices=SimpleNamespace(trained_parameters=0),
    )
    peer._Peer._announce(own, optimizer, "fresh weights")
    assert f"{name} joins demo at epoch 7 with fresh weights: 0 parameters.\n" in printed(console)


@pytest.mark.parametrize("name", NAMES)
def test_notices_and_settings_are_shown_as_they_are_and_logged_in_one_line(tmp_path, console, name):
    notices = Notices(events=EventLog(tmp_path / "log"), console=console)
    notices.warn(f"A warning of {name}.")
    notices.show(Setting(name="link", value=name, reason=name))
    assert printed(console) == f"A warning of {name}.\nlink         {name}: {name}.\n"
    notices.warn("".join(COMMANDS))
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert len(lines) == 2 and all(32 <= byte < 127 for line in lines for byte in line)


@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_shows_what_it_has_found_as_it_is(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "1000")
    bad = Finding(level="fault", name="other-recipe", found=name, why=name, remedy=name, check="recipe")
    with rows() as (_, add):
        add(bad)
        add(Finding(level="ok", found=name, check="recipe"))
    show_remedies([bad], 1.0)
    told = capsys.readouterr().out
    assert f"  {name}\n  Why it matters: {name}\n  What to do: {name}\n" in told
    assert told.count(f"recipe           {name}") == 2


def is_harmless(call):
    """True if a call of `console.print` shows what is filled in as it is."""
    if any(one.arg == "markup" and getattr(one.value, "value", None) is False for one in call.keywords):
        return True
    (text,) = call.args
    return isinstance(text, ast.Constant) or ast.unparse(text).startswith("Text.assemble(")


def test_nothing_that_volunteers_or_servers_print_is_taken_for_markup():
    """Whoever prints a text with something filled in says `markup=False`, or puts it together with `Text.assemble`."""
    prints = [
        (path.name, call)
        for folder in ("volunteer", "roles")
        for path in sorted((ROOT / "training" / folder).glob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("console.print")
    ]
    assert len(prints) > 10
    found = [(name, ast.unparse(call.args[0])) for name, call in prints if not is_harmless(call)]
    assert found == []


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path):
    one = History(tmp_path / "history.sqlite", run_id="demo", recipe_digest="d", expiration_seconds=30)
    one.observe([Report(name=name, peer_id=str(number)) for number, name in enumerate(NAMES)])
    yield one
    one.close()


def test_the_live_api_gives_names_as_json_in_one_line(history):
    content = render(leaderboard_document(history))
    assert {one["name"] for one in leaderboard_document(history)["volunteers"]} == set(NAMES)
    assert b"\n" not in content and b"\x1b" not in content


def test_the_model_card_lists_names_as_they_are(history):
    """A reader of Markdown sees a list of texts: no markup, no link, no list within the list."""
    tokens = MarkdownIt("commonmark").parse(_volunteers(history))
    _, *names = [token for token in tokens if token.type == "inline"]
    assert {token.type for token in tokens} == {
        f"{kind}_{end}" for kind in ("paragraph", "bullet_list", "list_item") for end in ("open", "close")
    } | {"inline"}
    assert [token.type for token in tokens].count("bullet_list_open") == 1
    shown = ["".join(part.content for part in one.children) for one in names]
    assert {part.type for one in names for part in one.children} <= {"text", "text_special"}
    assert {one.removesuffix(": 0 samples") for one in shown} == set(NAMES)
    # Other readers also make links of bare addresses.
    assert "www." not in _volunteers(history) and "://" not in _volunteers(history)
