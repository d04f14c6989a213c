"""The maintainers' page: members, invitations, bans and the audit log, rendered by the server without a script.

The page changes nothing; moderators use `moderate`, so a stolen password of the page admits nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jinja2

from training.trust.ticket import when

if TYPE_CHECKING:
    from training.trust.server.desk import Desk

_FOLDER = Path(__file__).parent
MOST_ROWS = 300
"""Most rows shown of each table; under a longer table stands the number of all its rows."""


def members_page(desk: Desk) -> str:
    """Renders the page as HTML. Names come from volunteers and from the Hub, so the template escapes all values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["when"] = when
    register = desk.register
    tables = {"members": register.members(), "banned": register.banned(), "invitations": register.invitations()}
    return environment.get_template("page.html").render(
        run_id=register.run_id,
        now=register.now,
        counts={name: len(rows) for name, rows in tables.items()},
        refused=sorted(desk.refused.items()),
        audit=register.audit(MOST_ROWS),
        **{name: rows[:MOST_ROWS] for name, rows in tables.items()},
    )


def style() -> str:
    """The page's style sheet."""
    return (_FOLDER / "page.css").read_text(encoding="utf-8")
