"""Checks by torch: devices, compiler, the memory that the recipe takes, shards, cache and link."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.choose.devices import Device
from calculator.swarm.exchange import exchange_cost
from calculator.units import show_bytes, show_rate
from training.doctor.checks.machine import first_existing, free_bytes, unwritable
from training.doctor.examination import Answer
from training.doctor.facts import Facts
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import BadInput, TrainingError, first_line
from training.storage.remote import ask

if TYPE_CHECKING:
    from training.compute.plan import Plan
    from training.data.store.shards import Manifest

TORCH = Fault(
    name="torch-broken",
    why="Nothing can be computed without it.",
    remedy="Install it again: `pip install --force-reinstall --no-deps torch`. If a library of the system is named, "
    "install that.",
)
DEVICE = Fault(
    name="device-unusable",
    why="`join` ends as soon as it asks for this device.",
    remedy="Close the programs that use it (`nvidia-smi` lists them), or join with another --device, such as `cpu`.",
)
UNUSED = Fault(
    name="gpu-unused",
    level="warning",
    why="PyTorch cannot use the GPU, so this peer would compute on the processor, many times slower.",
    remedy="`nvidia-smi` must list the GPU: install NVIDIA's driver (Ubuntu: `sudo ubuntu-drivers install`), or "
    "restart the machine after its update. PyTorch must be the build for GPUs: `TORCH_BUILD=default .venv/bin/nox -s "
    "training -- doctor`. Unset CUDA_VISIBLE_DEVICES, and start a container with `--gpus all`.",
)
NOT_BUILT_FOR = Fault(
    name="gpu-unsupported",
    why="This build of PyTorch has no code for this GPU; the first step would end with `no kernel image`.",
    remedy="Install a build of PyTorch that supports it (pytorch.org/get-started), or join with `--device cpu`.",
)
NO_COMPILER = Fault(
    name="no-compiler",
    level="warning",
    why="The optimizer's loops are then computed by PyTorch, several times slower; the others may have to wait.",
    remedy="Install one: `sudo apt install gcc libc6-dev`, on macOS `xcode-select --install`. If the compiled loops "
    "cannot be loaded, set XDG_CACHE_HOME to a folder on a disk that is not mounted with `noexec`.",
)
SMALL = Fault(
    name="memory-too-small",
    why="Training would end for lack of memory, or the system would end it.",
    remedy="Use a machine, a container or a GPU with more memory, or join with another --device. "
    "`python -m training plan` says what takes it.",
)
OCCUPIED = Fault(
    name="memory-occupied",
    level="warning",
    why="Other programs have the memory. If they keep it, training ends for lack of memory.",
    remedy="Close other programs before you join; `nvidia-smi` lists those that use the GPU.",
)
SHARED_SMALL = Fault(
    name="shared-memory-small",
    why="Trainer and averagers share the weights and gradients in /dev/shm. If it is full, the averager is killed.",
    remedy="Enlarge it: `docker run --shm-size=8g`, or `mount -o remount,size=8g /dev/shm`.",
)
SHARDS = Fault(
    name="shards-unreadable",
    why="A volunteer trains on them. `join` leaves out what is not as the manifest describes it, and ends without any.",
    remedy="Omit --shards, to use those of the recipe, or give the folder that `prepare` has written. If they come "
    "from the run's site, tell its maintainer.",
)
UNSUITABLE = Fault(
    name="shards-of-another-model",
    why="The recipe's model has no room for these tokens, so `join` ends.",
    remedy="Use the shards that the recipe names, without --shards, or prepare them again with this recipe.",
)
CACHE = Fault(
    name="cache-unusable",
    why="What is fetched of the shards is kept there; without room, `join` fetches everything again in each pass.",
    remedy="Free space there, or set XDG_CACHE_HOME to a folder that you may write to.",
)
CACHE_SHORT = Fault(
    name="cache-disk-short",
    level="warning",
    why="Shards are kept there up to the cache's size. The disk would be full before, for all programs.",
    remedy="Free space there, set XDG_CACHE_HOME to a folder on another disk, or join with a smaller --cache-size.",
)
SLOW_LINK = Fault(
    name="link-slow",
    level="warning",
    why="An average takes longer than the run waits, so this peer is left out of averages.",
    remedy="Use a wired connection, and stop other traffic while you train.",
)
FAULTS = (
    *(TORCH, DEVICE, UNUSED, NOT_BUILT_FOR, NO_COMPILER, SMALL, OCCUPIED, SHARED_SMALL),
    *(SHARDS, UNSUITABLE, CACHE, CACHE_SHORT, SLOW_LINK),
)

LEAST_BYTES = 1100 << 20
"""Memory of the smallest peer, if there is no recipe: the processes of a peer of the demo took a measured 1.07 GiB,
with shared memory counted once."""
LEAST_SHARED_BYTES = 32 << 20
"""Shared memory that is required in any case. A peer of the demo, whose weights take 5 MiB, took a measured 11 MiB."""
SHARED_COPIES = 4
"""Copies of the trained weights, 4 bytes each, in shared memory: two were measured in the demo (gradients and
parameters); a download and a state that is served to a newcomer are two more."""
SHARD_BYTES = 64 << 20
"""Room for a shard if its size is not known."""
PROBE_BYTES, PROBE_SECONDS = 4 << 20, 2.0
"""Largest part of a shard, and longest time, by which the link is measured."""
LEAST_PROBE_BYTES = 1 << 18
"""Least download by which the link is judged; the time of a smaller one depends more on latency than on bandwidth."""
READ_SECONDS = 3.0
"""Longest time for reading files of a folder; a run's shards may take hours."""
SMI_SECONDS = 5


