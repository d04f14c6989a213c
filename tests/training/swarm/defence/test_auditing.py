"""What proves that a reducer has lied, and what does not: an honest answer, or anything that an accuser makes up.

Averages are made by the reducers that the trainer uses; keys and signatures are real.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from hivemind.p2p import PeerID
from hivemind.proto import runtime_pb2
from hivemind.utils.crypto import RSAPrivateKey

from training.swarm.defence.auditing import Case, distance_of, lie_in
from training.swarm.defence.clipping import Clipping
from training.swarm.defence.receipts import (
    Commitment,
    Receipt,
    Scope,
    digest_of_commitments,
    digest_of_tensor,
)
from training.swarm.engine import engine
from training.swarm.engine.codecs import decode, encode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.ids import digest_of
from training.swarm.node.identity import Signer
from training.swarm.round.reducer import Reducer, WeightedMean
from training.trust.proof import peer_id_of_key

engine.prepare()
CLIPPING = Clipping(radius=1.0, iterations=5, weight_over_median=1.0)
CODECS = {"8 bit": runtime_pb2.BLOCKWISE_8BIT, "uniform": runtime_pb2.UNIFORM_8BIT, "16 bit": runtime_pb2.FLOAT16}
CODECS["32 bit"] = runtime_pb2.NONE
KEYS = [RSAPrivateKey() for _ in range(4)]
PEERS = tuple(
    PeerID.from_base58(peer_id_of_key(serialization.load_ssh_public_key(key.get_public_key().to_bytes())))
    for key in KEYS
)
SIGNERS = [Signer(key.get_public_key().to_bytes(), key.sign) for key in KEYS]
SCOPE = Scope(prefix="run_grad_averager", group_id=b"group", peers=PEERS)
REDUCER, RECEIVER, OTHER = 0, 1, 2


def parts_of(seed, values=3000):
    """What four peers have, in float32: something in common, and noise."""
    common = torch.randn(values, generator=torch.Generator().manual_seed(seed))
    noise = [torch.randn(values, generator=torch.Generator().manual_seed(seed + 100 + n)) for n in range(4)]
    return [common + 0.5 * one for one in noise]


def averaged(parts, weights, clipping, order):
    """What the reducer makes of parts that come in this order; it clears a part that makes no sense, in place."""

    async def send(made, sender):
        own = parts[sender]
        update = await made.take(sender, own, weights[sender])
        if sender in made.refused:
            own = parts[sender] = torch.zeros_like(update)
        return own + update

    async def all_send():
        made = Reducer([parts[REDUCER].numel()], range(4), clipping or WeightedMean())
        tasks = []
        for sender in order:
            tasks.append(asyncio.ensure_future(send(made, sender)))
            await asyncio.sleep(0)
        return (await asyncio.gather(*tasks))[order.index(RECEIVER)]

    return wait_for_result(all_send())


def commitment(sender, part, weight, reducer=REDUCER, scope=SCOPE):
    facts = {"digests": (b"-" * 32, digest_of_tensor(part)), "weights": (1.0, weight)}
    statement = Commitment.statement(scope, sender=PEERS[sender], reducer=PEERS[reducer], **facts)
    return Commitment(**facts, signed=SIGNERS[sender].signed(statement))


def receipt(commitments, answers, receiver=RECEIVER, signer=REDUCER, scope=SCOPE):
    facts = {"commitments": digest_of_commitments(commitments), "answers": digest_of(*answers)}
    statement = Receipt.statement(scope, reducer=PEERS[REDUCER], receiver=PEERS[receiver], **facts)
    return Receipt(**facts, signed=SIGNERS[signer].signed(statement))


def case_of(
    seed=0,
    *,
    clipping=CLIPPING,
    codec="8 bit",
    weights=(1.0, 2.0, 1.0, 3.0),
    values=3000,
    own=None,
    order=(0, 1, 2, 3),
    lie=lambda average, parts: average,
    change=lambda parts: parts,
):
    """All that a reducer and its senders have signed and sent; `lie` changes the average that it answers."""
    own = change(own or parts_of(seed, values))
    sent = [encode(part, CODECS[codec] if n != REDUCER else runtime_pb2.NONE) for n, part in enumerate(own)]
    read = [decode(part) for part in sent]
    average = lie(averaged(read, weights, clipping, order), read)
    answer = encode(average - read[RECEIVER], CODECS[codec])
    commitments = tuple(commitment(n, part, weights[n]) for n, part in enumerate(sent))
    answers = (b"+" * 32, digest_of_tensor(answer))
    return Case(
        scope=SCOPE,
        reducer=PEERS[REDUCER],
        receiver=PEERS[RECEIVER],
        receipt=receipt(commitments, answers),
        part=1,
        commitments=commitments,
        parts=tuple(sent),
        answer=answer,
        answers=answers,
    )


# -- honest reducers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("clipping", [CLIPPING, None], ids=["clipped", "mean"])
def test_an_honest_answer_proves_nothing_whatever_the_order_of_parts(codec, clipping):
    for seed, values, order in itertools.product(range(3), (7, 600, 5000), [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)]):
        case = case_of(seed, codec=codec, clipping=clipping, values=values, order=order)
        distance, most = distance_of(case, clipping)
        assert distance < 0.2 * most and lie_in(case, clipping) is None, (seed, values, order, distance, most)


def test_an_honest_clipped_average_is_computed_again_to_the_bit():
    for codec in CODECS:
        assert distance_of(case_of(codec=codec), CLIPPING)[0] == 0


@pytest.mark.parametrize("kind", ["not a number", "infinite", "another shape", "huge", "equal", "zeros"])
@pytest.mark.parametrize("clipping", [CLIPPING, None], ids=["clipped", "mean"])
def test_whatever_a_sender_sends_an_honest_reducer_is_no_liar(kind, clipping):
    """The senders' parts are those of which reducers leave some out, or where rounding errors are large."""

    def changed(parts):
        found = list(parts)
        if kind in ("not a number", "infinite"):
            found[OTHER] = found[OTHER].clone()
            found[OTHER][5] = torch.nan if kind == "not a number" else torch.inf
        elif kind == "another shape":
            found[OTHER] = found[OTHER][:3]
        elif kind == "huge":
            found[OTHER] = found[OTHER] * 3e37
        elif kind == "equal":
            found = [parts[0].clone() for _ in parts]
        else:
            found = [torch.zeros_like(part) for part in parts]
        return found

    case = case_of(codec="32 bit", clipping=clipping, change=changed)
    assert lie_in(case, clipping) is None


