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

import test_members_only
from hivemind.dht.protocol import DHTProtocol
from members import admission, closed_run

from training.swarm.auditor import Auditor
from training.swarm.dht import record_validators
from training.swarm.identity import Identity
from training.swarm.record_tickets import TicketValidator
from training.swarm.service import Service
from training.swarm.serving import StateService
from training.trust.keys import MembershipKey

ROOT = Path(__file__).parents[3]
GROUPS, PARTS = "in_no_group_while_members_go_on", "parts_and_verdicts_of_those_outside"
STATES, RECORDS = "get_no_byte_of_a_state", "nobody_believes_a_record"
CALLS = {
    "Service.rpc_join_group": GROUPS,
    "Service.rpc_aggregate_part": PARTS,
    "Service.rpc_agree": PARTS,
    "Auditor.rpc_show_part": PARTS,
    "Auditor.rpc_accuse": PARTS,
    "StateService.rpc_download_state": STATES,
    "StateService.rpc_download_state_as_member": STATES,
    "StateService.rpc_sample_state": STATES,
    "DHTProtocol.rpc_store": RECORDS,
    "DHTProtocol.rpc_ping": None,
    "DHTProtocol.rpc_find": None,
}
"""None: anybody may call it. It tells that the node is there, and what is public anyway."""
STORED = {
    ("dht.py", "_recipe"),
    ("tokens.py", "_key(run)"),
    ("lineage.py", "_lineage"),
    ("lineage.py", "_site"),
    ("metrics.py", "_metrics"),
    ("progress.py", "self.key"),
    ("shared_pass.py", "_samples"),
    ("serving.py", "offers_key(self._prefix)"),
}
"""Records that peers store, beside the announcements that hivemind stores for `PatientKeyManager`."""


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


def test_each_call_that_others_can_make_has_a_test_with_the_uninvited():
    servicers = (Service, Auditor, StateService, DHTProtocol)
    found = {f"{one.__name__}.{name}" for one in servicers for name in dir(one) if name.startswith("rpc_")}
    assert found == set(CALLS)
    tests = " ".join(vars(test_members_only))
    assert all(test in tests for test in CALLS.values() if test is not None)


def test_nothing_else_answers_calls():
    assert {(path.name, ast.unparse(node.func)) for path, node in calls_of("add_p2p_handlers")} == {
        ("service.py", "self.add_p2p_handlers"),
        ("service.py", "self._auditor.add_p2p_handlers"),
        ("service.py", "self._states.add_p2p_handlers"),
    }
    for name in ("add_protobuf_handler", "add_binary_stream_handler", "add_unary_handler", "stream_handler"):
        assert not calls_of(name)


def test_each_record_is_stored_under_a_key_that_is_known_here():
    stored = set()
    for path, node in (*calls_of("store"), *calls_of("post_word")):
        if path.parent.name != "swarm" or ast.unparse(node.func).startswith("records."):
            continue  # a store of its own, or a dictionary of records
        key = node.args[1] if getattr(node.func, "id", "") == "post_word" else node.args[0]
        suffix = re.search(r"(_[a-z]+)'$", ast.unparse(key)) if isinstance(key, ast.JoinedStr) else None
        stored.add((path.name, suffix[1] if suffix else ast.unparse(key)))
    # `post_word` itself, and the copy that a node keeps of any of these
    assert stored == STORED | {("dht.py", "key"), ("renewal.py", "key")}


def test_each_node_of_a_run_for_members_checks_the_tickets_of_all_records(tmp_path):
    """Whatever their key, so that nobody needs to list them."""
    key = MembershipKey.begin()
    validators = record_validators(closed_run(key).run_id, Identity(tmp_path), admission(key))
    assert [type(one) for one in validators].count(TicketValidator) == 1
    assert not any(isinstance(one, TicketValidator) for one in record_validators("demo", Identity(tmp_path / "2")))
    made = {
        path.name for name in ("DHT", "Node", "DHTNode", "create") for path, node in calls_of(name) if is_node(node)
    }
    assert made == {"dht.py", "visit.py"}
    for name in made:
        assert "record_validators(" in (ROOT / "training" / "swarm" / name).read_text(encoding="utf-8")


def is_node(call):
    return ast.unparse(call.func) in ("DHT", "hivemind.DHT", "Node", "DHTNode.create")
