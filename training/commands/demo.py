"""`demo`: the whole run on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from training.processes.servers.ports import SITE_PORT


def run(
    recipe: Annotated[str, typer.Option(help="Recipe: a name, a TOML file or a URL.")] = "demo",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Stop with exit code 0 once the run has done this many epochs.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help=f"Port of the site. Default: {SITE_PORT}, or a free one.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run; a second start in it resumes from its last checkpoint. Default: runs/RUN_ID."
        ),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Built site to serve along with the data."),
    ] = None,
    volunteers: Annotated[int, typer.Option(min=0, max=32, help="Volunteers to start.")] = 3,
    pictures: Annotated[int, typer.Option(min=100, help="Pictures to draw for training.")] = 12_000,
    stories: Annotated[int, typer.Option(min=100, help="Stories to write, for a recipe that reads text.")] = 100_000,
) -> None:
    """Train a small model with three volunteers on this machine, and watch it at one URL."""
    from training.demo.config import DemoConfig
    from training.demo.run import run_demo
    from training.recipe import load_recipe

    config = DemoConfig(
        recipe=recipe,
        epochs=epochs,
        port=port,
        run_dir=run_dir or Path("runs", load_recipe(recipe).run_id),
        site=site,
        volunteers=volunteers,
        pictures=pictures,
        stories=stories,
    )
    raise typer.Exit(run_demo(config))
