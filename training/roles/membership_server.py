"""Membership server: gives tickets to the members of a run, for as long as it runs."""

from __future__ import annotations

import logging
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from training.errors import BadInput, reason_of
from training.processes.events import EventLog
from training.processes.role import StopRequest
from training.processes.servers.only_one import only_one
from training.processes.servers.web import listen_at, serve_in_thread
from training.recipe import RunConfig
from training.trust.keys import MembershipKey, open_key, read_secret, write_secret
from training.trust.server.app import create_app
from training.trust.server.desk import Desk
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.policy import Policy
from training.trust.server.register import Register
from training.trust.ticket import LONGEST_SECONDS

KEY_FILE, PAGE_TOKEN_FILE = "membership.key", "page.token"
PAGE_TOKEN = "MEMBERSHIP_PAGE_TOKEN"
"""Environment variable with the password of the maintainers' page; without it, the server makes one and keeps it."""
LEAST_TOKEN_CHARACTERS = 20
MOST_CONNECTIONS = 512
FORGET_SECONDS = 3600.0
"""Interval at which the register deletes expired entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MembershipSettings:
    """Settings of the membership server."""

    state_dir: Path
    """Folder of the key, the register and the page's password."""
    policy: Policy
    host: str
    port: int
    proxies: tuple[str, ...] = ()
    """Addresses of proxies whose reports of a caller's address are believed."""


def run_membership(run: RunConfig, settings: MembershipSettings, *, stop: StopRequest, events: EventLog) -> None:
    """Serves until `stop` is requested.

    Raises:
        BadInput: If the recipe has another key or none, others can read a secret, or the port is taken.
    """
    _check_policy(settings.policy)
    key = open_key(settings.state_dir / KEY_FILE)
    _check_recipe(run, key, settings)
    _check_standing(run, settings.policy)
    register = Register(settings.state_dir / REGISTER_FILE, run_id=run.run_id)
    page_token = _page_token(settings.state_dir)
    # The Hub's library logs its requests at a level that a user's environment may switch on.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    app = create_app(Desk(register, key, settings.policy), page_token=page_token)
    with only_one(settings.state_dir, "membership server", flag="--state-dir"), _serve(app, settings):
        events.write("ready", address=f"http://{settings.host}:{settings.port}", key=key.public)
        print(f"Members of {run.run_id} get their tickets at {run.membership.url}, signed with {key.public}.")
        print(f"The maintainers' page is {run.membership.url}/page; its password is in {_token_place(settings)}.")
        print(f"Invite with `python -m training moderate invite NAME --state-dir {settings.state_dir}`.")
        print("Ctrl-C stops the server.", flush=True)
        _look_after(register, stop)
    events.write("stopped")


def table_for_recipe(key: MembershipKey, url: str, *, unvouched: bool) -> str:
    """Makes the lines that a recipe needs for this server, as one text."""
    lines = ["[membership]", f'key = "{key.public}"', f'url = "{url}"']
    return "\n".join([*lines, "unvouched = true"] if unvouched else lines)


def _check_policy(policy: Policy) -> None:
    validity = policy.ticket_seconds + policy.grace_seconds
    if validity > LONGEST_SECONDS:
        raise BadInput(
            f"Tickets that hold for {validity / 3600:g} h with their grace are longer than "
            f"{LONGEST_SECONDS / 3600:g} h; give less for --ticket-minutes or --grace-hours."
        )


def _check_recipe(run: RunConfig, key: MembershipKey, settings: MembershipSettings) -> None:
    if run.membership.open:
        unvouched = settings.policy.work_bits > 0
        lines = table_for_recipe(key, f"http://{settings.host}:{settings.port}", unvouched=unvouched)
        print(
            "Add these lines to the recipe. For url give the https:// address at which volunteers reach the server; "
            f"this one is good on this machine only:\n\n{lines}\n"
        )
        raise BadInput(
            f"The recipe of {run.run_id} lets anybody take part, so that nobody would ask for a ticket.",
            cure="Add the lines above to the recipe, with the server's https address, and start again.",
        )
    if run.membership.key != key.public:
        raise BadInput(
            f"The recipe names the membership key {run.membership.key}, and {settings.state_dir / KEY_FILE} is "
            f'{key.public}; put the right file there, or write key = "{key.public}" into the recipe.'
        )


def _check_standing(run: RunConfig, policy: Policy) -> None:
    """Checks that server and recipe agree on whether the run has members for whom nobody vouches."""
    if policy.work_bits and not run.membership.unvouched:
        raise BadInput(
            f"--work-bits {policy.work_bits} lets people in whom nobody vouches for, and the recipe of {run.run_id} "
            "has no such members.",
            cure='Write unvouched = true below [membership] and aggregation = "centered-clip" below [swarm], or omit '
            "--work-bits.",
        )
    if run.membership.unvouched and not policy.work_bits:
        raise BadInput(
            f"The recipe of {run.run_id} says unvouched = true, and without --work-bits this server admits only whom "
            "somebody vouches for.",
            cure="Give --work-bits 20, or omit unvouched in the recipe.",
        )


def _page_token(state_dir: Path) -> str:
    token = os.environ.get(PAGE_TOKEN)
    if token is None:
        path = state_dir / PAGE_TOKEN_FILE
        if not path.exists():
            write_secret(path, MembershipKey.begin().public)  # 32 random bytes as text, as good as any password
        token = read_secret(path)
    if len(token) < LEAST_TOKEN_CHARACTERS:
        raise BadInput(
            f"The password of the maintainers' page has {len(token)} characters, which may be guessed; use at least "
            f"{LEAST_TOKEN_CHARACTERS}, or leave it out, and the server makes one."
        )
    return token


def _token_place(settings: MembershipSettings) -> str:
    return PAGE_TOKEN if PAGE_TOKEN in os.environ else str(settings.state_dir / PAGE_TOKEN_FILE)


def _look_after(register: Register, stop: StopRequest) -> None:
    while True:
        with suppress(sqlite3.Error, OSError):  # such as a full disk, which may have room in an hour
            register.forget()
        if stop.wait(FORGET_SECONDS):
            return


@contextmanager
def _serve(app: FastAPI, settings: MembershipSettings) -> Iterator[None]:
    """Serves the application in a thread while the block runs."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listen_at(listener, settings.host, settings.port)
        except OSError as error:
            raise BadInput(
                f"The membership server cannot listen at {settings.host}:{settings.port}: {reason_of(error)}. "
                "Give another --port."
            ) from None
        with serve_in_thread(
            listener,
            app,
            access_log=False,
            most_connections=MOST_CONNECTIONS,
            forwarded_allow_ips=list(settings.proxies),
            server_header=False,
        ):
            yield
