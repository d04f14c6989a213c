"""Collects the commands and turns errors into one sentence and an exit code."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand

from training.commands.alive import alive
from training.errors import BadInput, TrainingError, reason_of
from training.storage.whole import DISK_FAULTS

if TYPE_CHECKING:
    import click

COMMANDS = {
    "new": "training.commands.new",
    "draw": "training.commands.data.draw",
    "stories": "training.commands.data.stories",
    "prepare": "training.commands.data.prepare",
    "data": "training.commands.data.show",
    "plan": "training.commands.plan",
    "bootstrap": "training.commands.servers.bootstrap",
    "join": "training.commands.join",
    "volunteer": "training.commands.volunteer",
    "doctor": "training.commands.doctor",
    "notebook": "training.commands.notebook",
    "monitor": "training.commands.servers.monitor",
    "serve": "training.commands.servers.serve",
    "restore": "training.commands.servers.restore",
    "membership": "training.commands.servers.membership",
    "moderate": "training.commands.servers.moderate",
    "generate": "training.commands.results.generate",
    "evaluate": "training.commands.results.evaluate",
    "neighbours": "training.commands.data.neighbours",
    "convert": "training.commands.results.convert",
    "demo": "training.commands.demo",
    "simulate": "training.commands.servers.simulate",
}
"""Command name -> module with the function `run`, and `CONTEXT_SETTINGS` for Click if it needs any."""


class _Command(TyperCommand):
    """A command that tells at once that it runs, and whose help shows the options of each panel in plain text."""

    def invoke(self, ctx: click.Context) -> object:
        """Runs the command, whose modules import only what its help needs: the others are loaded from here on."""
        with alive(self.name):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes a section for each panel, in the order in which the panels are first named."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records)


def build_app() -> typer.Typer:
    """The command line with every command registered."""
    app = typer.Typer(
        help="Train a model together, over the Internet.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut the names of flags off in a terminal of 80 columns
    )
    for name, module in COMMANDS.items():
        command = importlib.import_module(module)
        settings = getattr(command, "CONTEXT_SETTINGS", None)
        summary = command.run.__doc__  # typer's own would be cut off
        app.command(name=name, cls=_Command, short_help=summary, context_settings=settings)(command.run)
    return app


def main() -> None:
    """Runs the command line; turns a `TrainingError` or a file error into its message and exit code."""
    try:
        # Checked before typer parses, since typer's own message does not list the commands.
        wanted = sys.argv[1] if len(sys.argv) > 1 else ""
        if wanted and not wanted.startswith("-") and wanted not in COMMANDS:
            raise BadInput(
                f"There is no command {wanted!r}; there are: {', '.join(COMMANDS)}.",
                cure="Type one of the commands that the message lists.",
            )
        build_app()()
    except TrainingError as error:
        print(f"Error: {error.sentence}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        # Without a file name, the fault is most likely in the program (a socket, a process): its traceback helps.
        if error.filename is None and error.errno not in DISK_FAULTS:
            raise
        where = error.filename if error.filename is not None else "A file"
        print(f"Error: {where} cannot be read or written: {reason_of(error)}.", file=sys.stderr)
        sys.exit(TrainingError.exit_code)
