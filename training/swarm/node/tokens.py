"""Tokens of a run's shards: peers announce the digest of their codec and tokenizer; a peer with another is refused.

A recipe fixes how many ids pictures and words have, but not which codec and tokenizer produce them: `prepare` may train
both. Shards of another codec have the same sizes, so a peer that streams them would spoil everybody's weights without
an error. So each peer, and the monitor, posts the digest of its shards' codec and tokenizer, as it posts its recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from hivemind.p2p import PeerID

from training.errors import RefusedByRun
from training.recipe import RunConfig
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.dht import post_message, posted_messages
from training.swarm.node.identity import Identity
from training.swarm.node.record_tickets import accounts_of
from training.swarm.node.voices import by_voice


def post_tokens(dht: DHT, run: RunConfig, identity: Identity, digest: str) -> None:
    """Announces this peer's tokens by `Manifest.tokens_digest`; an empty digest withdraws the announcement.

    Call it again within `MESSAGE_SECONDS` of `training.swarm.node.dht`.
    """
    post_message(dht, _key(run), digest, identity)


def posted_tokens(dht: DHT, run: RunConfig) -> dict[bytes, str]:
    """Returns the announced digests, by the keys that signed them; '' for a peer that has withdrawn its digest."""
    return posted_messages(dht, _key(run))


def check_tokens(
    dht: DHT, run: RunConfig, identity: Identity, digest: str, *, shards: str, trusted: Collection[str] = ()
) -> None:
    """Compares the tokens of this peer's shards with the tokens that the other peers announce.

    Call it again after this peer has announced its tokens. Otherwise two first peers that start at the same time would
    not see each other's tokens.

    Args:
        dht: A running node.
        run: The recipe.
        identity: Identity of this peer, whose own announcement does not count.
        digest: `Manifest.tokens_digest` of this peer's shards.
        shards: Location of the shards, for the message.
        trusted: Peer ids of the run's servers. If one of them announces tokens, other peers' announcements do not
            count, because strangers could outvote the run. In a run for members, the peers of one account count as one.

    Raises:
        RefusedByRun: If more of the other peers announce certain other tokens than announce `digest`.
    """
    messages = posted_tokens(dht, run)
    messages.pop(identity.signer().local_public_key, None)
    messages = {
        subkey: message for subkey, message in messages.items() if message and str(peer_id_of(subkey)) in trusted
    } or messages
    messages = _of_voices(dht, messages)
    if (theirs := _outvoted_by(messages, digest)) is not None:
        raise RefusedByRun(
            f"The tokens of {shards} ({digest}) are not those that the run {run.run_id} trains on ({theirs}): they are "
            "of another image codec or tokenizer, and stand for other pictures and words. Use the shards that the "
            "run's recipe names, without --shards, or a copy of them."
        )


def _of_voices(dht: DHT, messages: Mapping[bytes, str]) -> dict[bytes | str, str]:
    """Returns one announcement of each voice; see `training.swarm.node.voices`."""
    signers = {
        peer.to_bytes(): message
        for key, message in messages.items()
        if message and (peer := peer_id_of(key)) is not None
    }
    voices = by_voice(signers, accounts_of(dht, map(PeerID, signers)))
    return {name: signers[peers[0]] for name, peers in voices.items()}


def _outvoted_by(messages: Mapping[bytes, str], digest: str) -> str | None:
    """The digest that most of the other peers announce, if fewer of them announce `digest`; otherwise None.

    >>> _outvoted_by({b"ada": "a", b"bob": "a", b"eve": "e"}, "e"), _outvoted_by({b"ada": "a", b"eve": "e"}, "e")
    ('a', None)
    """
    counts = Counter(message for message in messages.values() if message)
    theirs, most = max(counts.items(), key=lambda said: said[1], default=("", 0))
    return theirs if counts[digest] < most else None


def _key(run: RunConfig) -> str:
    return f"{run.run_id}_tokens"
