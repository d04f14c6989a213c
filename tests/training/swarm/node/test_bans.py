"""A ban reaches what runs already: averages, and states on their way."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import CompressionInfo, NoCompression
from hivemind.proto import averaging_pb2
from hivemind.utils.serializer import MSGPackSerializer

from tests.support.programs import until
from tests.training.swarm.members import LINEAGE, admission, bans, ticket
from tests.training.swarm.node.test_members_only import KEY, PREFIX, SEARCH_SECONDS, offer, start
from training.errors import TrainingError
from training.swarm.node.admission import CUT_SECONDS, Admission, Guest
from training.swarm.node.identity import Identity
from training.swarm.round.pipe import Stage
from training.swarm.run.lineage import Lineage
from training.swarm.state.download import _Download
from training.swarm.state.serving import StateService, pack

SILENCE_SECONDS = 60.0
"""How long the others would wait for one that sends nothing."""
WEIGHTS = torch.arange(100_000.0)
"""Six messages and more."""


@pytest.fixture
def ada(tmp_path):
    return Identity(tmp_path / "ada")


@pytest.fixture
def bob(tmp_path):
    return Identity(tmp_path / "bob")


@pytest.mark.swarm
def test_the_others_end_a_running_average_with_the_banned_and_repeat_it(tmp_path):
    """Bob's process answers every ping, but sends nothing: without the ban, the others would wait for a minute."""
    with ExitStack() as stack:
        ada = start(stack, tmp_path / "ada", Admission)
        bob, carol = (start(stack, tmp_path / name, Admission, ada) for name in ("bob", "carol"))
        peers = {"ada": ada, "bob": bob, "carol": carol}
        for name, peer in peers.items():
            peer.tell(ticket(KEY, peer.identity, account=f"invited:{name}"))
            offer(stack, peer, next_chunk_timeout_seconds=SILENCE_SECONDS, allreduce_timeout_seconds=120.0)
        rounds = {
            name: peer.averager.begin_round([0, False, 3], seconds=SEARCH_SECONDS, expected_peers=3)
            for name, peer in peers.items()
        }
        until(lambda: all(round_.stage is Stage.WAITING for round_ in rounds.values()), within=30)
        for name in ("ada", "carol"):
            rounds[name].start(1.0)
        until(lambda: rounds["ada"].stage is rounds["carol"].stage is Stage.AVERAGING, within=10)
        told = time.monotonic()
        for name in ("ada", "carol"):
            peers[name].tell(peers[name].admission.own_ticket, bans=bans("invited:bob"))
        reports = [rounds[name].result(60).report for name in ("ada", "carol")]
        assert time.monotonic() - told < SILENCE_SECONDS / 2
        for report in reports:
            assert (report.group_size, report.senders, report.repeated) == (3, 2, 1)
            assert report.lost == (str(bob.id),) and not report.torn


def test_a_guest_is_banned_by_account_or_by_peer_and_only_by_its_ban(ada, bob):
    own, text = ticket(KEY, ada), ticket(KEY, bob, account="invited:bob")
    for names, banned in (
        ([], False),
        (["invited:carol"], False),
        (["invited:bob"], True),
        ([str(bob.peer_id)], True),
    ):
        adas = admission(KEY, own)
        guest = Guest(adas, text, str(bob.peer_id))
        assert not guest.is_banned
        adas.tell(own_ticket=own, lineages=[LINEAGE], bans=bans(*names))
        assert guest.is_banned is banned and not guest.has_been_banned_for_long


def test_an_average_is_cut_only_when_most_have_heard_of_the_ban(ada, bob, monkeypatch):
    adas = admission(KEY, ticket(KEY, ada), bans=bans("invited:bob"))
    guest = Guest(adas, ticket(KEY, bob, account="invited:bob"), str(bob.peer_id))
    now = time.monotonic()
    assert guest.is_banned  # news of before the first look count as well
    for seconds, cut in ((CUT_SECONDS - 0.5, False), (CUT_SECONDS + 0.5, True)):
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + seconds)
        assert guest.has_been_banned_for_long is cut


def test_a_ticket_that_ends_meanwhile_bans_nobody(ada, bob):
    own = ticket(KEY, ada)
    adas = admission(KEY, own)
    soon = ticket(KEY, bob, account="invited:bob", expires=int(time.time()) + 2)
    guest = Guest(adas, soon, str(bob.peer_id))
    adas.clock = lambda: time.time() + 60
    adas.tell(own_ticket=own, lineages=[LINEAGE], bans=bans("invited:carol"))
    assert not guest.is_banned


def served(adas):
    """Ada's service, whose trainer answers at once."""
    infos = [CompressionInfo.from_tensor(WEIGHTS, key=0)]
    metadata = {"epoch": 1, "lineage": LINEAGE, "optimizer_metadata": []}
    state = (MSGPackSerializer.dumps(metadata), *pack([WEIGHTS], infos, NoCompression()))
    service = StateService(
        SimpleNamespace(admission=adas),
        PREFIX,
        ask=lambda number, seed: service.take(number, state),
    )
    service._priority = 0.0
    return service


@pytest.mark.parametrize("named, whole", [("invited:carol", True), ("invited:bob", False)])
def test_the_banned_get_no_more_of_a_state_that_they_have_begun_to_take(ada, bob, named, whole):
    async def messages_after_the_ban():
        own = ticket(KEY, ada)
        adas = admission(KEY, own)
        request = averaging_pb2.MessageFromLeader(gathered=[ticket(KEY, bob, account="invited:bob").encode()])
        stream = served(adas).rpc_download_state(request, SimpleNamespace(remote_id=bob.peer_id))
        assert (await anext(stream)).metadata
        adas.tell(own_ticket=own, lineages=[LINEAGE], bans=bans(named))
        try:
            async with asyncio.timeout(2):
                return [message async for message in stream]
        except TimeoutError:  # the service waits until the whole state is taken
            return None

    assert (asyncio.run(messages_after_the_ban()) is None) is whole


def test_nobody_takes_the_rest_of_a_state_from_a_donor_that_is_banned(ada, bob):
    own = ticket(KEY, ada)
    adas, bobs = admission(KEY, own), admission(KEY, ticket(KEY, bob, account="invited:bob"))
    download = _Download(
        prefix=PREFIX,
        lineage=Lineage(id=LINEAGE),
        service=StateService,
        shapes=[WEIGHTS.shape],
        chunk_seconds=5.0,
        max_bytes=10**7,
        epochs=range(5),
        inspect=lambda *_: None,
        admission=adas,
    )

    async def sent(ban):
        request = averaging_pb2.MessageFromLeader(gathered=[own.encode()])
        number = 0
        async for message in served(bobs).rpc_download_state(request, SimpleNamespace(remote_id=ada.peer_id)):
            yield message
            number += 1
            if ban and number == 3:
                adas.tell(own_ticket=own, lineages=[LINEAGE], bans=bans("invited:bob"))

    state = asyncio.run(download._take(sent(ban=False), bob.peer_id))
    assert torch.equal(state.tensors[0], WEIGHTS)
    with pytest.raises(TrainingError, match="has been banned meanwhile"):
        asyncio.run(download._take(sent(ban=True), bob.peer_id))
