"""Drops banned peers' reports of epochs that the run has dropped, after a maintainer undid an attack.

Other peers keep their credit for such epochs, which they have computed. A banned peer keeps only its reports of epochs
on which the run's current branch builds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from training.publish.history.branches import Branches

_OF_PEER = "FROM reports WHERE peer_id = ?"


def drop_claims(connection: sqlite3.Connection, branches: Branches, peer_ids: Collection[str]) -> dict[str, int]:
    """Drops peers' reports of epochs that the run has dropped, and the samples that they have claimed since.

    Args:
        connection: Connection to the history, in a transaction.
        branches: Branches of the history.
        peer_ids: The peers that are banned.

    Returns:
        Number of dropped samples by volunteer; empty if there was nothing to drop.
    """
    dropped: dict[str, int] = {}
    for peer_id, volunteer in connection.execute("SELECT peer_id, volunteer FROM peers").fetchall():
        if peer_id in peer_ids and (left := _left_epochs(connection, branches, peer_id)):
            before = _samples_of(connection, peer_id)
            for branch, epoch in left:
                connection.execute(f"DELETE {_OF_PEER} AND branch = ? AND epoch = ?", (peer_id, branch, epoch))
                _sum_up_again(connection, branch, epoch)
            _begin_after_the_last(connection, peer_id)
            dropped[volunteer] = dropped.get(volunteer, 0) + before - _samples_of(connection, peer_id)
    return dropped


def _samples_of(connection: sqlite3.Connection, peer_id: str) -> int:
    return connection.execute("SELECT samples FROM peers WHERE peer_id = ?", (peer_id,)).fetchone()[0]


def _left_epochs(connection: sqlite3.Connection, branches: Branches, peer_id: str) -> list[tuple[int, int]]:
    """Lists (branch, epoch) for each epoch that a peer has reported and the run has dropped."""
    key = (peer_id,)
    newest = connection.execute(f"SELECT branch, max(epoch) {_OF_PEER} GROUP BY branch", key).fetchall()
    if all(branches.holder(branches.current, epoch) == branch for branch, epoch in newest):
        return []  # almost always, and known without a look at each epoch
    reported = connection.execute(f"SELECT branch, epoch {_OF_PEER}", key).fetchall()
    return [(branch, epoch) for branch, epoch in reported if branches.holder(branches.current, epoch) != branch]


def _begin_after_the_last(connection: sqlite3.Connection, peer_id: str) -> None:
    """Lets a peer begin after the last epoch of its remaining reports, if its ban is lifted."""
    kept = connection.execute(f"SELECT coalesce(sum(samples), 0), max(epoch) {_OF_PEER}", (peer_id,)).fetchone()
    connection.execute(
        """UPDATE peers SET since_samples = ?, since_epoch = ?, branch = NULL, active = FALSE, samples_per_second = NULL
        WHERE peer_id = ?""",
        (*kept, peer_id),
    )


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
