"""Voices: the peers whose reports count. The peers of one account have one voice together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

Accounts = Mapping[bytes, tuple[str, bool]]
"""For each peer id, the account in the peer's ticket, and whether the ticket vouches for it. Empty in an open run."""


def by_voice(
    peers: Iterable[bytes], accounts: Accounts, has_brought: Callable[[bytes], bool] = lambda peer: False
) -> dict[bytes | str, list[bytes]]:
    """Groups the peers that are heard by voice: by their account, or by their id if they have no account.

    A peer is heard if it has brought weight to an average with this peer, or if its ticket vouches for it. If no peer
    fulfils this, all are heard.

    Args:
        peers: Ids of the peers that report something.
        accounts: Accounts from the peers' tickets.
        has_brought: Returns whether a peer has brought weight to an average with this peer.

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
