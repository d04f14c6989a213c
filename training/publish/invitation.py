"""The commands with which a volunteer or a monitor joins a run, as pages and programs show them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

PROGRAM = "training-transformers-together"
"""The trainer's command line as pip installs it."""
RECIPE = "/recipe.toml"
"""Path at which a monitor serves the recipe."""
MEMBERS_FLAGS = "--invitation -"
"""Flag of the join command of a members-only run: the program asks each volunteer for their own code."""


def join_command(url: str, *, program: Sequence[str] = (PROGRAM,), members_only: bool = False) -> str:
    """Builds the command that a volunteer pastes into a terminal to join.

    Args:
        url: Address of the run's site, from which recipe and servers follow.
        program: The trainer's command line.
        members_only: Whether newcomers need an invitation.

    >>> join_command("https://run.example")
    'training-transformers-together join https://run.example'
    """
    command = shlex.join([*program, "join", url])
    return f"{command} {MEMBERS_FLAGS}" if members_only else command


def site_of(recipe: str) -> str | None:
    """Address of the run's site, if `recipe` is the address of a recipe on it; otherwise None.

    >>> site_of("https://run.example/recipe.toml"), site_of("demo")
    ('https://run.example', None)
    """
    is_address = recipe.startswith(("http://", "https://")) and recipe.endswith(RECIPE)
    return recipe.removesuffix(RECIPE) if is_address else None


def command_for(role: str, recipe: str, initial_peers: Sequence[str]) -> str:
    """Builds the command that starts a role of a run that has no site.

    Args:
        role: Name of the role's command, such as `monitor`.
        recipe: Name, TOML file or URL of the recipe.
        initial_peers: Addresses of peers through which a newcomer connects.

    >>> command_for("monitor", "my run.toml", ["/ip4/203.0.113.7/tcp/31337/p2p/Qm1"])
    "python -m training monitor --recipe 'my run.toml' --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm1"
    """
    words = ["python", "-m", "training", role, "--recipe", recipe]
    return shlex.join([*words, *(word for peer in initial_peers for word in ("--initial-peers", peer))])
