"""The project's tasks: `nox -l` lists them, `nox -s NAME` runs one, set-up included.

Each session keeps an environment under .nox with the versions pinned in constraints/. Arguments behind `--` go to
the program: `nox -s demo -- --epochs 20`.

PyTorch's build is chosen by whether the machine has an NVIDIA GPU, and the choice is printed; TORCH_BUILD=cpu or
TORCH_BUILD=default overrides it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2026.1"

ALL = ("builder", "site", "zensical", "training", "tests")
"""Extras of the project that its tests need."""
PROJECT = nox.project.load_toml("pyproject.toml")["project"]
TORCH = "torch==2.13.0"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
HIVEMINDS_TESTS = ("auth", "allreduce", "allreduce_fault_tolerance", "averaging", "optimizer", "compression")
HIVEMINDS_RUNNER = "pytest-asyncio==1.5.0"
NOT_OURS = (
    # A live peer's fault that lasts through all repetitions costs the group the average; hivemind's peers use the parts
    # that they got. tests/training/swarm/test_faults.py has these faults, lasting and passing, with exact results.
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.SLOW_SENDING-Fault.FAIL_SENDING]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.FAIL_SENDING-Fault.FAIL_BEFORE]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.SLOW_REDUCING-Fault.FAIL_SENDING]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.FAIL_REDUCING-Fault.FAIL_REDUCING]",
    # The bits of a group's key are set once, in the averager's settings.
    "test_averaging.py::test_getset_bits",
    # Newcomers do not heed the priority that a donor claims, see tests/training/swarm/test_download.py.
    "test_averaging.py::test_load_state_priority",
    # Our averager of gradients makes the tensors that are averaged: nobody can hand it tensors of other shapes.
    "test_optimizer.py::test_grad_averager_wrong_shape",
    # These five average extra tensors and the optimizer's statistics; our peers average gradients and weights only.
    "test_optimizer.py::test_state_averager",
    # Our local updates are another algorithm, see tests/training/swarm/test_local_updates.py.
    "test_optimizer.py::test_optimizer[True-False-False-False-False]",
    "test_optimizer.py::test_optimizer[True-True-False-False-False]",
)
"""hivemind's tests that do not apply to this project's classes."""
COMPUTING = ("checkpoints", "data", "generate", "model", "optim", "publish", "simulate")
ALONE = ("tests/calculator", *(f"tests/training/{folder}" for folder in COMPUTING))
"""Tests that only compute, in one thread: they run beside the others, which mostly wait for browsers and peers."""
END_WITH_NOX = {"TESTS_END_WITH_PARENT": str(os.getpid())}
"""Makes the tests end when nox does; see tests/programs.py."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small model with three volunteers on this machine and watch it on the site."""
    _install(session, "builder", "site", "training")
    _build_site(session)
    # After Ctrl-C the demo needs some seconds to end all its processes; nox would kill it after half a second.
    session.run("python", "-m", "training", "demo", "--site", "public", *session.posargs, terminate_timeout=15)


@nox.session
def tests(session: nox.Session) -> None:
    """Run all tests: style, unit, peers that really average, and the site in a real browser."""
    _install(session, *ALL)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    _build_site(session)
    environment = {"CHROMIUM": _browser(session), "BUILT_SITE": str(Path("public").resolve())}
    environment |= END_WITH_NOX | _kept_bytecode(session)
    if session.posargs:
        _pytest(session, *session.posargs, env=environment)
        return
    with _beside(session, *ALONE, env=environment):
        _pytest(session, *(f"--ignore={tests}" for tests in ALONE), env=environment)


@nox.session
def site(session: nox.Session) -> None:
    """Build the site into public/; with `-- serve`, show it at http://127.0.0.1:8000/ as well."""
    _install(session, "builder", "site")
    _build_site(session)
    if session.posargs == ["serve"]:
        _serve(session, "public")


