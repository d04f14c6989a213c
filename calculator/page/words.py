"""The verdict, the command line and the CSV file that the page shows."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

from calculator.choose.devices import device_named
from calculator.choose.fit import Fit
from calculator.models.names import preset_of
from calculator.step.answer import Estimate
from calculator.step.setups import Setup
from calculator.units import show_bytes


def judgement(verdict: Fit, result: Estimate) -> tuple[str, str]:
    """Says the verdict with its margin, and its figures: PyTorch's memory, the bytes added to it, and the GPU's memory.

    Together they are one sentence; the first half is enough where there is no room for both.
    """
    device = device_named(verdict.gpu)
    on_top = verdict.need_bytes - result.gpu.total
    need = show_bytes(result.gpu.total)
    if on_top:
        need += f" + {show_bytes(on_top)} for {'the host' if device.unified else 'CUDA itself'}"
    margin, share = abs(verdict.margin_bytes), 100 * abs(verdict.margin_bytes) / verdict.usable_bytes
    stands = {
        "fits": f"Fits the {device.title}, {show_bytes(margin)} ({share:.0f}\u00a0%) left",
        "tight": f"Tight on the {device.title}, {show_bytes(margin)} ({share:.1f}\u00a0%) left for fragmentation",
        "does not fit": f"Does not fit the {device.title}, {show_bytes(margin)} missing",
    }[verdict.standing]
    return stands, f": {need}, of {show_bytes(verdict.usable_bytes)}."


def command(setup: Setup, gpu: str | None = None) -> str:
    """The command line that gives the same answer; a pasted model is passed on standard input."""
    words = ["python -m calculator", "--config /dev/stdin" if setup.model is None else preset_of(setup.model)]
    for field in _FIELDS:
        value = getattr(setup, field.name)
        # The type too: to Python, 0 equals False and 1 equals True. Where null is no default, it stands for one.
        if value is None or (value == field.default and type(value) is type(field.default)):
            continue
        flag = field.name.replace("_", "-")
        words.append(f"--{flag}" if value is True else f"--no-{flag}" if value is False else f"--{flag} {_word(value)}")
    if gpu:
        words.append(f"--gpu {gpu}")
    line = " ".join(words)
    if setup.model is not None:
        return line
    quoted = json.dumps(setup.config, separators=(",", ":")).replace("'", "'\"'\"'")
    return f"echo '{quoted}' | {line}"


def _word(value: object) -> str:
    """A value as one word of a shell: without the blanks between the names of LoRA's modules."""
    return "".join(str(value).split())


def csv_of(result: Estimate) -> str:
    """One row per number: where, part, bytes."""
    rows = [("where", "part", "bytes")]
    rows += [("gpu", part, size) for part, size in (*asdict(result.gpu).items(), ("total", result.gpu.total))]
    rows += [("host", part, size) for part, size in (*asdict(result.host).items(), ("total", result.host.total))]
    rows += [("overhead", part, size) for part, size in result.overhead.items()]
    rows += [("bus", "bytes per step", result.transfer.bytes_per_step)]
    rows += [(f"step: {instant.phase}", instant.place, instant.bytes) for instant in result.timeline]
    return "".join(f"{where},{part},{size}\n" for where, part, size in rows)


_FIELDS = [field for field in fields(Setup) if field.name not in ("model", "config")]
