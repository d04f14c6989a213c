"""The tokens that a run trains on: its peers tell them, and a peer with other tokens is refused.

A recipe fixes how many ids pictures and words have, not which codec and tokenizer gave them: `prepare` may train both.
Shards of another codec fit in all numbers, and a peer that streams them would spoil the weights of all without a word.
So each peer says in the DHT what its shards' numbers mean, as it says its recipe, and so does the monitor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hivemind.dht import DHT

from training.config import RunConfig
from training.errors import RefusedByRun
from training.swarm.dht import post_word, posted_words
from training.swarm.identity import Identity


def tell_tokens(dht: DHT, run: RunConfig, identity: Identity, digest: str) -> None:
    """Says which tokens this peer trains on, from `Manifest.tokens_digest`; empty: none any more.

    Renew it within `WORD_SECONDS` of `training.swarm.dht`.
    """
    post_word(dht, _key(run), digest, identity)


def check_tokens(dht: DHT, run: RunConfig, identity: Identity, digest: str, *, shards: str) -> None:
    """Compares the tokens of this peer's shards with what the others of the run say.

    Call it again when this peer has told its own: of two that come at once, with nobody else there, each then knows.

    Args:
        dht: A running node.
        run: The recipe.
        identity: This peer's, whose own word does not count.
        digest: `Manifest.tokens_digest` of its shards.
        shards: Where they lie, for the message.

    Raises:
        RefusedByRun: If more of the others train on certain other tokens than on these.
    """
    words = posted_words(dht, _key(run))
    words.pop(identity.signer().local_public_key, None)
    if (theirs := _outvoted_by(words, digest)) is not None:
        raise RefusedByRun(
            f"The tokens of {shards} ({digest}) are not those that the run {run.run_id} trains on ({theirs}): they are "
            "of another image codec or tokenizer, and mean other pictures and words. Take the shards that the run's "
            "recipe names, without --shards, or name a copy of them."
        )


def _outvoted_by(words: Mapping[bytes, str], digest: str) -> str | None:
    """The tokens that most of the others train on, if these are said by fewer.

    >>> _outvoted_by({b"ada": "a", b"bob": "a", b"eve": "e"}, "e"), _outvoted_by({b"ada": "a", b"eve": "e"}, "e")
    ('a', None)
    """
    counts = Counter(word for word in words.values() if word)
    theirs, most = max(counts.items(), key=lambda said: said[1], default=("", 0))
    return theirs if counts[digest] < most else None


def _key(run: RunConfig) -> str:
    return f"{run.run_id}_tokens"
