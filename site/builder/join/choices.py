"""The join page's choices: for each machine and recipe the flags of `join`, and the memory, traffic and disk it takes.

The micro-batch is the one that `python -m training plan` advises (`calculator.choose.advice`). The memory is for
recomputed activations; it includes those that reversible layers keep if they fit. What a run trains is in its recipe,
so nothing here needs PyTorch, whichever the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from builder.folders import PAGES
from builder.join.runs import listed_runs
from calculator import estimate
from calculator.choose.advice import KEPT_ACTIVATION_BYTES, PeerTraining, advised_micro_batch, sizes_to_advise
from calculator.choose.devices import DEVICES, GIB, Device
from calculator.choose.fit import ADVISED_SHARE
from calculator.swarm.exchange import USUAL_GROUP
from calculator.units import show_bytes, show_count
from training.compute.plan import training_of
from training.data.store.cache import CACHE_GB
from training.publish.invitation import MEMBERS_FLAGS
from training.recipe import RunConfig, load_recipe
from training.simulate.forecast import collaboration_of

RECIPES = ("demo", "stories", "dalle-2021")

PACKAGES_GB = {"nvidia": 6, "cpu": 3}
"""Disk space of the packages that `nox -s training` installs, by PyTorch's build, GB."""

PROGRAM = ".venv/bin/nox -s training --"
"""Command that starts the trainer in a copy of the project that was set up as the page says."""

RUN = "https://RUN"
"""Stands in `JOIN` for the address of a run's site."""
JOIN = f"{PROGRAM} join {RUN}"
"""Command that joins a run whose address is known. The page's script puts the address into it."""

DEMOS = {"demo": ".venv/bin/nox -s demo", "stories": ".venv/bin/nox -s demo -- --recipe stories"}
"""Recipe -> the command that starts a whole run of it on one machine, for readers without a run to join."""
DEMO_USES = {
    "memory": "4 GB of free memory for the whole run: its servers and three volunteers.",
    "network": "the download of Python packages; the run itself stays on your machine.",
    "disk": f"about {PACKAGES_GB['cpu']} GB, or {PACKAGES_GB['nvidia']} GB if it finds an NVIDIA GPU.",
}

HOST_MEMORY = (4, 8, 16, 32, 64)
"""The sizes of host memory to choose from, GiB."""
PLANNED_HOST_SHARE = 0.5
"""The share of the host's memory that training may use; the rest is for the system and the volunteer's own work."""

MEMORY_NOTE = (
    "Python and PyTorch need memory besides. If enough memory is free, activations are kept instead of recomputed: "
    "they take up to nine tenths of a GPU's free memory or half of the computer's. --checkpointing prevents that."
)
"""Sentences that follow the memory of every machine."""

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

DEFAULT = {"system": "linux", "device": "cpu", "gpu": "16", "ram": "8", "recipe": "demo"}

REFUSALS = {
    "windows": "The trainer runs on Linux and macOS only: its network daemon and its handling of processes need one of "
    "these systems. Windows can run it in WSL 2: type <code>wsl --install</code> in PowerShell as administrator, "
    "restart, and choose “Windows with WSL 2”.",
    "macos nvidia": "CUDA 10.2 was NVIDIA's last version for macOS, so PyTorch cannot use the GPU there. "
    "Choose “Processor only”, or start Linux on this machine.",
    "macos apple": "The trainer supports GPUs through CUDA only and cannot use Apple's yet. Choose “Processor only”: "
    "the Mac then computes with its processor cores.",
    "apple": "PyTorch supports Apple's GPUs under macOS only, and the trainer cannot use them yet. Choose "
    "“Processor only”.",
    "amd": "The trainer has never run on these GPUs. It supports GPUs through CUDA only. PyTorch's build for AMD's "
    "ROCm uses the same name, but this project does not install it. Choose “Processor only”.",
}
"""Reasons why a choice does not work. A key is a system, a device, or both; see `refusal` for their order."""

