"""The register of members: accounts, their peers, invitations and bans."""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass

from training.trust.bans import MOST_BANS, BanList
from training.trust.refusals import Refusal
from training.trust.server.ledger import Ledger
from training.trust.ticket import LONGEST_SECONDS, Standing

FORGOTTEN_AFTER_SECONDS = 7 * 86_400
"""Time without a ticket after which an account of the standing `open` is deleted: anybody can make many accounts."""

HUB_NAME = "hub:"
"""Prefix of a Hub user's id in the table of bans; no account begins with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """Account and standing that a credential admits."""

    account: str = ""
    """Name of the account; empty: the name that the invitation gives."""
    standing: Standing
    hub_id: str | None = None
    """The Hub's fixed id of the user: a ban still applies if they change their name there."""
    shown_until: int | None = None
    """Time at which the member must show the credential again; None: keep the time that the register has, or never."""
    code: str | None = None
    """Code of the invitation; None for other credentials."""
    renews: bool = False
    """True if the peer has shown no credential, so its account must still be a member."""

    @property
    def hub_name(self) -> str | None:
        """Name of `hub_id` in the table of bans; None without an id."""
        return None if self.hub_id is None else f"{HUB_NAME}{self.hub_id}"


class Register(Ledger):
    """The register's file (`Ledger`) with the server's reads and changes.
    It stores hashes of invitations' codes, no tokens."""

    # -- for the server ------------------------------------------------------------------------------------------------

    def known(self, peer_id: str) -> dict | None:
        """Finds the member to whom a peer belongs: `account`, `standing` and `must_show`, whether they must show their
        credential again. None if the peer is unknown."""
        rows = self._rows(
            """SELECT account, standing, coalesce(shown_until <= ?, 0) AS must_show
            FROM peers JOIN members USING (account) WHERE peer_id = ?""",
            self.now,
            peer_id,
        )
        return rows[0] if rows else None

    def admit(self, entrant: Entrant, peer_id: str, *, ticket_ends: int, most_peers: int) -> str:
        """Makes or renews a membership, and notes that a peer of the member gets a ticket. Returns the account.

        Args:
            entrant: Account and standing that the credential admits.
            peer_id: The peer, which has proven its id.
            ticket_ends: Time at which the ticket ends, its grace included.
            most_peers: Peers of one account that may have tickets at once.

        Raises:
            Refusal: If the account or the peer is banned, the invitation is used up, or there are too many peers.
        """
        now = self.now
        with self._changing() as connection:
            account = entrant.account if entrant.code is None else _redeem(connection, entrant.code, now)
            names = (account, peer_id, entrant.hub_name)
            if _is_banned(connection, *names):
                raise Refusal("banned")
            others = "SELECT count(*) FROM peers WHERE account = ? AND peer_id != ? AND ticket_ends > ?"
            if connection.execute(others, (account, peer_id, now)).fetchone()[0] >= most_peers:
                raise Refusal("too-many-peers")
            there = connection.execute("SELECT 1 FROM members WHERE account = ?", (account,)).fetchall()
            if entrant.renews and not there:
                raise Refusal("show-again")
            _enter(connection, account, entrant, now)
            connection.execute(
                "INSERT INTO peers VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET account = excluded.account, "
                "ticket_ends = max(ticket_ends, excluded.ticket_ends)",
                (peer_id, account, now, ticket_ends),
            )
            if connection.execute("DELETE FROM bans WHERE name IN (?, ?, ?)", names).rowcount:
                renumber(connection, now)  # they were removed, and are back
            if not there and entrant.standing == "vouched":  # of those that anybody can make, none is logged
                self.log(connection, "server", "joined", account, peer_id)
        return account

    def ban_list(self) -> BanList:
        """Current ban list: banned and removed names that may still hold a ticket. A list that would be too long has
        only those whose tickets last longest."""
        now = self.now
        with self._connected() as connection:
            connection.execute("BEGIN")  # so that version and entries belong together
            version = connection.execute("SELECT value FROM facts WHERE key = 'version'").fetchone()[0]
            rows = connection.execute(
                "SELECT name, listed_until FROM bans WHERE listed_until > ? ORDER BY listed_until DESC LIMIT ?",
                (now, MOST_BANS),
            )
            until = {row["name"]: row["listed_until"] for row in rows}
        return BanList(run_id=self.run_id, version=int(version), issued=now, until=until)

    def forget(self) -> None:
        """Deletes peers that have long had no ticket, open members without peers,
        expired invitations and marks of removal.

        The peer of an invited member stays: its key is their credential.
        """
        now = self.now
        with self._changing() as connection:
            connection.execute(
                """DELETE FROM peers WHERE ticket_ends <= ? AND account NOT LIKE 'invited:%'""",
                (now - FORGOTTEN_AFTER_SECONDS,),
            )
            connection.execute(
                "DELETE FROM members WHERE standing = 'open' AND account NOT IN (SELECT account FROM peers)"
            )
            connection.execute("DELETE FROM invitations WHERE expires <= ?", (now,))
            connection.execute("DELETE FROM bans WHERE NOT is_ban AND listed_until <= ?", (now,))

    # -- to be shown ---------------------------------------------------------------------------------------------------

    def members(self) -> list[dict]:
        """Members, the newest first: account, standing, joined, peers (number),
        ticket_ends (end of the last ticket)."""
        return self._rows(
            """SELECT account, standing, joined, count(peer_id) AS peers, coalesce(max(ticket_ends), 0) AS ticket_ends
            FROM members LEFT JOIN peers USING (account) GROUP BY account ORDER BY joined DESC, account"""
        )

    def peers(self) -> dict[str, list[str]]:
        """The peer ids of each account, those whose tickets last longest first."""
        found: dict[str, list[str]] = {}
        for row in self._rows("SELECT account, peer_id FROM peers ORDER BY ticket_ends DESC, peer_id"):
            found.setdefault(row["account"], []).append(row["peer_id"])
        return found

    def banned(self) -> list[dict]:
        """Bans with name, account, time and reason, the newest first."""
        return self._rows(
            "SELECT name, account, since, reason FROM bans WHERE is_ban AND name NOT LIKE ? || '%' "
            "ORDER BY since DESC, account, name != account",
            HUB_NAME,
        )

    def invitations(self) -> list[dict]:
        """Invitations that are open: label, uses, used, expires."""
        return self._rows(
            "SELECT label, uses, used, expires FROM invitations WHERE used < uses AND expires > ? ORDER BY expires",
            self.now,
        )

    def audit(self, most: int = 200) -> list[dict]:
        """The last entries of the audit log, the newest first: number, time, who, what, subject, detail."""
        return self._rows("SELECT * FROM audit ORDER BY number DESC LIMIT ?", most)

    # -- for moderators ------------------------------------------------------------------------------------------------

    def _put_out(self, connection: sqlite3.Connection, account: str, *, is_ban: bool, reason: str) -> None:
        """Puts an account and its peers on the ban list, until the last of their tickets is over."""
        now = self.now
        # Of a member who was removed and is now banned, the peers are in `bans` only.
        known = "SELECT peer_id, ticket_ends FROM peers WHERE account = ?1 UNION ALL "
        known += "SELECT name, listed_until FROM bans WHERE account = ?1"
        hub_id = "SELECT ?2 || hub_id, ?3 FROM members WHERE account = ?1 AND hub_id IS NOT NULL UNION ALL "
        found = connection.execute(hub_id + known, (account, HUB_NAME, now)).fetchall()
        until = {account: now, **dict(found)}
        # A register from a backup does not know all tickets that it has given; each names its account.
        until[account] = now + LONGEST_SECONDS if is_ban else max(until.values())
        connection.executemany(
            "INSERT OR REPLACE INTO bans VALUES (?, ?, ?, ?, ?, ?)",
            [(name, account, is_ban, now, ends, reason) for name, ends in until.items()],
        )
        renumber(connection, now)


