"""The commands with which a volunteer or a monitor joins a run, as pages and programs show them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

RECIPE = "/recipe.toml"
"""Path at which a monitor serves the recipe."""
INITIAL_PEERS = "{initial_peers}"
"""Placeholder in a join command for the addresses, until they are known."""


MEMBERS_FLAGS = "--invitation -"
"""Flag of the join command of a members-only run: the program asks each volunteer for their own code."""


def join_command(
    url: str,
    initial_peers: Sequence[str],
    *,
    python: Sequence[str] = ("python", "-m", "training"),
    members_only: bool = False,
) -> str:
    """Builds the command that a volunteer pastes into a terminal to join.

    Args:
        url: Address of the run's monitor, which serves the recipe.
        initial_peers: Addresses of peers through which newcomers connect.
        python: The trainer's command line; a program below the current folder is named relative to it.
        members_only: Whether newcomers need an invitation.

    >>> join_command("http://run.example", ["/ip4/203.0.113.7/tcp/31337/p2p/Qm1"])
    'python -m training join --recipe http://run.example/recipe.toml --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm1'
    """
    command = command_for("join", f"{url}{RECIPE}", initial_peers, python=python)
    return f"{command} {MEMBERS_FLAGS}" if members_only else command


def site_of(recipe: str) -> str | None:
    """Address of the run's site, if `recipe` is the address of a recipe on it; otherwise None.

    >>> site_of("https://run.example/recipe.toml"), site_of("demo")
    ('https://run.example', None)
    """
    is_address = recipe.startswith(("http://", "https://")) and recipe.endswith(RECIPE)
    return recipe.removesuffix(RECIPE) if is_address else None


def command_for(
    role: str, recipe: str, initial_peers: Sequence[str], *, python: Sequence[str] = ("python", "-m", "training")
) -> str:
    """Builds the command that starts a role with a recipe and the addresses of peers.

    Args:
        role: Name of the role's command, such as `monitor`.
        recipe: Name, TOML file or URL of the recipe.
        initial_peers: See `join_command`.
        python: See `join_command`.

    >>> command_for("monitor", "my run.toml", ["/ip4/203.0.113.7/tcp/31337/p2p/Qm1"])
    "python -m training monitor --recipe 'my run.toml' --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm1"
    """
    program = Path(python[0])
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    words = [str(program), *python[1:], role, "--recipe", recipe]
    return f"{shlex.join(words)} {initial_peers_flags(initial_peers)}".rstrip()


def initial_peers_flags(initial_peers: Sequence[str]) -> str:
    """Builds the flags that name the peers through which a newcomer connects.

    >>> initial_peers_flags(["/ip4/203.0.113.7/tcp/31337/p2p/Qm1", "/ip4/203.0.113.8/tcp/31338/p2p/Qm2"])
    '--initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm1 --initial-peers /ip4/203.0.113.8/tcp/31338/p2p/Qm2'
    """
    return shlex.join(word for peer in initial_peers for word in ("--initial-peers", peer))
