"""Leaderboards of a run, and the contribution of one volunteer, from the tables of its history."""

from __future__ import annotations

import sqlite3

from training.publish.config import LEAST_SECONDS
from training.publish.history.volunteers import is_anonymous

HOURS = (24, 720, None)
"""Periods of the leaderboards, in hours until now: a day, 30 days, and (None) the whole run."""
RECENT_ROWS = 60
"""Number of epochs that a volunteer's page lists."""

_WHOLE_RUN = "SELECT peer_id, samples, seconds FROM peers"
_PERIOD = """SELECT peer_id, sum(credited) AS samples, sum(seconds) AS seconds
    FROM epochs CROSS JOIN reports USING (branch, epoch) WHERE time >= :since AND credited GROUP BY peer_id"""
_TOTALS = """SELECT id, volunteers.name, page, sum(given.samples) AS samples, sum(given.seconds) AS seconds,
    max(active) AS active, max(last_seen) AS last_seen, min(first_seen) AS first_seen, count(*) AS machines,
    sum(iif(active, samples_per_second, NULL)) AS samples_per_second
    FROM given JOIN peers USING (peer_id) JOIN volunteers ON id = volunteer GROUP BY id"""


def leaderboard(
    connection: sqlite3.Connection, *, now: float, hours: int | None, most: int | None, offset: int
) -> list[dict]:
    """Volunteers by credited samples, most first; `share` is of all samples, None while there are none.

    Args:
        connection: Connection to the history.
        now: Seconds since 1970.
        hours: Hours until now that count; None: the whole run.
        most: Largest number of volunteers to return; None: all.
        offset: Number of volunteers to skip.
    """
    # The page is cut out before epochs are counted: counting those of all volunteers takes seconds in a large run.
    rows = connection.execute(
        f"""{_with_totals(hours)} SELECT *,
            (SELECT peer_id FROM peers WHERE volunteer = page_of.id
             ORDER BY active DESC, last_seen DESC, peer_id LIMIT 1) AS peer_id,
            (SELECT count(*) FROM (SELECT DISTINCT reports.branch, reports.epoch FROM peers JOIN reports USING (peer_id)
             WHERE volunteer = page_of.id AND credited AND (:since = 0 OR :since <= (SELECT time FROM epochs
                 WHERE epochs.branch = reports.branch AND epochs.epoch = reports.epoch)))) AS epochs,
            (SELECT sum(samples) FROM totals) AS total
        FROM (SELECT * FROM totals ORDER BY samples DESC, name LIMIT :most OFFSET :offset) AS page_of""",
        {"since": _since(now, hours), "most": -1 if most is None else most, "offset": offset},
    )
    return [_shown(row) for row in rows]


def count_contributors(connection: sqlite3.Connection, *, now: float, hours: int | None) -> dict[str, int]:
    """Counts the volunteers of a period: all (`total`), and those who have computed for `LEAST_SECONDS`."""
    query = f"{_with_totals(hours)} SELECT count(*), count(iif(seconds >= :least, 1, NULL)) FROM totals"
    values = {"since": _since(now, hours), "least": LEAST_SECONDS}
    total, contributors = connection.execute(query, values).fetchone()
    return {"total": total, "contributors": contributors, "least_seconds": LEAST_SECONDS}


def pages(connection: sqlite3.Connection) -> list[str]:
    """Ids of all volunteers' pages."""
    return [page for (page,) in connection.execute("SELECT page FROM volunteers ORDER BY page")]


def contribution(connection: sqlite3.Connection, page: str, *, now: float) -> dict | None:
    """What a volunteer has contributed; None if no volunteer has this page.

    `periods` has samples, seconds, share and rank for each of `HOURS`; `missed` counts missed epochs by reason, once
    for each machine of the volunteer that missed one; `recent` lists the last epochs, newest first.
    """
    query = f"{_with_totals(None)} SELECT *, (SELECT sum(samples) FROM totals) AS total FROM totals WHERE page = ?"
    row = connection.execute(query, (page,)).fetchone()
    if row is None:
        return None
    of_volunteer = "JOIN peers USING (peer_id) WHERE volunteer = ?"
    missed = connection.execute(f"SELECT reason, count(*) FROM missed {of_volunteer} GROUP BY reason", (row["id"],))
    recent = connection.execute(
        f"""SELECT epoch, time, sum(given) AS samples, iif(sum(given), NULL, max(reason)) AS missed FROM (
            SELECT reports.branch, epoch, credited AS given, NULL AS reason FROM reports {of_volunteer}
            UNION ALL SELECT missed.branch, epoch, 0, reason FROM missed {of_volunteer}
        ) JOIN epochs USING (branch, epoch) GROUP BY branch, epoch ORDER BY time DESC, epoch DESC LIMIT ?""",
        (row["id"], row["id"], RECENT_ROWS),
    )
    return {
        **_shown(row),
        "machines": row["machines"],
        "first_seen": row["first_seen"],
        "periods": [_period(connection, row["id"], now, hours) for hours in HOURS],
        "missed": dict(missed.fetchall()),
        "recent": [dict(one) for one in recent],
    }


def _period(connection: sqlite3.Connection, volunteer: str, now: float, hours: int | None) -> dict:
    """Samples, seconds, share and rank of a volunteer in a period.

    The rank is by samples, of those who have computed for `LEAST_SECONDS`, and None for others.
    """
    row = connection.execute(
        f"""{_with_totals(hours)}, own AS (SELECT samples, seconds FROM totals WHERE id = :volunteer)
        SELECT coalesce((SELECT samples FROM own), 0) AS samples, coalesce((SELECT seconds FROM own), 0.0) AS seconds,
            sum(samples) AS total,
            1 + count(iif(seconds >= :least AND samples > (SELECT samples FROM own), 1, NULL)) AS rank FROM totals""",
        {"since": _since(now, hours), "volunteer": volunteer, "least": LEAST_SECONDS},
    ).fetchone()
    share = row["samples"] / row["total"] if row["total"] else None
    rank = row["rank"] if row["seconds"] >= LEAST_SECONDS else None
    return {"hours": hours, "samples": row["samples"], "seconds": row["seconds"], "share": share, "rank": rank}


def _with_totals(hours: int | None) -> str:
    return f"WITH given AS ({_WHOLE_RUN if hours is None else _PERIOD}), totals AS ({_TOTALS})"


def _since(now: float, hours: int | None) -> float:
    return 0.0 if hours is None else now - 3600 * hours


def _shown(row: sqlite3.Row) -> dict:
    """Returns what a row of `totals` shows of a volunteer. A peer id would tell who an anonymous one is."""
    facts = {key: row[key] for key in ("name", "page", "samples", "seconds", "last_seen", "samples_per_second")}
    facts |= {"active": bool(row["active"]), "share": row["samples"] / row["total"] if row["total"] else None}
    more = {key: row[key] for key in ("peer_id", "epochs") if key in row.keys()}  # noqa: SIM118
    if "peer_id" in more and is_anonymous(row["name"]):
        more["peer_id"] = None
    return facts | more
