"""The join page's choices: for each machine and recipe the command, and what training then takes of the machine.

The largest micro-batch is the one that `python -m training plan` advises (`calculator.advice`). The memory shown counts
the activations that reversible layers keep while they fit. Nothing here needs PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from calculator import estimate
from calculator.advice import KEPT_ACTIVATION_BYTES, advised_micro_batch, sizes_to_advise
from calculator.devices import DEVICES, GIB, Device
from calculator.fit import ADVISED_SHARE
from calculator.page.words import show_bytes, show_count
from training.compute.plan import setup_of, training_of
from training.config import RunConfig, load_recipe
from training.simulate.forecast import collaboration_of

RECIPES = ("demo", "dalle-2021")

PROGRAM = ".venv/bin/nox -s training --"
"""The trainer in a copy of the project, as the page says to set it up."""

HOST_MEMORY = (4, 8, 16, 32, 64)
"""GiB of host memory that can be chosen."""
PLANNED_HOST_SHARE = 0.5
"""Of the host's memory that is planned with; the rest is for the system and the volunteer's own work."""

MORE = (
    "Python and PyTorch take more on top. If enough memory is free, activations are kept instead of recomputed, up to "
    "nine tenths of a GPU's free memory or half of the computer's; --checkpointing prevents that."
)
"""Holds for every machine."""

PACKAGES_GB = {"nvidia": 6, "cpu": 3}
"""Disk that PyTorch's build and the other packages take, as installed by `nox -s training`."""

SYSTEMS = {
    "linux": "Linux",
    "macos": "macOS",
    "wsl": "Windows with WSL 2",
    "windows": "Windows without WSL",
}
DEVICE_KINDS = {
    "nvidia": "NVIDIA GPU",
    "cpu": "Processor only",
    "apple": "Apple GPU",
    "amd": "AMD or Intel GPU",
}
LINKS = {
    "router": "Behind a router or firewall, or not known",
    "public": "An address that others can reach",
}

DEFAULT = {"system": "linux", "device": "cpu", "gpu": "16", "ram": "8", "link": "router", "recipe": "demo"}

REFUSALS = {
    "windows": "The trainer needs what only Linux and macOS have: its network daemon and its processes are made for "
    "them. In WSL 2 it runs on Windows as well: type <code>wsl --install</code> in PowerShell as administrator, "
    "restart, and choose “Windows with WSL 2”.",
    "macos nvidia": "NVIDIA makes no CUDA for macOS since its version 10.2, so PyTorch cannot use the GPU there. "
    "Choose “Processor only”, or start Linux on this machine.",
    "macos apple": "The trainer asks PyTorch for CUDA and has no code for Apple's GPUs yet. Choose “Processor only”: "
    "the Mac then computes with its processor cores.",
    "apple": "PyTorch reaches Apple's GPUs under macOS only, and the trainer has no code for them yet. Choose "
    "“Processor only”.",
    "amd": "The trainer was never run on these. It asks PyTorch for CUDA; PyTorch's build for AMD's ROCm answers to "
    "that name, but this project does not install it. Choose “Processor only”.",
}
"""Why a choice does not work: by system, device, or both; the first that applies counts."""