def examine(facts: Facts, answer: Answer) -> None:
    """Answers all checks that need torch."""
    import psutil

    memory = psutil.virtual_memory()  # before this program takes some of it
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "processors"
    answer("PyTorch", [fine(f"PyTorch {torch.__version__}, built for {build}.")])
    answer("GPU", [check_gpu(facts.asked.device)])
    answer("compiler", [check_compiler()])
    plan = plan_of(facts)
    answer("memory", check_memory(plan, memory.total, memory.available))
    answer("shared memory", [check_shared_memory(plan)])
    answer("shards", [check_shards(facts)])
    answer("cache", [check_cache(facts)])
    answer("link", [check_link(facts, plan)])


def check_gpu(wanted: str | None) -> Finding:
    """Checks that the device on which `join` would train can be used."""
    import torch

    from training.compute.machine import this_machine

    try:
        device = this_machine(wanted)
    except TrainingError as error:
        return DEVICE.found(str(error))
    if device.capability is None:
        system = system_gpus() if wanted is None else ""
        if system:
            return UNUSED.found(f"This machine has a GPU ({system}), and PyTorch finds none: {_why_none()}.")
        return fine("It computes on the processor.")
    built_for, shown = torch.cuda.get_arch_list(), ".".join(map(str, device.capability))
    if not runs_on(device.capability, built_for):
        said = f"{device.title} has compute capability {shown}; PyTorch is built for {', '.join(built_for)}."
        return NOT_BUILT_FOR.found(said)
    return fine(f"{device.title}, {show_bytes(device.usable_bytes)} free.")


def _why_none() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return first_line(error).split(". ")[0].rstrip(".")
    return "it does not say why"


def system_gpus(cards: Path = Path("/sys/bus/pci/devices")) -> str:
    """Output of `nvidia-smi` on this machine's GPUs, or else the PCI addresses of NVIDIA's cards;
    empty if there are none.

    Args:
        cards: Folder in which Linux lists PCI devices.
    """
    if shutil.which("nvidia-smi") is not None:
        try:
            listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_SECONDS)
            return "; ".join((listed.stdout or listed.stderr).split("\n")).strip("; ")
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nvidia-smi: {error}"
    found = []
    for device in sorted(cards.glob("*")):
        with suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            if vendor == "0x10de" and kind.startswith(("0x0300", "0x0302")):  # NVIDIA's graphics cards
                found.append(f"an NVIDIA card at {device.name}, without driver")
    return "; ".join(found)


