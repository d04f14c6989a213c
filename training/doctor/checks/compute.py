"""Checks of what computes: torch, the GPU and its driver, the compiler, the codecs of averages."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from calculator.reports.units import show_bytes
from training.doctor.examination import TOO_SLOW
from training.doctor.finding import Fault, Finding, fine, skipped
from training.doctor.probes.children import NoAnswer

if TYPE_CHECKING:
    from training.doctor.facts.shared import Shared

TORCH_BUILD = (
    "Install PyTorch's build for GPUs: `TORCH_BUILD=default .venv/bin/nox -s training -- doctor`, or "
    "`pip install --force-reinstall torch` from pypi.org."
)

TORCH = Fault(
    name="torch-broken",
    why="Nothing can be computed without it.",
    remedy="Install it again: `pip install --force-reinstall --no-deps torch`. If a library of the system is named, "
    "install that.",
)
TORCH_HANGS = Fault(
    name="torch-hangs",
    why="Training would hang at the same place.",
    remedy="If this machine has a GPU, restart its driver or the machine. `nvidia-smi` must answer at once. Otherwise "
    "look whether a disk or a network folder that it is loaded from answers.",
)
NO_DRIVER = Fault(
    name="gpu-without-driver",
    level="warning",
    why="This peer would compute on the processor, many times slower.",
    remedy="Install NVIDIA's driver (Ubuntu: `sudo ubuntu-drivers install`) and restart.",
)
DRIVER_FAILS = Fault(
    name="gpu-driver-fails",
    level="warning",
    why="This peer would compute on the processor, many times slower.",
    remedy="Restart the machine: after an update of the driver its parts differ until then. If that does not help, "
    "install the driver again.",
)
DRIVER_OLD = Fault(
    name="gpu-driver-old",
    level="warning",
    why="PyTorch cannot use the GPU with it, so this peer would compute on the processor, many times slower.",
    remedy="Install a newer NVIDIA driver, or a build of PyTorch for an older CUDA (pytorch.org/get-started).",
)
CPU_BUILD = Fault(
    name="torch-without-gpu",
    level="warning",
    why="This build of PyTorch cannot use the GPU, so this peer would compute on the processor, many times slower.",
    remedy=TORCH_BUILD,
)
HIDDEN = Fault(
    name="gpu-hidden",
    level="warning",
    why="CUDA_VISIBLE_DEVICES hides the GPU, so this peer would compute on the processor, many times slower.",
    remedy="Unset CUDA_VISIBLE_DEVICES, or set it to the number of the GPU that is to be used, such as 0.",
)
UNUSED = Fault(
    name="gpu-unusable",
    level="warning",
    why="PyTorch cannot use the GPU, so this peer would compute on the processor, many times slower.",
    remedy="See what `nvidia-smi` says. In a container, start it with `--gpus all`.",
)
NOT_BUILT_FOR = Fault(
    name="gpu-unsupported",
    why="This build of PyTorch has no code for this GPU; the first step would end with `no kernel image`.",
    remedy="Install a build of PyTorch that supports it (pytorch.org/get-started), or join with `--device cpu`.",
)
OCCUPIED = Fault(
    name="gpu-memory-occupied",
    level="warning",
    why="Training uses smaller micro-batches in what is left, or ends for lack of memory.",
    remedy="Close the programs that use the GPU; `nvidia-smi` lists them.",
)
NOT_AVAILABLE = Fault(
    name="gpu-not-available",
    why="`join` ends as soon as it asks this GPU for memory.",
    remedy="Close the programs that use it (`nvidia-smi` lists them), or join with `--device cpu`.",
)
GPU_SMALL = Fault(
    name="gpu-memory-too-small",
    why="Training would end for lack of memory at its first step.",
    remedy="Join with `--device cpu`, or use a GPU with more memory. `python -m training plan` says what takes it.",
)
NO_BFLOAT16 = Fault(
    name="gpu-without-half-precision",
    level="warning",
    why="It has no tensor cores, so 16 bits are no faster than 32: it trains in 32 bits and takes more memory.",
    remedy="Nothing to repair: it can join as it is.",
)
NO_DEVICE = Fault(
    name="device-missing",
    why="`join` ends if the device that --device names is not there.",
    remedy="Omit --device, or give `cpu`.",
)
NO_COMPILER = Fault(
    name="no-compiler",
    level="warning",
    why="The optimizer's loops are then computed by PyTorch, several times slower; the others may have to wait.",
    remedy="Install one: `sudo apt install gcc libc6-dev`, on macOS `xcode-select --install`.",
)
CODECS = Fault(
    name="averaging-broken",
    why="Averages would fail without any message, and this peer would train alone.",
    remedy="Install the versions in constraints/training.txt, numpy below 2.4 in particular.",
)
FAULTS = (
    TORCH,
    TORCH_HANGS,
    NO_DRIVER,
    DRIVER_FAILS,
    DRIVER_OLD,
    CPU_BUILD,
    HIDDEN,
    UNUSED,
    NOT_BUILT_FOR,
    OCCUPIED,
    NOT_AVAILABLE,
    GPU_SMALL,
    NO_BFLOAT16,
    NO_DEVICE,
    NO_COMPILER,
    CODECS,
)

FREE_SHARE = 0.7
"""Of a GPU's memory; a desktop takes some hundred megabytes."""
TENSOR_CORES = (7, 0)
"""NVIDIA's GPUs have tensor cores since this compute capability (Volta)."""
SMI_SECONDS = 5
GPU_CLASSES = ("0x0300", "0x0302")
"""PCI classes of graphics cards and of 3D controllers."""
NVIDIA = "0x10de"


