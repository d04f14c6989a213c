"""Drops banned peers' reports of epochs that the run has dropped, after a maintainer undid an attack.

Other peers keep their credit for such epochs, which they have computed. A banned peer keeps only its reports of epochs
on which the run's current branch builds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from training.publish.history.branches import Branches

_OF_PEER = "FROM reports WHERE name = ? AND peer_id = ?"


def drop_claims(connection: sqlite3.Connection, branches: Branches, peer_ids: Collection[str]) -> dict[str, int]:
    """Drops peers' reports of epochs that the run has dropped, and the samples that they have claimed since.

    Args:
        connection: Connection to the history, in a transaction.
        branches: Branches of the history.
        peer_ids: The peers that are banned.

    Returns:
        Number of dropped samples by name; empty if there was nothing to drop.
    """
    dropped: dict[str, int] = {}
    for peer in connection.execute("SELECT name, peer_id, samples FROM peers").fetchall():
        key = (peer["name"], peer["peer_id"])
        if peer["peer_id"] in peer_ids and (left := _left_epochs(connection, branches, key)):
            for branch, epoch in left:
                connection.execute(f"DELETE {_OF_PEER} AND branch = ? AND epoch = ?", (*key, branch, epoch))
                _sum_up_again(connection, branch, epoch)
            dropped[peer["name"]] = dropped.get(peer["name"], 0) + _lower(connection, key, peer["samples"])
    return dropped


def _left_epochs(connection: sqlite3.Connection, branches: Branches, key: tuple[str, str]) -> list[tuple[int, int]]:
    """Lists (branch, epoch) for each epoch that a peer has reported and the run has dropped."""
    newest = connection.execute(f"SELECT branch, max(epoch) {_OF_PEER} GROUP BY branch", key).fetchall()
    if all(branches.holder(branches.current, epoch) == branch for branch, epoch in newest):
        return []  # almost always, and known without a look at each epoch
    reported = connection.execute(f"SELECT branch, epoch {_OF_PEER}", key).fetchall()
    return [(branch, epoch) for branch, epoch in reported if branches.holder(branches.current, epoch) != branch]


def _lower(connection: sqlite3.Connection, key: tuple[str, str], before: int) -> int:
    """Lowers a peer's total to the samples of its remaining reports. Returns how many samples it loses."""
    kept, last = connection.execute(f"SELECT coalesce(sum(samples), 0), max(epoch) {_OF_PEER}", key).fetchone()
    kept = min(kept, before)
    connection.execute(
        """UPDATE peers SET samples = ?1, since_samples = ?1, since_epoch = ?2,
        seconds = seconds * ?1 / max(samples, 1), branch = NULL, active = FALSE, samples_per_second = NULL
        WHERE name = ?3 AND peer_id = ?4""",
        (kept, last, *key),
    )
    return before - kept


def _sum_up_again(connection: sqlite3.Connection, branch: int, epoch: int) -> None:
    """Computes the loss and the samples of an epoch again from its remaining reports;
    deletes an epoch without reports."""
    samples, loss = connection.execute(
        "SELECT sum(samples), sum(loss * samples) / sum(samples) FROM reports WHERE branch = ? AND epoch = ?",
        (branch, epoch),
    ).fetchone()
    if samples is None:
        connection.execute("DELETE FROM epochs WHERE branch = ? AND epoch = ?", (branch, epoch))
    else:
        update = "UPDATE epochs SET samples = ?, loss = ? WHERE branch = ? AND epoch = ?"
        connection.execute(update, (samples, loss, branch, epoch))
