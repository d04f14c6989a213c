"""Membership as the programs that people start: a maintainer, the server, and a volunteer with and without a code."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from functools import partial
from types import SimpleNamespace

import httpx
import pytest
from typer.testing import CliRunner

from tests.support.ports import free_port
from tests.support.programs import run_program, until
from tests.support.random_shards import write_shards
from tests.training.publish.history.test_history import Report
from tests.training.trust.hub import ADAS, hub_serving
from tests.training.trust.tickets import PEER, Holder
from training.checkpoints.checkpoint import checkpoint_epoch, latest_checkpoint
from training.cli import build_app
from training.demo.children import read_events
from training.errors import BadInput, RefusedByRun
from training.processes.events import EventLog
from training.publish.history.backup import HISTORY_FILE
from training.publish.history.history import History
from training.recipe import RECIPES, load_recipe
from training.roles.membership_server import KEY_FILE, PAGE_TOKEN, PAGE_TOKEN_FILE, MembershipSettings, run_membership
from training.trust.client import Credentials, MembershipClient
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.policy import Policy

PROGRAM = [sys.executable, "-m", "training"]
LOOPBACK = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
SMALL = {"hidden_size": 32, "num_heads": 1, "target_batch_size": 64, "metrics_every_seconds": 1.0}
SMALL |= {"max_epochs_alone": 0}


class Maintainer:
    """Somebody with a recipe, who starts programs in a folder."""

    def __init__(self, folder, programs):
        self.folder, self.programs = folder, programs
        self.state, self.recipe = folder / "membership", folder / "recipe.toml"
        text = (RECIPES / "demo.toml").read_text()
        for name, value in SMALL.items():
            text, changed = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
            assert changed == 1
        self.recipe.write_text(text)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.server, self.starts = None, 0

    def server_command(self, *flags):
        own = ["--recipe", self.recipe, "--state-dir", self.state, "--port", str(self.port)]
        return [*PROGRAM, "membership", *own, *flags]

    def close_run(self, *flags):
        """Lets the server say what the recipe needs, and adds it."""
        told = run_program(self.server_command(*flags))
        assert told.returncode == 2 and "Add the lines above to the recipe" in told.stderr
        lines = told.stdout.split("\n\n")[1]
        assert tomllib.loads(lines)["membership"]["url"] == self.url
        self.recipe.write_text(f"{self.recipe.read_text()}\n{lines}\n")

    def serve(self, *flags, **options):
        """Starts the server; returns when it is ready."""
        self.starts += 1
        log, events = self.folder / f"server-{self.starts}.log", self.folder / f"server-{self.starts}.jsonl"
        with log.open("w") as printed:
            command = [*self.server_command(*flags), "--log-json", events]
            self.server = self.programs.start(command, stdout=printed, stderr=subprocess.STDOUT, **options)
        until(lambda: events.exists() and "ready" in events.read_text(), within=60, said=log.read_text)
        return log

    def moderate(self, *words):
        done = run_program([*PROGRAM, "moderate", *words, "--state-dir", self.state])
        assert "Traceback" not in done.stderr
        _, _, more = done.stderr.partition("\n")  # the first line says that the command runs
        return SimpleNamespace(code=done.returncode, said=done.stdout + more)

    def invite(self, name):
        return re.search(r"--invitation (\S+),", self.moderate("invite", name).said)[1]


@pytest.fixture
def maintainer(tmp_path, programs):
    return Maintainer(tmp_path, programs)


@pytest.mark.programs
def test_a_server_is_set_up_moderated_and_ended(maintainer):
    maintainer.close_run()
    log = maintainer.serve()
    key = load_recipe(str(maintainer.recipe)).membership.key
    assert f"get their tickets at {maintainer.url}, signed with {key}" in log.read_text()
    password = (maintainer.state / PAGE_TOKEN_FILE).read_text().strip()
    assert httpx.get(f"{maintainer.url}/page", auth=("", "x" * 43)).status_code == 401

    invited = maintainer.moderate("invite", "ada", "--uses", "2", "--days", "3")
    assert invited.code == 0 and "within 3 days" in invited.said
    banned = maintainer.moderate("ban", "hf:eve", "--reason", "spam").said
    assert banned == "Banned hf:eve: it gets no ticket any more. Peers hear of it within 10 s.\n"
    shown = httpx.get(f"{maintainer.url}/page", auth=("", password)).text
    assert "hf:eve" in shown and "0 of 2" in shown  # the running server sees what another program has written
    assert "\nhf:eve " in httpx.get(f"{maintainer.url}/bans").text
    listed = maintainer.moderate("list")
    assert "Members of demo: 0" in listed.said and "hf:eve" in listed.said and "0 of 2 taken up" in listed.said
    assert maintainer.moderate("unban", "eve").said == "hf:eve is no longer banned, and may join again.\n"
    assert maintainer.moderate("remove", "ada").said == "Removed the invitation ada.\n"
    with httpx.Client(base_url=maintainer.url) as client:  # the proxy's word about addresses is believed
        until(lambda: challenge_from(client, "203.0.113.1") == 429)
        assert challenge_from(client, "203.0.113.2") == 200
    for secret in (KEY_FILE, PAGE_TOKEN_FILE, REGISTER_FILE):
        assert (maintainer.state / secret).stat().st_mode & 0o077 == 0

    maintainer.server.send_signal(signal.SIGTERM)
    assert maintainer.server.wait(20) == 0
    assert "does not run in" in maintainer.moderate("ban", "hf:eve").said
    maintainer.serve(env={**os.environ, PAGE_TOKEN: "another password of the page"})
    assert httpx.get(f"{maintainer.url}/page", auth=("", "another password of the page")).status_code == 200


@pytest.mark.programs
def test_members_are_listed_with_their_peers_and_names_and_a_ban_is_lifted(maintainer):
    maintainer.close_run()
    maintainer.serve()
    run, val, eve = load_recipe(str(maintainer.recipe)), Holder(), Holder()
    for name, holder in (("val", val), ("eve", eve)):
        MembershipClient(run, holder, Credentials(invitation=maintainer.invite(name))).ticket()
    maintainer.moderate("ban", "eve")
    write_history(maintainer.folder, run, {"Eve <3": eve.peer_id})
    listed = maintainer.moderate("list", "--run-dir", maintainer.folder).said
    assert re.search(rf"    invited:eve \(vouched, banned\) since .+\n        {eve.peer_id} as Eve <3\n", listed)
    assert re.search(rf"    invited:val \(vouched\) since .+\n        {val.peer_id}\n", listed)
    with pytest.raises(RefusedByRun):
        MembershipClient(run, eve, Credentials()).ticket()
    maintainer.moderate("unban", "eve")
    MembershipClient(run, eve, Credentials()).ticket()


def write_history(run_dir, run, volunteers):
    """What a monitor has written of volunteers, by name and peer id."""
    history = History(run_dir / HISTORY_FILE, run_id=run.run_id, recipe_digest=run.digest, expiration_seconds=60)
    history.observe([Report(name=name, peer_id=peer_id) for name, peer_id in volunteers.items()])
    history.close()


def challenge_from(client, address):
    """Status of an answer to somebody who asks through a proxy."""
    return client.get("/challenge", params={"peer_id": PEER}, headers={"X-Forwarded-For": address}).status_code


@pytest.mark.programs
@pytest.mark.parametrize(
    "words, said",
    [
        (["list", "ada"], "takes no name"),
        (["ban"], "Whom? Give a name"),
        (["ban", "nobody"], "There is no member 'nobody'"),
        (["unban", "nobody"], "Nobody of the name 'nobody' is banned"),
        (["invite", "A b"], "cannot be an invitation's name"),
        (["invite", "ada", "--reason", "x"], "--reason is for `moderate ban`"),
        (["ban", "hf:ada", "--days", "3"], "--uses and --days are for `moderate invite`"),
        (["ban", "hf:ada", "--revert-to", "3"], "--revert-to EPOCH and --run-dir DIR go together"),
        (["ban", "hf:ada", "--revert-to", "3", "--run-dir", "."], "has no checkpoint of epoch 3"),
    ],
)
def test_what_cannot_be_moderated_is_one_sentence(maintainer, words, said):
    Moderation(maintainer.state / REGISTER_FILE, run_id="demo")
    ended = CliRunner().invoke(build_app(), ["moderate", *words, "--state-dir", str(maintainer.state)])
    assert isinstance(ended.exception, BadInput) and said in str(ended.exception)


@pytest.mark.programs
def test_a_server_that_cannot_serve_says_why(maintainer, monkeypatch):
    def refusal(**policy):
        settings = MembershipSettings(
            state_dir=maintainer.state, policy=Policy(**policy), host="127.0.0.1", port=maintainer.port
        )
        with pytest.raises(BadInput) as refused:
            run_membership(load_recipe(str(maintainer.recipe)), settings, stop=None, events=EventLog(None))
        return str(refused.value)

    maintainer.close_run()
    key = maintainer.state / KEY_FILE
    key.chmod(0o644)
    assert "Others can read the secret in" in refusal()
    key.chmod(0o600)
    assert "Tickets that hold for 169 h" in refusal(grace_seconds=168 * 3600)
    assert "--work-bits 20 lets people in whom nobody vouches for, and the recipe of demo has no" in refusal(
        work_bits=20
    )
    closed = maintainer.recipe.read_text()
    unvouched = closed.replace("[membership]", "[membership]\nunvouched = true")
    maintainer.recipe.write_text(unvouched.replace('aggregation = "mean"', 'aggregation = "centered-clip"'))
    assert "without --work-bits this server admits only whom somebody vouches for" in refusal()
    maintainer.recipe.write_text(closed)
    with socket.create_server(("127.0.0.1", maintainer.port)):
        assert "cannot listen at 127.0.0.1" in refusal()
    monkeypatch.setenv(PAGE_TOKEN, "short")
    assert "has 5 characters, which may be guessed" in refusal()
    key.unlink()
    assert "The recipe names the membership key" in refusal()


# -- with a volunteer --------------------------------------------------------------------------------------------------


DEAF = """
from training.__main__ import main
from training.trust.member import Member
Member._look = lambda self: None
main()
"""
"""The program, changed so that it hears of no ban: it goes on, with a ticket that is good for an hour."""


def ready_event(path):
    """The event with which a server says that it is ready; None if it has not come yet."""
    return next((event for event in read_events(path) if event["event"] == "ready"), None)


def bootstrap(maintainer):
    """Starts the run's first peer, as a member; its address."""
    events = maintainer.folder / "bootstrap.jsonl"
    command = ["bootstrap", "--recipe", maintainer.recipe, "--state-dir", maintainer.folder / "bootstrap", *LOOPBACK]
    environment = {**os.environ, "TRAINING_INVITATION": maintainer.invite("bootstrap")}
    maintainer.programs.start([*PROGRAM, *command, "--log-json", events], stdout=subprocess.DEVNULL, env=environment)
    return until(lambda: ready_event(events))["addresses"][0]


