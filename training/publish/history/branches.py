"""The branches of a run's history: which training a volunteer's report belongs to.

A branch begins with the run, with `restore`, or when volunteers come back after all had left and go on from an earlier
epoch than the last one. In the first two cases the lineage shows it. In the third the reports do: peers repeat an
epoch, and no peer that did the epoch before is present.

Volunteers that were cut off for a while may come back to a run that others have resumed from a checkpoint. All peers
follow the newest epoch, so the branch of the group that is further becomes the current one.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence


class Branches:
    """The branches of a history, within one of its transactions.

    Args:
        connection: The history's connection, in a transaction.
        now: Seconds since 1970.
        present_since: Seconds since 1970; a peer that the monitor has heard of since then is present.
    """

    def __init__(self, connection: sqlite3.Connection, *, now: float, present_since: float):
        self._connection, self._now, self._present_since = connection, now, present_since
        self._newest_before = dict(connection.execute("SELECT number, newest_epoch FROM branches").fetchall())

    @property
    def current(self) -> int:
        """The branch that the run is on."""
        return int(self._connection.execute("SELECT value FROM run WHERE key = 'branch'").fetchone()[0])

    def _make_current(self, number: int) -> None:
        self._connection.execute("UPDATE run SET value = ? WHERE key = 'branch'", (str(number),))

    # -- lineages ------------------------------------------------------------------------------------------------------

    def enter(self, lineage: str, ancestors: Sequence[tuple[str, int]]) -> str | None:
        """Notes the lineage that the run has from now on; makes its branch the current one.

        Args:
            lineage: Id of the lineage.
            ancestors: Ids of its ancestors, the nearest first, each with the last epoch whose weights the two share.

        Returns:
            A clause on what the run has done, such as "has gone back to epoch 7"; None if it stays on its branch.
        """
        current = self._row(self.current)
        if current["lineage"] == lineage:
            return None
        if current["lineage"] is None:
            self._connection.execute("UPDATE branches SET lineage = ? WHERE number = ?", (lineage, current["number"]))
            return None
        if (known := self.of_lineage(lineage)) is not None:
            self._make_current(known)
            return f"goes on with the lineage {lineage}"
        for ancestor, epoch in ancestors:
            if (parent := self.of_lineage(ancestor)) is not None:
                self._make_current(self._begin(lineage, "restored", parent, epoch))
                return f"has gone back to epoch {epoch}; what was trained after it is kept as a branch"
        self._make_current(self._begin(lineage, "begun", None, 0))
        return f"has begun anew, as the lineage {lineage}"

    def of_lineage(self, lineage: str | None) -> int | None:
        """The branch on which peers of a lineage train; None if the lineage is not one of this run.

        Reports without a lineage belong to the current branch. So do all reports while its lineage is unknown.
        """
        current = self._row(self.current)
        if lineage is None or current["lineage"] in (None, lineage):
            return current["number"]
        query = "SELECT max(number) FROM branches WHERE lineage = ?"
        return self._connection.execute(query, (lineage,)).fetchone()[0]

    # -- reports -------------------------------------------------------------------------------------------------------

    def note(self, member_of: int | None, lineage: str | None, epoch: int) -> int | None:
        """Notes that a peer has the weights of an epoch. Returns the branch that the peer belongs to from then on.

        Args:
            member_of: Branch of the epochs that the peer did before. None if it has done none since it came; the result
                is then None.
            lineage: Lineage of its weights.
            epoch: Epoch of its weights.
        """
        if member_of is None:
            return None
        others = self.of_lineage(lineage)
        if member_of != others:
            if epoch > self.newest(member_of) + 1 and self.newest(others) >= epoch - 1:
                member_of = others  # it has caught up with them
            elif epoch > self.newest(others) and others == self.current:
                self._make_current(member_of)  # they were cut off, and are further than those who resumed the run
        self.reach(member_of, epoch)
        return member_of

    def branch_of_report(self, member_of: int | None, lineage: str | None, base: int, epoch: int) -> tuple[int, bool]:
        """Returns the branch to which a finished epoch belongs, and whether the branch begins with this epoch.

        Args:
            member_of: See `note`.
            lineage: See `note`.
            base: Epoch of the weights from which the peer went on.
            epoch: Epoch that the peer has finished.
        """
        number = member_of if member_of is not None else self.of_lineage(lineage)
        begins = member_of is None and epoch <= self.newest(number) and not self._is_anybody_there(number)
        if begins:
            resumed = self._begin(lineage or self._row(number)["lineage"], "resumed", number, min(base, epoch - 1))
            if number == self.current:
                self._make_current(resumed)
            number = resumed
        self.reach(number, epoch)
        return number, begins

    def newest(self, number: int) -> int:
        """The newest epoch of a branch."""
        return self._row(number)["newest_epoch"]

    def newest_before(self, lineage: str | None) -> int:
        """The newest epoch of a lineage that was known before this transaction."""
        return self._newest_before.get(self.of_lineage(lineage), 0)

    def holder(self, number: int, epoch: int) -> int:
        """The branch that holds an epoch of branch `number`: that branch itself, or one of its ancestors."""
        row = self._row(number)
        while row["parent"] is not None and epoch <= row["parent_epoch"]:
            row = self._row(row["parent"])
        return row["number"]

    def went_back_at(self, number: int) -> float:
        """End of the last epoch that the run dropped when this branch began; -inf if it dropped none."""
        query = """SELECT max(epochs.time) FROM branches JOIN epochs ON epochs.branch = branches.parent
            AND epochs.epoch > branches.parent_epoch AND epochs.time <= branches.time WHERE branches.number = ?"""
        last = self._connection.execute(query, (number,)).fetchone()[0]
        return -math.inf if last is None else last

    def reach(self, number: int, epoch: int) -> None:
        """Notes that a peer has ended an epoch of a branch."""
        query = "UPDATE branches SET newest_epoch = max(newest_epoch, ?) WHERE number = ?"
        self._connection.execute(query, (epoch, number))

    def _is_anybody_there(self, number: int) -> bool:
        query = "SELECT 1 FROM peers WHERE branch = ? AND active AND last_seen >= ?"
        return self._connection.execute(query, (number, self._present_since)).fetchone() is not None

    def _begin(self, lineage: str | None, kind: str, parent: int | None, epoch: int) -> int:
        if parent is not None:
            parent = self.holder(parent, epoch)
        return self._connection.execute(
            "INSERT INTO branches (lineage, kind, parent, parent_epoch, newest_epoch, time) VALUES (?, ?, ?, ?, ?, ?)",
            (lineage, kind, parent, epoch, epoch, self._now),
        ).lastrowid

    def _row(self, number: int) -> sqlite3.Row:
        return self._connection.execute("SELECT * FROM branches WHERE number = ?", (number,)).fetchone()
