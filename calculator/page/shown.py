"""An estimate as the page shows it: texts by the name of their place, and lengths of bars."""

from __future__ import annotations

from collections.abc import Iterator

from calculator.choose.devices import device_named
from calculator.choose.fit import Fit
from calculator.page.words import command, judgement
from calculator.step.answer import Estimate, GpuMemory, StepInstant
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_count, show_share, show_time

PARTS = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer_state": "Optimizer state",
    "activations": "Activations",
    "temporary": "Temporary buffers",
}
"""Parts of `gpu` in the order of the bar; a part's colour is its position here, counted from 1."""

MOST_OTHERS = 15
"""Bars of other GPUs that are drawn."""

HOST_PARTS = {
    "parameters": "Parameters, 32 bit",
    "gradients": "Gradients, 32 bit",
    "optimizer_state": "Optimizer state",
    "delta_rule": "Copy for the delta rule",
    "activations": "Activations",
}


def show_answer(setup: Setup, result: Estimate, plain: Estimate, verdict: Fit | None) -> dict:
    """`texts` by place; `bars` and `limit` (the GPU's room for them) in percent of the longest; `timeline` by row.

    `others` is how many more bars there are like the first one, for the other GPUs. `on_host` says whether the host
    holds anything, `standing` is that of the verdict.
    """
    gpu, host = result.gpu, result.host
    total, plain_total = gpu.total, plain.gpu.total
    saving = ""
    if plain_total != total:
        percent = round(100 * abs(plain_total - total) / plain_total)
        saving = f", {percent} % {'less' if total < plain_total else 'more'} than plain"
    unified = verdict is not None and device_named(verdict.gpu).unified
    stands, figures = judgement(verdict, result) if verdict else ("", "")
    several = f"each of {setup.gpus} GPUs"
    texts = {
        "total": show_bytes(total),
        "where": f"on {several}" if setup.gpus > 1 else "of GPU memory",
        "bar-own": "Each" + several[4:] if setup.gpus > 1 else "This setup",
        "bar-others": _others(setup),
        "saving": saving,
        "plain-total": show_bytes(plain_total),
        "host-total": show_bytes(host.total),
        "peak": " ".join([result.peak.instant, *_absent(result, plain)]),
        "transfer": _transfer(result),
        "overhead": show_bytes(0 if unified else result.overhead["total"]),
        "usable": show_bytes(verdict.usable_bytes) if verdict else "–",
        "facts": _facts(result),
        "command": command(setup, verdict and verdict.gpu),
        "verdict": stands,
        "verdict-figures": figures,
        "verdict-notes": " ".join(verdict.notes) if verdict else "",
    }
    for part in PARTS:
        size = getattr(gpu, part)
        texts[f"gpu-{part}"] = show_bytes(size)
        texts[f"share-{part}"] = show_share(size, total)
        texts[f"plain-{part}"] = show_bytes(getattr(plain.gpu, part))
    for part in HOST_PARTS:
        texts[f"host-{part}"] = show_bytes(getattr(host, part))
    longest = max(total, plain_total)
    room = verdict.usable_bytes - (verdict.need_bytes - total) if verdict else 0
    # A GPU that is much larger than both bars would make them unreadably short, so its mark is omitted.
    whole = max(longest, room) if room < 3 * longest else longest
    return {
        "texts": texts,
        "spoken": f"{show_bytes(total)} {texts['where']}{saving}.{f' {stands}.' if stands else ''}",
        "standing": verdict.standing if verdict else "",
        "on_host": host.total > 0,
        "bars": [_pieces(gpu, whole), _pieces(plain.gpu, whole)],
        "others": min(setup.gpus - 1, MOST_OTHERS),
        "limit": round(100 * room / whole, 2) if 0 < room <= whole else None,
        "bars_label": f"{texts['bar-own']}: {show_bytes(total)}; plain: {show_bytes(plain_total)}",
        "timeline": timeline_rows(result.timeline, total),
        "pin": {"total": total, "gpu": {part: getattr(gpu, part) for part in PARTS}, "host": host.total},
    }


def _others(setup: Setup) -> str:
    """A label for the bars of the other GPUs; empty if there is only one GPU."""
    others = setup.gpus - 1
    if not others:
        return ""
    most = (
        ", at most" if setup.sharding.startswith(("zero-", "deepspeed-")) else ""
    )  # counted is the GPU that holds the most
    if others > MOST_OTHERS:
        return f"{MOST_OTHERS} of {others} others{most}"
    return f"The {others} others{most}" if others > 1 else f"The other{most}"


def timeline_rows(instants: tuple[StepInstant, ...], total: int) -> list[dict]:
    """One row per instant; neighbouring layers whose shown values are equal share a row."""
    rows: list[dict] = []
    before, first = ("", "", False), ""
    for instant in instants:
        size, place = instant.bytes, instant.place
        shown = (instant.phase, show_bytes(size), size == total)
        layer = place.removeprefix("layer ")
        if not layer.isdecimal():
            layer = ""
        if layer and first and shown == before:
            rows[-1]["place"] = f"layers {first} to {layer}"
            continue
        before, first = shown, layer
        phase, words, peak = shown
        percent = round(100 * size / total, 1)
        rows.append({"phase": phase, "place": place, "bytes": words, "percent": percent, "peak": peak})
    return rows


def _pieces(gpu: GpuMemory, whole: int) -> list[float]:
    return [round(100 * getattr(gpu, part) / whole, 3) for part in PARTS]


def _absent(result: Estimate, plain: Estimate) -> Iterator[str]:
    """Explanations for parts of the table that are unexpectedly 0 B."""
    if not result.gpu.gradients:
        yield f"Gradients, {show_bytes(result.gradient_bytes)} in total, do not exist yet: backward makes them."
    elif not plain.gpu.gradients:
        yield "The plain setup has its peak at another instant, before its gradients exist: hence 0 B."
    if not result.gpu.activations:
        yield "Activations are already freed: backward has used them."


def _transfer(result: Estimate) -> str:
    transfer = result.transfer
    if not transfer.bytes_per_step:
        return "nothing"
    moved = show_bytes(transfer.bytes_per_step)
    return f"{moved}, {show_time(transfer.seconds)}"


def _facts(result: Estimate) -> str:
    notes = "".join(f" {note}" for note in result.notes)
    return (
        f"The model has {show_count(result.parameters)} parameters. Not counted: memory that the allocator loses to "
        f"fragmentation.{notes}"
    )
