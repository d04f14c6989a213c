"""Checks of reducers in one process: who may ask for what, what is noted of whom, and what becomes of malformed words.

Transcripts, keys, signatures and messages are real; only the network between the peers is played.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from google.protobuf.message import DecodeError
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.serializer import MSGPackSerializer

from tests.training.swarm.audited import (
    ADA,
    BOB,
    EVE,
    PARTS,
    SIGNERS,
    THREE,
    VALUES,
    parts_of,
    parts_on_their_way,
    played,
    proof_of,
)
from training.swarm.defence import auditor as auditor_module
from training.swarm.defence import transcript as transcript_module
from training.swarm.defence.auditor import EVASION_WEIGHT, FORGIVEN, LIE_WEIGHT, MOST_EVASIONS, MOST_OF_LARGE
from training.swarm.defence.transcript import FalseSignatureError, Transcript
from training.swarm.engine import engine
from training.swarm.engine.codecs import encode
from training.swarm.peers.groups import AllReduceError

engine.prepare()


# -- whom a check accuses ----------------------------------------------------------------------------------------------


def test_all_parts_of_others_are_checked_and_nobody_is_caught():
    async def scenario(network):
        await network.average()
        assert network.transcripts[ADA].chosen == {(peer, n) for peer in (BOB, EVE) for n in range(PARTS)}
        for peer in THREE:
            await network.check(peer)

    network, _ = played(scenario)
    assert network.caught == {peer: [] for peer in THREE}
    assert len(network.asked) == 3 * 2 * PARTS * 2  # each of three asks two others for each part of each reducer


def test_a_liar_is_caught_by_all_though_one_peer_alone_has_checked_it():
    async def scenario(network):
        await network.average(lie=lambda average: average + 0.2, liar=EVE)
        await network.check(ADA)

    network, _ = played(scenario)
    assert network.caught[EVE] == []
    for peer in (ADA, BOB):  # once, though both parts were wrong
        ((name, weight, deed),) = network.caught[peer]
        assert (name, weight) == (str(EVE), LIE_WEIGHT) and "wrong average" in deed


@pytest.mark.parametrize(
    ("kept", "most", "weight"), [(transcript_module.KEPT_BYTES, MOST_EVASIONS, EVASION_WEIGHT), (0, MOST_OF_LARGE, 1.0)]
)
@pytest.mark.parametrize("gone", [BOB, EVE])
def test_who_cannot_show_anything_is_blamed_only_if_that_happens_again(gone, kept, most, weight, monkeypatch):
    """Whether it is the reducer that is checked or a sender; sooner if parts are small enough to be kept."""
    monkeypatch.setattr(transcript_module, "KEPT_BYTES", kept)

    async def scenario(network):
        counts = []
        for number in range(most + 1):
            await network.average(group=b"g" * (number + 1))
            network.gone = {gone} if number else set()
            network.transcripts[ADA].chosen = frozenset({(EVE, 0)})
            await network.check(ADA)
            counts.append(len(network.caught[ADA]))
        network.gone, suspects = set(), []
        for number in range(int(most / FORGIVEN)):
            suspects.append(network.auditors[ADA].plan().suspects)
            await network.average(group=b"l" * (number + 1))
            network.transcripts[ADA].chosen = frozenset({(EVE, 0)})
            await network.check(ADA)
        return counts, [*suspects, network.auditors[ADA].plan().suspects]

    network, (counts, suspects) = played(scenario)
    assert counts == [*[0] * most, 1] and network.caught[ADA][0][:2] == (str(gone), weight)
    assert suspects == [*[{EVE}] * (len(suspects) - 1), frozenset()]  # it has shown everything for long enough


@pytest.mark.parametrize(("each", "caught"), [(2, True), (4, True), (5, False), (9, False)])
def test_who_evades_more_than_a_fifth_of_the_checks_is_found_out(each, caught):
    async def scenario(network):
        for number in range(12 * each):
            await network.average(group=number.to_bytes(2, "little"))
            network.gone = set() if number % each else {EVE}
            network.transcripts[ADA].chosen = frozenset({(EVE, 0)})
            await network.check(ADA)

    found = {facts[:2] for facts in played(scenario)[0].caught[ADA]}
    assert found == ({(str(EVE), EVASION_WEIGHT)} if caught else set())


def hiding(show, reducer):
    """Shows nothing of what concerns this reducer."""

    async def hide(request, peer):
        if request.suggested_leader == reducer.to_bytes():
            yield averaging_pb2.DownloadData()
            return
        async for message in show(request, peer):
            yield message

    return hide


def test_an_accomplice_that_hides_only_what_it_has_sent_to_a_liar_is_blamed():
    """What it shows of its parts to honest reducers makes up for nothing."""

    async def scenario(network):
        network.auditors[BOB]._show = hiding(network.auditors[BOB]._show, EVE)
        for number in range(MOST_EVASIONS):
            await network.average(group=b"l" * (number + 1), lie=lambda average: average + 0.2, liar=EVE)
            network.transcripts[ADA].chosen = frozenset({(EVE, 0)})
            await network.check(ADA)
            suspects = network.auditors[ADA].plan().suspects
            for other in range(4):
                await network.average(group=b"h" * (4 * number + other + 1))
                network.transcripts[ADA].chosen = frozenset({(BOB, 0)})
                await network.check(ADA)
        return suspects

    network, suspects = played(scenario)
    assert [facts[:2] for facts in network.caught[ADA]] == [(str(BOB), EVASION_WEIGHT)]
    assert suspects == {EVE}


def test_a_reducer_that_hides_what_it_has_averaged_is_blamed_also_if_it_shows_what_it_has_sent():
    async def scenario(network):
        network.auditors[EVE]._show = hiding(network.auditors[EVE]._show, EVE)
        for number in range(MOST_EVASIONS):
            for reducer in (EVE, BOB):
                await network.average(group=b"g" * (number + 1) + reducer.to_bytes())
                network.transcripts[ADA].chosen = frozenset({(reducer, 0)})
                await network.check(ADA)

    assert [facts[:2] for facts in played(scenario)[0].caught[ADA]] == [(str(EVE), EVASION_WEIGHT)]


def test_a_peer_that_reaches_nobody_blames_nobody():
    async def scenario(network):
        network.gone = {BOB, EVE}
        for number in range(2 * MOST_EVASIONS):
            await network.average(group=b"g" * (number + 1))
            await network.check(ADA)

    assert played(scenario)[0].caught[ADA] == []


def test_checks_take_their_share_of_the_bytes_or_64_kib():
    """Of 25 peers, a check moves a part of 23 others in 8 bit and one in 32."""
    plan = transcript_module.Plan(prefix="run", signer=SIGNERS[0], share=0.03)
    large, small = 125_000_000, 50_000
    exchanged = 2 * 24 / 25 * large
    assert plan.chance(25, large) * large * 24 / 25 * (23 + 4) == pytest.approx(0.03 * exchanged)
    assert plan.chance(25, small) * small * 24 / 25 * (23 + 4) == pytest.approx(65_536)
    assert plan.chance(3, 1000) == 1 and plan.chance(1, small) == plan.chance(25, 0) == 0


def test_a_reducer_that_has_evaded_a_check_is_surely_checked_in_the_next_average(monkeypatch):
    monkeypatch.setattr(transcript_module, "LEAST_CHECKED_BYTES", 0)

    async def scenario(network):
        network.auditors[ADA] = network._auditor(ADA, SIGNERS[0], share=1e-9)
        await network.average()
        assert not network.transcripts[ADA].chosen
        network.transcripts[ADA].chosen, network.gone = frozenset({(EVE, 0)}), {EVE}
        network.transcripts[ADA].peers[EVE].kept[0] = averaging_pb2.AveragingData().tensor_part
        await network.check(ADA)
        await network.average(group=b"next")
        return network.transcripts[ADA].chosen

    assert {peer for peer, _ in played(scenario)[1]} == {EVE}


def test_groupmates_learn_at_once_that_a_reducer_evades_checks():
    async def scenario(network):
        await network.average()
        network.transcripts[ADA].chosen, network.gone = frozenset({(EVE, 0)}), {EVE}
        await network.check(ADA)
        return network.auditors[BOB].plan().suspects

    assert played(scenario)[1] == {EVE}


@pytest.mark.parametrize("named", [EVE, BOB])
def test_who_hears_that_a_reducer_evades_checks_checks_it_once(named, monkeypatch):
    monkeypatch.setattr(transcript_module, "LEAST_CHECKED_BYTES", 0)

    async def scenario(network):
        network.auditors[BOB] = network._auditor(BOB, SIGNERS[1], share=1e-9)
        await network.average()
        await ask(network, BOB, ADA, reducer=named, more=[auditor_module.EVADED])
        chosen = []
        for group in (b"second", b"third"):
            await network.average(group=group)
            chosen.append({peer for peer, _ in network.transcripts[BOB].chosen})
            await network.check(BOB)
        return chosen, network.caught[BOB]

    # A peer does not check itself, whoever says so.
    assert played(scenario)[1] == ([{EVE} if named == EVE else set(), set()], [])


def test_one_peer_cannot_make_others_check_everybody():
    async def scenario(network):
        await network.average()
        for named in (ADA, BOB, EVE):
            for _ in range(3):
                await ask(network, ADA, EVE, reducer=named, more=[auditor_module.EVADED])
        told = network.auditors[ADA]._told
        return {teller: len(named) for teller, named in told.items()}

    assert auditor_module.MOST_TOLD_BY_ONE == 2
    assert played(scenario)[1] == {EVE: 2}


# -- what is shown -----------------------------------------------------------------------------------------------------


def ask(network, peer, own, *, group=b"group", number=bytes(4), reducer=EVE, more=()):
    """Bytes of a part that one peer shows another."""
    words = {"suggested_leader": reducer.to_bytes(), "gathered": [number, *more]}
    request = averaging_pb2.MessageFromLeader(group_id=group, **words)

    async def shown():
        return sum([len(m.tensor_part.buffer) async for m in network.auditors[peer]._show(request, own)])

    return shown()


def test_only_groupmates_are_shown_parts_and_only_those_that_there_are():
    async def scenario(network):
        await network.average()
        assert await ask(network, BOB, ADA) > VALUES
        refused = [
            await ask(network, BOB, PeerID(b"stranger")),
            await ask(network, BOB, ADA, group=b"another"),
            await ask(network, BOB, ADA, number=bytes([PARTS, 0, 0, 0])),
            await ask(network, BOB, ADA, number=b"\xff\xff\xff\xff"),
            await ask(network, BOB, ADA, number=b""),
            await ask(network, BOB, ADA, reducer=PeerID(b"stranger")),
        ]
        return refused

    assert played(scenario)[1] == [0] * 6


def test_a_peer_that_asks_for_more_than_any_check_needs_is_shown_nothing_more():
    async def scenario(network):
        await network.average()
        network.transcripts[BOB].most_asked = 3
        return [await ask(network, BOB, ADA) > 0 for _ in range(5)], await ask(network, BOB, EVE)

    _, (shown, others) = played(scenario)
    assert shown == [True] * 3 + [False] * 2 and others > 0


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_parts_can_be_shown_after_the_tensors_have_changed_if_they_are_small(most, monkeypatch):
    monkeypatch.setattr(transcript_module, "KEPT_BYTES", most)

    async def scenario(network):
        await network.average()
        transcript = network.transcripts[BOB]
        before, tensors = (
            await ask(network, BOB, ADA),
            [part for one in transcript.peers.values() for part in one.parts],
        )
        for tensor in tensors:
            tensor.add_(1.0)
        return before, await ask(network, BOB, ADA)

    _, (before, after) = played(scenario)
    assert before > 0 and after == (before if most else 0)


def test_a_part_that_has_changed_is_not_shown(monkeypatch):
    """It is none that was sent, and would speak against nobody but this peer."""
    monkeypatch.setattr(transcript_module, "KEPT_BYTES", 0)

    async def scenario(network):
        await network.average()
        network.transcripts[BOB].peers[EVE].parts[0].add_(1.0)
        return await ask(network, BOB, ADA)

    assert played(scenario)[1] == 0


# -- signatures on the way ---------------------------------------------------------------------------------------------


def lost_signature(message):
    message.peer_id = b""


def nonsense(message):
    message.peer_id = b"\xc1nonsense"


def long_nonsense(message):
    message.peer_id = MSGPackSerializer.dumps([b"k" * 10_000, b"s"])


def another_weight(message):
    message.weight = 9.0


def another_number(message):
    message.tensor_part.buffer = message.tensor_part.buffer[:-1] + b"\x00"


async def changed_at_the_end(messages, change):
    last = None
    async for message in messages:
        if last is not None:
            yield last
        last = message
    change(last)
    yield last


@pytest.mark.parametrize("change", [lost_signature, nonsense, long_nonsense, another_weight, another_number])
def test_a_reducer_takes_no_parts_that_their_sender_has_not_signed(change):
    async def scenario(network):
        transcript = {
            peer: Transcript(network.auditors[peer].plan(), b"group", peer, parts_of(peer, b"g")) for peer in THREE
        }
        sent = transcript[ADA].sending(EVE, parts_on_their_way(ADA, EVE, b"g"))
        with pytest.raises(FalseSignatureError):
            async for _ in transcript[EVE].taking(ADA, changed_at_the_end(sent, change)):
                pass
        return transcript[EVE].commitments

    assert played(scenario)[1] is None


@pytest.mark.parametrize("change", [lost_signature, nonsense, long_nonsense, another_number])
def test_a_sender_takes_no_answers_that_the_reducer_has_not_signed(change, monkeypatch):
    answered = Transcript.answered

    def changing(self, reducer, messages):
        is_eve = (self.own, reducer) == (ADA, EVE)
        return answered(self, reducer, changed_at_the_end(messages, change) if is_eve else messages)

    monkeypatch.setattr(Transcript, "answered", changing)

    async def scenario(network):
        fault = AllReduceError if change is lost_signature else FalseSignatureError
        with pytest.raises(fault):
            await network.average()
        return network.transcripts[ADA].peers[EVE].receipt is not None

    assert played(scenario)[1] is False


# -- accusations -------------------------------------------------------------------------------------------------------


async def accuse(network, messages, accuser=ADA):
    stream = as_aiter(*(averaging_pb2.DownloadData.FromString(one) for one in messages))
    context = SimpleNamespace(remote_id=accuser)
    return (await network.auditors[BOB].rpc_accuse(stream, context)).code == averaging_pb2.ACCEPTED


def test_a_proof_is_accepted_from_the_peer_whose_it_is():
    async def scenario(network):
        messages = await proof_of(network)
        facts = MSGPackSerializer.loads(averaging_pb2.DownloadData.FromString(messages[0]).metadata)
        facts[1] = BOB.to_bytes()
        about_bob = averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps(facts)).SerializeToString()
        return [
            await accuse(network, messages, accuser=PeerID(b"stranger")),
            await accuse(network, messages, accuser=EVE),
            await accuse(network, [about_bob, *messages[1:]]),
            await accuse(network, messages[:-1]),
            await accuse(network, messages),
        ]

    network, (*refused, accepted) = played(scenario)
    assert refused == [False] * 4 and not accepted  # the accuser has used up its turns
    assert network.caught[BOB] == []


def test_a_proof_that_holds_is_believed_at_the_first_time():
    async def scenario(network):
        messages = await proof_of(network)
        return [await accuse(network, messages), await accuse(network, messages)]

    network, accepted = played(scenario)
    assert accepted == [True, True]
    assert [(peer, weight) for peer, weight, _ in network.caught[BOB]] == [(str(EVE), LIE_WEIGHT)]


PADDING_BYTES = 10_000


@pytest.mark.parametrize("place, accepted", [("nowhere", True), ("a part", False), ("the message", False)])
def test_all_that_a_proof_brings_counts_not_only_the_numbers_of_its_parts(place, accepted, monkeypatch):
    """The rest is kept as well until the proof is judged."""
    monkeypatch.setattr(auditor_module, "LARGEST_HELD_BYTES", 0)
    padding = b"\x7a" + bytes([PADDING_BYTES & 0x7F | 0x80, PADDING_BYTES >> 7]) + bytes(PADDING_BYTES)  # field 15

    def padded(packed):
        message = averaging_pb2.DownloadData.FromString(packed)
        if place == "a part":
            message.tensor_part.MergeFromString(padding)
        return message.SerializeToString() + (padding if place == "the message" else b"")

    async def scenario(network):
        first, *parts = await proof_of(network)
        return await accuse(network, [first, *map(padded, parts)])

    assert played(scenario)[1] is accepted


def test_a_silent_accuser_keeps_nobody_else_from_proving_a_lie():
    """It has one place."""

    async def scenario(network):
        messages, told = await proof_of(network), asyncio.Event()

        async def say_nothing():
            told.set()
            await asyncio.Event().wait()
            yield averaging_pb2.DownloadData()

        def silent():
            return network.auditors[BOB].rpc_accuse(say_nothing(), SimpleNamespace(remote_id=EVE))

        first = asyncio.create_task(silent())
        await told.wait()
        second = (await asyncio.wait_for(silent(), 0.1)).code
        accepted = await accuse(network, messages)
        first.cancel()
        return second, accepted

    assert played(scenario)[1] == (averaging_pb2.NOT_DECLARED, True)


def mutated(messages, dice):
    """The messages with a change somewhere: bytes, values of the packed facts, lengths, order, number."""
    messages = list(messages)
    kind = dice.randrange(5)
    where = dice.randrange(len(messages))
    if kind == 0:
        raw = bytearray(messages[where])
        for _ in range(dice.randrange(1, 6)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        messages[where] = bytes(raw)
    elif kind == 1:
        facts = MSGPackSerializer.loads(averaging_pb2.DownloadData.FromString(messages[0]).metadata)
        odd = [None, -1, 2**63, 1.5, b"", b"\xff" * 99, "text", [], [[]], {}, True, [b""] * 4, [None] * 2000]
        facts[dice.randrange(len(facts))] = dice.choice(odd)
        messages[0] = averaging_pb2.DownloadData(metadata=MSGPackSerializer.dumps(facts)).SerializeToString()
    elif kind == 2:
        messages[where] = dice.randbytes(dice.randrange(300))
    elif kind == 3:
        del messages[where]
    else:
        dice.shuffle(messages)
    return messages


def test_malformed_proofs_neither_convict_nor_raise(monkeypatch):
    monkeypatch.setattr(auditor_module, "PROOF_PAUSE_SECONDS", 0.0)

    async def scenario(network):
        messages, dice, tried = await proof_of(network), random.Random(0), 0
        network.auditors[BOB]._proofs = auditor_module.Quota(at_once=9, of_one=9, seconds=0.0)
        while tried < 300:
            changed = mutated(messages, dice)
            with suppress(DecodeError):  # no message of this type; the network would not pass it on
                [averaging_pb2.DownloadData.FromString(one) for one in changed]
                if changed == messages:
                    continue
                tried += 1
                before = len(network.caught[BOB])
                accepted = await accuse(network, changed)
                # Some changes change nothing that is looked at; what holds, holds.
                assert accepted or len(network.caught[BOB]) == before
        return {peer for peer, _, _ in network.caught[BOB]}

    assert played(scenario)[1] <= {str(EVE)}


def test_a_proof_that_is_too_long_is_not_read(monkeypatch):
    async def scenario(network):
        messages = await proof_of(network)
        long = encode(torch.zeros(VALUES + 1), runtime_pb2.NONE)
        padded = encode(torch.zeros(3), runtime_pb2.NONE)
        padded.buffer = bytes(100_000)
        found = []
        for tensor in (long, padded):
            one = averaging_pb2.DownloadData(tensor_part=tensor).SerializeToString()
            found.append(await accuse(network, [messages[0], one, *messages[2:]]))
        return found

    assert played(scenario)[1] == [False, False]


def test_copies_of_the_last_averages_stay_as_long_as_they_are_small_together(monkeypatch):
    """As in PowerSGD, two all-reduces of which may follow each other at once."""

    async def scenario(network):
        await network.average(group=b"1")
        size, found = network.transcripts[BOB].kept_bytes, []
        monkeypatch.setattr(auditor_module, "KEPT_BYTES", int(1.5 * size))
        for group in (b"1", b"2", b"3"):
            await network.average(group=group)
        for group in (b"1", b"2", b"3"):
            found.append(await ask(network, BOB, ADA, group=group) > 0)
        return found

    assert played(scenario)[1] == [False, True, True]
