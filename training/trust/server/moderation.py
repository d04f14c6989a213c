"""Moderators' changes to the register of members: invite, remove, ban and unban. The audit log notes each change."""

from __future__ import annotations

import base64
import re
import secrets
import sqlite3

from training.errors import BadInput
from training.trust.server.register import Register, hash_of, renumber
from training.trust.ticket import ACCOUNT, PEER_ID, when

LABEL = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""Form of an invitation's name, which the account of the invited member has too."""
_CODE_BYTES = 15
"""Random bytes of an invitation's code, shown as 24 letters and digits in groups of six. Nobody guesses 120 random
bits, so a plain hash of the code is safe to store."""


class Moderation(Register):
    """The register with the moderators' changes; works while the server runs."""

    def invite(self, label: str, *, uses: int, seconds: int, who: str) -> str:
        """Makes an invitation. Returns its code, of which the register keeps only a hash.

        Args:
            label: Name of the invitation. Its member gets the account `invited:LABEL`; with several uses,
                `invited:LABEL.1`, `invited:LABEL.2` and so on.
            uses: Number of peers that may use the invitation.
            seconds: Validity of the invitation.
            who: Name of the moderator, for the audit log.

        Raises:
            BadInput: If the name cannot be used.
        """
        if not LABEL.fullmatch(label):
            raise BadInput(f"{label!r} cannot be an invitation's name; give 1 to 40 small letters, digits and hyphens.")
        raw = base64.b32encode(secrets.token_bytes(_CODE_BYTES)).decode().lower()
        code = "-".join(raw[start : start + 6] for start in range(0, len(raw), 6))
        now = self.now
        with self._changing() as connection:
            if _is_taken(connection, label):
                raise BadInput(f"There is an invitation or a member {label} already; give another name.")
            values = (label, hash_of(code), uses, 0, now + seconds, now)
            connection.execute("INSERT INTO invitations VALUES (?, ?, ?, ?, ?, ?)", values)
            self.log(connection, who, "invited", label, f"{uses} uses until {when(now + seconds)}")
        return code

    def remove(self, name: str, *, who: str) -> str:
        """Ends a membership, or withdraws an invitation. Returns the account or invitation.

        A removed member may come back with a valid credential.

        Raises:
            BadInput: If there is no such member or invitation.
        """
        with self._changing() as connection:
            # One that is used up is the member's who took it up.
            is_open = "DELETE FROM invitations WHERE label = ? AND used < uses"
            if connection.execute(is_open, (name,)).rowcount:
                self.log(connection, who, "withdrew", name, "")
                return f"the invitation {name}"
            account = self._account(connection, name)
            self._put_out(connection, account, is_ban=False, reason="")
            connection.execute("DELETE FROM members WHERE account = ?", (account,))
            connection.execute("DELETE FROM invitations WHERE 'invited:' || label = ?", (account,))
            self.log(connection, who, "removed", account, "")
        return account

    def ban(self, name: str, *, reason: str, who: str) -> str:
        """Bans an account with all its peers, or the peer id of an unknown peer. Returns the banned name.

        Raises:
            BadInput: If `name` is not a name of an account or a peer.
        """
        with self._changing() as connection:
            account = self._account(connection, name, also_unknown=True)
            self._put_out(connection, account, is_ban=True, reason=reason)
            self.log(connection, who, "banned", account, reason)
        return account

    def unban(self, name: str, *, who: str) -> str:
        """Lifts a ban. Returns the account that is no longer banned.

        Raises:
            BadInput: If no banned account has this name, or several have it.
        """
        with self._changing() as connection:
            found = connection.execute(
                """SELECT DISTINCT account FROM bans
                WHERE is_ban AND (name = ?1 OR substr(name, instr(name, ':') + 1) = ?1) ORDER BY account""",
                (name,),
            ).fetchall()
            if not found:
                raise BadInput(f"Nobody of the name {name!r} is banned; run `moderate list`, which names who is.")
            account = _only(name, found)
            connection.execute("DELETE FROM bans WHERE account = ?", (account,))
            renumber(connection, self.now)
            self.log(connection, who, "unbanned", account, "")
        return account

    def _account(self, connection: sqlite3.Connection, name: str, *, also_unknown: bool = False) -> str:
        """Finds the account that a moderator names by its name, with or without its kind, or by a peer id."""
        known = """SELECT account FROM members WHERE account = ?1 OR substr(account, instr(account, ':') + 1) = ?1
            UNION SELECT account FROM peers WHERE peer_id = ?1"""
        found = connection.execute(known, (name,)).fetchall()
        if found:
            return _only(name, found)
        several = "SELECT account FROM members WHERE instr(account, 'invited:' || ? || '.') = 1 ORDER BY joined"
        if of_invitation := [row["account"] for row in connection.execute(several, (name.removeprefix("invited:"),))]:
            raise BadInput(
                f"{name!r} is an invitation for several. Give one of its members: {', '.join(of_invitation)}."
            )
        if also_unknown and (ACCOUNT.fullmatch(name) or PEER_ID.fullmatch(name)):
            return name
        raise BadInput(
            f"There is no member {name!r}; run `moderate list`, which names all. Others have full names: hf:ada."
        )


def _is_taken(connection: sqlite3.Connection, label: str) -> bool:
    """Returns whether an invitation has this name, or an account of a member invited under it."""
    taken = """SELECT 1 FROM invitations WHERE label = ?1
        UNION SELECT 1 FROM (SELECT account FROM members UNION SELECT account FROM bans WHERE is_ban)
        WHERE account = 'invited:' || ?1 OR instr(account, 'invited:' || ?1 || '.') = 1"""
    return connection.execute(taken, (label,)).fetchone() is not None


def _only(name: str, found: list[sqlite3.Row]) -> str:
    """Returns the account of the only row.

    Raises:
        BadInput: If the rows name several accounts.
    """
    if len(found) > 1:
        raise BadInput(f"{name!r} may be any of {', '.join(row['account'] for row in found)}; give one of these.")
    return found[0]["account"]
