"""The project's tasks: `nox -l` lists them, `nox -s NAME` installs what a task needs and runs it.

Each session keeps its environment in .nox, with the versions pinned in constraints/. What pip downloads must have the
hashes in constraints/hashes.txt, except PyTorch, which has several builds. Arguments after `--` are passed to the
program: `nox -s demo -- --epochs 20`.

On a machine with an NVIDIA GPU a session installs PyTorch's default build, on others its smaller build for CPUs, and
prints which. TORCH_BUILD=cpu or TORCH_BUILD=default overrides this.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2026.1"

ALL = ("builder", "site", "zensical", "training", "tests")
"""The optional dependencies (see pyproject.toml) that the tests need; the last one names the file in constraints/."""
PROJECT = nox.project.load_toml("pyproject.toml")["project"]
TORCH = "torch==2.13.0"
PINS = Path("constraints")
HASHES = PINS / "hashes.txt"
"""Of all files of the pinned versions, in all sets of extras."""
PACKAGE_INDEX = "https://pypi.org/simple"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
TOOLS = {
    "nox": ("nox", "colorama"),  # the latter for Windows
    "sbom": ("cyclonedx-bom",),
    # These two are installed among the packages of the tests, which pin what they need.
    "fuzz": ("--no-deps", "atheris"),
    "hivemind": ("--no-deps", "pytest-asyncio"),
}
"""What is installed beside the extras: pip's arguments, for which constraints/ has a file with pins and hashes."""
HIVEMINDS_TESTS = ("auth", "allreduce", "allreduce_fault_tolerance", "averaging", "optimizer", "compression")
NOT_APPLICABLE = (
    # If several live peers have faults in every repetition of an average, our group gives up the average. hivemind's
    # peers use the parts that they got, as these tests expect. tests/training/swarm/round/test_faults.py tests the same
    # faults, lasting and temporary, with exact results.
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.SLOW_SENDING-Fault.FAIL_SENDING]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.FAIL_SENDING-Fault.FAIL_BEFORE]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.SLOW_REDUCING-Fault.FAIL_SENDING]",
    "test_allreduce_fault_tolerance.py::test_fault_tolerance[Fault.FAIL_REDUCING-Fault.FAIL_REDUCING]",
    # Our averager gets the bits of its group's key with its settings; they cannot be changed later.
    "test_averaging.py::test_getset_bits",
    # Our newcomers choose a donor without regard to the priority that it claims; see
    # tests/training/swarm/state/test_download.py.
    "test_averaging.py::test_load_state_priority",
    # Our averager of gradients makes the tensors that it averages, so nobody can give it tensors of other shapes.
    "test_optimizer.py::test_grad_averager_wrong_shape",
    # These five average extra tensors and the optimizer's statistics; our peers average gradients and weights only.
    "test_optimizer.py::test_state_averager",
    # Our local updates are another algorithm, see tests/training/swarm/epoch/test_local_updates.py.
    "test_optimizer.py::test_optimizer[True-False-False-False-False]",
    "test_optimizer.py::test_optimizer[True-True-False-False-False]",
)
"""Tests of hivemind that do not apply to this project's classes."""
END_WITH_NOX = {"TESTS_END_WITH_PARENT": str(os.getpid())}
"""Makes the tests, and all programs that they start, end if nox ends; see tests/programs.py."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small model with three volunteers on this machine and watch it on the site."""
    _install(session, "builder", "site", "training")
    _build_site(session)
    # After Ctrl-C the demo needs some seconds to end its processes. nox would kill it after half a second, and the
    # processes would go on.
    session.run("python", "-m", "training", "demo", "--site", "public", *session.posargs, terminate_timeout=15)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the quick tier of the tests, see tests/tiers.py; `-- PATHS` runs a part of it."""
    _run_tests(session, "--quick", "-n", "2")


@nox.session(name="all")
def all_tests(session: nox.Session) -> None:
    """Run all tests: also each case of a kind, real peers that fail, and all that a page does; `-- PATHS` a part."""
    # One process more than the machines that we know have cores, because tests of peers mostly wait.
    _run_tests(session, "-n", "3")


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
    """Run a command of the trainer: `nox -s training -- join --recipe RECIPE --initial-peers ADDRESS`."""
    _install(session, "training")
    # After Ctrl-C a peer tells the others that it leaves, which takes up to five seconds. nox would soon send a second
    # signal, which ends the peer before it has done so.
    session.run("python", "-m", "training", *session.posargs, interrupt_timeout=10)


@nox.session
def container(session: nox.Session) -> None:
    """Build the image of deploy/Containerfile and test what runs in it; needs Podman or Docker, and a registry.

    Arguments go to the build: `nox -s container -- --build-arg BASE=IMAGE`.
    """
    engine = _container_engine(session)
    _install(session, "builder", "tests")
    build = ("build", "--file", "deploy/Containerfile", "--tag", "training-together", *session.posargs, ".")
    session.run(engine, *build, external=True)
    _pytest(session, "tests/deploy/test_image.py", env={"CONTAINER_ENGINE": engine, **END_WITH_NOX})


@nox.session
def hivemind(session: nox.Session) -> None:
    """Run hivemind's own tests against this project's classes; `-- -k auth` runs some of them.

    The tests are in hivemind's source distribution; pip fetches it unless you name a file: `-- hivemind-1.1.12.tar.gz`.
    """
    _install(session, *ALL)
    session.install(*_tool("hivemind"))
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
    options += [f"--deselect={test}" for test in NOT_APPLICABLE]
    with session.chdir(folder):
        _pytest(session, "--timeout=240", *options, env={"PYTHONPATH": paths, **END_WITH_NOX})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Feed malformed inputs, guided by coverage, to all that reads what others send (Linux); `-- --seconds 600`."""
    if platform.system() != "Linux":
        session.error(
            "atheris, which guides the inputs, has wheels for Linux only; benchmarks/attacks/malformed.py needs none."
        )
    _install(session, *ALL)
    session.install(*_tool("fuzz"))
    session.run("python", "benchmarks/attacks/guided.py", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Let accidents happen to a run of real programs (Linux); `-- --seed 7`, `-- --hours 1`, `-- --soak 500`."""
    _install(session, "training")
    environment = END_WITH_NOX | _kept_bytecode(session)
    session.run("python", "-m", "tests.chaos", *session.posargs, env=environment, interrupt_timeout=10)


@nox.session
def sbom(session: nox.Session) -> None:
    """Write a list of the trainer's packages, with versions and licences, to build/sbom.json (CycloneDX)."""
    _install(session, "training")
    packages = Path("build", "sbom.json").resolve()
    packages.parent.mkdir(exist_ok=True)
    # In an environment of its own: the tool's packages are none of the trainer's.
    tool = Path(session.create_tmp(), "tool")
    session.run("python", "-m", "venv", str(tool))
    python = str(tool / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", *_tool("sbom"), external=True)
    described = ("--output-reproducible", "--pyproject", "pyproject.toml", "--output-file", str(packages))
    session.run(python, "-m", "cyclonedx_py", "environment", *described, session.virtualenv.location, external=True)


@nox.session
def format(session: nox.Session) -> None:
    """Format the code and fix what ruff can."""
    _install(session, "tests")
    session.run("ruff", "check", "--fix", ".")
    session.run("ruff", "format", ".")


@nox.session(reuse_venv=False)
def constraints(session: nox.Session) -> None:
    """Resolve the versions of all dependencies anew and write them to constraints/, a file for each set of extras."""
    for profile, extras in {
        "zensical": ("builder", "zensical"),
        "site": ("builder", "site"),
        "training": ("builder", "site", "training"),
        "tests": ALL,
    }.items():
        torch = (TORCH,) if "training" in extras else ()
        session.install("--upgrade", *torch, *_requirements(*extras), silent=False)
        frozen = session.run("python", "-m", "pip", "list", "--format=freeze", silent=True) or ""
        # Without "+cpu", which names a build of PyTorch and would forbid all others.
        pins = [line.split("+")[0] for line in frozen.splitlines() if "==" in line and not line.startswith("pip==")]
        (PINS / f"{profile}.txt").write_text("\n".join(sorted(pins, key=str.lower)) + "\n")
    hashed = {HASHES, *map(_file_of, TOOLS)}
    _write_hashes(HASHES, {pin for pins in PINS.glob("*.txt") if pins not in hashed for pin in _pins(pins)})
    for tool, arguments in TOOLS.items():
        # In an environment of its own: what the trainer needs must not limit the versions of the tools.
        alone = Path(session.create_tmp(), tool)
        session.run("python", "-m", "venv", "--clear", "--without-pip", str(alone))
        pip = ("python", "-m", "pip", "--python", str(alone))
        session.run(*pip, "install", *arguments)
        _write_hashes(_file_of(tool), (session.run(*pip, "list", "--format=freeze", silent=True) or "").split())


def _file_of(tool: str) -> Path:
    """Pins and hashes of a tool, as a file of requirements."""
    return PINS / f"{tool}.txt"


def _tool(name: str) -> tuple[str, ...]:
    """pip's arguments that install a tool."""
    return ("--no-deps", "--require-hashes", "-r", str(_file_of(name)))


def _pins(file: Path) -> list[str]:
    """The pins of a file in constraints/, without PyTorch's: its builds have other hashes than PyPI's files."""
    return [pin for pin in file.read_text().splitlines() if pin != TORCH]


def _write_hashes(file: Path, pins: Iterable[str]) -> None:
    """Writes the hashes of all files of pinned versions: a requirement of pip in each line.

    All files, because the machines on which they are installed have other systems and versions of Python.
    """
    pins = sorted(pins, key=str.lower)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(_hashes_of, pins)
    lines = [
        " ".join([pin, *(f"--hash=sha256:{one}" for one in hashes)]) for pin, hashes in zip(pins, found, strict=True)
    ]
    file.write_text("\n".join(lines) + "\n")


def _hashes_of(pin: str) -> list[str]:
    """The SHA-256 of a pinned version's files, as the package index says (PEP 691); sorted."""
    name, version = pin.split("==")
    url = f"{PACKAGE_INDEX}/{re.sub('[-_.]+', '-', name).lower()}/"
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    ours = [file for file in files if version == _version_in(file["filename"])]
    if not ours:
        raise ValueError(f"{url} lists no file of {pin}.")
    return sorted(file["hashes"]["sha256"] for file in ours)


def _version_in(filename: str) -> str:
    """Of a wheel (NAME-VERSION-TAGS.whl) or of a source distribution (NAME-VERSION.tar.gz)."""
    if filename.endswith(".whl"):
        return filename.split("-")[1]
    return filename.removesuffix(".zip").removesuffix(".tar.gz").rpartition("-")[2]


def _requirements(*extras: str) -> list[str]:
    return sorted({requirement for extra in extras for requirement in PROJECT["optional-dependencies"][extra]})


def _hiveminds_sources(session: nox.Session, folder: Path) -> Path:
    """Downloads hivemind's source distribution of the pinned version into a folder.

    pip runs hivemind's setup.py to read its metadata. That imports pkg_resources, which newer setuptools lack, so
    pip gets an older one.
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
    """Runs tests; after Ctrl-C they have ten seconds to end the programs that they started, instead of nox's 0.3."""
    session.run("python", "-m", "pytest", *arguments, env=env, interrupt_timeout=10)


def _kept_bytecode(session: nox.Session) -> dict[str, str]:
    """Environment variables with which Python keeps compiled modules, even if PYTHONDONTWRITEBYTECODE is set.

    The tests start about a hundred programs. Without kept bytecode, each would compile torch and hivemind again, which
    takes four seconds. It is kept in the session's folder, so that the source tree stays free of it.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    folder = Path(session.virtualenv.location, "bytecode").resolve()
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder)}


def _run_tests(session: nox.Session, *options: str) -> None:
    """Checks the style, builds the site and runs tests in several processes."""
    _install(session, *ALL)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    _build_site(session)
    environment = {"CHROMIUM": _browser(session), "BUILT_SITE": str(Path("public").resolve()), "OMP_NUM_THREADS": "1"}
    environment |= END_WITH_NOX | _kept_bytecode(session) | _server_tools(session)
    _pytest(session, *options, "--dist", "loadgroup", "--no-loadscope-reorder", *session.posargs, env=environment)


def _install(session: nox.Session, *extras: str) -> None:
    """Installs the pinned versions of what some extras need, unless they are installed; logs while it does so.

    Args:
        session: Its environment gets the packages.
        extras: Names in pyproject.toml; the last one names the file in constraints/.
    """
    profile = extras[-1]
    pins = PINS / f"{profile}.txt"
    build, reason = _torch_build()
    texts = [pins.read_text(), HASHES.read_text(), build, *_requirements(*extras)]
    wanted = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    quietly = ("--no-compile", "--disable-pip-version-check")
    if "training" in extras:
        index = ("--extra-index-url", CPU_WHEELS, "--retries", "1") if build == "cpu" else ()
        session.log(f"PyTorch: the {build} build, because {reason}.")
        with _heartbeat(session, "installing PyTorch"):
            session.install(*quietly, TORCH, *index, silent=False)
    hashed = Path(session.create_tmp(), "hashed.txt").resolve()
    lines = {line.partition(" ")[0]: line for line in HASHES.read_text().splitlines()}
    hashed.write_text("\n".join(lines[pin] for pin in _pins(pins)) + "\n")
    with _heartbeat(session, f"installing what {' and '.join(extras)} need"):
        session.install(*quietly, "--no-deps", "--require-hashes", "-r", str(hashed), silent=False)
        # Finds nothing to do, unless this system or this version of Python needs more than the pins name.
        session.install(*quietly, "--quiet", "-c", str(pins), *_requirements(*extras), silent=False)
    stamp.write_text(wanted)


def _torch_build() -> tuple[str, str]:
    """The build of PyTorch to install, `cpu` or `default`, and the reason."""
    chosen = os.environ.get("TORCH_BUILD", "")
    if chosen in ("cpu", "default"):
        return chosen, f"TORCH_BUILD is {chosen}"
    if platform.system() != "Linux":
        return "default", f"there is only one build for {platform.system()}"
    if shutil.which("nvidia-smi") and subprocess.run(["nvidia-smi", "-L"], capture_output=True).returncode == 0:
        return "default", "nvidia-smi lists a GPU"
    return "cpu", "no NVIDIA GPU was found (TORCH_BUILD=default installs the build for one)"


def _serve(session: nox.Session, folder: str) -> None:
    session.run("python", "-m", "http.server", "8000", "--bind", "127.0.0.1", "--directory", folder)


def _build_site(session: nox.Session) -> None:
    session.run("python", "site/build.py", env={"NO_MKDOCS_2_WARNING": "1"})


def _browser(session: nox.Session) -> str:
    """Path of a Chromium: an installed one, else Playwright's, else one that apt-get installs."""
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


def _container_engine(session: nox.Session) -> str:
    """Podman, or Docker if its daemon answers."""
    for engine in filter(shutil.which, ("podman", "docker")):
        if subprocess.run([engine, "info"], capture_output=True).returncode == 0:
            return engine
    session.error("Building an image needs Podman (Debian: apt-get install podman), or Docker with a running daemon.")


def _server_tools(session: nox.Session) -> dict[str, str]:
    """PATH with the programs that read the files of deploy/; tests skip what is neither installed nor to be had.

    Debian's packages are unpacked, not installed: an installed Caddy would serve this machine's port 80 from now on.
    """
    folder = Path(session.create_tmp(), "server-tools").resolve()
    places = [str(folder / "usr" / place) for place in ("bin", "sbin")]
    path = os.pathsep.join([*places, os.environ["PATH"], "/usr/sbin"])
    missing = [name for name in ("caddy", "logrotate") if not shutil.which(name, path=path)]
    if missing and shutil.which("apt-get") and shutil.which("dpkg"):
        folder.mkdir(parents=True, exist_ok=True)
        with session.chdir(folder):
            # logrotate needs popt, which not every machine has.
            session.run("apt-get", "download", "-q", *missing, "libpopt0", external=True, success_codes=[0, 100])
            for package in folder.glob("*.deb"):
                session.run("dpkg", "--extract", str(package), str(folder), external=True)
    libraries = {str(library.parent) for library in folder.rglob("libpopt.so.0")}
    return {"PATH": path} | ({"LD_LIBRARY_PATH": os.pathsep.join(sorted(libraries))} if libraries else {})


@contextlib.contextmanager
def _heartbeat(session: nox.Session, doing: str, every_seconds: float = 20) -> Iterator[None]:
    """Logs a line every `every_seconds` while the block runs, so that long work does not look as if it hung."""
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