def watch_as_a_member(maintainer, address):
    """Starts a monitor with an invitation: its process, log and folder, and the addresses to give to volunteers."""
    port = str(free_port())
    log, folder, events = (maintainer.folder / name for name in ("monitor.log", "monitor", "monitor.jsonl"))
    own = ["--recipe", maintainer.recipe, "--initial-peers", address, "--shards", maintainer.folder / "shards"]
    own += ["--run-dir", folder, "--port", port, "--invitation", maintainer.invite("monitor"), "--log-json", events]
    with log.open("w") as printed:
        command = [*PROGRAM, "monitor", *own, *LOOPBACK]
        process = maintainer.programs.start(command, stdout=printed, stderr=subprocess.STDOUT)
    addresses = until(lambda: ready_event(events), within=90, said=log.read_text)["initial_peers"]
    return SimpleNamespace(process=process, log=log, folder=folder, addresses=addresses)


def await_checkpoint(monitor):
    """Until it has one, which it has from a volunteer."""
    until(lambda: list(monitor.folder.glob("checkpoints/epoch-*")), within=90, said=monitor.log.read_text)
    assert "You take part as invited:monitor" in monitor.log.read_text()


def join(maintainer, address, *flags, name="ada", program=PROGRAM):
    """The command of a volunteer."""
    own = ["--recipe", maintainer.recipe, "--initial-peers", address, "--shards", maintainer.folder / "shards"]
    own += ["--state-dir", maintainer.folder / name, "--name", name, *LOOPBACK]
    own += ["--threads", "1", "--micro-batch-size", "4", "--precision", "float32", "--verbose"]
    return [*program, "join", *own, *flags]


