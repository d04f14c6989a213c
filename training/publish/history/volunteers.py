"""Volunteers of a run, and the peers that belong to each.

A peer belongs to the account of its ticket. Without a ticket, it belongs to the key that vouches for it: the key of the
machine whose state folder was copied. Without such a key, it belongs to its own key. So the machines of a volunteer add
up, and no other volunteer can add to its credit or act in its name. Names are only shown: of two volunteers who give
the same name, the second is shown with a number. The name that a volunteer gave last is shown for all its work.
"""

from __future__ import annotations

import re
import secrets
import sqlite3

from training.swarm.node.metrics import PeerRecord
from training.trust.proof import proven_peer_id, voucher_statement

ANONYMOUS = "anonymous"
"""Name of a volunteer who wants to show none."""


def is_anonymous(name: str) -> bool:
    """Returns True for the shown name of a volunteer who wants to show none.

    >>> is_anonymous("anonymous 2"), is_anonymous("ada")
    (True, False)
    """
    return re.fullmatch(rf"{ANONYMOUS}( \d+)?", name) is not None


def voucher_of(record: PeerRecord, run_id: str) -> str | None:
    """Returns the peer id whose key vouches for a record's peer; None if there is no voucher or it is not valid."""
    if record.voucher is None:
        return None
    key, signature = record.voucher
    return proven_peer_id(key, voucher_statement(run_id, record.peer_id), signature)


def note_volunteer(
    connection: sqlite3.Connection, peer_id: str, name: str, *, account: str | None, vouching: str | None
) -> str:
    """Notes the volunteer of a peer and the volunteer's name. Returns the volunteer's id.

    Args:
        connection: Connection to the history, in a transaction.
        peer_id: Id of the peer; it may be new.
        name: Name in the peer's record.
        account: Account of its ticket; None if it is not known.
        vouching: Id of the peer whose key vouches for it; None if there is none.
    """
    known = _row(connection, peer_id)
    volunteer = account or _volunteer_of(connection, vouching or peer_id)
    if known is not None and known["volunteer"] != volunteer:
        _move(connection, peer_id, known["volunteer"], volunteer)
    shown = connection.execute("SELECT name FROM volunteers WHERE id = ?", (volunteer,)).fetchone()
    if shown is None:
        row = (volunteer, _free_name(connection, name, volunteer), secrets.token_hex(8))
        connection.execute("INSERT INTO volunteers VALUES (?, ?, ?)", row)
    elif known is None or known["name"] != name:
        _rename(connection, volunteer, shown["name"], name)
    if known is not None:
        connection.execute("UPDATE peers SET name = ? WHERE peer_id = ?", (name, peer_id))
    return volunteer


def _row(connection: sqlite3.Connection, peer_id: str) -> sqlite3.Row | None:
    return connection.execute("SELECT volunteer, name FROM peers WHERE peer_id = ?", (peer_id,)).fetchone()


def _volunteer_of(connection: sqlite3.Connection, peer_id: str) -> str:
    known = _row(connection, peer_id)
    return peer_id if known is None else known["volunteer"]


def _move(connection: sqlite3.Connection, peer_id: str, before: str, after: str) -> None:
    """Gives a peer, with what it has contributed, to another volunteer."""
    connection.execute("UPDATE peers SET volunteer = ? WHERE peer_id = ?", (after, peer_id))
    if connection.execute("SELECT 1 FROM peers WHERE volunteer = ?", (before,)).fetchone() is None:
        connection.execute("DELETE FROM volunteers WHERE id = ?", (before,))
        connection.execute("UPDATE events SET volunteer = ? WHERE volunteer = ?", (after, before))


def _rename(connection: sqlite3.Connection, volunteer: str, before: str, wanted: str) -> None:
    name = _free_name(connection, wanted, volunteer)
    connection.execute("UPDATE volunteers SET name = ? WHERE id = ?", (name, volunteer))
    if is_anonymous(name) != is_anonymous(before):  # otherwise a kept address would tell who it was
        connection.execute("UPDATE volunteers SET page = ? WHERE id = ?", (secrets.token_hex(8), volunteer))


def _free_name(connection: sqlite3.Connection, wanted: str, volunteer: str) -> str:
    """Returns a name, with a number if another volunteer has it."""
    name, number = wanted, 1
    while connection.execute("SELECT 1 FROM volunteers WHERE name = ? AND id != ?", (name, volunteer)).fetchone():
        number += 1
        name = f"{wanted} {number}"
    return name
