"""Every way into a peer has a check of tickets: whoever adds a call or a record finds out here what is missing.

The tables name, for each call that others can make and each record that peers store, the test that tries it as somebody
uninvited.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import defaultdict
from pathlib import Path

from tests.training.swarm.members import admission, closed_run
from tests.training.swarm.node import test_members_only
from tests.training.swarm.real_peers.calls import calls_that_are_answered
from training.swarm.node.dht import record_validators
from training.swarm.node.identity import Identity
from training.swarm.node.record_tickets import TicketValidator
from training.trust.keys import MembershipKey

ROOT = Path(__file__).parents[4]
SWARM = ROOT / "training" / "swarm"
GROUPS = test_members_only.test_the_uninvited_are_in_no_group_while_members_go_on
PARTS = test_members_only.test_parts_and_verdicts_of_the_uninvited_do_not_count_in_a_group
STATES = test_members_only.test_the_uninvited_get_no_byte_of_a_state
RECORDS = test_members_only.test_nobody_believes_a_record_of_the_uninvited
CALLS = {
    "Service.rpc_join_group": GROUPS,
    "Service.rpc_aggregate_part": PARTS,
    "Service.rpc_agree": PARTS,
    "Auditor.rpc_show_part": PARTS,
    "Auditor.rpc_accuse": PARTS,
    "StateService.rpc_download_state": STATES,
    "StateService.rpc_sample_state": STATES,
    "DHTProtocol.rpc_store": RECORDS,
    "DHTProtocol.rpc_ping": None,
    "DHTProtocol.rpc_find": None,
}
"""None: anybody may call it. It tells that the node is there, and what is public anyway."""
KINDS = {"no ticket", "expired", "another's", "another run's", "another key's", "banned"}


@functools.cache
def calls():
    """For each name of a method or function, file and node of its calls; read once, since it takes a second or two."""
    found = defaultdict(list)
    gc.collect()  # Python 3.11 cannot parse code while hivemind's objects are finalized
    gc.disable()
    try:
        for path in sorted((ROOT / "training").rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
                    found[called].append((path, node))
    finally:
        gc.enable()
    return found


def calls_of(name):
    """File and node of each call of a method or function of this name."""
    return calls().get(name, [])


def test_each_call_that_others_can_make_is_made_by_all_kinds_of_the_uninvited():
    """The tests themselves fail if a call of theirs reaches nobody."""
    assert calls_that_are_answered() == set(CALLS)
    for call, test in CALLS.items():
        if test is not None:
            assert call in test.calls
            (kinds,) = [mark.args for mark in test.pytestmark if mark.name == "parametrize"]
            assert kinds[0] == "kind" and set(kinds[1]) == KINDS


def test_nothing_else_answers_calls():
    assert {(path.name, ast.unparse(node.func)) for path, node in calls_of("add_p2p_handlers")} == {
        ("service.py", "self.add_p2p_handlers"),
        ("auditor.py", "self.add_p2p_handlers"),
        ("service.py", "self._donor.add_p2p_handlers"),
    }
    for name in ("add_protobuf_handler", "add_unary_handler", "stream_handler"):
        assert {path.name for path, _ in calls_of(name)} <= {"calls.py"}
    # Through which all handlers of hivemind's servicers go.
    assert {path.name for path, _ in calls_of("add_binary_stream_handler")} == {"calls.py"}


def test_each_record_that_peers_store_is_sent_by_the_uninvited():
    stored = set()
    for path, node in (*calls_of("store"), *calls_of("post_message")):
        if not path.is_relative_to(SWARM) or path.name in ("bounds.py", "stored.py"):
            continue  # how a node keeps records
        key = node.args[1] if getattr(node.func, "id", "") == "post_message" else node.args[0]
        suffix = re.search(r"(_[a-z]+)'$", ast.unparse(key)) if isinstance(key, ast.JoinedStr) else None
        stored.add((path.name, suffix[1] if suffix else ast.unparse(key)))
    # `post_message` itself, the copy that a node keeps of any of these, and what the node is asked to store
    assert stored == test_members_only.RECORDS.keys() | {
        ("dht.py", "key"),
        ("run_node.py", "key"),
        ("process.py", "key"),
    }


def test_each_node_of_a_run_for_members_checks_the_tickets_of_all_records(tmp_path):
    """Whatever their key, so that nobody needs to list them."""
    key = MembershipKey.begin()
    validators = record_validators(closed_run(key).run_id, Identity(tmp_path), admission(key))
    assert [type(one) for one in validators].count(TicketValidator) == 1
    assert not any(isinstance(one, TicketValidator) for one in record_validators("demo", Identity(tmp_path / "2")))
    made = {path for name in ("DHT", "Node", "RunNode", "create") for path, node in calls_of(name) if is_node(node)}
    made = {path for path in made if path.name != "process.py"}  # which gets its validators
    assert {path.name for path in made} == {"dht.py", "probe.py"}
    assert all("record_validators(" in path.read_text(encoding="utf-8") for path in made)


def is_node(call):
    return ast.unparse(call.func) in ("DHT", "Node", "RunNode.create")