@pytest.mark.swarm
def test_an_invited_volunteer_trains_until_the_ban(maintainer):
    maintainer.close_run()
    write_shards(maintainer.folder / "shards", load_recipe(str(maintainer.recipe)))
    maintainer.serve()
    address, code = bootstrap(maintainer), maintainer.invite("ada")
    log, events = maintainer.folder / "ada.log", maintainer.folder / "ada.jsonl"
    with log.open("w") as printed:
        command = join(maintainer, address, "--invitation", code, "--log-json", events)
        volunteer = maintainer.programs.start(command, stdout=printed, stderr=subprocess.STDOUT)
    until(lambda: events.exists() and '"joined"' in events.read_text(), said=log.read_text)
    assert "You take part as invited:ada, a member who is vouched for." in log.read_text()
    monitor = watch_as_a_member(maintainer, address)
    await_checkpoint(monitor)
    monitor.process.send_signal(signal.SIGTERM)
    assert monitor.process.wait(30) == 0
    joined = next(event for event in read_events(events) if event["event"] == "joined")
    ticket = (maintainer.folder / "ada" / "ticket").read_text().split("\n")
    assert ticket[1:5] == ["demo", joined["lineage"], "invited:ada", joined["peer_id"]]
    maintainer.moderate("ban", "ada")
    assert volunteer.wait(120) == 3, log.read_text()
    assert "maintainers have banned this account" in log.read_text() and "Traceback" not in log.read_text()
    assert [event["event"] for event in read_events(events)][-1] == "stopped"


