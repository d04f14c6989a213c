"""Compiles a C file of this package on the machine where it runs, for that machine's processor, and loads it.

The library is kept in the user's cache. A hash of the source, the compiler, the flags and the processor is its name, so
that it is compiled once and never loaded on another processor. It is compiled to a draft, tried in a child process, and
renamed into place: peers that start at the same time, or are killed meanwhile, leave no partial file. A digest at the
file's end shows whether it is complete; loading a partial library could kill the process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from training.storage.whole import whole_file

FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
"""Flags of the compiler, without `-ffast-math`: a library linked with it makes the whole process flush denormal numbers
to zero."""
COMPILERS = ("cc", "gcc", "clang")
COMPILE_SECONDS, PROBE_SECONDS = 60, 20
_PROBE = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).probe())"


def cache_folder() -> Path:
    """Folder of this user's compiled libraries."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "training-together" / "kernels"


class NotNative(Exception):
    """Error for a library that cannot be compiled here; the message is the part of a sentence that says why."""


def compiled(source: Path, cache: Path) -> ctypes.CDLL:
    """Compiles and loads the library of a C file; takes a second the first time and a few milliseconds from then on.

    Args:
        source: The C file. It defines `int probe(void)`, which runs its loops and returns 0.
        cache: Folder for libraries, made if it does not exist. If it cannot be written, or other users can write to it,
            the library is compiled for this process only.

    Raises:
        NotNative: If there is no C compiler, the compilation fails, or the result does not run here.
    """
    compiler = _compiler()
    key = [source.read_text(encoding="utf-8"), *FLAGS, _output_of([*compiler, "--version"]), _processor()]
    name = f"{source.stem}-{hashlib.sha256(repr(key).encode()).hexdigest()[:20]}.so"
    if _is_private(cache):
        if not _is_whole(cache / name):
            _build(compiler, source, cache / name)
        return _load(cache / name)
    with tempfile.TemporaryDirectory(prefix="training-kernels-") as folder:
        _build(compiler, source, Path(folder) / name)
        # The loaded library stays in memory after its file is deleted.
        return _load(Path(folder) / name)


def _compiler() -> list[str]:
    """The command in the variable `CC` if it is set, else the first compiler found."""
    if named := shlex.split(os.environ.get("CC", "")):
        return named
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NotNative(f"there is no C compiler ({', '.join(COMPILERS)}; Debian and Ubuntu: apt install gcc libc6-dev)")


def _processor() -> str:
    """Description of the processor's features, on which `-march=native` depends."""
    lines = [platform.machine(), platform.processor()]
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
        telling = ("model name", "flags", "Features", "CPU part")
        lines += [line for line in text.splitlines() if line.startswith(telling)]
    return "\n".join(lines)


def _is_private(folder: Path) -> bool:
    """Makes the folder. Returns True if only this user can write to it, so that its files can be trusted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK)


def _build(compiler: list[str], source: Path, library: Path) -> None:
    with whole_file(library) as fresh:
        for machine in (("-march=native",), ("-mcpu=native",), ()):  # compilers for ARM know only the second
            command = [*compiler, *FLAGS, *machine, str(source), "-o", str(fresh), "-lm"]
            with suppress(NotNative):
                _output_of(command, timeout_seconds=COMPILE_SECONDS)
                break
        else:
            _output_of(command, timeout_seconds=COMPILE_SECONDS)  # fails again and raises the compiler's message
        # In a child, since code for another processor would kill this process.
        _output_of([sys.executable, "-I", "-S", "-c", _PROBE, str(fresh)], timeout_seconds=PROBE_SECONDS)
        with fresh.open("ab") as file:  # the loader ignores what follows a library's sections
            file.write(hashlib.sha256(fresh.read_bytes()).digest())


def _output_of(command: list[str], timeout_seconds: float = 10) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout_seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotNative(f"{command[0]} does not work: {error}") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "rror" in line), "no reason given")
        raise NotNative(f"{command[0]} ended with {done.returncode}: {said.strip()[:200]}")
    return done.stdout


def _is_whole(library: Path) -> bool:
    try:
        content = library.read_bytes()
    except OSError:
        return False
    size = len(content) - hashlib.sha256().digest_size
    return size > 0 and hashlib.sha256(content[:size]).digest() == content[size:]


def _load(library: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise NotNative(f"the compiled library cannot be loaded: {error}") from None
