"""Three peers of one process that average and check each other, with a network that is played.

Transcripts, keys, signatures and messages are real.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import torch
from cryptography.hazmat.primitives import serialization
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.crypto import RSAPrivateKey

from training.swarm.defence.auditor import Auditor, _proof
from training.swarm.defence.clipping import Clipping, centered_clip
from training.swarm.defence.transcript import Transcript
from training.swarm.engine import engine
from training.swarm.engine.codecs import decode, encode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.node.identity import Signer
from training.trust.proof import peer_id_of_key

engine.prepare()
CLIPPING = Clipping(radius=1.0, iterations=5, weight_over_median=1.0)
KEYS = [RSAPrivateKey() for _ in range(3)]
THREE = tuple(
    PeerID.from_base58(peer_id_of_key(serialization.load_ssh_public_key(key.get_public_key().to_bytes())))
    for key in KEYS
)
ADA, BOB, EVE = THREE
SIGNERS = [Signer(key.get_public_key().to_bytes(), key.sign) for key in KEYS]
PARTS, VALUES = 2, 600
Data = averaging_pb2.AveragingData


class PlayedNetwork:
    """Three peers with their auditors; a call goes straight to the other one's handler."""

    def __init__(self, *, share=2.5):
        self.caught = {peer: [] for peer in THREE}
        self.gone, self.asked = set(), []
        self.auditors = {peer: self._auditor(peer, signer, share) for peer, signer in zip(THREE, SIGNERS, strict=True)}
        self.transcripts = {}

    def _auditor(self, own, signer, share):
        network = self

        class Played(Auditor):
            @classmethod
            def get_stub(cls, connection, peer, *, namespace=None):
                return network.stub(own, peer)

        caught = lambda *facts: self.caught[own].append(facts)  # noqa: E731
        return Played(None, "run", signer=signer, share=share, clipping=CLIPPING, caught=caught)

    def stub(self, own, peer):
        async def rpc_show_part(request):
            if peer in self.gone:
                raise ConnectionError("it is gone")
            self.asked.append((own, peer))
            return self.auditors[peer]._show(request, own)

        async def rpc_accuse(stream):
            return await self.auditors[peer].rpc_accuse(stream, SimpleNamespace(remote_id=own))

        return SimpleNamespace(rpc_show_part=rpc_show_part, rpc_accuse=rpc_accuse)

    async def average(self, group=b"group", lie=lambda average: average, liar=None):
        """An all-reduce; what each peer needs to check it is in its transcript."""
        plans = {peer: self.auditors[peer].plan() for peer in THREE}
        self.transcripts = {peer: Transcript(plans[peer], group, peer, parts_of(peer, group)) for peer in THREE}
        for peer, transcript in self.transcripts.items():
            self.auditors[peer].keep(transcript)
        for reducer in THREE:
            await self._reduce(reducer, lie if reducer == liar else lambda average: average)

    async def _reduce(self, reducer, lie):
        sent, own = {}, self.transcripts[reducer]
        own_parts = parts_of(reducer, own.scope.group_id)[reducer]
        own_messages = as_aiter(*(Data(tensor_part=encode(part), weight=1.0) for part in own_parts))
        async for _ in own.sending(reducer, own_messages):
            pass
        for sender in THREE:
            if sender != reducer:
                parts = parts_on_their_way(sender, reducer, own.scope.group_id)
                messages = self.transcripts[sender].sending(reducer, parts)
                sent[sender] = [decode(m.tensor_part) async for m in own.taking(sender, messages)]
        sent[reducer] = parts_of(reducer, own.scope.group_id)[reducer]
        averages = [
            lie(centered_clip([sent[sender][n] for sender in THREE], [1.0] * 3, CLIPPING)) for n in range(PARTS)
        ]
        for receiver in set(THREE) - {reducer}:
            answers = [answer(average - part) for average, part in zip(averages, sent[receiver], strict=True)]
            for one in answers:
                await own.answering(receiver, one)
            async for _ in self.transcripts[receiver].answered(reducer, as_aiter(*answers)):
                pass

    async def check(self, peer):
        """All checks that this peer has drawn, until they have ended."""
        await self.auditors[peer].begin_checks(self.transcripts[peer])
        while self.auditors[peer]._tasks:
            await asyncio.gather(*self.auditors[peer]._tasks)


def parts_of(peer, group):
    dice = torch.Generator().manual_seed(THREE.index(peer) + 10 * len(group))
    return {reducer: [torch.randn(VALUES, generator=dice) + 2 for _ in range(PARTS)] for reducer in THREE}


async def parts_on_their_way(sender, reducer, group):
    for part in parts_of(sender, group)[reducer]:
        yield Data(tensor_part=encode(part, runtime_pb2.BLOCKWISE_8BIT), weight=1.0)


def answer(delta):
    return Data(code=averaging_pb2.AVERAGED_PART, tensor_part=encode(delta, runtime_pb2.BLOCKWISE_8BIT))


def played(coroutine):
    """Runs it with a network."""

    async def run():
        network = PlayedNetwork()
        return network, await coroutine(network)

    return wait_for_result(run())


async def proof_of(network):
    """A proof that holds, as its messages travel."""
    await network.average(lie=lambda average: average + 0.2, liar=EVE)
    found = []

    async def keep(peer, case):
        found.append(case)

    network.auditors[ADA]._accuse = keep
    await network.check(ADA)
    return [message.SerializeToString() async for message in _proof(found[0])]
