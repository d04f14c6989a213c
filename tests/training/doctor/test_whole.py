"""The whole program: in networks of its own, within its time, with its exit codes, and no fault without a test."""

import dataclasses
import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.programs import run_program
from tests.training.doctor.places import (
    CAN_UNSHARE,
    HERE,
    alone,
    doctor,
    names,
)
from training.cli import build_app
from training.doctor import examination, facts, show
from training.doctor.catalogue import CHECKS, all_faults
from training.doctor.examination import Check, run_checks
from training.doctor.facts import Asked, Facts
from training.doctor.finding import Fault, fine, skipped
from training.errors import TrainingError

NETWORK = pytest.mark.skipif(not CAN_UNSHARE, reason="this machine allows no network of one's own")
OTHER_ID = "12D3KooWErbDxHgPXaPNFhaDKy2dLymnFWSbrYxxNMXLGcRw8w2X"
SECONDS = 20
"""As promised; the program itself, its start included, is allowed some more on a busy machine."""
START_SECONDS = 6


def test_every_fault_has_a_test():
    tests = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    faults = all_faults()
    assert [fault.name for fault in faults if f'"{fault.name}"' not in tests] == []
    assert len(faults) == len({fault.name for fault in faults}) >= 25


@pytest.mark.parametrize("fault", all_faults(), ids=lambda fault: fault.name)
def test_every_fault_says_why_it_matters_and_what_to_do(fault):
    words = {"free": 1}
    found = fault.found("Something was seen.", **words)
    for text in (found.why, found.remedy):
        assert (text[0].isupper() or text[0] == "`") and text[-1] in ".)" and "{" not in text
    assert found.name.islower() and " " not in found.name


def test_checks_run_at_once_and_are_given_up():
    hang = threading.Event()

    def fails(_):
        raise ValueError("broken")

    def misses(_):
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    checks = [
        Check("hangs", lambda _: hang.wait()),
        Check("fails", fails),
        Check("misses", misses),
        Check("well", lambda _: fine("All is well.")),
        Check("several", lambda given: [fine(given.asked.recipe), skipped("Not checked.")]),
    ]
    began = time.monotonic()
    findings = list(run_checks(checks, Asked(recipe="demo"), limit_seconds=1.0))
    took = time.monotonic() - began
    hang.set()
    assert took < 1.5
    assert [(one.check, one.level, one.name) for one in findings] == [
        ("hangs", "warning", "check-too-slow"),
        ("fails", "warning", "check-failed"),
        ("misses", "skipped", ""),
        ("well", "ok", ""),
        ("several", "ok", ""),
        ("several", "skipped", ""),
    ]
    assert "rich is not installed" in findings[2].found and "ValueError: broken" in findings[1].found


def test_a_recipe_is_read_once(monkeypatch):
    asked = []

    def find(source):
        asked.append(source)
        raise TrainingError("There is none.")

    monkeypatch.setattr(facts, "find_run", find)
    given = Facts(Asked(recipe="none"))
    for _ in range(3):
        with pytest.raises(TrainingError):
            given.run()
    assert given.run_or_none() is given.source() is None and asked == ["none"]


def test_the_list_for_people_names_faults_first_and_in_full(capsys):
    warning = Fault(name="a-warning", level="warning", why="It is slow.", remedy="Wait [a bit].")
    fault = Fault(name="a-fault", why="It fails.", remedy="Repair it.")
    findings = [warning.found("Seen once."), fine("All [well]."), fault.found("Seen twice.")]
    findings = [dataclasses.replace(one, check="check") for one in findings]
    with show.rows() as (wait, add):
        wait("check")
        for one in findings:
            add(one)
    show.show_remedies(findings, 3.2)
    shown = capsys.readouterr().out
    assert shown.index("Repair it.") < shown.index("Wait [a bit].") and "All [well]." in shown
    assert shown.count("  Seen twice.\n") == 1 and "1 fault, 1 warning: this machine cannot join as it is." in shown


@pytest.mark.parametrize("before, given", [([], True), ([examination.TOO_SLOW.found("Still loading.")], False)])
def test_the_runs_address_is_asked_for_unless_time_was_short(before, given):
    run = dataclasses.replace(skipped("Not checked."), check="run")
    assert ("give its address" in show.summary([*before, run])) is given


@pytest.mark.programs
def test_it_takes_all_flags_of_join_and_no_others():
    of_join = ("--name", "ada", "--threads", "1", "--invitation", "abc-def", "--no-checkpointing", "--max-upload=5")
    flags = (*of_join, "--seconds", "5", "--json")
    done = run_program([sys.executable, "-m", "training", "doctor", *flags])
    assert done.returncode in (0, 1) and json.loads(done.stdout)["findings"], done.stderr
    done = run_program([sys.executable, "-m", "training", "doctor", *flags, "--treads", "2"])
    assert done.returncode == 2
    assert "Error: There is no flag --treads. Give those of `join`;" in done.stderr


def test_the_runs_address_is_kept_beside_those_of_peers(monkeypatch):
    """The words of `join ADDRESS --initial-peers PEER`, in either order."""
    asked = []
    monkeypatch.setattr(examination, "run_checks", lambda _, given, **__: asked.append(given) or [])
    monkeypatch.setattr(os, "_exit", sys.exit)
    run, peer = "http://run.example", f"/ip4/203.0.113.7/tcp/31337/p2p/{OTHER_ID}"
    for words in ((run, "--initial-peers", peer), ("--initial-peers", peer, run)):
        ended = CliRunner().invoke(build_app(), ["doctor", *words])
        assert ended.exit_code == 0, ended.exception
    assert [(one.recipe, one.initial_peers) for one in asked] == [(run, (peer,))] * 2


