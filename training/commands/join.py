"""`join`: a volunteer's command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def run(
    recipe: Annotated[str, typer.Option(help="Recipe of the run: a name, a TOML file or a URL.")],
    initial_peers: Annotated[
        list[str], typer.Option(help="A peer of the run: /ip4/ADDRESS/tcp/PORT/p2p/ID. May be given several times.")
    ],
    name: Annotated[str | None, typer.Option(help="Your name on the leaderboard.")] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="Samples computed at once; less needs less memory. Without it: chosen."),
    ] = None,
    checkpointing: Annotated[
        bool | None,
        typer.Option(
            "--checkpointing/--no-checkpointing",
            help="Compute activations again instead of keeping them: less memory, more time. Without it: chosen.",
        ),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="In which layers compute; 16 bit take less memory. Without it: chosen."),
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Have torch.compile make kernels of what lies between products of matrices: for GPUs, where it takes "
            "some time at the start.",
        ),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1 and so on. Without it: the first GPU, if there is one.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute. Without it: one for each core.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Leave when the run has done so many epochs (global updates).")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Keeps your identity and contribution, so that a restart goes on counting.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Folder of checkpoints: start from the latest, unless the run is further.")
    ] = None,
    shards: Annotated[
        str | None, typer.Option(help="Folder or URL of the shards, if not where the recipe says.")
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="What your link carries, both ways, in Mbit/s: slow links average smaller parts. Without it: as fast "
            "as the run's state came, where that was long enough to tell.",
        ),
    ] = None,
    client_mode: Annotated[
        bool, typer.Option("--client-mode", help="Accept no incoming connections (firewall, NAT).")
    ] = False,
    host_maddrs: Annotated[list[str] | None, typer.Option(help="Address to listen on.")] = None,
    announce_maddrs: Annotated[
        list[str] | None, typer.Option(help="Address at which others reach this machine, if it sees another itself.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the order of samples. Without it: from your id.")] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what is chosen and why; check recipe, shards, network and averaging; stop."
        ),
    ] = False,
    log_json: Annotated[Path | None, typer.Option(help="Append events to this file, one JSON object a line.")] = None,
) -> None:
    """Join a run: train its model together with the others."""
    from training.config import load_recipe
    from training.processes.environment import prepare_environment
    from training.processes.role import run_role

    config = load_recipe(recipe)
    prepare_environment()

    def role(stop):
        import tempfile

        print(f"Joining {config.run_id} ({config.title}). PyTorch and hivemind take some seconds to load.", flush=True)
        from rich.console import Console

        from training.compute.choices import Wishes
        from training.processes.events import EventLog
        from training.roles.peer import check_peer, run_peer
        from training.volunteer.settings import PeerSettings

        settings = PeerSettings(
            initial_peers=tuple(initial_peers),
            name=name,
            wishes=Wishes(
                device=device,
                micro_batch_size=micro_batch_size,
                precision=precision,
                checkpointing=checkpointing,
                compiled=compiled,
            ),
            threads=threads,
            epochs=epochs,
            resume=resume,
            shards=shards,
            bandwidth_mbits=bandwidth,
            client_mode=client_mode,
            host_maddrs=tuple(host_maddrs or ["/ip4/0.0.0.0/tcp/0"]),
            announce_maddrs=tuple(announce_maddrs or ()),
            seed=seed,
        )
        console = Console(highlight=False, soft_wrap=True)
        with tempfile.TemporaryDirectory(prefix="peer-") as passing:
            folder = state_dir or Path(passing)
            events = EventLog(log_json)
            if dry_run:
                check_peer(config, settings, folder, events=events, console=console)
            else:
                run_peer(config, settings, folder, stop=stop, events=events, console=console)

    run_role(role)
