"""The GPU of a text: a listed one, another card by its memory, or one of Apple's computers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from calculator.choose.devices import DEVICES, device_named
from calculator.errors import BadSetup
from calculator.page.question.spelling import GAP, NUMBER, masked, matches, named, without

OTHERS = {
    "rtx-3050": 8, "rtx-3060-ti": 8, "rtx-3070-ti": 8, "rtx-3080-ti": 12, "rtx-3090-ti": 24, "rtx-4060-ti": 8,
    "rtx-4070": 12, "rtx-4070-super": 12, "rtx-4070-ti-super": 16, "rtx-4080-super": 16, "rtx-4090-d": 24,
    "rtx-5050": 8, "rtx-5060": 8, "rtx-5060-ti": 8, "rtx-5070-ti": 16, "rtx-3050-laptop": 4, "rtx-3060-laptop": 6,
    "rtx-3070-laptop": 8, "rtx-3070-ti-laptop": 8, "rtx-3080-laptop": 8, "rtx-3080-ti-laptop": 16,
    "rtx-4050-laptop": 6, "rtx-4060-laptop": 8, "rtx-4070-laptop": 8, "rtx-4080-laptop": 12, "rtx-4090-laptop": 16,
    "rtx-5060-laptop": 8, "rtx-5070-laptop": 8, "rtx-5070-ti-laptop": 12, "rtx-5080-laptop": 16,
    "rtx-5090-laptop": 24, "rtx-a2000": 6, "rtx-a4000": 16, "rtx-a4500": 20, "rtx-a5000": 24, "rtx-a5500": 24,
    "rtx-4000-ada": 20, "rtx-5000-ada": 32, "rtx-pro-6000": 96, "a2": 16, "a10g": 24, "a16": 16, "a30": 24, "a40": 48,
    "a800": 80, "l20": 48, "l40": 48, "h20": 96, "h100-nvl": 94, "h800": 80, "gh200": 96, "gb200": 186, "b300": 288,
    "mi210": 64, "mi250x": 64, "mi300a": 128, "mi325x": 256, "mi350x": 288, "mi355x": 288, "rx-6800-xt": 16,
    "rx-6900-xt": 16, "rx-7800-xt": 16, "rx-7900-xt": 20, "rx-7900-xtx": 24, "rx-9070-xt": 16,
}  # fmt: skip
"""GiB of cards that are not listed, by the product pages of NVIDIA and AMD; the smaller version, if there are two. Of
an MI250X, the memory of one of its two halves, which a program sees as two GPUs."""
BEFORE_AMPERE = {
    "gtx-1050-ti": 4, "gtx-1060": 6, "gtx-1070": 8, "gtx-1070-ti": 8, "gtx-1080": 8, "gtx-1650": 4, "gtx-1660": 6,
    "gtx-1660-ti": 6, "gtx-1660-super": 6, "rtx-2060-super": 8, "rtx-2070": 8, "rtx-2070-super": 8, "rtx-2080": 8,
    "rtx-2080-super": 8, "rtx-5000-turing": 16, "rtx-8000": 48, "titan-rtx": 24, "titan-v": 12, "titan-xp": 12,
    "k80": 12, "m40": 24, "p4": 8, "p40": 24,
}  # fmt: skip
"""GiB of cards without bfloat16 that are not listed."""
SERIES = frozenset({"ti", "ada", "super", "laptop", "d", "pro", "turing", "nvl", "xt", "xtx"})
"""Words of a card's name that a text must have too: without them it means another card."""
OTHER_SERIES = frozenset({"ti", "super", "laptop", "nvl", "g"})
"""Words after a card's name that make it the name of another card."""
CARD_WORDS = OTHER_SERIES | {"rtx", "gtx", "rx", "radeon", "quadro", "titan", "apple", "mac", "macbook", "max", "ultra"}
"""Words that belong to cards and computers, not to models."""
COLAB = rf"(?<!\w)(?:free{GAP})?(?:google{GAP})?(?:kaggle|colab)(?:{GAP}(?:free|(pro)))?(?!\w)"
"""Notebooks of Google: without payment they have a T4, with it an L4 too."""
APPLE_CHIP = (
    rf"(?<!\w)(?:apple{GAP})?(?:m[1-9]|mac(?:{GAP}(?:book|mini|studio))?)(?:{GAP}(?:m[1-9]|pro|max|ultra|air))*(?!\w)"
    rf"|(?<!\w)apple(?:{GAP}silicon)?(?!\w)"
)
"""Words for a computer of Apple's, whose memory says which listed GPU it is."""
MEMORY = rf"(?<![\w.]){NUMBER}{GAP}gi?b(?!\w)"
HOST_MEMORY = (
    rf"(?<![\w.])\d+{GAP}gi?b{GAP}(?:of{GAP})?(?:(?:system|cpu|host|main){GAP}(?:ram|memory)|ram)(?!\w)"
    rf"|(?<!\w)(?:(?:system|cpu|host|main){GAP}(?:ram|memory)|ram){GAP}(?:of{GAP})?\d+{GAP}gi?b(?!\w)"
)
"""Pattern of the memory of the computer, not of a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """The GPU that a text names."""

    name: str
    """Name of a listed GPU, or of a card by its memory; empty: the text names none."""
    in_float16: bool = False
    """True if it has no bfloat16."""
    note: str = ""
    """A sentence if the text's words mean a card that is not listed."""


