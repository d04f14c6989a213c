"""`join`: trains a run's model as one of its volunteers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from training.commands.options import Invitation, writable
from training.errors import BadInput
from training.processes.servers.ports import listens_at
from training.volunteer.manners.hours import Hours

if TYPE_CHECKING:
    from training.processes.role import StopRequest
    from training.recipe import RunConfig
    from training.volunteer.manners.manners import Rule

LEAVE_SECONDS = 10.0
"""Longest time of a volunteer's exit: it waits for a running average, tells the others that it leaves,
and saves its weights."""


def _advanced(*names: str, **facts: object) -> typer.models.OptionInfo:
    """An option that `--help` shows below those that every volunteer uses."""
    return typer.Option(*names, rich_help_panel="Advanced", **facts)


Address = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="Address of the run: of its site, such as https://run.example, or of its recipe there. The recipe and the "
        "run's servers follow from it.",
        show_default=False,
    ),
]
Recipe = Annotated[str | None, _advanced(help="Recipe of the run, in place of its address: a name, a file or a URL.")]
InitialPeers = Annotated[
    list[str] | None,
    _advanced(
        help="Address of a peer of the run: /ip4/ADDRESS/tcp/PORT/p2p/ID, or of the run's site, which names them: "
        "https://RUN. May be given several times. Default: those that the site names."
    ),
]
MicroBatchSize = Annotated[
    int | None,
    _advanced(min=1, max=10**6, help="Samples per forward pass; fewer need less memory. Default: chosen."),
]
Checkpointing = Annotated[
    bool | None,
    _advanced(
        "--checkpointing/--no-checkpointing",
        help="Recompute activations instead of keeping them: less memory, more time. Default: chosen.",
    ),
]
Precision = Annotated[
    Literal["float32", "bfloat16", "float16"] | None,
    _advanced(help="Type in which layers compute; 16 bits take less memory. Default: chosen."),
]
Device = Annotated[str | None, _advanced(help="cpu, cuda, cuda:1 and so on. Default: the first GPU, if there is one.")]
Threads = Annotated[int | None, _advanced(min=1, help="Threads that compute. Default: one per core.")]
Epochs = Annotated[int | None, _advanced(min=1, help="Leave once the run has done this many epochs (updates).")]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder that keeps your identity, place in the data, and the run's weights, so that a restart continues "
        "them. If you copy it to another machine, both count for you. Default: a folder of this run in "
        "~/.local/state/training-together."
    ),
]
Resume = Annotated[
    Path | None, _advanced(help="Folder of checkpoints: start from the latest, unless the run is ahead of it.")
]
Shards = Annotated[
    str | None,
    _advanced(help="Folder or address (https://, hf://, s3://) of the shards. Default: the recipe's."),
]
CacheSize = Annotated[
    float | None,
    _advanced(min=0, help="Disk space for shards that are fetched over the network, in GB. Default: 1."),
]
HoursOfDay = Annotated[
    str | None,
    typer.Option(
        parser=Hours.read,
        metavar="FROM-TO",
        help="Compute only at these hours of the day, such as 22-8 or 9:30-17. Default: at all hours.",
    ),
]
PauseWhen = Annotated[
    str,
    _advanced(
        envvar="TRAINING_PAUSE_WHEN",
        show_envvar=False,
        metavar="battery,heat,use|never",
        help="Pause while this machine runs on battery, is hot, or (use) while anybody uses it, as far as the system "
        "tells.",
    ),
]
NormalPriority = Annotated[
    bool,
    _advanced(
        "--normal-priority",
        help="Run with the priority of other programs. Without this flag they come first on a busy machine.",
    ),
]
MaxUpload = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Send at most this many Mbit/s; averages give this peer a part that suits it. Default: no limit, and a "
        "part by the speed at which the run's state was downloaded, if it was large enough to measure.",
    ),
]
MaxMemory = Annotated[
    float | None,
    _advanced(
        min=0.1,
        help="Most memory that training takes on the device that computes, in GB: micro-batches are as small as that "
        "needs. Default: what is free.",
    ),
]
HuggingFace = Annotated[
    bool,
    _advanced(
        "--hugging-face",
        help="Show who you are on the Hugging Face Hub, for a run that admits members of an organization: your token "
        "(HF_TOKEN, or that of `hf auth login`) is sent to the membership server that the recipe names, after a "
        "question.",
    ),
]
Yes = Annotated[bool, _advanced("--yes", help="Answer the question of --hugging-face with yes.")]
ClientMode = Annotated[bool, _advanced("--client-mode", help="Accept no incoming connections. Default: found out.")]
HostMaddrs = Annotated[list[str] | None, _advanced(help="Address to listen on.")]
AnnounceMaddrs = Annotated[
    list[str] | None,
    _advanced(help="Address at which others reach this machine, if it differs from the one it listens on."),
]
Seed = Annotated[int | None, _advanced(help="Seed of the order of samples. Default: derived from your peer id.")]
DryRun = Annotated[
    bool,
    _advanced("--dry-run", help="Print the chosen settings; check recipe, shards, network and averaging; then exit."),
]
Verbose = Annotated[
    bool,
    _advanced("--verbose", help="Print each setting, epoch and warning in a line of its own, for logs and experts."),
]
LogJson = Annotated[
    Path | None, _advanced(callback=writable, help="Append events to this file, one JSON object per line.")
]


def run(
    address: Address = None,
    name: Annotated[
        str | None,
        typer.Option(help="Your name on the leaderboard; `anonymous` hides it, also for what you have done before."),
    ] = None,
    hours: HoursOfDay = None,
    max_upload: MaxUpload = None,
    recipe: Recipe = None,
    initial_peers: InitialPeers = None,
    pause_when: PauseWhen = "battery,heat",
    micro_batch_size: MicroBatchSize = None,
    checkpointing: Checkpointing = None,
    precision: Precision = None,
    device: Device = None,
    threads: Threads = None,
    epochs: Epochs = None,
    state_dir: StateDir = None,
    resume: Resume = None,
    shards: Shards = None,
    invitation: Invitation = None,
    hugging_face: HuggingFace = False,
    yes: Yes = False,
    max_memory: MaxMemory = None,
    cache_size: CacheSize = None,
    normal_priority: NormalPriority = False,
    client_mode: ClientMode = False,
    host_maddrs: HostMaddrs = None,
    announce_maddrs: AnnounceMaddrs = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    log_json: LogJson = None,
) -> None:
    """Join a run and train its model together with the other volunteers."""
    from training.processes.environment import prepare_environment
    from training.processes.priority import SERVING, lower_priority
    from training.processes.role import run_role
    from training.trust.client import Credentials
    from training.volunteer.address import find_run
    from training.volunteer.manners.sensors import rules_for

    rules = [*([hours.rule()] if hours is not None else []), *rules_for(pause_when)]
    found = find_run(_one_of(address, recipe))
    config, site = found.run, found.given_site if initial_peers else found.site
    if not initial_peers and site is None:
        raise BadInput(
            "The address leads to a recipe, but not to the run's site, which would name its servers.",
            cure="Give the address of the site, or those of peers with --initial-peers.",
        )
    if hugging_face and not yes:
        _ask_for_token(config)
    wishes = {"device": device, "micro_batch_size": micro_batch_size, "precision": precision}
    wishes["checkpointing"] = checkpointing
    wishes["max_memory_bytes"] = None if max_memory is None else int(max_memory * 1e9)
    settings = {
        "initial_peers": tuple(initial_peers or [site]),
        "site": site,
        "name": name,
        "threads": threads,
        "epochs": epochs,
        "recipe_toml": found.recipe_toml,
        "resume": resume,
        "shards": shards,
        "max_upload_mbits": max_upload,
        "normal_priority": normal_priority,
        "client_mode": client_mode,
        "host_maddrs": tuple(host_maddrs or [listens_at()]),
        "announce_maddrs": tuple(announce_maddrs or ()),
        "credentials": Credentials(invitation=invitation, hub_token=_hub_token if hugging_face else None),
        "seed": seed,
    }
    if cache_size is not None:
        settings["cache_gb"] = cache_size
    prepare_environment()
    if not normal_priority:
        lower_priority(SERVING)  # before any child process is started: they inherit it
    role = partial(_role, config, wishes, settings, rules, state_dir, dry_run, verbose, log_json)
    run_role(role, begins_anew=not dry_run, grace_seconds=LEAVE_SECONDS)


def _one_of(address: str | None, recipe: str | None) -> str:
    """Returns the address of the run, which either the argument or `--recipe` gives.

    Raises:
        BadInput: If neither or both are given.
    """
    if (address is None) == (recipe is None):
        given = "Neither the address of the run nor" if address is None else "Both the address of the run and"
        raise BadInput(f"{given} --recipe is given.", cure="Give the run's address, such as https://run.example.")
    return address or recipe


def _ask_for_token(config: RunConfig) -> None:
    """Asks whether the volunteer's token may be sent: the address stands in a recipe, which anybody may have written.

    Raises:
        BadInput: If the answer is no, or there is nobody to ask.
    """
    url = config.membership.url
    if url is None:  # an open run asks for no token
        return
    if not sys.stdin.isatty():
        raise BadInput(
            f"--hugging-face sends your Hugging Face token to {url}, the membership server that this recipe names.",
            cure="If you trust that address, add --yes.",
        )
    if not typer.confirm(f"Send your Hugging Face token to {url}, the membership server that this recipe names?"):
        raise BadInput("No token is sent.", cure="Without --hugging-face, join with --invitation.")


def _hub_token() -> str | None:
    """Reads this machine's Hugging Face token; None if there is none."""
    from huggingface_hub import get_token

    return get_token()


