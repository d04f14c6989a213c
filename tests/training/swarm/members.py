"""Members of a run for members only, as tests make them: a membership key, tickets, and what a peer goes by."""

from __future__ import annotations

import time

from training.recipe import RECIPES, RunConfig, parse_recipe
from training.swarm.node.admission import Admission
from training.swarm.node.identity import Identity
from training.trust.bans import BanList
from training.trust.keys import MembershipKey
from training.trust.ticket import Ticket

LINEAGE = "a" * 16
HOUR_SECONDS = 3600


def closed_run(key: MembershipKey) -> RunConfig:
    """The demo's recipe, for members only."""
    text = (RECIPES / "demo.toml").read_text()
    text += f'[membership]\nkey = "{key.public}"\nurl = "http://127.0.0.1:1"\n'
    return parse_recipe(text)


def ticket(key: MembershipKey, identity: Identity, **changes) -> str:
    """A member's for an hour, as it travels; the membership server need not answer."""
    now = int(time.time())
    values = {"run_id": "demo", "lineage": LINEAGE, "account": "invited:ada", "peer_id": str(identity.peer_id)}
    values |= {"standing": "vouched", "issued": now - 1, "expires": now + HOUR_SECONDS}
    return Ticket(**{**values, **changes}).signed(key)


def over(key: MembershipKey, identity: Identity) -> str:
    """A ticket that has ended."""
    now = int(time.time())
    return ticket(key, identity, issued=now - 3 * HOUR_SECONDS, expires=now - 2 * HOUR_SECONDS)


def bans(*names: str, version: int = 1) -> BanList:
    """A ban list of this moment."""
    now = int(time.time())
    return BanList(run_id="demo", version=version, issued=now, until=dict.fromkeys(names, now + HOUR_SECONDS))


def admission(key: MembershipKey, own_ticket: str = "", **news) -> Admission:
    """Admission of a peer with a ticket, in the lineage of these tests."""
    one = Admission(key.public, "demo")
    one.tell(own_ticket=own_ticket, **{"lineages": [LINEAGE], **news})
    return one
