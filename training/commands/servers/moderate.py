"""`moderate`: lists, invites, removes and bans a run's members."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from training.errors import BadInput
from training.trust.server.policy import BANS_EVERY_SECONDS

if TYPE_CHECKING:
    from training.trust.server.register import Register

Action = Annotated[
    Literal["list", "invite", "remove", "ban", "unban"],
    typer.Argument(
        metavar="list|invite|remove|ban|unban",
        help="list: members, bans and invitations. invite: print a code with which NAME may join. remove: end a "
        "membership, or withdraw an invitation; who has a valid credential may come back. ban: end it and admit the "
        "account no more. unban: lift a ban.",
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]",
        help="An account, such as hf:ada or ada, or a peer id. For invite: a new name.",
        show_default=False,
    ),
]
StateDir = Annotated[Path, typer.Option(help="Folder of the membership server, such as runs/RUN_ID/membership.")]
Reason = Annotated[str | None, typer.Option(help="For ban: why; it is shown to maintainers only.")]
Uses = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="For invite: so many peers may take it up. Default: 1.")
]
Days = Annotated[int | None, typer.Option(min=1, max=365, help="For invite: it is good for so many days. Default: 7.")]
RevertTo = Annotated[
    int | None,
    typer.Option(min=0, help="For ban: the run goes back to this epoch's checkpoint. Needs --run-dir."),
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder of the run's monitor, on this machine. For --revert-to; `list` then shows the names on the "
        "dashboard as well.",
    ),
]
BootstrapDir = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="For --revert-to: state folder of a bootstrap peer on this machine, which then announces it too; may be "
        "repeated. That of `serve` is found by itself.",
    ),
]

LONGEST_REASON = 200


def run(
    action: Action,
    state_dir: StateDir,
    name: Name = None,
    reason: Reason = None,
    uses: Uses = None,
    days: Days = None,
    revert_to: RevertTo = None,
    run_dir: RunDir = None,
    bootstrap_dir: BootstrapDir = None,
) -> None:
    """Decide about the members of a run: list, invite, remove, ban and unban them; works beside the running server."""
    from training.trust.server.ledger import REGISTER_FILE
    from training.trust.server.moderation import Moderation

    _check(action, name, reason, uses, days)
    _check_revert(action, revert_to, run_dir)
    register = Moderation(state_dir / REGISTER_FILE)
    who = os.environ.get("SUDO_USER") or getpass.getuser()
    match action:
        case "list":
            _show(register, run_dir)
        case "invite":
            code = register.invite(name, uses=uses or 1, seconds=(days or 7) * 86_400, who=who)
            print(
                f"{name} joins with --invitation {code}, within {days or 7} days. The code is not kept; pass it on now."
            )
        case "remove":
            print(f"Removed {register.remove(name, who=who)}.")
        case "ban":
            banned = register.ban(name, reason=reason or "", who=who)
            print(f"Banned {banned}: it gets no ticket any more. {_when_heard(state_dir)}", flush=True)
            if revert_to is not None:
                _revert(run_dir, revert_to, bootstrap_dir or ())
        case "unban":
            print(f"{register.unban(name, who=who)} is no longer banned, and may join again.")


def _check(action: str, name: str | None, reason: str | None, uses: int | None, days: int | None) -> None:
    if (name is None) != (action == "list"):
        raise BadInput(
            "`moderate list` takes no name; omit it, or say what to do with it."
            if name
            else f"Whom? Give a name: `moderate {action} NAME`."
        )
    if reason is not None and (action != "ban" or len(reason) > LONGEST_REASON or not reason.isprintable()):
        raise BadInput(
            f"--reason is for `moderate ban`, one line of at most {LONGEST_REASON} characters; omit or change it."
        )
    if action != "invite" and (uses is not None or days is not None):
        raise BadInput(f"--uses and --days are for `moderate invite`, not for `moderate {action}`; omit both of them.")


def _check_revert(action: str, revert_to: int | None, run_dir: Path | None) -> None:
    """Checks before a ban that the checkpoint to go back to exists.

    Its contents are checked after the ban: that takes seconds, or a minute with a large model,
    in which the banned peer would go on.
    """
    if action == "list" and revert_to is None:
        return
    if (revert_to is None) != (run_dir is None) or (revert_to is not None and action != "ban"):
        raise BadInput("--revert-to EPOCH and --run-dir DIR go together, with `moderate ban`; give both or omit both.")
    if revert_to is not None:
        from training.checkpoints.facts import check_has

        try:
            check_has(run_dir / "checkpoints", revert_to)
        except BadInput as error:
            raise BadInput(
                f"{error} Nobody is banned.",
                cure="Give --revert-to one of these epochs, from before the weights were spoiled; or ban without "
                "--revert-to, and go back with `restore` afterwards.",
            ) from None


def _revert(run_dir: Path, epoch: int, bootstrap_dirs: Sequence[Path]) -> None:
    begun = time.monotonic()
    from training.processes.environment import prepare_environment

    prepare_environment()  # before torch is imported, which reads the environment
    from training.checkpoints.restore import check_restore, order_restore
    from training.swarm.node.admission import LATE_NEWS_SECONDS

    check_restore(run_dir, epoch, state_dirs=bootstrap_dirs)
    left = max(0.0, begun + LATE_NEWS_SECONDS - time.monotonic())
    soon = f"in {left:.0f} s" if left >= 1 else "now"
    print(f"The run goes back to epoch {epoch} {soon}: peers hear of the ban before it.", flush=True)
    time.sleep(left)
    for line in order_restore(run_dir, epoch, state_dirs=tuple(bootstrap_dirs)):
        print(line)


def _shown_names(run_dir: Path | None) -> dict[str, str]:
    """Peer id -> name on the dashboard."""
    if run_dir is None:
        return {}
    from training.publish.history.backup import HISTORY_FILE
    from training.publish.history.history import HistoryReader

    if not (run_dir / HISTORY_FILE).exists():
        print(f"{run_dir} has no history yet, and so no names on the dashboard.")
        return {}
    return HistoryReader(run_dir / HISTORY_FILE).names_of_peers()


def _when_heard(state_dir: Path) -> str:
    from training.processes.servers.only_one import LOCK_FILE, is_locked

    if is_locked(state_dir / LOCK_FILE):
        return f"Peers hear of it within {2 * BANS_EVERY_SECONDS:.0f} s."
    return f"The membership server does not run in {state_dir}: start it, for no peer hears of the ban before."


def _show(register: Register, run_dir: Path | None) -> None:
    from training.trust.ticket import when

    names = _shown_names(run_dir)
    members, banned, peers = register.members(), register.banned(), register.peers()
    out = {one["account"] for one in banned}
    print(f"Members of {register.run_id}: {len(members)}")
    for one in members:
        standing = f"{one['standing']}, banned" if one["account"] in out else one["standing"]
        ends = f", last ticket over at {when(one['ticket_ends'])}" if one["ticket_ends"] else ""
        print(f"    {one['account']} ({standing}) since {when(one['joined'])}{ends}")
        for peer_id in peers.get(one["account"], ()):
            print(f"        {peer_id}" + (f" as {names[peer_id]}" if peer_id in names else ""))
    if banned:
        print(f"Banned: {len(banned)}")
    for one in banned:
        print(f"    {one['name']} since {when(one['since'])}" + (f": {one['reason']}" if one["reason"] else ""))
    if invitations := register.invitations():
        print(f"Open invitations: {len(invitations)}")
    for one in invitations:
        print(f"    {one['label']}: {one['used']} of {one['uses']} taken up, until {when(one['expires'])}")