def _role(
    config: RunConfig,
    wishes: dict[str, object],
    settings: dict[str, object],
    rules: Sequence[Rule],
    state_dir: Path | None,
    dry_run: bool,
    verbose: bool,
    log_json: Path | None,
    stop: StopRequest,
) -> None:
    """Shows at once that it begins, does the slow imports, and runs the peer."""
    from training.volunteer.manners.manners import Manners
    from training.volunteer.terminal.shown import shown
    from training.volunteer.terminal.view import View

    view = View(config, site=settings["site"], epochs=settings["epochs"])
    view.manners = Manners(rules, leave=stop.ask, describe=view.summary)
    with shown(view, stop, verbose=verbose or dry_run) as console:
        console.print(view.greeting, markup=False)
        from training.compute.choices import Wishes
        from training.processes.events import EventLog
        from training.processes.priority import lower_session
        from training.roles.peer import check_peer, run_peer
        from training.volunteer.manners.folders import free_folder, state_folders
        from training.volunteer.settings import PeerSettings

        view.imported()
        own = PeerSettings(wishes=Wishes(**wishes), **settings)
        if not own.normal_priority:
            stop.at_end(lower_session())
        folder = state_dir or free_folder(state_folders(), config.run_id)
        events = EventLog(log_json, listener=view.note)
        if dry_run:
            check_peer(config, own, folder, events=events, console=console)
        else:
            run_peer(config, own, folder, stop=stop, manners=view.manners, events=events, console=console)
    if not dry_run:
        print(view.farewell(), flush=True)
