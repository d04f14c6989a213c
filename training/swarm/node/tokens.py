"""The tokens that a run trains on: peers announce them in the DHT, and a peer with other tokens is refused.

A recipe fixes how many ids pictures and words have, but not which codec and tokenizer produce them: `prepare` may train
both. Shards of another codec have the same sizes, so a peer that streams them would spoil everybody's weights without
any error. So each peer, and the monitor, posts the digest of its shards' codec and tokenizer, as it posts its recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from hivemind.p2p import PeerID

from training.errors import RefusedByRun
from training.recipe import RunConfig
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.dht import post_word, posted_words
from training.swarm.node.identity import Identity
from training.swarm.node.record_tickets import accounts_of
from training.swarm.node.voices import by_voice


def tell_tokens(dht: DHT, run: RunConfig, identity: Identity, digest: str) -> None:
    """Announces which tokens this peer trains on, from `Manifest.tokens_digest`; an empty digest withdraws that.

    Renew it within `WORD_SECONDS` of `training.swarm.node.dht`.
    """
    post_word(dht, _key(run), digest, identity)


def told_tokens(dht: DHT, run: RunConfig) -> dict[bytes, str]:
    """The digests that peers announce, by the keys that signed them; one that has withdrawn its own announces ''."""
    return posted_words(dht, _key(run))


def check_tokens(
    dht: DHT, run: RunConfig, identity: Identity, digest: str, *, shards: str, trusted: Collection[str] = ()
) -> None:
    """Compares the tokens of this peer's shards with those that the other peers announce.

    Call it again after this peer has announced its own. Otherwise two first peers that start at the same time would not
    see each other's tokens.

    Args:
        dht: A running node.
        run: The recipe.
        identity: This peer's; its own announcement does not count.
        digest: `Manifest.tokens_digest` of its shards.
        shards: Location of the shards, for the message.
        trusted: Peer ids of the run's servers. If one of them announces any, the others' words do not count: strangers
            could outvote the run. In a run for members, the peers of one account count as one.

    Raises:
        RefusedByRun: If more of the other peers announce some other tokens than announce these.
    """
    words = told_tokens(dht, run)
    words.pop(identity.signer().local_public_key, None)
    words = {subkey: word for subkey, word in words.items() if word and str(peer_id_of(subkey)) in trusted} or words
    words = _of_voices(dht, words)
    if (theirs := _outvoted_by(words, digest)) is not None:
        raise RefusedByRun(
            f"The tokens of {shards} ({digest}) are not those that the run {run.run_id} trains on ({theirs}): they are "
            "of another image codec or tokenizer, and stand for other pictures and words. Use the shards that the "
            "run's recipe names, without --shards, or a copy of them."
        )


def _of_voices(dht: DHT, words: Mapping[bytes, str]) -> dict[bytes | str, str]:
    """Returns one announcement of each voice; see `training.swarm.node.voices`."""
    signers = {peer.to_bytes(): word for key, word in words.items() if word and (peer := peer_id_of(key)) is not None}
    voices = by_voice(signers, accounts_of(dht, map(PeerID, signers)))
    return {name: signers[peers[0]] for name, peers in voices.items()}


def _outvoted_by(words: Mapping[bytes, str], digest: str) -> str | None:
    """The tokens that most of the other peers announce, if fewer of them announce `digest`; otherwise None.

    >>> _outvoted_by({b"ada": "a", b"bob": "a", b"eve": "e"}, "e"), _outvoted_by({b"ada": "a", b"eve": "e"}, "e")
    ('a', None)
    """
    counts = Counter(word for word in words.values() if word)
    theirs, most = max(counts.items(), key=lambda said: said[1], default=("", 0))
    return theirs if counts[digest] < most else None


def _key(run: RunConfig) -> str:
    return f"{run.run_id}_tokens"