@pytest.mark.programs
def test_bad_input_is_refused_at_once():
    done = run_program([sys.executable, "-m", "training", "doctor", "--initial-peers", "/ip4/127.0.0.1/tcp/1"])
    assert done.returncode == 2 and "is not the full address of a peer" in done.stderr and not done.stdout


def timed_doctor(*arguments, **options):
    began = time.monotonic()
    code, told = doctor(*arguments, **options)
    assert time.monotonic() - began < SECONDS + START_SECONDS and told["seconds"] < SECONDS
    assert [one["check"] for one in told["findings"]] == sorted(
        (one["check"] for one in told["findings"]), key=[check.name for check in CHECKS].index
    )
    return code, told["findings"]


def test_this_machine_can_join():
    """The whole program, without a run; whatever else is busy here is a warning at most."""
    code, told = doctor("--seconds", "120")
    findings = told["findings"]
    assert code == 0, [one for one in findings if one["level"] == "fault"]
    levels = {one["check"]: one["level"] for one in findings}
    assert levels["averaging"] == levels["network node"] == levels["PyTorch"] == "ok"
    assert levels["run"] == levels["peers"] == "skipped"


BLACK_HOLE = """
ip link set lo up
ip link add hole type veth peer name end
ip link set end up
ip addr add 11.1.1.1/30 dev hole
ip link set hole up
ip neigh add 11.1.1.2 lladdr 02:00:00:00:00:02 dev hole
ip route add 11.1.1.0/24 via 11.1.1.2
"""
"""A network in which everything that is sent vanishes: nobody has the next hop's hardware address."""
NAMES_TOO = (
    "printf 'nameserver 11.1.1.53\\n' >{folder}/resolv.conf; mount --bind {folder}/resolv.conf /etc/resolv.conf; "
)
"""Name servers vanish there as well."""


@NETWORK
@pytest.mark.swarm
def test_where_nothing_answers_it_ends_in_time(tmp_path):
    silent = f"/ip4/11.1.1.9/tcp/31337/p2p/{OTHER_ID}"
    code, findings = timed_doctor(
        *("--recipe", "http://11.1.1.8/recipe.toml", "--initial-peers", silent, "--shards", "http://run.example/s"),
        *("--state-dir", tmp_path / "state"),
        surroundings=BLACK_HOLE + NAMES_TOO.format(folder=tmp_path) + '"$@"',
        env={"http_proxy": "", "https_proxy": ""},
    )
    assert code == 1
    assert {"recipe-unreadable", "peers-unreachable"} <= names(findings)


TWO_NETWORKS = """
ip link set lo up
unshare -n sleep 90 & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add near type veth peer name far netns $other
ip addr add 11.2.2.1/24 dev near; ip link set near up
nsenter -t $other -n sh -c "ip link set lo up; ip addr add 11.2.2.2/24 dev far; ip link set far up"
"{python}" "{server}" "{folder}" /ip4/11.2.2.1/tcp/4001 0 demo tokens & serves=$!
until [ -s "{folder}/address" ]; do sleep 0.1; done
nsenter -t $other -n "{python}" "{probe}" "$(cat "{folder}/address")" || true
kill $serves $other
"""


PROBE = """
import json, sys
from training.doctor.checks.network import probe_run
from training.doctor.facts import Asked, Facts

for listen in ("0.0.0.0", "127.0.0.1"):
    asked = Asked(recipe="demo", initial_peers=(sys.argv[1],), host_maddrs=(f"/ip4/{listen}/tcp/0",))
    found = {}
    probe_run(Facts(asked), lambda name, ones: found.setdefault(name, ones[0]))
    reach = found["reachability"]
    print(json.dumps([reach.name, reach.found, found["run"].level]), flush=True)
"""
"""Listens to all, and then to this machine only."""


@NETWORK
@pytest.mark.swarm
def test_another_peer_connects_back(tmp_path):
    """Two networks with public addresses: AutoNAT dials no others."""
    probe = tmp_path / "probe.py"
    probe.write_text(PROBE)
    paths = {"python": sys.executable, "server": HERE / "run_server.py", "probe": probe, "folder": tmp_path}
    done = alone(TWO_NETWORKS.format(**paths), env={"PYTHONPATH": os.getcwd()})
    assert done.stdout, done.stderr
    (reached, where, run), (unreached, _, same_run) = map(json.loads, done.stdout.splitlines())
    assert (reached, unreached, run, same_run) == ("", "not-reachable", "ok", "ok")
    assert "/ip4/11.2.2.2/tcp/" in where


@NETWORK
@pytest.mark.swarm
def test_a_network_daemon_that_does_not_start(tmp_path):
    """A device is mounted over hivemind's program p2pd."""
    import hivemind.hivemind_cli as programs

    daemon = Path(programs.__file__).with_name("p2pd")
    program = (
        "from training.doctor.checks.network import probe_run\nfrom training.doctor.facts import Asked, Facts\n"
        "probe_run(Facts(Asked()), lambda name, ones: print([name, ones[0].name], flush=True))"
    )
    script = f'mount --bind /dev/null {daemon}; "$@"'
    done = alone(script, sys.executable, "-c", program, env={"PYTHONPATH": os.getcwd()})
    first = done.stdout.splitlines()[0]
    assert first == str(["network node", "network-node-broken"]), done.stdout + done.stderr


@pytest.mark.programs
def test_a_package_of_the_command_line_that_is_missing(tmp_path):
    """Without the package that reads flags there is no doctor; the program says so in one sentence."""
    done = run_program(
        [sys.executable, "-S", "-m", "training", "doctor"], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "typer is not installed" in done.stderr