def card_of(text: str) -> tuple[Card, str]:
    """Returns the GPU that a text names, and the text without its name.

    If the text gives a memory that this GPU does not have, the answer is any CUDA card with that memory.

    >>> card_of("a 4090 laptop")[0]
    Card(name='cuda-16gb', in_float16=False, note='RTX 4090 laptop is counted as a CUDA card with 16 GB.')
    """
    others = OTHERS | BEFORE_AMPERE
    pool = [*(name for name in DEVICES if not name.startswith("apple")), *others]
    gpu, rest = named(pool, text)
    if gpu is not None and not _is_meant(gpu, text, rest):
        gpu, rest = None, text
    if colab := re.search(COLAB, rest):
        rest = without(rest, colab)
        gpu = gpu or ("l4" if colab[1] else "t4")
    chip = None if gpu else re.search(APPLE_CHIP, rest)
    host = None if chip else re.search(HOST_MEMORY, rest)
    memory = re.search(MEMORY, without(rest, host) if host else rest)
    if memory is not None:
        rest = without(rest, memory)
    size = int(memory[1]) if memory else 0
    if chip:
        return _of_apple(size), without(rest, chip)
    if gpu is None:
        return Card(name=device_named(f"cuda-{size}gb").name if memory else ""), rest
    if gpu in DEVICES:
        name = gpu if not size or size in _sizes(gpu) else f"cuda-{size}gb"
        tied = [name for name, _ in matches(pool, text) if name in DEVICES]
        several = not size and len(tied) > 1 and len({re.sub(r"-\d+gb$", "", name) for name in tied}) == 1
        note = f"The {device_named(gpu).title} is taken; name the memory for another." if several else ""
        return Card(name=name, in_float16=not device_named(gpu).bfloat16, note=note), rest
    size = size or others[gpu]
    title = gpu.replace("-", " ").upper().replace("LAPTOP", "laptop").replace(" TI", " Ti").replace("SUPER", "Super")
    note = f"{title} is counted as a CUDA card with {size} GB."
    return Card(name=device_named(f"cuda-{size}gb").name, in_float16=gpu in BEFORE_AMPERE, note=note), rest


def _of_apple(size: int) -> Card:
    """The listed computer of Apple's with this memory, or the next smaller one.

    Raises:
        BadSetup: If no memory is said, or all listed computers have more.
    """
    known = {int(re.search(r"\d+", name)[0]): name for name in DEVICES if name.startswith("apple-")}
    fitting = [memory for memory in known if memory <= size]
    if not fitting:
        listed = ", ".join(known.values())
        raise BadSetup(
            f"The memory of a computer of Apple's decides what fits: name it; the calculator knows {listed}."
        )
    taken = max(fitting)
    note = f"Of Apple's computers, the next smaller one that is listed is counted, with {taken} GB." * (taken != size)
    return Card(name=known[taken], note=note)


def _sizes(gpu: str) -> set[int]:
    """Gigabytes that people name for a GPU: its memory in units of 2**30 or 10**9 bytes, or as its driver reports."""
    device = device_named(gpu)
    sold = {round(device.memory_bytes / 2**30), device.memory_bytes // 10**9}
    return sold | {int(device.usable_bytes / unit) + 1 for unit in (2**30, 10**9)}


def _is_meant(gpu: str, text: str, rest: str) -> bool:
    """Returns True if a text names this GPU, and no other of its series.

    A 3080 Ti is no 3080, a GTX 1080 no 1080 Ti, and the RTX 6000 of 2018 no RTX 6000 Ada.
    """
    words = {word for word in gpu.split("-") if not word.endswith("gb")}
    end = masked(text, text, rest).rindex("\0") + 1
    following = re.match(rf"{GAP}(?:([a-z]+)(?![a-z]))?", text[end:])[1]
    has_series = all(re.search(rf"(?<![a-z]){word}(?![a-z])", text) for word in words & SERIES)
    return following not in OTHER_SERIES and has_series