def runs_on(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Returns whether a build has code for a GPU.

    `sm_` is for the same major number and no later minor one, `compute_` from that capability on (CUDA's programming
    guide, "Binary compatibility" and "PTX compatibility"). A letter behind the number ties code to that one capability,
    or to its family.
    """
    suits = []
    for kind, _, number in (name.partition("_") for name in built_for):
        if kind in ("sm", "compute") and number.rstrip("af").isdecimal():
            major, minor = divmod(int(number.rstrip("af")), 10)
            own = major == capability[0] and (
                minor == capability[1] if number.endswith("a") else minor <= capability[1]
            )
            suits.append(own or (kind == "compute" and number.isdecimal() and (major, minor) <= capability))
    return any(suits) or not suits


def check_compiler() -> Finding:
    """Compiles the optimizer's loops."""
    from training.native import NotNative, cache_folder, compiled
    from training.optim.eight_bit.kernels import SOURCE

    try:
        compiled(SOURCE, cache_folder())
    except (NotNative, OSError) as error:
        return NO_COMPILER.found(f"The optimizer's loops are not compiled: {error}.")
    return fine("The optimizer's loops are compiled.")


def plan_of(facts: Facts) -> Plan | None:
    """Plans training on this machine with one sample at a time;
    None if the recipe or the device cannot be used, which other checks report."""
    from training.compute.machine import this_machine
    from training.compute.plan import make_plan
    from training.tasks.known import task_of

    run = facts.run_or_none()
    with suppress(TrainingError):
        machine = this_machine(facts.asked.device)
        return run and make_plan(task_of(run), machine, micro_batch_size=1, activation_budget_bytes=0)
    return None


def check_memory(plan: Plan | None, total: int, available: int) -> list[Finding]:
    """Checks that one sample at a time fits into the memory of the device, and of the machine.

    Args:
        plan: From `plan_of`.
        total: Memory of the machine, in bytes.
        available: Memory that other programs leave, in bytes.
    """
    from training.compute.machine import group_bytes

    allowed = group_bytes()
    if plan is None:
        return [judge_memory("The smallest peer", LEAST_BYTES, total, available, allowed)]
    device, what = plan.device, "With one sample at a time, this recipe"
    need = max(plan.need_bytes if device.unified else plan.host_bytes, LEAST_BYTES)
    findings = [judge_memory(what, need, total, available, allowed)]
    return findings if device.unified else [*findings, judge_gpu_memory(what, plan.need_bytes, device)]


def judge_memory(what: str, need: int, total: int, available: int, allowed: int | None) -> Finding:
    """Compares the memory that training takes with that of a machine.

    Args:
        what: Name of the training that takes `need`, as the beginning of a sentence.
        need: Bytes that training takes.
        total: Bytes of the machine's memory.
        available: Bytes that other programs leave.
        allowed: Bytes that a container or service still allows; None without a limit.
    """
    told = f"{what} takes about {show_bytes(need)}"
    if allowed is not None and allowed < need:
        return SMALL.found(f"{told}; this program may still take {show_bytes(allowed)}.")
    if total < need:
        return SMALL.found(f"{told}; this machine has {show_bytes(total)}.")
    return (OCCUPIED.found if available < need else fine)(f"{told}; {show_bytes(available)} are free.")


def judge_gpu_memory(what: str, need: int, gpu: Device) -> Finding:
    """Compares the memory that training takes with that of a GPU; arguments as for `judge_memory`."""
    told = f"{what} takes about {show_bytes(need)} of {gpu.title}, which has {show_bytes(gpu.usable_bytes)} free"
    level = SMALL.found if gpu.memory_bytes < need else OCCUPIED.found if gpu.usable_bytes < need else fine
    return level(f"{told}.")


def check_shared_memory(plan: Plan | None, folder: Path = Path("/dev/shm")) -> Finding:
    """Checks that /dev/shm has room for the tensors that the trainer and its averagers share."""
    if not folder.is_dir():
        return skipped(f"Not checked: this system has no {folder}.")
    need, free = max(LEAST_SHARED_BYTES, SHARED_COPIES * 4 * plan.trained_parameters if plan else 0), free_bytes(folder)
    told = f"Training takes up to {show_bytes(need)} of {folder}; {show_bytes(free)} are free."
    return SHARED_SMALL.found(told) if free < need else fine(told)


def check_shards(facts: Facts) -> Finding:
    """Opens the shards, and compares as many files of a folder with the manifest as time allows."""
    from training.tasks.known import task_of

    source, run = facts.source(), facts.run_or_none()
    if source is None:
        return skipped("Not checked: neither a recipe nor --shards says where they are.")
    try:
        manifest = facts.manifest()
        if "://" not in source:
            _check_files(Path(source), manifest)
    except TrainingError as error:
        return SHARDS.found(str(error))
    if run is not None:
        try:
            task_of(run).check_fit(manifest, source=source)
        except BadInput as error:
            return UNSUITABLE.found(str(error))
    samples = sum(split.samples for split in manifest.splits.values())
    return fine(f"The shards at {source} have {samples:,} samples in {len(manifest.files)} files.")


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Compares files with the manifest, the smallest first: the sizes of all files, the contents as far as time allows.

    Raises:
        BadInput: If a file differs.
    """
    from training.data.store.shards import check_file

    deadline = time.monotonic() + READ_SECONDS
    for name, entry in sorted(manifest.files.items(), key=lambda item: item[1].bytes):
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry.bytes or time.monotonic() < deadline:
            check_file(path, entry, source=str(path))


def check_cache(facts: Facts) -> Finding:
    """Checks that the folder that keeps fetched shards has room for them."""
    from training.data.store.cache import CACHE_GB, SUFFIXES, default_cache

    folder, source = default_cache(), facts.source()
    there = first_existing(folder)
    if source is not None and "://" not in source:
        return fine(f"The shards are in a folder, so none of them are kept at {there}.")
    sizes: list[int] = []
    if source is not None:
        with suppress(TrainingError):
            sizes = [entry.bytes for entry in facts.manifest().files.values()]
    free, most = free_bytes(there), max(sizes, default=SHARD_BYTES)
    if free < most:
        return CACHE.found(f"{show_bytes(free)} are free at {there}; one shard takes {show_bytes(most)}.")
    if (fault := unwritable(there)) is not None:
        return CACHE.found(f"{there} cannot be written to: {fault}.")
    taken = sum(path.stat().st_size for path in folder.glob("shards/*/*") if path.suffix in SUFFIXES)
    kept = min(sum(sizes) or CACHE_GB * 1e9, CACHE_GB * 1e9)
    if free + taken < kept:
        return CACHE_SHORT.found(f"{show_bytes(free)} are free at {there}; the cache keeps {show_bytes(int(kept))}.")
    return fine(f"{show_bytes(free)} are free at {there}.")


def check_link(facts: Facts, plan: Plan | None) -> Finding:
    """Checks that the link is fast enough for averages, by the download of a part of a shard."""
    source, run = facts.source(), facts.run_or_none()
    if source is None or not source.startswith(("http://", "https://")) or plan is None or run is None:
        return skipped("Not measured: this needs a readable --recipe, and shards that come from a web server.")
    cost = exchange_cost(run.swarm, plan.trained_parameters)
    needed = 8 * cost.most_sent_bytes / run.swarm.allreduce_timeout_seconds
    try:
        files = facts.manifest().files
        largest = max(files, key=lambda name: files[name].bytes)
        came, seconds = downloaded(f"{source.rstrip('/')}/{largest}")
    except (TrainingError, OSError, ValueError) as error:
        return skipped(f"Not measured: {source} cannot be read ({error}).")
    if came < LEAST_PROBE_BYTES and seconds < PROBE_SECONDS:
        return skipped(
            f"Not measured: the shards are too small. An average needs {show_rate(needed, 'bit', 2)} each way."
        )
    rate = 8 * came / max(seconds, 1e-3)
    told = (
        f"{show_rate(rate, 'bit')} come from {source}; an average needs {show_rate(needed, 'bit', 2)} in each direction"
    )
    return SLOW_LINK.found(f"{told}.") if rate < needed else fine(f"{told}; your upload is not measured.")


def downloaded(url: str) -> tuple[int, float]:
    """Downloads the beginning of a file; returns its bytes, and the seconds from the first to the last byte."""
    came, began = 0, time.monotonic()
    with ask(url, seconds=4 * PROBE_SECONDS) as answer:
        answer.check()
        began = time.monotonic()
        for piece in answer.pieces:
            came += len(piece)
            if came >= PROBE_BYTES or time.monotonic() - began >= PROBE_SECONDS:
                break
    return came, time.monotonic() - began
