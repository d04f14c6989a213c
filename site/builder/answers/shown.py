"""An estimate as the page shows it: texts by the name of their place, and lengths of bars."""

from __future__ import annotations

from dataclasses import asdict

from calculator.estimate import Estimate, Setup, StepInstant
from calculator.fit import Verdict

from .words import command, show_bytes, show_count, show_share

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


def show_answer(setup: Setup, result: Estimate, plain: Estimate, verdict: Verdict | None) -> dict:
    """`texts` by place, `bars` and `limit` (the GPU) in percent of the longest, `timeline` by row."""
    gpu, host = asdict(result.gpu), asdict(result.host)
    total, plain_total = result.gpu.total, plain.gpu.total
    saving = ""
    if plain_total != total:
        percent = round(100 * abs(plain_total - total) / plain_total)
        saving = f", {percent} % {'less' if total < plain_total else 'more'} than plain"
    texts = {
        "total": show_bytes(total),
        "saving": saving,
        "plain-total": show_bytes(plain_total),
        "host-total": show_bytes(result.host.total),
        "peak": result.peak.instant,
        "transfer": _transfer(result),
        "facts": _facts(result),
        "command": command(setup, verdict and verdict.gpu),
        "verdict": verdict.sentence if verdict else "",
        "verdict-notes": " ".join(verdict.notes) if verdict else "",
    }
    for part in PARTS:
        texts[f"gpu-{part}"] = show_bytes(gpu[part])
        texts[f"share-{part}"] = show_share(gpu[part], total)
        texts[f"plain-{part}"] = show_bytes(getattr(plain.gpu, part))
    for part in HOST_PARTS:
        texts[f"host-{part}"] = show_bytes(host[part])
    longest = max(total, plain_total)
    usable = verdict.usable_bytes if verdict else 0
    # A GPU that is much larger than both bars would make them unreadable: then its mark is left out.
    whole = max(longest, usable) if usable < 3 * longest else longest
    return {
        "texts": texts,
        "spoken": f"{show_bytes(total)} of GPU memory{saving}.",
        "standing": verdict.standing if verdict else "",
        "bars": [_pieces(gpu, whole), _pieces(asdict(plain.gpu), whole)],
        "limit": round(100 * usable / whole, 2) if 0 < usable <= whole else None,
        "bars_label": f"This setup: {show_bytes(total)}; plain: {show_bytes(plain_total)}",
        "timeline": timeline_rows(result.timeline, total),
        "pin": {"total": total, "gpu": gpu, "host": result.host.total},
    }


def timeline_rows(instants: tuple[StepInstant, ...], total: int) -> list[dict]:
    """One row an instant; neighbouring layers that hold the same are one row."""
    rows: list[dict] = []
    for instant in instants:
        row = {
            "phase": instant.phase,
            "place": instant.place,
            "bytes": show_bytes(instant.bytes),
            "percent": round(100 * instant.bytes / total, 1),
            "peak": instant.bytes == total,
        }
        before = rows[-1] if rows else {}
        layer = instant.place.removeprefix("layer ")
        same = all(row[key] == before.get(key) for key in ("phase", "bytes", "peak"))
        if same and layer.isdecimal() and before["place"].startswith("layer"):
            first = before["place"].split()[1]
            before["place"] = f"layers {first} to {layer}"
        else:
            rows.append(row)
    return rows


def _pieces(gpu: dict[str, int], whole: int) -> list[float]:
    return [round(100 * gpu[part] / whole, 3) for part in PARTS]


def _transfer(result: Estimate) -> str:
    transfer = result.transfer
    if not transfer.bytes_per_step:
        return "Nothing crosses the bus for the optimizer."
    moved = show_bytes(transfer.bytes_per_step)
    return f"Each step of the optimizer sends {moved} over the bus, about {transfer.seconds:.2g} s."


def _facts(result: Estimate) -> str:
    notes = "".join(f" {note}" for note in result.notes)
    return (
        f"The model has {show_count(result.parameters)} parameters. Not counted: about "
        f"{show_bytes(result.overhead['total'])} that CUDA takes for itself, and what the allocator loses by "
        f"fragmentation.{notes}"
    )
