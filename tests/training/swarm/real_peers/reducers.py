"""Reducers that lie, and what the other peers of their groups find out; scenarios of `started_peers.meet`.

Each peer averages in many rounds, one after the other. A peer that lies does so in its averager's process, by other
methods than those of this program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hivemind.p2p import PeerID

from tests.training.swarm.real_peers.started_peers import Peer

SHAPES = ((300, 300), (100, 100), (1000,), (7,))
PART_BYTES = 1 << 14
LIAR = "third"


def tensors_of(name: str, number: int) -> list[torch.Tensor]:
    """A peer's own tensors in a round: what all have in common, and noise."""
    own = torch.Generator().manual_seed(1000 * number + sum(name.encode()))
    common = torch.Generator().manual_seed(number)
    return [torch.randn(shape, generator=common) + 0.5 * torch.randn(shape, generator=own) for shape in SHAPES]


def average_often(
    peer: Peer,
    *,
    prefix: str,
    rounds: int,
    share: float,
    aggregation: str = "centered-clip",
    codec: str = "blockwise8",
    powersgd_rank: int = 0,
    round_own_parts: bool = False,
    client_mode: str = "",
    lie: Callable[[pytest.MonkeyPatch], None] | None = None,
    until_caught: bool = False,
    keep: bool = True,
):
    """Rounds of this peer: whom it has caught, its reports, its tensors after each round, its id.

    Args:
        peer: This one.
        prefix: Of the averager.
        rounds: How many.
        share: Of the traffic for checks.
        aggregation: How a group averages.
        codec: How large tensors travel.
        powersgd_rank: 0: no low-rank compression.
        round_own_parts: As averages of parameters have it.
        client_mode: The peer of this name accepts no connections.
        lie: What the liar does before its averager is made.
        until_caught: It ends as soon as the liar was caught by both of the others.
        keep: Parts can be shown after the tensors have changed, as small ones can.
    """
    from tests.training.swarm.real_peers.scenarios import run_with
    from training.swarm.defence import transcript
    from training.swarm.defence.clipping import clipping_of_gradients
    from training.swarm.defence.options import make_auditor
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.epoch.powersgd import PowerSgd, powersgd_codec
    from training.swarm.round.averager import Averager
    from training.swarm.round.pipe import AveragerSettings
    from training.swarm.round.reducer import WeightedMean

    compression, method = exchange_codec(9_000, codec), None
    clipping = clipping_of_gradients(run_with(aggregation=aggregation).swarm)
    if powersgd_rank:
        method = PowerSgd([torch.Size(shape) for shape in SHAPES], powersgd_rank)
        compression = powersgd_codec(compression)
    settings = AveragerSettings(
        prefix=prefix,
        matchmaking_seconds=5.0,
        request_timeout_seconds=2.0,
        next_chunk_timeout_seconds=10.0,
        allreduce_timeout_seconds=60.0,
        compression=compression,
        part_bytes=PART_BYTES,
        round_own_parts=round_own_parts,
        reduction=clipping or WeightedMean(),
        guard=partial(make_auditor, share=share, clipping=clipping) if share else None,
        client_mode=peer.name == client_mode,
    )
    checks = peer.folder / f"{prefix}.{peer.name}.checks"
    with pytest.MonkeyPatch.context() as patch:  # the averager's process is forked with the changes
        note_checks(patch, checks)
        if not keep:
            patch.setattr(transcript, "KEPT_BYTES", 0)
        if lie is not None and peer.name == LIAR:
            lie(patch)
        averager = Averager(tensors_of(peer.name, 0), dht=peer.dht, settings=settings, method=method)
    caught, reports, results, seconds = [], [], [], []

    def note(peer, weight, *deed):
        if deed:  # else it has only spoiled a round
            caught.append((len(reports), str(PeerID(peer)), weight, *deed))

    averager.peers.spoiled = note
    peer.await_others(f"{prefix}.begin")
    for number in range(rounds):
        with averager.get_tensors() as tensors:
            for tensor, own in zip(tensors, tensors_of(peer.name, number), strict=True):
                tensor.copy_(own)
        peer.await_others(f"{prefix}.{number}")
        began = time.perf_counter()
        round_ = averager.begin_round(peer.name, seconds=30, expected_peers=len(peer.names))
        round_.start(1.0)
        reports.append(round_.result(60).report)
        seconds.append(time.perf_counter() - began)
        with averager.get_tensors() as tensors:
            results.append([tensor.clone() for tensor in tensors])
        if until_caught and await_word(peer, prefix, number, caught):
            break
    peer.await_others(f"{prefix}.end")
    time.sleep(1.0)  # what is under way may still come
    averager.shutdown()
    distances = [float(line) for line in checks.read_text().split()]
    return Met(caught, reports, results, str(peer.identity.peer_id), seconds, distances)


@dataclass(frozen=True)
class Met:
    """Observations of a peer."""

    caught: list[tuple[int, str, float, str]]
    """The peers that it has caught: round, peer, weight, and what they have done."""
    reports: list
    results: list[list[torch.Tensor]]
    """Its tensors after each round."""
    peer_id: str
    seconds: list[float]
    """Duration of each round."""
    checks: list[float]
    """For each answer that it has checked: how far it was from the right one, over how far it may be."""


def note_checks(patch, path: Path) -> None:
    """Each check of an answer leaves a line in a file."""
    from training.swarm.defence import auditing

    path.touch()
    distance_of = auditing.distance_of

    def noting(case, clipping):
        distance, most = distance_of(case, clipping)
        with path.open("a") as file:
            file.write(f"{distance / most if most else 0.0}\n")
        return distance, most

    patch.setattr(auditing, "distance_of", noting)