NOTES = {
    "macos": "The tests run on Linux; nobody has reported a volunteer on macOS yet.",
    "wsl": "Type the commands in the window of your Linux distribution, not in PowerShell.",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A device and its memory: one of the page's choices."""

    kind: str
    """`nvidia` or `cpu`."""
    memory: str
    """GB of the GPU, as printed on its box, or GiB of the host."""
    device: Device
    """Device for which the memory is planned; of all GPUs of a size, the one with the least usable memory."""
    examples: str
    """Names of the GPUs of this size; empty for hosts."""

    @property
    def key(self) -> str:
        """Name of the machine in the data for the page's script."""
        return f"{self.kind}-{self.memory}"

    @property
    def title(self) -> str:
        """Name of the machine on the page."""
        return f"NVIDIA GPU, {self.memory} GB" if self.kind == "nvidia" else f"Processor, {self.memory} GB of memory"


@cache
def machines() -> tuple[Machine, ...]:
    """The machines to choose from: each size of NVIDIA's GPUs in the catalogue, and each size of host memory."""
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
    """GB as printed on the box: the memory in units of 2**30 bytes if that is a whole number, else of 10**9."""
    return memory_bytes // GIB if memory_bytes % GIB == 0 else memory_bytes // 10**9


def micro_batch(run: RunConfig, device: Device) -> int:
    """The micro-batch that `plan` advises on a machine whose speed was not measured; 0 if not even one sample fits."""
    training = training_of(run)
    sizes = sizes_to_advise(run.swarm.target_batch_size)
    return advised_micro_batch(sizes, lambda size: training.need_bytes(device, size), device)


def flags(samples: int, *, kind: str = "nvidia") -> str:
    """The flags with which `join` uses a machine; the page's script puts the same flags after a run's command."""
    words = ["--device", "cpu"] if kind == "cpu" else []
    return " ".join([*words, "--micro-batch-size", str(samples)])


def refusal(system: str, kind: str) -> str:
    """Reason why this choice does not work; empty if it works.
    A key with the system alone counts first, the device last."""
    return next((REFUSALS[key] for key in (system, f"{system} {kind}", kind) if key in REFUSALS), "")


@cache
def join_choices() -> dict:
    """All data that the page's script needs, ready for JSON."""
    return {
        "program": PROGRAM,
        "join": JOIN,
        "run": RUN,
        "members": MEMBERS_FLAGS,
        "demos": DEMOS,
        "demo_uses": DEMO_USES,
        "default": DEFAULT,
        "refusals": REFUSALS,
        "gpu_sizes": {d.name: str(_sold_as(d.memory_bytes)) for d in DEVICES.values() if d.capability is not None},
        "notes": NOTES,
        "recipes": {name: _recipe_choices(load_recipe(name)) for name in RECIPES},
    }


def page_data() -> dict:
    """The data of site/includes/join.html."""
    choices = join_choices()
    return {
        "choices": choices,
        "systems": SYSTEMS,
        "devices": DEVICE_KINDS,
        "machines": machines(),
        "default": DEFAULT,
        "command": DEMOS[DEFAULT["recipe"]],
        "uses": DEMO_USES,
        "recipes": choices["recipes"],
        "demos": {name: choices["recipes"][name]["title"] for name in DEMOS},
        "runs": listed_runs(PAGES / "runs.json"),
        "rows": [row for name in RECIPES for row in _rows(name)],
        "memory_note": MEMORY_NOTE,
    }


def _recipe_choices(run: RunConfig) -> dict:
    return {
        "title": run.title,
        "digest": run.digest,
        "machines": {machine.key: _machine_choices(run, machine) for machine in machines()},
    }


def _machine_choices(run: RunConfig, machine: Machine) -> dict:
    training, device = training_of(run), machine.device
    samples = micro_batch(run, device)
    need, usable = training.need_bytes(device, samples or 1), device.usable_bytes
    kept = KEPT_ACTIVATION_BYTES if training.reversible else 0
    need += min(kept, int(ADVISED_SHARE * usable) - need) if samples else kept
    if not samples:
        words = "GPU" if machine.kind == "nvidia" else "memory"
        return {
            "samples": 0,
            "refusal": f"Even a micro-batch of one sample takes {show_bytes(need)}, but only {show_bytes(usable)} of "
            f"this {words} can be used. Choose a run that takes less, or a machine with more memory.",
        }
    sent = round(collaboration_of(run, ()).exchange().sent_bytes())
    if machine.kind == "nvidia":
        host = show_bytes(_host_bytes(training, device, samples))
        memory = (
            f"{show_bytes(need)} of the GPU's memory in 16 bit, and {host} of the computer's for averaged copies and "
            f"the optimizer. {show_bytes(usable)} of this GPU's memory can be used"
        )
    else:
        memory = f"{show_bytes(need)} in float32 (less in bfloat16), including averaged copies and the optimizer"
    return {
        "samples": samples,
        "uses": {
            "memory": f"{memory}. {MEMORY_NOTE}",
            "network": f"for each epoch of {show_count(run.swarm.target_batch_size)} samples of all volunteers, about "
            f"{show_bytes(sent)} sent and as much received among {USUAL_GROUP} volunteers; and the download of the "
            "samples that you train on.",
            "disk": f"about {PACKAGES_GB[machine.kind]} GB for PyTorch and the other packages; of the data, at most "
            f"{CACHE_GB:g} GB is kept.",
        },
    }


def _host_bytes(training: PeerTraining, device: Device, samples: int) -> int:
    """Bytes of the computer's memory that training takes besides the GPU's."""
    result = estimate(training.setup(device, samples))
    _, of_the_mode = training.bytes_of_the_mode(result)
    return result.host.total + of_the_mode


def _rows(recipe: str) -> list[dict]:
    """Rows of the table of all machines: each list of flags or refusal, with all machines to which it applies."""
    lines: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines():
        chosen = join_choices()["recipes"][recipe]["machines"][machine.key]
        shown = flags(chosen["samples"], kind=machine.kind) if chosen["samples"] else ""
        words = chosen["uses"]["memory"].split(". ")[0] if shown else chosen["refusal"]
        lines.setdefault((shown, words), []).append(machine)
    return [
        {"recipe": recipe, "machine": _title(alike), "flags": shown, "words": words}
        for (shown, words), alike in lines.items()
    ]


def _title(alike: list[Machine]) -> str:
    """A name for machines of one kind, which are sorted by size: "NVIDIA GPU, 8 to 12 GB"."""
    first, last = alike[0], alike[-1]
    return first.title if first is last else first.title.replace(" GB", f" to {last.memory} GB", 1)
