"""Options that several commands share: which checkpoint draws and how it samples, and who is invited."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from training.errors import BadInput, reason_of
from training.processes.events import EventLog


def _read_invitation(given: str) -> str:
    """Reads the code of an invitation as an option gives it: the code itself, @FILE, or - for a question.

    Raises:
        BadInput: If the file cannot be read.
    """
    if given == "-":
        return typer.prompt("Code of the invitation", hide_input=True).strip()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise BadInput(f"{given[1:]} of --invitation cannot be read: {reason_of(error)}.") from None


INVITATION = "TRAINING_INVITATION"
"""Variable of the environment that may hold the code of an invitation."""
Invitation = Annotated[
    str | None,
    typer.Option(
        envvar=INVITATION,
        show_envvar=False,
        parser=_read_invitation,
        metavar="CODE|@FILE|-",
        help="Invitation, for a run that admits members only: its code, a file that holds it, or - to be asked for it, "
        "since other users of this machine see the code in the list of processes. TRAINING_INVITATION in the "
        "environment does the same. Later starts in the same folder need none.",
    ),
]


def pass_on(invitation: str | None) -> None:
    """Hands an invitation to the servers that this program starts.

    They read it in their environment, which other users of the machine do not see, as they would see their commands.
    """
    if invitation is not None:
        os.environ[INVITATION] = invitation


def writable(log: Path | None) -> Path | None:
    """Returns the file of `--log-json` once it has opened it, before anything slow is loaded.

    Raises:
        BadInput: If the file cannot be written.
    """
    EventLog(log)
    return log


LogJson = Annotated[
    Path | None, typer.Option(callback=writable, help="Append events to this file, one JSON object per line.")
]
PushTo = Annotated[
    str | None,
    typer.Option(
        help="Copy each checkpoint, with a model card, to this place as well: a folder, s3://BUCKET/PATH or "
        "hf://OWNER/NAME. Keys come from the environment (AWS_..., HF_TOKEN)."
    ),
]
ScoringClip = Annotated[
    str | None,
    typer.Option(
        "--clip",
        help="Folder or name of a CLIP model, such as openai/clip-vit-base-patch32: the monitor computes the CLIP "
        "score of each checkpoint's pictures of held-out captions.",
    ),
]
InitialPeers = Annotated[
    list[str] | None,
    typer.Option(
        help="Another server of the same run, on another machine: /ip4/ADDRESS/tcp/PORT/p2p/ID. May be given several "
        "times."
    ),
]
Checkpoint = Annotated[
    Path, typer.Option(help="Checkpoint folder, or a run's folder, whose latest checkpoint is used.")
]
Shards = Annotated[str | None, typer.Option(help="Folder or URL of the shards, if they have moved since the run.")]
TopK = Annotated[
    int | None,
    typer.Option(min=0, help="Sample from this many of the likeliest codes; 0: from all. Default: the recipe's."),
]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the likeliest codes up to this probability. Default: the recipe's.")
]
Temperature = Annotated[
    float | None, typer.Option(help="Sampling temperature: above 1 is bolder, below 1 safer. Default: 1.")
]


def refuse(kind: str, flags: Mapping[str, object]) -> None:
    """Refuses flags that do not apply to a checkpoint's kind of model.

    Args:
        kind: Output of the checkpoint's model, `pictures` or `text`.
        flags: Flag -> its value; None if the flag was not given.

    Raises:
        BadInput: If one of the flags was given.
    """
    if given := [flag for flag, value in flags.items() if value is not None]:
        raise BadInput(f"This checkpoint makes {kind}, for which {', '.join(given)} means nothing. Omit these flags.")
