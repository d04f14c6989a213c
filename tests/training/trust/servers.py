"""A membership server for tests, and peers that ask it."""

from __future__ import annotations

import httpx

from tests.training.trust.tickets import NOW, Holder
from training.recipe import RECIPES, parse_recipe
from training.trust.client import Credentials, MembershipClient
from training.trust.keys import MembershipKey
from training.trust.server.app import create_app
from training.trust.server.desk import Desk
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.ticket import read_ticket

TOKEN = "the password of the page, which is long"
HOLDERS = [Holder() for _ in range(3)]
HTTP = httpx.Client(timeout=20)  # one for all: each would load the certificates of all authorities


class Server:
    """A membership server that serves, with its clock."""

    def __init__(self, folder, policy):
        self.now = NOW
        self.register = Moderation(folder / REGISTER_FILE, run_id="demo", clock=lambda: self.now)
        self.key = MembershipKey.begin()
        self.desk = Desk(self.register, self.key, policy, clock=lambda: self.now)
        self.app = create_app(self.desk, page_token=TOKEN)
        self.url, self.told = "", []

    def client(self, holder=HOLDERS[0], *, key=None, url=None, **credentials):
        """A peer's client, whose recipe names this server."""
        text = (RECIPES / "demo.toml").read_text()
        text += f'[membership]\nkey = "{key or self.key.public}"\nurl = "{url or self.url}"\n'
        return MembershipClient(parse_recipe(text), holder, Credentials(**credentials), tell=self.told.append)

    def invite(self, label="ada", **more):
        return self.register.invite(label, who="mo", **{"uses": 1, "seconds": 3600, **more})

    def read(self, text):
        ticket = read_ticket(text, self.key.public)
        assert ticket is not None
        return ticket
