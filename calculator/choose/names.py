"""Names of GPUs as people write them: `4090` or `RTX 4090`."""

from __future__ import annotations

import re

from calculator.choose.devices import DEVICES

BESIDE = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct|sxm\d?|pcie|hbm\d?e?|generation)\b-?")
"""Words that drivers add to a GPU's name, as in NVIDIA A100-SXM4-40GB."""


def gpu_of(name: str) -> str:
    """Finds the listed name of a GPU; returns any other name unchanged, which is refused later.

    Series and memory may be omitted if only one card matches.

    >>> gpu_of("NVIDIA RTX 4090"), gpu_of("4090"), gpu_of("H100"), gpu_of("a100")
    ('rtx-4090', 'rtx-4090', 'h100-80gb', 'a100')
    """
    words = BESIDE.sub("", _plain(name)).strip("-")
    # "40gb" alone is no name, but a size that several cards have.
    meant = [
        device
        for device in DEVICES
        for short in [{device, re.sub("^[rg]tx-", "", device), re.sub(r"-\d+gb$", "", device)}]
        if words.replace("-", "") in {one.replace("-", "") for one in short}
    ]
    if len(meant) == 1:
        return meant[0]
    return words if words.startswith("cuda-") else name


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())
