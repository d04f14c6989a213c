"""`notebook`: a notebook that joins a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Address = Annotated[
    str | None,
    typer.Argument(
        metavar="URL",
        help="Address of the run, as for `join`. Default: the reader of the notebook names the run.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option(help="File to write. Default: SITE.ipynb.")]


def run(
    address: Address = None,
    site: Annotated[Literal["colab", "kaggle"], typer.Option(help="Site that runs the notebook.")] = "colab",
    out: Out = None,
) -> None:
    """Write a notebook with which others join a run on Google Colab or Kaggle."""
    from training.publish.notebook import notebook
    from training.storage.whole import write_whole
    from training.volunteer.address import find_run

    file = out or Path(f"{site}.ipynb")
    facts = {} if address is None else {"address": address, "run": find_run(address).run}
    write_whole(file, notebook(site, **facts))
    print(f"{file} is written.")
