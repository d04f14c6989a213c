"""Checks before training that the run's settings suit each other and this machine; prints the settings in use.

A setting that cannot work ends the program with one sentence. A setting that only costs time, or may fail later, leads
to a warning.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence
from dataclasses import dataclass

from calculator.swarm.exchange import exchange_cost
from calculator.swarm.settings import MIN_GROUP_SIZE
from calculator.units import show_bytes, show_rate, show_time
from training.compute.machine import usable_cores
from training.errors import BadInput
from training.processes.environment import FILE_LIMIT, files_of_group
from training.processes.notices import Setting
from training.swarm.config import SwarmConfig
from training.swarm.node.metrics import LONGEST_NAME, is_name
from training.swarm.run.reach import Reach

MEASURABLE_BYTES = 1 << 23
"""Least size of a download whose bandwidth is used; the time of a smaller one depends more on latency."""
RELAYED_MBITS = 1.0
"""Bandwidth that a relayed peer announces. It is small so that the peer gets small parts of averages: the run's servers
carry what others send it."""
FAST_MBITS = 1000.0
"""Bandwidth above which peers get equal parts: then the computers, not the links, are the bottleneck."""

UPLOAD_MARGIN = 1.5
"""Ratio of the advised `--max-upload` to the least that carries the longest exchange. An average of gradients in 8 bits
may share the link with one of parameters in 16, and then they send 1.5 times the bytes of the longer one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Measurements of this peer's network link."""

    reach: Reach = "direct"
    """How others connect to this peer; "client" also if the volunteer wants it so."""
    answer_seconds: tuple[float, ...] = ()
    """Seconds until each reachable initial peer accepted a TCP connection."""
    download_bytes: int = 0
    """Size of the downloaded state; 0 if none was downloaded."""
    download_seconds: float = 0.0
    """Duration of that download, from the first byte to the last."""
    told_mbits: float | None = None
    """Most that this peer sends, in Mbit/s, if the volunteer has given a limit; it counts as the bandwidth."""

    @property
    def mbits(self) -> float | None:
        """Bandwidth in Mbit/s, at most `FAST_MBITS`, or `RELAYED_MBITS` for a relayed peer; None if unknown.

        >>> Link(download_bytes=50_000_000, download_seconds=20.0).mbits
        20.0
        """
        if self.reach == "relay":
            return RELAYED_MBITS
        if self.told_mbits is not None:
            return min(self.told_mbits, FAST_MBITS)
        if self.download_bytes < MEASURABLE_BYTES or not self.download_seconds:
            return None
        return min(8 * self.download_bytes / self.download_seconds / 1e6, FAST_MBITS)


def check_flags(
    swarm: SwarmConfig,
    *,
    micro_batch_size: int | None,
    threads: int | None,
    client_mode: bool,
    announce_maddrs: Sequence[str],
    name: str | None = None,
) -> None:
    """Checks the volunteer's flags before anything is started.

    Raises:
        BadInput: If a flag cannot work.
    """
    target, cores = swarm.target_batch_size, usable_cores()
    if micro_batch_size is not None and micro_batch_size > target:
        raise BadInput(
            f"--micro-batch-size {micro_batch_size} is more than an epoch of this run, which is {target} samples of "
            "all peers together; give less, or omit it."
        )
    if threads is not None and threads > cores:
        raise BadInput(
            f"--threads {threads} is more than the {cores} processor cores that this program may use, and more threads "
            "than cores slow each other down; give at most that, or omit it."
        )
    if client_mode and announce_maddrs:
        raise BadInput(
            "--client-mode accepts no incoming connections, so --announce-maddrs has no address to announce; "
            "omit one of them."
        )
    if name is not None and not is_name(name):
        raise BadInput(
            f"--name {name!r} has {len(name)} characters: a name has 1 to {LONGEST_NAME}, without control characters "
            "and others that are invisible; give another."
        )


def check_files(swarm: SwarmConfig) -> str | None:
    """Checks the limit on open files. Returns a warning if a full group's connections may exceed it, otherwise None.

    Raises:
        BadInput: If even the smallest group may exceed it.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    least, full = map(files_of_group, (MIN_GROUP_SIZE, swarm.max_group_size))
    if limit < least:
        raise BadInput(
            f"This process may open {limit} files, and even the smallest group needs up to {least}; "
            f"raise the limit with `ulimit -n {FILE_LIMIT}`."
        )
    if limit < full:
        return (
            f"This process may open {limit} files; a full group of {swarm.max_group_size} peers may need {full}. "
            f"Raise the limit with `ulimit -n {FILE_LIMIT}`."
        )
    return None


def link_in_use(link: Link) -> Setting:
    """Describes the measured network link, and how large a part of the average it makes this peer compute."""
    seconds = min(link.answer_seconds, default=None)
    latency = "latency not known" if seconds is None else f"an initial peer answers in {show_time(seconds)}"
    parts = "as large a part as the others" if link.mbits is None else f"a part that suits {link.mbits:.3g} Mbit/s"
    if link.download_seconds:
        rate = show_rate(8 * link.download_bytes / link.download_seconds, "bit")
        size = show_bytes(link.download_bytes)
        reason = f"the state's {size} were downloaded at {rate}; your upload is not measured"
    else:
        reason = "no state was downloaded, so upload and download are not measured"
    reason += f"; you average {parts}" + (", as you said" if link.told_mbits else "")
    return Setting(name="link", value=f"{link.reach}; {latency}", reason=reason)


def link_warning(swarm: SwarmConfig, link: Link, parameters: int) -> str | None:
    """Warning if `--max-upload` or the download of the state, the slower of them, is too slow; otherwise None.

    A peer receives as many bytes as it sends, so a slow download holds up an exchange even if the limit does not.
    """
    seconds_up = 8 / (link.told_mbits * 1e6) if link.told_mbits else 0.0  # a byte; 0 where nothing is known
    seconds_down = link.download_seconds / max(link.download_bytes, 1)
    cost, limit = exchange_cost(swarm, parameters), swarm.allreduce_timeout_seconds
    seconds = cost.most_sent_bytes * max(seconds_up, seconds_down)
    if seconds <= limit:
        return None
    enough = math.ceil(UPLOAD_MARGIN * 8 * cost.most_sent_bytes / limit / 1e6)
    speed, cure = (
        (f"--max-upload {link.told_mbits:g} (Mbit/s)", f"Use --max-upload {enough}, or omit it.")
        if seconds_up >= seconds_down
        else ("the speed of your download", "A wired connection, or less other traffic, may help.")
    )
    return (
        f"At {speed}, an exchange of {show_bytes(cost.most_sent_bytes)} among {cost.peers} peers takes "
        f"{show_time(seconds)}, and the run gives up after {limit:g} s, so you and the others may train apart. {cure}"
    )