def _is_banned(connection: sqlite3.Connection, *names: str | None) -> bool:
    """Returns whether one of the names is banned."""
    places = ", ".join("?" * len(names))
    return connection.execute(f"SELECT 1 FROM bans WHERE is_ban AND name IN ({places})", names).fetchone() is not None


def _enter(connection: sqlite3.Connection, account: str, entrant: Entrant, now: int) -> None:
    """Adds a new member, or updates the Hub id and the time of the next check of a known member."""
    connection.execute(
        "INSERT INTO members VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "shown_until = coalesce(excluded.shown_until, shown_until), hub_id = coalesce(excluded.hub_id, hub_id)",
        (account, entrant.standing, now, entrant.shown_until, entrant.hub_id),
    )


def _redeem(connection: sqlite3.Connection, code: str, now: int) -> str:
    """Uses an invitation once. Returns the account that it admits.

    Raises:
        Refusal: If no invitation has the code, or it has expired or is used up.
    """
    rows = connection.execute(
        "UPDATE invitations SET used = used + 1 WHERE code_hash = ? AND used < uses AND expires > ? "
        "RETURNING label, uses, used",
        (hash_of(code), now),
    ).fetchall()
    if rows:
        (row,) = rows
        return f"invited:{row['label']}" + (f".{row['used']}" if row["uses"] > 1 else "")
    known = connection.execute("SELECT 1 FROM invitations WHERE code_hash = ?", (hash_of(code),)).fetchall()
    raise Refusal("code-over" if known else "code-unknown")


def renumber(connection: sqlite3.Connection, now: int) -> None:
    """Gives the ban list its next version: at least the time, so that a register from a backup does not fall behind."""
    connection.execute(
        "UPDATE facts SET value = max(CAST(value AS INTEGER) + 1, ?) || '' WHERE key = 'version'", (now,)
    )


def hash_of(code: str) -> bytes:
    """Hash of an invitation's code, which the register keeps in its place."""
    return hashlib.sha256(code.strip().lower().encode()).digest()
