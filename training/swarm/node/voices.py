"""Voices: the peers whose reports count, one an account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Accounts = Mapping[bytes, tuple[str, bool]]
"""Account in each peer's ticket, and whether the ticket vouches for it, by peer id. Empty in an open run."""


def by_voice(
    peers: Iterable[bytes], accounts: Accounts, has_brought: Callable[[bytes], bool] = lambda peer: False
) -> dict[bytes | str, list[bytes]]:
    """The peers that are heard, by the name in which they speak: their account's, or their own without one.

    A peer has a voice if it has brought weight to an average with this peer, or if its ticket vouches for it. As long
    as none of the peers has a voice, all are heard.

    Args:
        peers: Ids of those that report something.
        accounts: What their tickets say.
        has_brought: Whether a peer has brought weight.

    >>> accounts = {b"ada": ("invited:ada", True), b"eve1": ("hf:eve", False), b"eve2": ("hf:eve", False)}
    >>> by_voice([b"ada", b"eve1", b"eve2"], accounts)
    {'invited:ada': [b'ada']}
    >>> by_voice([b"eve1", b"eve2"], accounts)
    {'hf:eve': [b'eve1', b'eve2']}
    """
    peers = list(peers)
    with_voice = [peer for peer in peers if has_brought(peer) or accounts.get(peer, ("", False))[1]]
    names: dict[bytes | str, list[bytes]] = {}
    for peer in with_voice or peers:
        names.setdefault(accounts[peer][0] if peer in accounts else peer, []).append(peer)
    return names