@nox.session
def site_zensical(session: nox.Session) -> None:
    """Build the same pages with Zensical, Material's successor, into build/zensical/; `-- serve` shows them as well."""
    _install(session, "builder", "zensical")
    session.run("python", "site/build.py", "--generator", "zensical", "--out", "build/zensical")
    if session.posargs == ["serve"]:
        _serve(session, "build/zensical")


@nox.session
def training(session: nox.Session) -> None:
    """Run a part of a collaboration: `nox -s training -- join --recipe URL --initial-peers ADDRESS`."""
    _install(session, "training")
    # After Ctrl-C a part takes leave for up to five seconds; a second signal, which nox soon sends, cuts that short.
    session.run("python", "-m", "training", *session.posargs, interrupt_timeout=10)


@nox.session
def hivemind(session: nox.Session) -> None:
    """Run hivemind's own tests against this project's classes; `-- -k auth` runs a part of them.

    They come from hivemind's source distribution, which pip fetches unless one is named: `-- hivemind-1.1.12.tar.gz`.
    """
    _install(session, *ALL)
    session.install("--no-deps", HIVEMINDS_RUNNER)
    folder = Path(session.create_tmp(), "hivemind")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    named = [Path(argument) for argument in session.posargs if argument.endswith(".tar.gz")]
    options = [argument for argument in session.posargs if not argument.endswith(".tar.gz")]
    with tarfile.open(named[0] if named else _hiveminds_sources(session, folder)) as archive:
        for name in HIVEMINDS_TESTS:
            member = next(file for file in archive if file.name.endswith(f"/tests/test_{name}.py"))
            (folder / f"test_{name}.py").write_bytes(archive.extractfile(member).read())
    root = Path(__file__).parent
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers =\n    forked: ran in a child process\n")
    paths = os.pathsep.join(map(str, [root, root / "tests" / "hivemind_suite"]))
    options += ["-p", "substitution", "-p", "no:cacheprovider", "-W", "ignore"]
    options += [f"--deselect={test}" for test in NOT_OURS]
    with session.chdir(folder):
        _pytest(session, "--timeout=240", *options, env={"PYTHONPATH": paths, **END_WITH_NOX})


@nox.session
def format(session: nox.Session) -> None:
    """Format the code and fix what ruff can."""
    _install(session, "tests")
    session.run("ruff", "check", "--fix", ".")
    session.run("ruff", "format", ".")


@nox.session(reuse_venv=False)
def constraints(session: nox.Session) -> None:
    """Resolve every profile anew and write the pinned versions to constraints/."""
    for profile, extras in {
        "zensical": ("builder", "zensical"),
        "site": ("builder", "site"),
        "training": ("builder", "site", "training"),
        "tests": ALL,
    }.items():
        torch = (TORCH,) if "training" in extras else ()
        session.install("--upgrade", *torch, *_requirements(*extras), silent=False)
        frozen = session.run("python", "-m", "pip", "list", "--format=freeze", silent=True) or ""
        pins = [line.split("+")[0] for line in frozen.splitlines() if "==" in line and not line.startswith("pip==")]
        Path("constraints", f"{profile}.txt").write_text("\n".join(sorted(pins, key=str.lower)) + "\n")


def _requirements(*extras: str) -> list[str]:
    return sorted({requirement for extra in extras for requirement in PROJECT["optional-dependencies"][extra]})


def _hiveminds_sources(session: nox.Session, folder: Path) -> Path:
    """hivemind's source distribution, of the version that is pinned.

    pip looks into what it downloads with hivemind's setup.py, which needs setuptools' former pkg_resources.
    """
    pins = Path("constraints", "tests.txt").read_text().splitlines()
    old_setuptools = folder / "build.txt"
    old_setuptools.write_text("setuptools<81\n")
    environment = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(old_setuptools.resolve()))
    pinned = next(pin for pin in pins if pin.startswith("hivemind=="))
    download = ["download", "--no-deps", "--no-binary", "hivemind", "--dest", str(folder), pinned]
    session.run("python", "-m", "pip", *download, env=environment)
    return next(folder.glob("hivemind-*.tar.gz"))