def check_torch(shared: Shared) -> Finding:
    """Whether torch can be loaded."""
    try:
        told = shared.compute("torch")
    except NoAnswer as error:
        if error.late:
            return _slow_or_hangs(error).found(f"PyTorch has not loaded yet: {error}.")
        return TORCH.found(f"PyTorch does not load: {error}.")
    build = f"CUDA {told['cuda']}" if told["cuda"] else f"ROCm {told['hip']}" if told["hip"] else "processors"
    return fine(f"PyTorch {told['version']}, built for {build}.")


def _slow_or_hangs(error: NoAnswer) -> Fault:
    return TOO_SLOW if error.computing else TORCH_HANGS


def check_gpu(shared: Shared) -> list[Finding]:
    """Whether the GPU of this machine can be used."""
    try:
        torch, told = shared.compute("torch"), shared.compute("gpus")
    except NoAnswer as error:
        if error.late:
            return [_slow_or_hangs(error).found(f"PyTorch has not told its devices yet: {error}.")]
        return [skipped("Not checked: PyTorch does not load.")]
    wanted = shared.asked.device
    if wanted == "cpu":
        return [fine("With --device cpu, it computes on the processor.")]
    number = _number_of(wanted, len(told["gpus"]))
    one = told if number is None else {**told, "gpus": told["gpus"][number : number + 1]}
    findings = judge_gpu(torch, one, driver_says(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    if wanted is not None and number is None:
        findings.insert(0, NO_DEVICE.found(f"PyTorch finds {len(told['gpus'])} GPUs; --device asks for {wanted}."))
    plan = shared.plan() if told["gpus"] else None
    return [*findings, *judge_fit(plan)] if plan else findings


def judge_fit(plan: dict) -> list[Finding]:
    """Whether one sample at a time fits into the GPU's memory, by step `plan` of the probe."""
    if plan["device_bytes"] <= plan["usable_bytes"]:
        return []
    takes, has = show_bytes(plan["device_bytes"]), show_bytes(plan["usable_bytes"])
    return [GPU_SMALL.found(f"One sample at a time takes {takes}; the GPU has {has} free.")]


def judge_gpu(torch: dict, told: dict, driver: dict, visible: str | None) -> list[Finding]:
    """What PyTorch and the driver say about GPUs, taken together.

    Args:
        torch: Step `torch` of the probe.
        told: Its step `gpus`.
        driver: From `driver_says`.
        visible: CUDA_VISIBLE_DEVICES.
    """
    if told["gpus"]:
        return [finding for gpu in told["gpus"] for finding in _judge_one(gpu, told["built_for"], driver)]
    reason = told["reason"].split(". ")[0].strip().rstrip(".")
    if driver["gpus"]:
        names = ", ".join(driver["gpus"])
        if torch["cuda"] is None and torch["hip"] is None:
            return [CPU_BUILD.found(f"This machine has a GPU ({names}); PyTorch {torch['version']} is for processors.")]
        if visible is not None and _hides_all(visible, len(driver["gpus"])):
            return [HIDDEN.found(f"This machine has a GPU ({names}); CUDA_VISIBLE_DEVICES is {visible!r}.")]
        if "driver" in reason and "too old" in reason:
            return [DRIVER_OLD.found(f"Driver {driver['version']} of {names}: {reason}.")]
        return [UNUSED.found(f"This machine has a GPU ({names}): {reason or 'PyTorch finds none'}.")]
    if driver["fault"]:
        return [DRIVER_FAILS.found(f"nvidia-smi says: {driver['fault']}.")]
    if driver["cards"]:
        return [NO_DRIVER.found(f"This machine has an NVIDIA card ({driver['cards']}), but nvidia-smi finds none.")]
    return [fine("This machine has no NVIDIA GPU; it computes on the processor.")]


def _judge_one(gpu: dict, built_for: list[str], driver: dict) -> list[Finding]:
    title, capability = gpu["title"], tuple(gpu["capability"])
    shown = ".".join(map(str, capability))
    findings = []
    if not _runs_on(capability, built_for):
        findings.append(
            NOT_BUILT_FOR.found(f"{title} has compute capability {shown}; PyTorch is built for {', '.join(built_for)}.")
        )
    who = f": {', '.join(driver['programs'])}" if driver["programs"] else ""
    if gpu["fault"]:
        used = f" It is used by other programs{who}." if who else ""
        findings.append(NOT_AVAILABLE.found(f"{title} answers: {gpu['fault'].rstrip('.')}.{used}"))
    elif gpu["free_bytes"] < FREE_SHARE * gpu["total_bytes"]:
        free, total = show_bytes(gpu["free_bytes"]), show_bytes(gpu["total_bytes"])
        findings.append(OCCUPIED.found(f"{free} of {total} are free on {title}; other programs have the rest{who}."))
    if capability < TENSOR_CORES:
        findings.append(NO_BFLOAT16.found(f"{title} has compute capability {shown}."))
    bits = "bfloat16" if capability >= (8, 0) else "float16"
    return findings or [fine(f"{title}, {show_bytes(gpu['free_bytes'])} free, {bits}.")]


def _runs_on(capability: tuple[int, int], built_for: list[str]) -> bool:
    """Whether a build has code for a GPU: `sm_` for the same major number and no later minor one, `compute_` from that
    capability on (CUDA's programming guide, "Binary compatibility" and "PTX compatibility"). A letter behind the number
    ties code to that one capability, or to its family."""
    suits = []
    for kind, _, number in (name.partition("_") for name in built_for):
        if kind in ("sm", "compute") and number.rstrip("af").isdecimal():
            major, minor = divmod(int(number.rstrip("af")), 10)
            own = major == capability[0] and (
                minor == capability[1] if number.endswith("a") else minor <= capability[1]
            )
            suits.append(own or (kind == "compute" and number.isdecimal() and (major, minor) <= capability))
    return any(suits) or not suits


def _hides_all(visible: str, gpus: int) -> bool:
    """Whether CUDA_VISIBLE_DEVICES leaves no GPU: CUDA takes those that it lists up to the first that is not there."""
    first = visible.split(",")[0].strip()
    # Else a name such as GPU-8932f937, of which we cannot say whether it is there.
    return not first or (first.lstrip("-").isdecimal() and not 0 <= int(first) < gpus)


def driver_says(cards: Path = Path("/sys/bus/pci/devices")) -> dict:
    """What the system knows of NVIDIA's GPUs: names, driver version, programs that use them, a fault, PCI cards.

    Args:
        cards: Where Linux lists PCI devices.
    """
    told = {"gpus": [], "version": "", "programs": [], "fault": "", "cards": _cards(cards)}
    if shutil.which("nvidia-smi") is None:
        return told
    listed, fault = _smi("--query-gpu=name,driver_version")
    told["fault"] = fault
    rows = [line.split(", ") for line in listed if ", " in line]
    told["gpus"], told["version"] = [row[0] for row in rows], rows[0][1] if rows else ""
    if rows:
        told["programs"] = [
            f"{line.split(', ')[0]} ({line.split(', ')[1]} MiB)"
            for line in _smi("--query-compute-apps=process_name,used_memory")[0]
            if ", " in line
        ]
    return told


def _smi(query: str) -> tuple[list[str], str]:
    """Lines of nvidia-smi's answer, and its complaint if it fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=SMI_SECONDS
        )
    except subprocess.TimeoutExpired:
        return [], f"nothing within {SMI_SECONDS} s"
    except OSError as error:
        return [], str(error)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode:
        said = " ".join([*lines, *done.stderr.split()])
        return [], said.rstrip(".") or f"it ends with code {done.returncode}"
    return lines, ""


def _cards(devices: Path) -> str:
    """Places of NVIDIA's graphics cards on the PCI bus."""
    found = []
    for device in sorted(devices.glob("*")):
        with suppress(OSError):
            if (device / "vendor").read_text().strip() == NVIDIA and (device / "class").read_text().startswith(
                GPU_CLASSES
            ):
                found.append(device.name)
    return ", ".join(found)


def check_compiler(shared: Shared) -> Finding:
    """Whether the optimizer's loops can be compiled."""
    try:
        fault = shared.compute("kernels")["fault"]
    except NoAnswer:
        return skipped("Not checked: PyTorch does not load.")
    return NO_COMPILER.found(f"The optimizer's loops are not compiled: {fault}.") if fault else fine("It works.")


def check_codecs(shared: Shared) -> Finding:
    """Whether an average through each codec is right."""
    try:
        told = shared.visit("codecs")
    except NoAnswer as error:
        if error.late:  # a busy machine needs long to load it, which is no fault of its versions
            return TOO_SLOW.found(f"hivemind has not averaged yet: {error}.")
        return CODECS.found(f"hivemind does not work here: {error}.")
    if told["fault"]:
        return CODECS.found(told["fault"])
    return fine(f"Averages are right in {', '.join(told['codecs'])}.")


def _number_of(device: str | None, gpus: int) -> int | None:
    """Number of the GPU that computes, the first one if none is named; None if it is not there."""
    kind, _, number = (device or "cuda").partition(":")
    is_there = kind == "cuda" and (not number or number.isdecimal()) and int(number or 0) < gpus
    return int(number or 0) if is_there else None
