"""`convert`: weights of dalle-pytorch to a checkpoint of this project, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="dalle-pytorch's weights (.pt or .safetensors), or a checkpoint folder of this project."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder for the checkpoint, or the file for dalle-pytorch (.pt or .safetensors)."
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe that the weights were trained with: a name, file or URL. From dalle-pytorch only."),
    ] = None,
    epoch: Annotated[
        int | None,
        typer.Option(min=0, help="Epoch to record in the checkpoint. Default: the one in --optimizer's file, or 0."),
    ] = None,
    optimizer: Annotated[
        Path | None,
        typer.Option(help="The 2021 run's optimizer_state.pt, saved with these weights. From dalle-pytorch only."),
    ] = None,
    shards: Annotated[
        str | None, typer.Option(help="Folder or URL of the shards, for codec and tokenizer. Default: the recipe's.")
    ] = None,
) -> None:
    """Convert weights between dalle-pytorch and this project; IN decides the direction."""
    from training.checkpoints.conversion import export_checkpoint, import_weights
    from training.errors import BadInput

    if source.is_dir():
        if optimizer is not None:
            raise BadInput(
                "--optimizer only applies to dalle-pytorch's weights, and IN is a checkpoint of this project.",
                cure="Omit --optimizer.",
            )
        export_checkpoint(source, out)
        print(f"Wrote {out} for dalle-pytorch 1.6.6.")
    else:
        path = import_weights(source, out, recipe=recipe, epoch=epoch, shards=shards, optimizer=optimizer)
        print(f"Wrote the checkpoint {path}{' with its optimizer moments' if optimizer else ''}.")