NOTES = {
    "macos": "The tests run on Linux; nobody has reported a volunteer on macOS yet.",
    "wsl": "Type it in the window of your Linux distribution, not in PowerShell.",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device with so much memory, as the page offers it."""

    kind: str
    """`nvidia` or `cpu`."""
    memory: str
    """GB of the GPU as sold, or of the host."""
    device: Device
    examples: str
    """GPUs of this size."""

    @property
    def key(self) -> str:
        """Name in the page's data."""
        return f"{self.kind}-{self.memory}"

    @property
    def title(self) -> str:
        """For people."""
        return f"NVIDIA GPU, {self.memory} GB" if self.kind == "nvidia" else f"Processor, {self.memory} GB of memory"


@cache
def machines() -> tuple[Machine, ...]:
    """What can be chosen: each size of NVIDIA's GPUs in the catalogue, the one with the least usable memory standing
    for all, and hosts."""
    sizes: dict[int, list[Device]] = {}
    for device in DEVICES.values():
        if device.capability is not None:
            sizes.setdefault(_sold_as(device.memory_bytes), []).append(device)
    found = []
    for size, devices in sorted(sizes.items()):
        least = min(devices, key=lambda device: device.usable_bytes)
        names = ", ".join(device.title.split(",")[0] for device in devices)
        found.append(Machine(kind="nvidia", memory=str(size), device=least, examples=names))
    for size in HOST_MEMORY:
        device = Device(
            name="cpu",
            title="processor",
            memory_bytes=size * GIB,
            usable_bytes=int(PLANNED_HOST_SHARE * size * GIB),
            capability=None,
            source="half of the host's memory",
            unified=True,
        )
        found.append(Machine(kind="cpu", memory=str(size), device=device, examples=""))
    return tuple(found)


def _sold_as(memory_bytes: int) -> int:
    """GB on the box: of 2**30 bytes, or of 10**9 where that is the round number."""
    return memory_bytes // GIB if memory_bytes % GIB == 0 else memory_bytes // 10**9


def micro_batch(run: RunConfig, device: Device) -> int:
    """Samples at once, as `plan` advises where nothing was measured; 0 if not even one fits."""
    training = training_of(run)
    sizes = sizes_to_advise(run.swarm.target_batch_size)
    return advised_micro_batch(sizes, lambda size: training.need_bytes(device, size), device)


def command(recipe: str, samples: int, *, link: str = "public", kind: str = "nvidia") -> str:
    """What a volunteer types, with gaps for address and name; the page's script puts the same words together."""
    words = [PROGRAM, "join", "--recipe", recipe, "--initial-peers", "ADDRESS", "--name", "YOUR-NAME"]
    words += ["--client-mode"] if link == "router" else []
    words += ["--device", "cpu"] if kind == "cpu" else []
    return " ".join([*words, "--micro-batch-size", str(samples)])


def refusal(system: str, kind: str) -> str:
    """Why this choice does not work; empty if it does."""
    return next((REFUSALS[key] for key in (system, f"{system} {kind}", kind) if key in REFUSALS), "")


@cache
def join_choices() -> dict:
    """All that the page's script needs, as plain data; the template shows the same."""
    return {
        "program": PROGRAM,
        "default": DEFAULT,
        "refusals": REFUSALS,
        "gpu_sizes": {d.name: str(_sold_as(d.memory_bytes)) for d in DEVICES.values() if d.capability is not None},
        "notes": NOTES,
        "recipes": {name: _recipe_choices(load_recipe(name)) for name in RECIPES},
    }


def page_data() -> dict:
    """What the template shows."""
    choices = join_choices()
    default = choices["recipes"][DEFAULT["recipe"]]["machines"][f"cpu-{DEFAULT['ram']}"]
    shown = command(DEFAULT["recipe"], default["samples"], link=DEFAULT["link"], kind="cpu")
    return {
        "choices": choices,
        "systems": SYSTEMS,
        "devices": DEVICE_KINDS,
        "links": LINKS,
        "machines": machines(),
        "default": DEFAULT,
        "command": shown,
        "uses": default["uses"],
        "recipes": choices["recipes"],
        "rows": [row for name in RECIPES for row in _rows(name)],
        "more": MORE,
    }


def _recipe_choices(run: RunConfig) -> dict:
    return {
        "title": run.title,
        "digest": run.digest,
        "machines": {machine.key: _machine_choices(run, machine) for machine in machines()},
    }


def _machine_choices(run: RunConfig, machine: Machine) -> dict:
    samples = micro_batch(run, machine.device)
    setup = setup_of(run, machine.device, samples or 1)
    usable = machine.device.usable_bytes
    need = training_of(run).need_bytes(machine.device, samples or 1)
    kept = KEPT_ACTIVATION_BYTES if run.model.reversible else 0
    need += min(kept, int(ADVISED_SHARE * usable) - need) if samples else kept
    if not samples:
        words = "GPU" if machine.kind == "nvidia" else "memory"
        return {
            "samples": 0,
            "refusal": f"One sample at once takes {show_bytes(need)}, and of this {words} {show_bytes(usable)} can be "
            "used. The other recipe takes less; or choose a machine with more memory.",
        }
    host = estimate(setup).host.total
    exchange = collaboration_of(run, ()).exchange()
    sent = 2 * exchange.gradient_bytes + 2 * exchange.state_bytes // exchange.average_state_every
    if machine.kind == "nvidia":
        memory = (
            f"{show_bytes(need)} of the GPU in 16 bit, and {show_bytes(host)} of the computer's for averaged copies "
            f"and the optimizer. Of this GPU's memory {show_bytes(usable)} can be used"
        )
    else:
        memory = f"{show_bytes(need)} in float32 (less in bfloat16), averaged copies and optimizer included"
    return {
        "samples": samples,
        "uses": {
            "memory": f"{memory}. {MORE}",
            "network": f"at most {show_bytes(sent)} sent and as much received for each epoch of "
            f"{show_count(run.swarm.target_batch_size)} samples of all volunteers, and the samples that you stream.",
            "disk": f"about {PACKAGES_GB[machine.kind]} GB for PyTorch and the other packages; of the data "
            "only what was fetched last is kept.",
        },
    }


def _rows(recipe: str) -> list[dict]:
    """A line for each command, or refusal, with all machines to which it applies."""
    lines: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines():
        chosen = join_choices()["recipes"][recipe]["machines"][machine.key]
        shown = command(recipe, chosen["samples"], link="router", kind=machine.kind) if chosen["samples"] else ""
        words = chosen["uses"]["memory"].split(". ")[0] if shown else chosen["refusal"]
        lines.setdefault((shown, words), []).append(machine)
    return [
        {"recipe": recipe, "machine": _title(alike), "command": shown, "words": words}
        for (shown, words), alike in lines.items()
    ]


def _title(alike: list[Machine]) -> str:
    """Machines of one kind, the smallest first, in a few words."""
    first, last = alike[0], alike[-1]
    return first.title if first is last else first.title.replace(" GB", f" to {last.memory} GB", 1)
