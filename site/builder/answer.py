"""An estimate in the page's words: the same function answers at build time and, in the browser, for every change.

It travels to the browser with the calculator, so it imports nothing but the calculator and what that imports.
"""

from __future__ import annotations

import json
from dataclasses import fields

from calculator import browser
from calculator.estimate import Setup

PARTS = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer_state": "Optimizer state",
    "activations": "Activations",
    "temporary": "Temporary buffers",
}
"""Parts of `gpu` in the order of the bar; a part's colour is its place here, from 1."""

HOST_PARTS = {
    "parameters": "Parameters, 32 bit",
    "gradients": "Gradients, 32 bit",
    "optimizer_state": "Optimizer state",
    "delta_rule": "Delta rule's copy",
}

PLAIN = {
    "optimizer": "adamw",
    "optimizer_impl": "foreach",
    "offload_optimizer": False,
    "delta_rule": False,
    "checkpointing": False,
    "shared_groups": None,
}
"""The paper's four techniques switched off: 32-bit Adam on the GPU, all kept, the model's own sharing only."""

_UNITS = (("TiB", 40, 2), ("GiB", 30, 2), ("MiB", 20, 1), ("KiB", 10, 1))


def answer(setup_json: str) -> str:
    """JSON of what the page shows for a setup, or {"error": sentence} where the calculator refuses it."""
    estimate = json.loads(browser.estimate(setup_json))
    if "error" in estimate:
        return json.dumps({"error": estimate["error"]})
    setup = json.loads(setup_json)
    plain = json.loads(browser.estimate(json.dumps({**setup, **PLAIN})))
    return json.dumps(_shown(setup, estimate, plain))


def show_bytes(count: int) -> str:
    """13958643712 as 13.00 GiB: rounded half up, in whole numbers."""
    for unit, shift, digits in _UNITS:
        if count >> shift:
            rounded = ((count * 10**digits) + (1 << (shift - 1))) >> shift
            return f"{rounded // 10**digits}.{rounded % 10**digits:0{digits}d} {unit}"
    return f"{count} B"


def command(setup: dict) -> str:
    """The command line that gives the same estimate."""
    words = ["python -m calculator", str(setup["model"])]
    for field in fields(Setup):
        value = setup.get(field.name, field.default)
        if field.name == "model" or (value == field.default and type(value) is type(field.default)):
            continue
        flag = field.name.replace("_", "-")
        words.append(f"--{flag}" if value is True else f"--no-{flag}" if value is False else f"--{flag} {value}")
    return " ".join(words)


def _shown(setup: dict, estimate: dict, plain: dict) -> dict:
    gpu, host = estimate["gpu"], estimate["host"]
    total, plain_total = gpu["total"], plain["gpu"]["total"]
    widest = max(total, plain_total)
    bars = [{"label": "This setup", "total": show_bytes(total), "parts": _pieces(gpu, widest)}]
    saving = ""
    if plain_total != total:
        bars.append({"label": "Plain", "total": show_bytes(plain_total), "parts": _pieces(plain["gpu"], widest)})
        percent = round(100 * abs(plain_total - total) / plain_total)
        saving = f", {percent} % {'less' if total < plain_total else 'more'} than plain"
    return {
        "total": show_bytes(total),
        "saving": saving,
        "spoken": f"{show_bytes(total)} of GPU memory{saving}.",
        "bars": bars,
        "bars_label": "; ".join(f"{bar['label']}: {bar['total']}" for bar in bars),
        "gpu": [
            {"label": label, "series": series, "bytes": show_bytes(gpu[key]), "share": _share(gpu[key], total)}
            for series, (key, label) in enumerate(PARTS.items(), start=1)
        ],
        "peak": estimate["peak"]["instant"],
        "timeline": _timeline(estimate["timeline"], total),
        "host": [{"label": label, "bytes": show_bytes(host[key])} for key, label in HOST_PARTS.items()],
        "host_total": show_bytes(host["total"]),
        "transfer": _transfer(estimate["transfer"]),
        "facts": _facts(estimate),
        "command": command(setup),
    }


def _pieces(gpu: dict, whole: int) -> list[dict]:
    return [
        {"series": series, "percent": round(100 * gpu[key] / whole, 3)} for series, key in enumerate(PARTS, start=1)
    ]


def _timeline(instants: list[dict], total: int) -> list[dict]:
    """One row an instant; neighbouring layers that hold the same are one row."""
    rows: list[dict] = []
    for instant in instants:
        row = {
            "phase": instant["phase"],
            "place": instant["place"],
            "bytes": show_bytes(instant["bytes"]),
            "percent": round(100 * instant["bytes"] / total, 1),
            "peak": instant["bytes"] == total,
        }
        before = rows[-1] if rows else {}
        layer = instant["place"].removeprefix("layer ")
        same = all(row[key] == before.get(key) for key in ("phase", "bytes", "peak"))
        if same and layer.isdecimal() and before["place"].startswith("layer"):
            first = before["place"].split()[1]
            before["place"] = f"layers {first} to {layer}"
        else:
            rows.append(row)
    return rows


def _share(part: int, whole: int) -> str:
    percent = round(100 * part / whole)
    return "under 1 %" if part and not percent else f"{percent} %"


def _transfer(transfer: dict) -> str:
    if not transfer["bytes_per_step"]:
        return "Nothing crosses the bus for the optimizer."
    moved = show_bytes(transfer["bytes_per_step"])
    return f"Each step of the optimizer sends {moved} over the bus, about {transfer['seconds']:.2g} s."


def _facts(estimate: dict) -> str:
    parameters = f"{estimate['parameters']:,}".replace(",", "\u202f")
    return (
        f"The model has {parameters} parameters. Not counted: about {show_bytes(estimate['overhead']['total'])} that "
        "CUDA takes for itself, and what the allocator loses by fragmentation."
    )
