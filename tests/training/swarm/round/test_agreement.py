"""A group agrees on its all-reduce: several peers' parts in one process, joined by calls instead of a network."""

import asyncio
import time
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm.engine.coroutine import wait_for_result
from training.swarm.peers.groups import Group
from training.swarm.round import agreement
from training.swarm.round.agreement import Agreement, Decision, Verdict, repetition_of
from training.swarm.round.rounds import AllReduces
from training.swarm.round.service import Service

PEERS = tuple(PeerID(bytes([number]) * 32) for number in range(4))
WHOLE, TORN = Verdict(whole=True), Verdict(whole=False)
NEVER = 60.0
"""So long is longer than any wait here: an all-reduce that would take so long ends when the group gives it up."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    for name, seconds in {"GOOD": 0.1, "VERDICT": 0.4, "REFEREE": 1.0}.items():
        monkeypatch.setattr(agreement, f"{name}_SECONDS", seconds)


def decide(
    verdicts,
    *,
    peers=PEERS,
    dead=(),
    silent=(),
    referees=None,
    delays=None,
    unlinked=None,
    again=False,
    gone=None,
):
    """What each peer with a verdict takes for decided, in the end.

    Args:
        verdicts: Of each peer that lives, how its all-reduce has ended, if it did by itself.
        peers: The group.
        dead: Peers that refuse connections.
        silent: Peers that never answer.
        referees: Those that accept connections; all if left out.
        delays: Seconds until a peer's all-reduce ends, unless it hears before that the others have given it up.
        unlinked: Whether the second of two peers cannot be reached from the first.
        again: Whether the group has tried before.
        gone: A peer that all find gone, by their pings, when they have asked the referee.
    """

    async def group():
        there, told = {}, {peer: asyncio.Event() for peer in peers}

        def ask_from(own):
            async def ask(other, message):
                if other in dead or (unlinked is not None and unlinked(own, other)):
                    raise ConnectionError("it cannot be reached")
                if other in silent:
                    await asyncio.sleep(NEVER)
                return await there[other].hear(own, message)

            return ask

        for peer in peers:
            there[peer] = Agreement(
                own=peer,
                group_id=b"first",
                peers=peers,
                referees=peers if referees is None else referees,
                ask=ask_from(peer),
                on_bad_verdict=told[peer].set,
                is_repetition=again,
            )

        async def note_gone():
            await asyncio.sleep(0.05)
            for one in there.values():
                one.note_gone(gone)

        async def reach(peer):
            try:
                await asyncio.wait_for(told[peer].wait(), (delays or {}).get(peer, 0.0))
            except TimeoutError:
                return await there[peer].reach(verdicts[peer])
            return await there[peer].reach(TORN if verdicts[peer].whole else verdicts[peer])

        noting = asyncio.create_task(note_gone()) if gone is not None else None
        decisions = dict(zip(verdicts, await asyncio.gather(*map(reach, verdicts)), strict=True))
        if noting is not None:
            await noting
        return decisions

    return wait_for_result(group())


def repeating(decisions):
    """The members of the one group in which all these peers repeat their all-reduce."""
    assert len({decision.group_id for decision in decisions.values()}) == 1
    (members,) = {decision.members for decision in decisions.values()}
    return members


def test_a_round_that_was_whole_for_all_counts_for_all():
    assert {decision.counts for decision in decide(dict.fromkeys(PEERS, WHOLE)).values()} == {True}


@pytest.mark.parametrize("victim", PEERS)
def test_the_survivors_repeat_a_torn_round_in_one_group(victim, monkeypatch):
    """At once, also if only one of them has noticed, and if the dead peer was to be the referee."""
    monkeypatch.setattr(agreement, "VERDICT_SECONDS", NEVER)  # nobody waits for him who cannot be reached
    survivors = tuple(peer for peer in PEERS if peer != victim)
    for noticed in survivors:
        verdicts = {**dict.fromkeys(survivors, WHOLE), noticed: TORN}
        assert repeating(decide(verdicts, dead={victim})) == survivors


@pytest.mark.parametrize("noticed", PEERS)
def test_who_would_wait_on_in_a_torn_round_is_told_and_repeats_it_with_the_others(noticed):
    """Nobody is dead: a stream has broken for one, and the others would wait for as long as an all-reduce may take."""
    delays = {peer: NEVER for peer in PEERS if peer != noticed}
    verdicts = {**dict.fromkeys(PEERS, WHOLE), noticed: TORN}
    assert repeating(decide(verdicts, delays=delays)) == PEERS


def naming(*peers):
    return Verdict(whole=False, faulty=frozenset(peers))


def left_out(verdicts, **settings):
    """The peers that a second repetition leaves out."""
    decisions = decide({**dict.fromkeys(PEERS, WHOLE), **verdicts}, again=True, **settings)
    return set(PEERS) - set(repeating(decisions))


def test_of_two_of_which_one_names_the_other_nobody_knows_which_is_at_fault():
    """Both try again the first time: a stream may break by accident."""
    first, second, third, fourth = PEERS
    for verdicts in ({second: naming(fourth)}, {fourth: naming(second)}, {second: naming(fourth), fourth: TORN}):
        assert repeating(decide({**dict.fromkeys(PEERS, WHOLE), **verdicts})) == PEERS
        assert left_out(verdicts) == {second, fourth}
    assert left_out({second: naming(fourth), third: naming(fourth)}) == {fourth}  # most name it
    assert left_out({first: naming(second), third: naming(fourth)}) == set()  # nobody would be left


def test_two_that_name_each_other_try_again_and_one_that_is_named_is_left_out():
    first, second = PEERS[:2]
    of_first, of_second = (Verdict(whole=False, faulty=frozenset({peer})) for peer in (second, first))
    assert repeating(decide({first: of_first, second: of_second}, peers=PEERS[:2], again=True)) == (first, second)
    assert repeating(decide({first: of_first, second: TORN}, peers=PEERS[:2])) == (first,)


def test_many_peers_with_a_dead_and_a_slow_one_agree_on_one_group():
    peers = tuple(PeerID(bytes([number]) * 32) for number in range(16))
    verdicts = {**dict.fromkeys(peers[1:], WHOLE), peers[9]: TORN}
    assert repeating(decide(verdicts, peers=peers, dead=peers[:1], delays={peers[5]: NEVER})) == peers[1:]


def test_a_peer_that_is_only_late_is_waited_for_only_so_long_and_told_then_what_was_decided():
    decisions = decide(dict.fromkeys(PEERS, WHOLE), delays={PEERS[3]: 0.3})
    assert all(decision.counts and not decision.solitary for decision in decisions.values())
    decisions = decide({**dict.fromkeys(PEERS, WHOLE), PEERS[3]: TORN}, delays={PEERS[3]: 0.3})
    assert all(decision.counts for decision in decisions.values())


@pytest.mark.parametrize("hasty", PEERS[1:])
def test_who_says_at_once_that_all_is_well_does_not_make_a_torn_round_count(hasty):
    """Its word alone would have let the group decide before anybody else had a result, and nobody would repeat it."""
    verdicts = {peer: WHOLE if peer == hasty else TORN for peer in PEERS}
    late = {peer: 0.6 for peer in PEERS if peer != hasty}
    assert repeating(decide(verdicts, delays=late)) == PEERS


@pytest.mark.parametrize("late, waits", [(PEERS[:1], 0.1), (PEERS[:2], 0.6)])
def test_a_late_referee_is_waited_for_until_most_have_a_whole_result(late, waits):
    began = time.monotonic()
    decisions = decide(dict.fromkeys(PEERS, WHOLE), delays=dict.fromkeys(late, 0.6))
    assert all(decision.counts for decision in decisions.values())
    assert time.monotonic() - began >= waits


def test_a_late_peer_in_client_mode_cannot_be_told_and_is_left_out_of_the_repetition():
    verdicts = {**dict.fromkeys(PEERS, WHOLE), PEERS[1]: TORN}
    decisions = decide(verdicts, referees=PEERS[:3], delays={PEERS[3]: 0.7})
    assert repeating(decisions) == PEERS[:3]


def test_peers_in_client_mode_find_another_referee():
    verdicts = dict.fromkeys((PEERS[1], PEERS[2], PEERS[3]), TORN)
    assert repeating(decide(verdicts, dead={PEERS[0]}, referees=(PEERS[0], PEERS[2]))) == PEERS[1:]


def test_a_referee_without_a_word_is_passed_over():
    verdicts = dict.fromkeys(PEERS[1:], TORN)
    assert repeating(decide(verdicts, silent={PEERS[0]})) == PEERS[1:]


@pytest.mark.parametrize("verdict", [WHOLE, TORN])
@pytest.mark.parametrize("silent", PEERS[:2])
def test_nobody_waits_for_the_word_of_a_peer_that_is_gone(silent, verdict, monkeypatch):
    """It was asked as the referee, or its verdict is waited for."""
    monkeypatch.setattr(agreement, "REFEREE_SECONDS", NEVER)
    monkeypatch.setattr(agreement, "VERDICT_SECONDS", NEVER)
    left = tuple(peer for peer in PEERS if peer != silent)
    verdicts = {**dict.fromkeys(left, verdict), left[-1]: TORN}
    assert repeating(decide(verdicts, silent={silent}, gone=silent)) == left


def test_each_half_of_a_network_that_splits_repeats_by_itself():
    def unlinked(a, b):
        return (a in PEERS[:2]) != (b in PEERS[:2])

    decisions = decide(dict.fromkeys(PEERS, TORN), unlinked=unlinked)
    for half in (PEERS[:2], PEERS[2:]):
        assert repeating({peer: decisions[peer] for peer in half}) == half


@pytest.mark.parametrize("verdict", [WHOLE, TORN])
def test_a_substitute_asks_the_others_what_a_referee_has_decided_that_is_dead_now(verdict):
    """The referee was told of a loss, answered the last peer, and died; the others know nothing of that."""
    first, second, third, last = PEERS
    decided = Decision(group_id=repetition_of(b"first", PEERS), members=PEERS)

    async def group():
        there = {}

        def ask_from(own):
            async def ask(other, message):
                if other == first:
                    if own == last:
                        return decided.message()
                    raise ConnectionError("it is dead")
                return await there[other].hear(own, message)

            return ask

        for peer in PEERS[1:]:
            there[peer] = Agreement(own=peer, group_id=b"first", peers=PEERS, referees=PEERS, ask=ask_from(peer))
        verdicts = {second: verdict, third: verdict, last: WHOLE}
        return await asyncio.gather(*(there[peer].reach(verdicts[peer]) for peer in verdicts))

    assert set(wait_for_result(group())) == {decided}


def test_a_peer_whose_referees_are_all_gone_decides_for_itself_and_says_so():
    (torn,) = decide({PEERS[1]: TORN}, dead={PEERS[0]}, referees=PEERS[:1]).values()
    assert torn.members == (PEERS[1],) and torn.solitary
    (whole,) = decide({PEERS[1]: WHOLE}, dead={PEERS[0]}, referees=PEERS[:1]).values()
    assert whole.counts and whole.solitary
    for decision in (torn, whole):
        with pytest.raises(ValueError, match="BAD_GROUP_ID"):
            Decision.read(decision.message(), b"group", PEERS)  # it binds nobody else


def test_who_sends_nonsense_to_most_of_the_others_has_no_part_in_the_repetition():
    bad, blames = PEERS[2], Verdict(whole=False, faulty=frozenset({PEERS[2]}))
    assert repeating(decide({**dict.fromkeys(PEERS, blames), bad: WHOLE})) == tuple(p for p in PEERS if p != bad)
    verdicts = {**dict.fromkeys(PEERS, WHOLE), bad: Verdict(whole=False, faulty=frozenset(PEERS) - {bad})}
    assert repeating(decide(verdicts)) == PEERS  # one alone may have bad memory itself


def test_strangers_have_no_say_and_cannot_be_named():
    stranger = PeerID(b"9" * 32)

    async def ask_a_stranger_in():
        part = Agreement(own=PEERS[0], group_id=b"first", peers=PEERS, referees=PEERS, ask=None)
        return await part.hear(stranger, TORN.message(b"first"))

    assert wait_for_result(ask_a_stranger_in()).code == averaging_pb2.PROTOCOL_VIOLATION
    for members in ((stranger, PEERS[0]), (PEERS[1], PEERS[0]), ()):
        decision = Decision(group_id=repetition_of(b"first", members), members=members)
        with pytest.raises(ValueError, match=r"the referee|not of the group"):
            Decision.read(decision.message(), b"first", PEERS)


MANY = tuple(number.to_bytes(34, "big") for number in range(100_000))
"""Peer ids, as many as fit into a message; to make a `PeerID` of each takes seconds."""


@pytest.mark.parametrize(
    "named",
    [MANY, (PEERS[1].to_bytes(),) * 2, (b"9" * 32,), (b"9" * 1024,)],
    ids=["too many", "one twice", "a stranger", "too long"],
)
def test_who_names_others_than_its_groupmates_is_not_heard(named):
    message = TORN.message(b"first")
    message.ordered_peer_ids.extend(named)
    decision = Decision(group_id=repetition_of(b"first", PEERS[:1]), members=PEERS[:1]).message()
    decision.ordered_peer_ids.extend(named)
    bad = []

    async def tell():
        part = Agreement(
            own=PEERS[0], group_id=b"first", peers=PEERS, referees=PEERS, ask=None, on_bad_verdict=lambda: bad.append(1)
        )
        return await part.hear(PEERS[1], message)

    began = time.process_time()
    assert wait_for_result(tell()).code == averaging_pb2.PROTOCOL_VIOLATION and not bad
    with pytest.raises(ValueError, match="not of the group, or one twice"):
        Decision.read(decision, b"first", PEERS)
    assert time.process_time() - began < 1


def test_only_a_peers_first_verdict_counts():
    """Otherwise one could tell the referee another story whenever it has heard more."""

    async def tell_twice():
        part = Agreement(own=PEERS[0], group_id=b"first", peers=PEERS[:3], referees=PEERS[:3], ask=None)
        verdicts = [(PEERS[1], naming(PEERS[2])), (PEERS[1], naming(PEERS[0])), (PEERS[2], WHOLE)]
        answers = [asyncio.create_task(part.hear(peer, verdict.message(b"first"))) for peer, verdict in verdicts]
        await asyncio.sleep(0.01)
        decision = await part.reach(naming(PEERS[2]))
        await asyncio.gather(*answers)
        return decision

    assert wait_for_result(tell_twice()).members == PEERS[:2]


def test_a_repetition_is_named_by_its_members_so_that_all_divide_the_tensors_alike():
    decision = Decision(group_id=repetition_of(b"first", PEERS[:2]), members=PEERS[:2])
    assert Decision.read(decision.message(), b"first", PEERS) == decision
    for group_id, members in ((b"second", PEERS[:2]), (b"first", PEERS[1:])):
        other = Decision(group_id=repetition_of(group_id, members), members=PEERS[:2])
        with pytest.raises(ValueError, match="the referee names another group"):
            Decision.read(other.message(), b"first", PEERS)


@pytest.mark.parametrize("own", [PEERS[0], PEERS[3]])
def test_who_lives_and_knows_nothing_of_the_group_is_told_from_the_dead(own):
    """Whether this peer is the referee and calls, or asks those before it."""

    async def ask(peer, message):
        if peer == PEERS[2]:
            raise ConnectionError("it cannot be reached")
        return averaging_pb2.MessageFromLeader(code=averaging_pb2.BAD_GROUP_ID)

    async def decide_alone():
        peers = tuple(peer for peer in PEERS if peer in (own, PEERS[1], PEERS[2]))
        part = Agreement(own=own, group_id=b"first", peers=peers, referees=peers, ask=ask)
        return await part.reach(TORN), part.absent

    decision, absent = wait_for_result(decide_alone())
    assert (decision.members, absent) == ((own,), {PEERS[1]})


def test_a_verdict_on_an_all_reduce_that_has_not_begun_here_waits_for_it():
    """And one on a group of which this peer is not is answered as soon as it expects to hear of no other group."""

    async def tell_early():
        all_reduces = AllReduces(SimpleNamespace(peer_id=PEERS[0]), Service, "prefix", has_no_group=lambda: False)
        all_reduces.announce(b"first")
        with all_reduces.expecting_a_group():
            telling = [
                asyncio.create_task(all_reduces.agree(TORN.message(group_id), PEERS[1]))
                for group_id in (b"first", b"another")
            ]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in telling)
        await asyncio.sleep(0.01)
        assert not telling[0].done() and telling[1].result().code == averaging_pb2.BAD_GROUP_ID
        told = asyncio.Event()
        runner, group = object(), Group(group_id=b"first", peers=PEERS[:2], fractions=(0.5, 0.5))
        agreement = all_reduces._begin(group, runner, on_bad_verdict=told.set)
        await asyncio.wait_for(told.wait(), 5)
        decision = await agreement.reach(WHOLE)
        return decision, Decision.read(await telling[0], b"first", PEERS)

    own, answer = wait_for_result(tell_early())
    assert own == answer and own.members == PEERS[:2]
