"""`convert`: weights of dalle-pytorch to a checkpoint, and a checkpoint to dalle-pytorch, transformers or peft."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="Weights of dalle-pytorch (.pt or .safetensors), or a checkpoint folder of this project.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Folder for the checkpoint, for transformers or for peft, or the file for dalle-pytorch (.pt or "
            ".safetensors).",
        ),
    ],
    recipe: Annotated[
        str | None,
        typer.Option(help="Recipe of the checkpoint to write: a name, file or URL."),
    ] = None,
    epoch: Annotated[int, typer.Option(min=0, help="Epoch to record in the checkpoint.")] = 0,
    shards: Annotated[
        str | None, typer.Option(help="Folder or URL of the shards, for codec and tokenizer. Default: the recipe's.")
    ] = None,
    adapters: Annotated[
        bool,
        typer.Option(
            "--adapters",
            help="Write a checkpoint's adapters for peft. Otherwise they are merged into the model for transformers.",
        ),
    ] = False,
) -> None:
    """Convert dalle-pytorch's weights to a checkpoint, or a checkpoint to weights of other libraries; IN decides."""
    print(_convert(source, out, recipe=recipe, epoch=epoch, shards=shards, adapters=adapters))


def _convert(source: Path, out: Path, *, recipe: str | None, epoch: int, shards: str | None, adapters: bool) -> str:
    """Converts `source`. Returns a sentence on the written files."""
    from training.checkpoints.checkpoint import find_checkpoint, recipe_of
    from training.checkpoints.convert import (
        export_adapters_of,
        export_checkpoint,
        import_weights,
    )
    from training.generate.texts import export_texts

    if adapters:
        export_adapters_of(source, out)
        return f"Wrote {out} for peft: PeftModel.from_pretrained(base, {str(out)!r})."
    if source.is_dir() and recipe_of(find_checkpoint(source)).kind == "text":
        export_texts(source, out, shards)
        return f"Wrote {out} for transformers: AutoModelForCausalLM.from_pretrained({str(out)!r})."
    if source.is_dir():
        export_checkpoint(source, out)
        return f"Wrote {out} for dalle-pytorch 1.6.6."
    path = import_weights(source, out, recipe=recipe, epoch=epoch, shards=shards)
    return f"Wrote the checkpoint {path}."
