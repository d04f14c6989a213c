"""The project's tasks: `nox -l` lists them, `nox -s NAME` installs what a task needs and runs it.

Each session keeps its environment in .nox, with the versions pinned in constraints/. What pip downloads must have the
hashes there, except PyTorch, which has several builds. Arguments after `--` are passed to the program:
`nox -s demo -- --epochs 20`.

On a machine with an NVIDIA GPU a session installs PyTorch's default build, on others its smaller build for CPUs, and
prints which. TORCH_BUILD=cpu or TORCH_BUILD=default overrides this.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_existing_virtualenvs = True
nox.needs_version = ">=2026.1"

ALL = ("builder", "site", "zensical", "training", "tests")
"""The parts of pyproject.toml that the tests need; the last one names the file in constraints/."""
PINS = Path("constraints")
"""A file with pins and hashes for each set of parts, named after the last one, and for each tool."""
TORCH = PINS / "torch.txt"
"""Only its pin: the builds of PyTorch have other hashes than the files of PyPI."""
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
PROFILES = {
    "tests": ALL,
    "training": ("builder", "site", "training"),
    "demo": ("builder", "site", "demo"),
    "site": ("builder", "site"),
    "zensical": ("builder", "zensical"),
}
"""File in constraints/ -> its parts of pyproject.toml: `training` is what the project itself depends on, the others are
groups. The first file has all packages, and the others have the same versions."""
WITH_TORCH = {"demo", "training"}
"""Parts that need PyTorch."""
TOOLS = {"nox": "nox", "uv": "uv", "sbom": "cyclonedx-bom", "fuzz": "atheris"}
"""File in constraints/ -> what it installs beside the parts."""
IN_AN_ENVIRONMENT_OF_OTHERS = ("fuzz",)
"""Tools whose dependencies the tests pin."""
END_WITH_NOX = {"TESTS_END_WITH_PARENT": str(os.getpid())}
"""Makes the tests, and all programs that they start, end if nox ends; see tests/support/programs.py."""
BUILD_SITE, BUILD_ENVIRONMENT = ("python", "site/build.py"), {"NO_MKDOCS_2_WARNING": "1"}
WAITING_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>The site is being built</title>
<p>The site is being built, which takes a minute in a new clone. Then this page shows it; if not, {log} says why.
"""
"""Stands in public/ while the demo runs and no site has been built yet."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@nox.session
def demo(session: nox.Session) -> None:
    """Train a small model with three volunteers on this machine and watch it on the site."""
    # Other recipes may train a language model, which takes 250 MB of packages more.
    has_recipe = any(word.startswith("--recipe") for word in session.posargs)
    _install(session, "builder", "site", "training" if has_recipe else "demo")
    with _site_built_meanwhile(session):
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
    """Run a command of the trainer: `nox -s training -- new FOLDER` makes a run of your own data."""
    _install(session, "training")
    # A run's servers show the site, which a new clone has not built yet.
    with _site_built_meanwhile(session) if session.posargs[:1] == ["new"] else nullcontext():
        # After Ctrl-C a peer tells the others that it leaves, which takes up to five seconds. nox would soon send a
        # second signal, which ends the peer before it has done so.
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
def fuzz(session: nox.Session) -> None:
    """Feed malformed inputs, guided by coverage, to all that reads what others send (Linux); `-- --guided 600`."""
    if platform.system() != "Linux":
        session.error(
            "atheris, which guides the inputs, has wheels for Linux only; "
            "`benchmarks/attacks/attacks.py malformed` needs none."
        )
    _install(session, *ALL)
    session.install(*_tool("fuzz"))
    session.run("python", "benchmarks/attacks/attacks.py", "malformed", "--guided", "60", *session.posargs)


@nox.session
def chaos(session: nox.Session) -> None:
    """Let accidents happen to a run of real programs (Linux); `-- --seed 7`, `-- --hours 1`, `-- --soak 500`."""
    _install(session, "training")
    environment = END_WITH_NOX | _kept_bytecode(session)
    session.run("python", "-m", "tests.chaos", *session.posargs, env=environment, interrupt_timeout=10)


@nox.session
def bench(session: nox.Session) -> None:
    """Compare eight figures with the recorded ones (Linux, root, quiet machine, 20 minutes); `-- --only page`: one."""
    _install(session, *ALL)
    _build_site(session)
    environment = {"CHROMIUM": _browser(session)} | END_WITH_NOX
    session.run("python", "benchmarks/regression.py", *session.posargs, env=environment, interrupt_timeout=10)


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


@nox.session
def constraints(session: nox.Session) -> None:
    """Resolve the versions of all dependencies anew and write them, with hashes, to constraints/."""
    session.install(*_tool("uv"))
    compile_pins = ("uv", "pip", "compile", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate")
    # For all systems and all versions of Python from the oldest one on.
    compile_pins += ("--universal", "--python-version", "3.11")
    for profile, parts in PROFILES.items():
        sources = ["pyproject.toml" if part == "training" else f"--group={part}" for part in parts]
        if WITH_TORCH & set(parts):
            sources += [str(PINS / "torch.in"), "--excludes", str(TORCH)]
        if profile != "tests":
            sources += ["--constraints", str(PINS / "tests.txt")]
        session.run(*compile_pins, *sources, "--output-file", str(PINS / f"{profile}.txt"))
    for tool, package in TOOLS.items():
        wanted = Path(session.create_tmp(), f"{tool}.in")
        wanted.write_text(package)
        options = ("--no-deps",) if tool in IN_AN_ENVIRONMENT_OF_OTHERS else ()
        session.run(*compile_pins, *options, str(wanted), "--output-file", str(PINS / f"{tool}.txt"))


def _tool(name: str) -> tuple[str, ...]:
    """pip's arguments that install a tool."""
    return ("--no-deps", "--require-hashes", "-r", str(PINS / f"{name}.txt"))


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