def await_word(peer: Peer, prefix: str, number: int, caught: Sequence) -> bool:
    """True if all honest peers have caught somebody by now; all peers come to the same conclusion."""
    time.sleep(0.3)
    (peer.folder / f"{prefix}.{number}.{peer.name}.{'caught' if caught else 'nobody'}").touch()
    peer.await_others(f"{prefix}.{number}.told")
    honest = [name for name in peer.names if name != LIAR]
    return all((peer.folder / f"{prefix}.{number}.{name}.caught").is_file() for name in honest)


# -- lies: changes of this program, at the peer that lies -------------------------------------------------------------


def answer_wrongly(patch) -> None:
    """Everybody gets the same wrong average."""
    _change_answers(patch, lambda update, is_first: update + 0.1)


def answer_one_wrongly(patch) -> None:
    """The first sender gets another average than the others."""
    _change_answers(patch, lambda update, is_first: update + 0.1 if is_first else update)


def change_one_number(patch) -> None:
    """One number of each part is wrong."""

    def change(update, is_first):
        changed = update.clone()
        changed.view(-1)[0] += 3.0
        return changed

    _change_answers(patch, change)


def _change_answers(patch, change: Callable) -> None:
    from training.swarm.round.reducer import Reducer

    take = Reducer.take

    async def lie(self, sender, part, weight):
        return change(await take(self, sender, part, weight), sender == self._senders[0])

    patch.setattr(Reducer, "take", lie)


def drop_a_sender(patch) -> None:
    """What the first sender sends counts for nothing."""
    from training.swarm.round.reducer import Reducer

    take = Reducer.take

    async def drop(self, sender, part, weight):
        return await take(self, sender, part, 0.0 if sender == self._senders[0] else weight)

    patch.setattr(Reducer, "take", drop)


def claim_other_parts(patch) -> None:
    """What the first sender sends counts for nothing, and the reducer says that it has sent something else."""
    from training.swarm.defence.transcript import Transcript

    drop_a_sender(patch)
    commitments = Transcript.commitments.fget

    def claimed(self):
        found = commitments(self)
        if found is None:
            return None
        other = replace(found[0], weights=(0.0,) * len(found[0].weights))
        return (other, *found[1:])

    patch.setattr(Transcript, "commitments", property(claimed))


def tell_two_stories(patch) -> None:
    """It signs other parts of its own for each peer."""
    from training.swarm.defence.receipts import Commitment
    from training.swarm.defence.transcript import Transcript

    answering, commitments = Transcript.answering, Transcript.commitments.fget

    def told(self):
        found = commitments(self)
        if found is None:
            return None
        own = self.scope.peers.index(self.own)
        parts = {"digests": found[own].digests, "weights": (self.story,) * len(found[own].weights)}
        statement = Commitment.statement(self.scope, sender=self.own, reducer=self.own, **parts)
        other = Commitment(**parts, signed=self._signer.signed(statement))
        return (*found[:own], other, *found[own + 1 :])

    async def sign(self, receiver, message):
        self.story = 1.0 + self.scope.peers.index(receiver) * 1e-9
        await answering(self, receiver, message)

    patch.setattr(Transcript, "story", 1.0, raising=False)
    patch.setattr(Transcript, "commitments", property(told))
    patch.setattr(Transcript, "answering", sign)


def show_nothing(patch) -> None:
    """It answers wrongly, and says nothing when it is checked."""
    from hivemind.proto import averaging_pb2

    from training.swarm.defence.auditor import Auditor

    async def nothing(self, request, peer):
        yield averaging_pb2.DownloadData()

    answer_wrongly(patch)
    patch.setattr(Auditor, "_show", nothing)


def hide_behind_its_own_part(patch) -> None:
    """It answers wrongly, and signs and shows an own part of another shape than all others have."""
    from training.swarm.defence.transcript import Transcript
    from training.swarm.engine.codecs import encode

    sending = Transcript.sending

    async def hide(self, reducer, messages):
        if reducer != self.own:
            messages = sending(self, reducer, messages)
        async for message in messages:
            if reducer == self.own:
                await self.note_sent(self.own, encode(torch.zeros(1)), message.weight)
            yield message

    answer_wrongly(patch)
    patch.setattr(Transcript, "sending", hide)


def accuse_falsely(patch) -> None:
    """Whatever it checks, it says that the reducer has lied: with what it was sent, or with an answer that it makes
    up."""
    from training.swarm.defence import auditor

    accuse = auditor.Auditor._accuse

    async def both(self, peer, case):
        await accuse(self, peer, case)
        if case.answer is not None:
            await accuse(self, peer, replace(case, answer=case.parts[0]))

    patch.setattr(auditor, "lie_in", lambda case, clipping: "done nothing wrong")
    patch.setattr(auditor.Auditor, "_accuse", both)


def lie_from_now_on() -> None:
    """`answer_wrongly`, for as long as this process lives."""
    answer_wrongly(pytest.MonkeyPatch())


LIES = {
    "the same wrong average to all": answer_wrongly,
    "a wrong average to one": answer_one_wrongly,
    "one wrong number": change_one_number,
    "a sender dropped": drop_a_sender,
    "other parts claimed": claim_other_parts,
    "two stories": tell_two_stories,
    "nothing shown": show_nothing,
    "an own part of another shape": hide_behind_its_own_part,
}