def _pytest(session: nox.Session, *arguments: str, env: dict[str, str]) -> None:
    """Runs tests; after Ctrl-C they have ten seconds to end what they have started, where nox gives 0.3 by itself."""
    session.run("python", "-m", "pytest", *arguments, env=env, interrupt_timeout=10)


def _kept_bytecode(session: nox.Session) -> dict[str, str]:
    """Environment in which modules are compiled once, also where PYTHONDONTWRITEBYTECODE forbids it.

    The tests start some hundred programs; each of them would compile torch and hivemind anew, for four seconds. The
    source tree stays as clean as that variable wants it.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    folder = Path(session.virtualenv.location, "bytecode").resolve()
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}


@contextlib.contextmanager
def _beside(session: nox.Session, *tests: str, env: dict[str, str]) -> Iterator[None]:
    """Runs tests in parallel with the block; then prints their output, and fails the session if they failed."""
    command = [str(Path(session.bin, "python")), "-m", "pytest", *tests]
    environment = {**os.environ, **env, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as printed:
        running = subprocess.Popen(command, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        try:
            yield
        except KeyboardInterrupt:
            running.kill()
            raise
        finally:
            failed = running.wait()
            printed.seek(0)
            print(printed.read(), flush=True)
    if failed:
        session.error(f"Of {', '.join(tests)} tests have failed.")


def _install(session: nox.Session, *extras: str) -> None:
    """Installs what the extras need, at the pinned versions, once; says what it does while it lasts."""
    profile = extras[-1]
    pins = Path("constraints", f"{profile}.txt")
    build, reason = _torch_build()
    wanted = hashlib.sha256("\n".join([pins.read_text(), build, *_requirements(*extras)]).encode()).hexdigest()
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    quietly = ("--no-compile", "--disable-pip-version-check")
    if "training" in extras:
        index = ("--extra-index-url", CPU_WHEELS, "--retries", "1") if build == "cpu" else ()
        session.log(f"PyTorch: the {build} build, because {reason}.")
        with _heartbeat(session, "installing PyTorch"):
            session.install(*quietly, TORCH, *index, silent=False)
    with _heartbeat(session, f"installing what {' and '.join(extras)} need"):
        session.install(*quietly, "-c", str(pins), *_requirements(*extras), silent=False)
    stamp.write_text(wanted)


def _torch_build() -> tuple[str, str]:
    """`cpu` or `default`, and why."""
    chosen = os.environ.get("TORCH_BUILD", "")
    if chosen in ("cpu", "default"):
        return chosen, "TORCH_BUILD says so"
    if platform.system() != "Linux":
        return "default", f"{platform.system()} has one build only"
    if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0:
        return "default", "nvidia-smi lists a GPU"
    return "cpu", "no NVIDIA GPU was found (TORCH_BUILD=default installs the build for one)"


def _serve(session: nox.Session, folder: str) -> None:
    session.run("python", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", folder)


def _build_site(session: nox.Session) -> None:
    session.run("python", "site/build.py", env={"NO_MKDOCS_2_WARNING": "1"})


def _browser(session: nox.Session) -> str:
    """Path of a Chromium: one that is here, else Playwright's own, else Debian's."""
    if found := os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None):
        return found
    ask = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    session.run("python", "-m", "playwright", "install", "chromium", success_codes=[0, 1])
    path = (session.run("python", "-c", ask, silent=True) or "").strip()
    if Path(path).is_file():
        return path
    if shutil.which("apt-get") and os.geteuid() == 0:
        session.run("apt-get", "update", "-q", external=True)
        session.run("apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", external=True)
        if found := shutil.which("chromium"):
            return found
    session.error("The browser tests need Chromium. Install it (Debian: apt-get install chromium), or set CHROMIUM.")


@contextlib.contextmanager
def _heartbeat(session: nox.Session, doing: str, every_seconds: float = 20) -> Iterator[None]:
    """Logs a line every so often, so that long work is never silent."""
    done = threading.Event()
    started = time.monotonic()

    def beat() -> None:
        while not done.wait(every_seconds):
            session.log(f"still {doing} ({time.monotonic() - started:.0f} s)")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
