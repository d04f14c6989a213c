"""False reports in records under n keys, beside three honest peers: epochs, schedule and exit stay as they were.

Each row of the table plays what one kind of record can do to a peer that has averaged with two others before, in an
open run and in one for members, where all the keys have tickets of one account. `test_three_honest_peers` does so with
real peers.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration

from tests.training.swarm.real_peers.scenarios import ALL_THREE, train_beside_false_reports
from tests.training.swarm.real_peers.started_peers import meet
from training.publish.keeper import Keeper
from training.recipe import load_recipe
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.node import tokens
from training.swarm.node.metrics import believable
from training.swarm.peers import progress as progress_module
from training.swarm.peers.progress import Progress
from training.swarm.peers.table import Peers
from training.swarm.run.lineage import Lineage, LineageMessage, choose
from training.swarm.state import download
from training.swarm.state.download import OtherWeights, TrainingState, _Download
from training.swarm.state.witnesses import Sample
from training.volunteer.belonging import Belonging

LAST, NOW, TARGET, EPOCHS = 4000, 5, 30, 3
"""The schedule's end, which the false reports name; the honest peers' epoch; samples of one; epochs that are played."""
HONEST, EVERY = (b"ada", b"bob", b"cay"), range(2, 21)
RUN = load_recipe("demo")


def keys(n: int) -> list[bytes]:
    return [b"eve%d" % number for number in range(n)]


def accounts(n: int, *, members_only: bool) -> dict[bytes, tuple[str, bool]]:
    """What the tickets say; nobody has one in an open run."""
    honest = {peer: (f"invited:{peer.decode()}", True) for peer in HONEST}
    return {**honest, **dict.fromkeys(keys(n), ("invited:eve", True))} if members_only else {}


# -- progress ----------------------------------------------------------------------------------------------------------


@dataclass
class Board:
    """A DHT of which all peers see the same."""

    records: dict[bytes, dict] = field(default_factory=dict)

    def node(self, peer: bytes) -> SimpleNamespace:
        return SimpleNamespace(peer_id=PeerID(peer), add_validators=lambda _: None, get=self.get, store=None)

    def get(self, _key, **_):
        found = Future()
        entries = {peer: ValueWithExpiration(value, 1e12) for peer, value in self.records.items()}
        found.set_result(ValueWithExpiration(entries, 1e12))
        return found


def record(peer, epoch, samples, now, rate=1.0):
    facts = {"peer_id": peer, "epoch": epoch, "samples_accumulated": int(samples), "samples_per_second": rate}
    return {**facts, "time": now, "counted_at": now, "step_samples": 0, "client_mode": False}


LIES = {
    "the last epoch": dict(epoch=LAST, samples=1),
    "three epochs ahead": dict(epoch=NOW + 3, samples=1),
    "all samples": dict(epoch=None, samples=10**9),
    "ten million a second": dict(epoch=None, samples=1, rate=1e7),
}


def seconds_of_epochs(monkeypatch, lie, n, *, members_only):
    """When three honest peers end their epochs, with a sample a second of each; they have averaged once before."""
    now, board, ends = [1000.0], Board(), []
    monkeypatch.setattr(progress_module, "get_dht_time", lambda: now[0])

    def make(peer):
        table = Peers(accounts(n, members_only=members_only), clock=lambda: now[0])
        return Progress(dht=board.node(peer), prefix="run", target_batch_size=TARGET, matchmaking_seconds=5.0,
                        peers=table)  # fmt: skip

    honest = {peer: make(peer) for peer in HONEST}
    for peer, progress in honest.items():
        progress.note_average({}, {other: 20.0 for other in HONEST if other != peer}, ())
        progress.begin_epoch(NOW)
    epoch, samples = NOW, 0
    while epoch < NOW + EPOCHS:
        now[0], samples = now[0] + 1, samples + 1
        for peer in HONEST:
            board.records[peer] = record(peer, epoch, samples, now[0])
        for key in keys(n):
            facts = {**LIES[lie], "epoch": LIES[lie]["epoch"] or epoch}
            board.records[key] = record(key, now=now[0], **facts)
        ended = False
        for progress in honest.values():
            progress._local = progress._record(epoch=epoch, samples=samples)
            progress._global, progress._has_looked = progress._combine(progress._look()), True
            assert not progress.is_behind(epoch) and progress.reported_epoch == epoch == progress.look_who_stays()[0]
            ended |= progress.ready_to_update_epoch
        if ended:
            ends.append(now[0] - 1000)
            for peer, progress in honest.items():
                brought = {other: float(samples) for other in HONEST if other != peer}
                progress.note_average(progress.reports_of(epoch), brought, ())
                progress.begin_epoch(epoch + 1)
            epoch, samples = epoch + 1, 0
    return ends


@pytest.mark.parametrize("members_only", [False, True], ids=["open", "members"])
@pytest.mark.parametrize("lie", LIES)
def test_reports_of_progress_end_no_epoch(lie, members_only, monkeypatch):
    honest = seconds_of_epochs(monkeypatch, lie, 0, members_only=members_only)
    assert len(honest) == EPOCHS and honest[0] == pytest.approx(TARGET / 3, abs=1)
    for n in EVERY:
        assert seconds_of_epochs(monkeypatch, lie, n, members_only=members_only) == honest


# -- other records -----------------------------------------------------------------------------------------------------


def table_of(n, members_only):
    table = Peers(accounts(n, members_only=members_only), clock=lambda: 0.0)
    for peer in HONEST[1:]:
        table.brought(peer, 20.0)
    return table


def refused_states(monkeypatch, n, members_only):
    """Whose states Ada refuses: all others offer one, those of the keys are of the schedule's end."""
    weights = {peer: torch.ones(8) for peer in HONEST} | {key: torch.full((8,), -9.0) for key in keys(n)}
    epochs = dict.fromkeys(HONEST, NOW) | dict.fromkeys(keys(n), LAST)

    async def ask(_p2p, _service, _namespace, donors, *_):
        asked = [donor.to_bytes() for donor in donors]
        sample = [Sample(epoch=epochs[one], drifted=False, values=weights[one].numpy()) for one in asked]
        return b"", sample

    monkeypatch.setattr(download, "ask_witnesses", ask)
    monkeypatch.setattr(download, "draw", lambda tensors, seed: np.array(tensors[0]))
    donors, refused = [PeerID(peer) for peer in (*HONEST[1:], *keys(n))], []
    wanted = dict(prefix="run", lineage=None, service=None, shapes=[torch.Size([8])], chunk_seconds=1.0, max_bytes=99)
    asking = _Download(**wanted, epochs=range(LAST + 1), inspect=None, admission=None, peers=table_of(n, members_only))
    for donor in donors:
        one = donor.to_bytes()
        state = TrainingState(epoch=epochs[one], tensors=(weights[one],), optimizer_metadata=[], donor=str(donor))
        try:
            wait_for_result(asking._compare(None, state, donor, donors))
        except OtherWeights:
            refused.append(one)
    return set(refused) == set(keys(n))