@pytest.mark.parametrize(
    "weights", [(0.0,) * 4, (0.0, 1.0, 0.0, 0.0), (1.0, 0.0, 2.0, 1.0), (1.0, -1.0, torch.nan, 2.0)]
)
def test_whatever_weights_senders_claim_an_honest_reducer_is_no_liar(weights):
    for clipping in (CLIPPING, None):
        assert lie_in(case_of(weights=weights, clipping=clipping), clipping) is None


# -- reducers that lie -------------------------------------------------------------------------------------------------


def one_number(average, parts):
    changed = average.clone()
    changed[7] += 3.0
    return changed


LIES = {
    "a little more everywhere": lambda average, parts: average + 0.05,
    "one number": one_number,
    "a sender dropped": lambda average, parts: averaged(parts, (1.0, 2.0, 0.0, 3.0), CLIPPING, (0, 1, 2, 3)),
    "another weight": lambda average, parts: (parts[0] + parts[1] + parts[2] + 9 * parts[3]) / 12,
    "its own part": lambda average, parts: parts[REDUCER],
    "zeros": lambda average, parts: torch.zeros_like(average),
    "minus the average": lambda average, parts: -average,
    "not a number": lambda average, parts: average * torch.nan,
}


@pytest.mark.parametrize("kind", LIES)
@pytest.mark.parametrize("codec", ["8 bit", "16 bit"])
def test_a_wrong_answer_is_proof(kind, codec):
    assert lie_in(case_of(lie=LIES[kind], codec=codec), CLIPPING) == "answered with a wrong average"


def test_an_answer_of_another_shape_is_proof():
    short = encode(torch.zeros(4), runtime_pb2.NONE)
    answers = (HONEST.answers[0], digest_of_tensor(short))
    case = replace(HONEST, answer=short, answers=answers, receipt=receipt(HONEST.commitments, answers))
    assert lie_in(case, CLIPPING) == "answered with a wrong average"


def with_part(case, sender, message):
    """The case if a sender had sent, and signed, something else to the reducer, which has signed all the rest of it."""
    weight = case.commitments[sender].weights[1]
    commitments = tuple(
        commitment(sender, message, weight) if number == sender else one for number, one in enumerate(case.commitments)
    )
    parts = tuple(message if number == sender else one for number, one in enumerate(case.parts))
    return replace(case, commitments=commitments, parts=parts, receipt=receipt(commitments, case.answers))


UNREADABLE = {
    "too short": runtime_pb2.Tensor(compression=runtime_pb2.NONE, dtype="float32", size=[3000], buffer=b"?"),
    "of no codec": runtime_pb2.Tensor(compression=99, dtype="float32", size=[3000], buffer=b"?" * 12000),
    "of no numbers": runtime_pb2.Tensor(compression=runtime_pb2.NONE, dtype="S4", size=[3000], buffer=b"?" * 12000),
}


@pytest.mark.parametrize("sender", [REDUCER, OTHER], ids=["the liar", "an accomplice"])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_no_lie_hides_behind_a_part_that_nobody_can_read(kind, sender):
    case = with_part(case_of(lie=LIES["one number"]), sender, UNREADABLE[kind])
    assert lie_in(case, CLIPPING) == "answered with a wrong average"


def test_no_lie_hides_behind_an_own_part_of_another_shape():
    """An honest reducer leaves out such a part of anybody."""
    case = with_part(case_of(lie=LIES["one number"]), REDUCER, encode(torch.zeros(1)))
    assert lie_in(case, CLIPPING) == "answered with a wrong average"
    assert lie_in(replace(case, values=3000), CLIPPING) == "answered with a wrong average"