def _install(session: nox.Session, *parts: str) -> None:
    """Installs the pinned versions of what some extras need, unless they are installed.

    Args:
        session: Its environment gets the packages.
        parts: Names in `PROFILES`; the last one names the file in constraints/.
    """
    pins = PINS / f"{parts[-1]}.txt"
    build, reason = _torch_build()
    wanted = hashlib.sha256("\n".join([pins.read_text(), TORCH.read_text(), build]).encode()).hexdigest()
    stamp = Path(session.virtualenv.location, "installed.txt")
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    quietly = ("--no-compile", "--disable-pip-version-check")
    session.install(*quietly, "--no-deps", "--require-hashes", "-r", str(pins), silent=False)
    if WITH_TORCH & set(parts):
        index = ("--extra-index-url", CPU_WHEELS, "--retries", "1") if build == "cpu" else ()
        session.log(f"PyTorch: the {build} build, because {reason}.")
        session.install(*quietly, "-r", str(TORCH), *index, silent=False)
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
    session.run(*BUILD_SITE, env=BUILD_ENVIRONMENT)


@contextmanager
def _site_built_meanwhile(session: nox.Session) -> Iterator[None]:
    """Builds the site into public/ beside what the block does, and after it in importance; until then, a page waits."""
    log, page = Path("build", "site.log"), Path("public", "index.html")
    log.parent.mkdir(exist_ok=True)
    if not page.exists():
        page.parent.mkdir(exist_ok=True)
        page.write_text(WAITING_PAGE.format(log=log))
    python = str(Path(session.bin, BUILD_SITE[0]))
    environment = os.environ | BUILD_ENVIRONMENT
    with log.open("w") as output:
        build = subprocess.Popen(
            ["nice", python, *BUILD_SITE[1:]], env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    session.log(f"The site is built meanwhile; {log} tells how far it is.")
    try:
        yield
    finally:
        build.terminate()
        build.wait()


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
