"""The folder of a run: its recipe, its data, and all that its servers and a reader need to start it again.

recipe.toml     the run, for its volunteers
servers.toml    ports and addresses of the servers: change them here
README.md       the commands that matter
shards/         the prepared data
bootstrap/, monitor/, checkpoints/, history.sqlite, pictures/, backups/    what the servers keep
logs/           what they print, and their events
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from calculator.swarm.recipe_file import toml
from calculator.units import show_count
from training.data.store.shards import Kind, Manifest, TextManifest
from training.errors import BadInput
from training.processes.servers.ports import ANYWHERE
from training.recipe import load_recipe
from training.storage.whole import write_whole

RECIPE, SERVERS, README, SHARDS, LOGS = "recipe.toml", "servers.toml", "README.md", "shards", "logs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Servers:
    """How a run's servers are started; kept in the run's folder."""

    shards: str
    """Folder of the prepared data, within the run's folder or anywhere."""
    host: str = ANYWHERE
    """Address at which the site is served."""
    port: int
    """Port of the site."""
    dht_host: str = ANYWHERE
    """Address at which the servers listen for peers."""
    dht_port: int
    """Port of the bootstrap peer; the monitor has the next one."""
    address: str | None = None
    """Name or address at which others reach this machine; None: its own addresses."""
    site: str | None = None
    """Folder of the built site; None: `public`, if there is one."""
    push_to: str | None = None
    """Place to which the monitor also copies each checkpoint; None: it copies none."""
    clip: str | None = None
    """CLIP model by which the monitor scores pictures of held-out captions; None: it does not."""
    initial_peers: Sequence[str] = ()
    """Addresses of the run's servers on other machines."""

    @property
    def public_url(self) -> str | None:
        """Address of the site for others; None: as the servers find it."""
        if self.address is None or self.address.startswith(("http://", "https://")):
            return self.address
        return f"http://{self.address}:{self.port}"

    @property
    def announce_host(self) -> str | None:
        """Host at which peers reach this machine; None: its own addresses."""
        return None if self.address is None else re.sub(r"^https?://|[:/].*$", "", self.address)


def read_servers(run_dir: Path) -> Servers:
    """Reads how a run's servers are started.

    Raises:
        BadInput: If the file is missing, or a line in it is wrong.
    """
    path = run_dir / SERVERS
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Servers(**table)
    except OSError:
        raise BadInput(f"{run_dir} has a {RECIPE} but no {SERVERS}: start it with `serve --recipe`.") from None
    except (ValueError, TypeError) as error:
        known = ", ".join(field.name for field in fields(Servers))
        raise BadInput(f"{path} cannot be read: {error}. It has the keys {known}.") from None


def write_servers(run_dir: Path, servers: Servers) -> None:
    """Writes how a run's servers are started, for the next start."""
    lines = [f"{name} = {toml(value)}\n" for name, value in asdict(servers).items() if value not in (None, ())]
    write_whole(run_dir / SERVERS, "# How `new` starts the servers of this run in this folder.\n" + "".join(lines))


def check_servers(changes: Mapping[str, Any], kind: Kind) -> None:
    """Checks that servers of a run of this kind can be started so, before it is written for each later start.

    Raises:
        BadInput: If they cannot.
    """
    if changes.get("clip") is not None:
        from training.generate.clip import check_scores  # imports torch

        check_scores(kind)


def change_servers(run_dir: Path, changes: Mapping[str, Any]) -> Servers:
    """Changes how a run's servers are started from now on; returns how that is.

    Raises:
        BadInput: If they cannot be started so.
    """
    check_servers(changes, load_recipe(str(run_dir / RECIPE)).kind)
    kept = read_servers(run_dir)
    servers = replace(kept, **changes)
    if servers != kept:
        write_servers(run_dir, servers)
    return servers


def held_out_words(manifest: Manifest | TextManifest) -> str:
    """Says how many samples are held out of training, and what for."""
    held_out = manifest.splits.get("held-out")
    if held_out is None or not held_out.samples:
        return "Nothing is held out of training, so the dashboard shows no loss on samples that nobody trains on."
    samples = f"{show_count(held_out.samples)} more are" if held_out.samples > 1 else "One more is"
    return f"{samples} held out of training: the dashboard shows the loss of each checkpoint on them."


def write_readme(run_dir: Path, title: str, commands: Sequence[tuple[str, str]], held_out: str) -> None:
    """Writes the commands that matter into the run's folder.

    Args:
        run_dir: The run's folder.
        title: The run's title.
        commands: Each a sentence and the command that it is about.
        held_out: Sentence on samples that are held out of training.
    """
    parts = [f"# {title}", "Everything of this run is in this folder."]
    parts += [f"{sentence}\n\n    {command}" for sentence, command in commands]
    parts.append(_CONTENT.format(held_out=held_out))
    write_whole(run_dir / README, "\n\n".join(parts) + "\n")


_CONTENT = f"""- `{RECIPE}`: what is trained, and how. Its comments say what may be changed.
- `{SERVERS}`: ports and addresses of the servers.
- `{SHARDS}/`: the prepared data. {{held_out}}
- `checkpoints/`: the weights. `history.sqlite`: the dashboard's curves; copies of it are in `backups/`.
- `damaged/`: files that the monitor found damaged and does not use.
- `bootstrap/`, `monitor/`: the servers' secret keys. Keep a copy of them where only you can read it.
- `{LOGS}/`: what the servers have printed."""