@pytest.mark.swarm
def test_a_ban_ends_averages_with_a_volunteer_that_does_not_heed_it_and_the_run_goes_back(maintainer):
    """Within ten seconds nobody averages with it any more; within two minutes the others train on from a checkpoint."""
    maintainer.close_run()
    write_shards(maintainer.folder / "shards", load_recipe(str(maintainer.recipe)))
    maintainer.serve()
    address, events, volunteers = bootstrap(maintainer), {}, {}
    monitor = watch_as_a_member(maintainer, address)
    known = [word for one in monitor.addresses for word in ("--initial-peers", one)]
    for name, program in (("ada", PROGRAM), ("eve", [sys.executable, "-c", DEAF])):
        events[name] = maintainer.folder / f"{name}.jsonl"
        flags = ["--invitation", maintainer.invite(name), "--log-json", events[name], *known]
        command = join(maintainer, address, *flags, name=name, program=program)
        with (maintainer.folder / f"{name}.log").open("w") as printed:
            volunteers[name] = maintainer.programs.start(command, stdout=printed, stderr=subprocess.STDOUT)
        until(partial(joined, events[name]), within=90, said=(maintainer.folder / f"{name}.log").read_text)
    until(lambda: len(together(events["ada"])) >= 2 and len(together(events["eve"])) >= 2, within=90)
    await_checkpoint(monitor)
    back_to = checkpoint_epoch(latest_checkpoint(monitor.folder / "checkpoints"))
    noticed_at = time.time()
    revert = ["--revert-to", str(back_to), "--run-dir", monitor.folder]
    revert += ["--bootstrap-dir", maintainer.folder / "bootstrap"]
    banned = maintainer.moderate("ban", "eve", *revert)
    assert "Banned invited:eve" in banned.said and f"The run goes back to epoch {back_to}, as the branch" in banned.said
    banned_at = Moderation(maintainer.state / REGISTER_FILE).banned()[0]["since"] + 1

    def trains_in_the_branch():
        branches = [event for event in read_events(events["ada"]) if event["event"] == "branch"]
        return branches and epochs_after(events["ada"], branches[-1]["time"])

    until(trains_in_the_branch, within=noticed_at + REVERT_SECONDS - time.time())
    first = trains_in_the_branch()[0]
    assert first["epoch"] in (back_to, back_to + 1) and first["time"] > banned_at + BAN_SECONDS
    for name in ("ada", "eve"):
        assert not [event for event in together(events[name]) if event["time"] > banned_at + BAN_SECONDS]
    # It went on alone, until it needed a ticket for the branch; on a busy machine that may come before its next epoch.
    until(lambda: epochs_after(events["eve"], banned_at) or volunteers["eve"].poll() is not None, within=60)
    assert volunteers["eve"].poll() in (None, 3)


BAN_SECONDS, REVERT_SECONDS = 10, 120


def joined(events):
    return events.exists() and '"joined"' in events.read_text()


def epochs_after(events, moment):
    return [event for event in read_events(events) if event["event"] == "epoch" and event["time"] > moment]


def together(events):
    """The epochs in which a volunteer averaged with another."""
    return [event for event in epochs_after(events, 0) if event["senders"] > 1]


@pytest.mark.programs
def test_who_is_not_admitted_ends_with_causes_and_a_way_out(maintainer):
    """Before anything is sent to a peer: at this address there is none."""
    maintainer.close_run()
    nobody = f"/ip4/127.0.0.1/tcp/1/p2p/{PEER}"
    with hub_serving() as hub:
        maintainer.serve("--hub-organization", "others", "--hub-endpoint", hub.url)
        environment = {**os.environ, "HF_TOKEN": ADAS}
        refused = run_program(join(maintainer, nobody, "--dry-run", "--hugging-face", "--yes"), env=environment)
        assert refused.returncode == 3
        assert "belongs to none of the run's organizations (others)" in refused.stderr
        assert "Ask to be added to the organization" in refused.stderr
        assert f"Your Hugging Face token is shown to {maintainer.url}" in refused.stdout
        assert ADAS not in refused.stdout + refused.stderr and "Traceback" not in refused.stderr
        assert hub.asked == [("/api/whoami-v2", f"Bearer {ADAS}")]
        unasked = run_program(join(maintainer, nobody, "--dry-run", "--hugging-face"), env=environment)
        assert unasked.returncode == 2 and f"sends your Hugging Face token to {maintainer.url}" in unasked.stderr
        assert len(hub.asked) == 1
    assert maintainer.moderate("list").said == "Members of demo: 0\n"
