"""Every command shows at once that it runs: a line before anything slow is loaded, and a moving sign on a terminal."""

import os
import re
import select
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import typer

from tests.support.programs import run_program, until
from training.cli import COMMANDS, build_app
from training.commands.alive import moving

APP = build_app()
LOADS = """
import subprocess, sys

def start(command, *arguments, **options):
    print("loads", command, file=sys.__stderr__, flush=True)
    raise SystemExit(1)

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "hivemind", "transformers", "datasets", "pyarrow", "numpy"):
            print("loads", name, file=sys.__stderr__, flush=True)
            raise ModuleNotFoundError(name=name)

subprocess.Popen = start
sys.meta_path.insert(0, Slow())
from training.__main__ import main
main()
"""
"""A program as a command line starts it, which tells of its first slow import or child, and ends there."""
LONGEST_WAIT = 60.0


def needed(name: str, folder: Path) -> list[str]:
    """Values of all that a command needs: a word of its own, a number or a folder."""
    types, words = get_type_hints(import_module(COMMANDS[name]).run), []
    for one in typer.main.get_command(APP).commands[name].params:
        if one.required:
            kind = types[one.name]
            word = get_args(kind)[0] if get_origin(kind) is Literal else str(folder)
            value = "1" if kind in (int, float) else word
            words += [value] if one.param_type_name == "argument" else [one.opts[0], value]
    return words


@pytest.mark.programs
def test_every_command_speaks_before_it_loads_anything_slow(tmp_path):
    given = {name: ["--recipe", "demo"] for name in ("bootstrap", "membership", "serve")}
    given |= {name: ["--out", str(tmp_path / name), "--count", "10"] for name in ("draw", "stories")}

    def said(name: str) -> list[str]:
        words = given.get(name) or needed(name, tmp_path)
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        done = run_program([sys.executable, "-c", LOADS, name, *words], cwd=tmp_path, env=environment)
        return done.stderr.splitlines()

    with ThreadPoolExecutor(2) as pool:
        every = dict(zip(COMMANDS, pool.map(said, COMMANDS), strict=True))
    assert {name: lines for name, lines in every.items() if not lines or f"`{name}`" not in lines[0]} == {}
    loaders = {name for name, lines in every.items() if any(line.startswith("loads ") for line in lines)}
    assert {"bootstrap", "convert", "prepare", "plan", "new", "generate"} <= loaders, every


def read_until(terminal: int, found) -> str:
    """What the terminal shows until it suffices."""
    shown = ""
    while not found(shown):
        assert select.select([terminal], [], [], LONGEST_WAIT)[0], shown
        shown += os.read(terminal, 4096).decode()
    return shown


def test_the_sign_moves_until_the_program_writes():
    ours, its = os.openpty()
    streams, threads = (sys.stdout, sys.stderr), threading.active_count()
    with open(its, "w") as stream, moving("Ada", stream):
        read_until(ours, lambda shown: len(set(re.findall(r"([-\\|/])(?:\x1b\[0m)? Ada", shown))) >= 2)
        assert sys.stdout.isatty() == streams[0].isatty() and threading.active_count() > threads
        sys.stderr.write("")
        assert (sys.stdout, sys.stderr) == streams
        until(lambda: threading.active_count() == threads)
        stream.write("the end")
    assert re.search(r"\x1b\[2K(\x1b\[\?25h)?the end$", read_until(ours, lambda shown: shown.endswith("the end")))
    os.close(ours)


FORKS = """
import os, sys
from training.commands.alive import moving

with moving("Ada", sys.stderr):
    children = []
    for _ in range(50):
        if not (child := os.fork()):
            print("child", file=sys.stdout, flush=True)
            os._exit(0)
        children.append(os.waitpid(child, 0)[1])
print(children == [0] * 50)
"""


@pytest.mark.programs
def test_a_process_that_is_forked_meanwhile_writes_and_ends(programs):
    """hivemind forks processes while a command loads; the sign's lock may be held then."""
    ours, its = os.openpty()
    process = programs.start([sys.executable, "-c", FORKS], stdout=its, stderr=its)
    os.close(its)
    shown = read_until(ours, lambda shown: "True" in shown or "False" in shown)
    assert shown.count("child") == 50 and "True" in shown and process.wait(LONGEST_WAIT) == 0
    os.close(ours)