def stays_in_its_lineage(_monkeypatch, n, members_only):
    """A peer in training, and one that comes back while no server says anything."""
    own, other = Lineage(id="a" * 16), Lineage(id="a" * 16).branch(3)
    messages = [LineageMessage(lineage=other, epoch=LAST, signer=str(PeerID(key))) for key in keys(n)]
    server = LineageMessage(lineage=own, epoch=NOW, signer="server")
    volunteer = Belonging.__new__(Belonging)
    volunteer.lineage, volunteer._other, volunteer._looks = own, None, deque()
    connection = SimpleNamespace(redial=SimpleNamespace(servers=SimpleNamespace(ids=frozenset({"server"}))))
    volunteer._connection, volunteer._named = connection, frozenset()
    for _ in range(9):
        volunteer._look([*messages, server])
        volunteer._look(messages)
    return not volunteer.is_left and choose([*messages, server], {"server"}) is server


def keeps_its_tokens(monkeypatch, n, members_only):
    """With a server's word, and in a run for members without one."""
    told = {peer: "honest" for peer in HONEST} | dict.fromkeys(keys(n), "other")
    monkeypatch.setattr(tokens, "peer_id_of", PeerID)
    monkeypatch.setattr(tokens, "accounts_of", lambda dht, ids: accounts(n, members_only=members_only))
    identity = SimpleNamespace(signer=lambda: SimpleNamespace(local_public_key=b""))
    check = partial(tokens.check_tokens, None, RUN, identity, "honest", shards="here")
    for trusted in ({str(PeerID(b"ada"))}, *([set()] if members_only else [])):
        monkeypatch.setattr(tokens, "posted_tokens", lambda dht, run: dict(told))
        check(trusted=trusted)
    return True


def keeps_its_states(_monkeypatch, n, members_only):
    """The monitor asks for the next states that it has not kept, whatever epoch is reported."""
    run = RUN.model_copy(update={"schedule": RUN.schedule.model_copy(update={"total_epochs": LAST})})
    records = [
        SimpleNamespace(peer_id=str(PeerID(peer)), epoch=epoch, status="training")
        for peer, epoch in [*((peer, 25) for peer in HONEST), *((key, LAST) for key in keys(n))]
    ]
    believed = believable(records, LAST, accounts(n, members_only=members_only))
    keeper = SimpleNamespace(_run=run, _epoch=lambda: max(record.epoch for record in believed))
    is_known = keeper._epoch() == 25 or (not members_only and n > 2)
    return Keeper._due(keeper, 10, 10) == 20 and is_known


TABLE = {
    "states": refused_states,
    "lineages": stays_in_its_lineage,
    "tokens": keeps_its_tokens,
    "metrics": keeps_its_states,
}


@pytest.mark.parametrize("members_only", [False, True], ids=["open", "members"])
@pytest.mark.parametrize("kind", TABLE)
def test_other_records_have_no_effect_either(kind, members_only, monkeypatch):
    for n in EVERY:
        assert TABLE[kind](monkeypatch, n, members_only)


@pytest.mark.swarm
@pytest.mark.parametrize("n", [2, 20])
def test_three_honest_peers_train_on_beside_false_reports(n, tmp_path):
    """As of some moment, records of progress under n keys say that the schedule is over."""
    (found,) = meet(tmp_path, [partial(train_beside_false_reports, keys=n)], ALL_THREE)
    for facts in found.values():
        assert facts["forged"] >= n, "the records are there"
        assert facts["epochs"] == list(range(facts["epochs"][-1] + 1)) and facts["epochs"][-1] < 60
        assert facts["together"] >= 3 and not facts["behind"]