@pytest.mark.parametrize("own", [encode(torch.zeros(1)), *UNREADABLE.values()])
def test_an_accuser_that_has_sent_a_part_that_makes_no_sense_proves_nothing(own):
    """The reducer has left it out; how long it should be is known to whoever judges, and the accuser could say
    anything."""
    case = with_part(replace(case_of(), values=3000), RECEIVER, own)
    assert lie_in(case, CLIPPING) is None


def test_commitments_that_their_senders_have_not_signed_are_proof():
    """The reducer says that a sender has sent something else, or nothing."""
    honest = case_of()
    forged = replace(honest.commitments[OTHER], weights=(1.0, 0.0))
    for shown in ((*honest.commitments[:OTHER], forged, honest.commitments[3]), honest.commitments[:3]):
        case = replace(honest, commitments=shown, receipt=receipt(shown, honest.answers), parts=(), answer=None)
        assert lie_in(case, CLIPPING) == "averaged without the parts that its senders have signed"


def test_two_receipts_that_name_other_commitments_are_proof():
    first, second = case_of(0), case_of(1)
    other = receipt(second.commitments, second.answers, receiver=OTHER)
    accused = replace(first, other=(PEERS[OTHER], other))
    assert lie_in(accused, CLIPPING) == "told two peers that it had averaged different parts"
    same = receipt(first.commitments, second.answers, receiver=OTHER)
    assert lie_in(replace(first, other=(PEERS[OTHER], same)), CLIPPING) is None


# -- false accusers ----------------------------------------------------------------------------------------------------

WRONG = encode(torch.ones(3000), runtime_pb2.NONE)
HONEST = case_of()
ELSEWHERE = Scope(prefix="run_grad_averager", group_id=b"another group", peers=PEERS)


def signed_by_accuser(commitments, answers=None):
    """The case as it would be if the reducer had signed these."""
    answers = answers or HONEST.answers
    facts = {"commitments": commitments, "answers": answers}
    return replace(HONEST, **facts, receipt=receipt(commitments, answers, signer=RECEIVER))


def with_commitment(sender, changed):
    return (*HONEST.commitments[:sender], changed, *HONEST.commitments[sender + 1 :])


MADE_UP = {
    "another answer": replace(HONEST, answer=WRONG),
    "another answer and its digest": replace(
        HONEST, answer=WRONG, answers=(HONEST.answers[0], digest_of_tensor(WRONG))
    ),
    "a receipt that the accuser has signed": replace(
        signed_by_accuser(HONEST.commitments, (b"+" * 32, digest_of_tensor(WRONG))), answer=WRONG
    ),
    "another part of a sender": replace(HONEST, parts=(*HONEST.parts[:2], WRONG, HONEST.parts[3])),
    "another part of the accuser": replace(HONEST, parts=(HONEST.parts[0], WRONG, *HONEST.parts[2:])),
    "another part that the accuser has signed later": replace(
        HONEST,
        parts=(HONEST.parts[0], WRONG, *HONEST.parts[2:]),
        commitments=with_commitment(RECEIVER, commitment(RECEIVER, WRONG, 2.0)),
    ),
    "a commitment without a signature": replace(
        HONEST, commitments=with_commitment(OTHER, replace(HONEST.commitments[OTHER], weights=(1.0, 9.0)))
    ),
    "no commitments": replace(HONEST, commitments=()),
    "no parts": replace(HONEST, parts=()),
    "no answer": replace(HONEST, answer=None),
    "another number of the part": replace(HONEST, part=0),
    "a number that no part has": replace(HONEST, part=7),
    "a negative number": replace(HONEST, part=-1),
    "another receiver": replace(HONEST, receiver=PEERS[OTHER]),
    "a receiver outside the group": replace(HONEST, receiver=PeerID(b"stranger")),
    "another reducer": replace(HONEST, reducer=PEERS[OTHER]),
    "another group": replace(HONEST, scope=ELSEWHERE),
    "another averager": replace(HONEST, scope=replace(SCOPE, prefix="run_state_averager")),
    "another order of the group": replace(HONEST, scope=replace(SCOPE, peers=PEERS[::-1])),
    "a second receipt that the accuser has signed": replace(
        HONEST,
        other=(PEERS[OTHER], receipt(case_of(1).commitments, HONEST.answers, receiver=OTHER, signer=RECEIVER)),
    ),
    "a second receipt of another group": replace(
        HONEST,
        other=(PEERS[OTHER], receipt(case_of(1).commitments, HONEST.answers, receiver=OTHER, scope=ELSEWHERE)),
    ),
    "a receipt of nobody": replace(
        HONEST, receipt=replace(HONEST.receipt, signed=replace(HONEST.receipt.signed, key=b"\xff", signature=b"\xff"))
    ),
}


@pytest.mark.parametrize("kind", MADE_UP)
def test_what_an_accuser_makes_up_proves_nothing(kind):
    assert lie_in(MADE_UP[kind], CLIPPING) is None
    assert lie_in(HONEST, CLIPPING) is None
