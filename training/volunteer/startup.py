"""What a peer says and checks before it trains: how the run's settings suit each other and this machine.

A setting that cannot work ends the program with one sentence. What only costs time or may fail later is a warning.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import dataclass

from calculator.exchange import part_bytes, vector_bytes
from calculator.page.words import show_bytes
from calculator.swarm import PATIENCE_WINDOWS
from training.compute.choices import Setting
from training.compute.machine import usable_cores
from training.config import RunConfig
from training.errors import BadInput
from training.optim.kernels import kernels
from training.processes.environment import FILE_LIMIT

BASE_FILES = 256
"""Open files of a peer without connections; some 60 were counted, in a process that trains."""
FILES_PER_PEER = 2
"""A connection in each direction."""
MEASURABLE_BYTES = 1 << 23
"""A smaller download says more of the way's delay than of what the link carries."""
FAST_MBITS = 1000.0
"""Links that carry more get equal parts: then computers are slower than links."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What was measured of the network, in passing."""

    answer_seconds: tuple[float, ...] = ()
    """Until each initial peer that answered had accepted a TCP connection."""
    download_bytes: int = 0
    """Of the state, if one was downloaded."""
    download_seconds: float = 0.0
    """From the first byte to the last."""
    told_mbits: float | None = None
    """What the volunteer says that it carries, in Mbit/s."""

    @property
    def mbits(self) -> float | None:
        """What it carries, in Mbit/s, as far as that is known; more than `FAST_MBITS` is not told apart.

        >>> Link(download_bytes=50_000_000, download_seconds=20.0).mbits
        20.0
        """
        if self.told_mbits is not None:
            return min(self.told_mbits, FAST_MBITS)
        if self.download_bytes < MEASURABLE_BYTES or not self.download_seconds:
            return None
        return min(8 * self.download_bytes / self.download_seconds / 1e6, FAST_MBITS)


def check_flags(
    run: RunConfig,
    *,
    micro_batch_size: int | None,
    threads: int | None,
    client_mode: bool,
    announce_maddrs: Sequence[str],
) -> None:
    """Whether what the volunteer has said can be, before anything is started.

    Raises:
        BadInput: If not.
    """
    target, cores = run.swarm.target_batch_size, usable_cores()
    if micro_batch_size is not None and micro_batch_size > target:
        raise BadInput(
            f"--micro-batch-size {micro_batch_size} is more than an epoch of this run, {target} samples of all peers "
            "together; give less, or leave it away."
        )
    if threads is not None and threads > cores:
        raise BadInput(
            f"--threads {threads} is more than the {cores} processor cores that this program may use, and more threads "
            "than cores slow each other down; give at most that, or leave it away."
        )
    if client_mode and announce_maddrs:
        raise BadInput(
            "--client-mode accepts no incoming connections, so there is no address for --announce-maddrs to tell; "
            "leave one of them away."
        )


def check_times(run: RunConfig) -> None:
    """Whether the recipe's times leave room for each other; all are swarm's.

    Raises:
        BadInput: If a shorter one holds a longer one, which then can never be used up.
    """
    swarm = run.swarm
    search = PATIENCE_WINDOWS * swarm.matchmaking_seconds
    least = search + swarm.allreduce_timeout_seconds
    if swarm.averaging_timeout_seconds < least:
        raise BadInput(
            f"The recipe's averaging_timeout_seconds is {swarm.averaging_timeout_seconds:g}: a group may be looked for "
            f"through {PATIENCE_WINDOWS} windows of matchmaking_seconds = {swarm.matchmaking_seconds:g} and average "
            f"for allreduce_timeout_seconds = {swarm.allreduce_timeout_seconds:g}, so it must be at least {least:g}.",
            cure="Change it in the recipe's `[swarm]`.",
        )
    if swarm.next_chunk_timeout_seconds >= swarm.allreduce_timeout_seconds:
        raise BadInput(
            f"The recipe's next_chunk_timeout_seconds is {swarm.next_chunk_timeout_seconds:g}: a silent peer would "
            f"not be given up within allreduce_timeout_seconds = {swarm.allreduce_timeout_seconds:g}; make it shorter."
        )
    if swarm.metrics_expiration_seconds < 2 * swarm.metrics_every_seconds:
        raise BadInput(
            f"The recipe's metrics_expiration_seconds is {swarm.metrics_expiration_seconds:g}: a peer that reports "
            f"every {swarm.metrics_every_seconds:g} s would count as gone in between; make it twice that at least."
        )


def check_files(run: RunConfig) -> str | None:
    """Whether connections to a full group can be open at once; a warning, or None.

    Raises:
        BadInput: If even the smallest group may be too much.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    swarm = run.swarm
    least, full = (BASE_FILES + FILES_PER_PEER * peers for peers in (swarm.min_group_size, swarm.max_group_size))
    if limit < least:
        raise BadInput(
            f"This process may open {limit} files, and with the smallest group it needs up to {least}; "
            f"raise the limit with `ulimit -n {FILE_LIMIT}`."
        )
    if limit < full:
        return (
            f"This process may open {limit} files; a full group of {swarm.max_group_size} may take {full}. "
            f"Raise the limit with `ulimit -n {FILE_LIMIT}`."
        )
    return None


def all_reduce_bytes(run: RunConfig, parameters: int) -> int:
    """Bytes that a peer with an equal share sends in one average of gradients, in a large group.

    Its own parts go to the others and the parts that it has averaged back to them.

    Args:
        run: The recipe.
        parameters: Of the model; all are counted as large tensors.
    """
    return 2 * vector_bytes(parameters, 0, run.swarm.gradient_codec)


def settings_in_use(run: RunConfig, *, parameters: int, threads: int) -> tuple[Setting, ...]:
    """What is set beside `Choices`, by the recipe or by what this machine has, and why."""
    swarm, optimizer = run.swarm, run.optimizer
    compiled = "loops compiled for this processor" if kernels() else "PyTorch alone, as there is no C compiler"
    bits = {"float16": "16 bit", "float32": "32 bit"}.get(swarm.gradient_codec, "8 bit")
    state = "16 bit" if swarm.state_bits == 16 else bits
    large = f"tensors of {swarm.compression_threshold:,} values or more" if bits == "8 bit" else "all tensors"
    small = "smaller ones in 16 bit, " if bits == "8 bit" else ""
    local = swarm.mode == "diloco"
    delays = [
        "the update" * swarm.delay_optimizer_step,
        "the average of gradients" * swarm.delay_gradient_averaging,
    ]
    behind = " and ".join(filter(None, delays)) if not local else ""
    sent = all_reduce_bytes(run, parameters)
    mbits = sent * 8 / swarm.allreduce_timeout_seconds / 1e6
    return (
        Setting(
            name="threads",
            value=str(threads),
            reason=f"this program may use {usable_cores()} processor cores",
        ),
        Setting(
            name="optimizer",
            value=f"{optimizer.name} with the model and SGD on the host" if local else f"{optimizer.name} on the host",
            reason=f"averaging needs weights and gradients there anyway; {compiled}"
            if optimizer.name == "lamb8bit"
            else "averaging needs weights and gradients there anyway",
        ),
        Setting(
            name=f"in {bits}",
            value=f"gradients ({swarm.gradient_codec}), {large}",
            reason=f"the recipe's; {small}parameters in {state} every {swarm.average_state_every} "
            f"epoch{'s' * (swarm.average_state_every > 1)}, the state for newcomers in {swarm.newcomer_bits} bit",
        ),
        Setting(
            name="meanwhile",
            value=behind or "nothing",
            reason="local updates exchange at fixed points, so nothing is delayed"
            if local
            else "the recipe's; it runs while the next epoch computes"
            if behind
            else "the recipe's; the next epoch waits for average and update",
        ),
        Setting(
            name="times",
            value=f"groups form for {swarm.matchmaking_seconds:g} s, then average for at most "
            f"{swarm.allreduce_timeout_seconds:g} s",
            reason=f"the recipe's; an average sends about {show_bytes(sent)}, in parts of "
            f"{show_bytes(part_bytes(parameters))}, so it takes a link of {mbits:.2g} Mbit/s at least",
        ),
        Setting(
            name="files",
            value=_files(),
            reason="each connection to another peer is one",
        ),
    )


def link_in_use(link: Link) -> Setting:
    """What is known of the network and what is not, and what others are told of it."""
    answers = f"{1000 * min(link.answer_seconds):.3g} ms" if link.answer_seconds else "not known"
    parts = "as large a part as the others" if link.mbits is None else f"a part that suits {link.mbits:.3g} Mbit/s"
    if link.download_seconds:
        rate = 8 * link.download_bytes / link.download_seconds / 1e6
        size = show_bytes(link.download_bytes)
        reason = f"the state's {size} came at {rate:.3g} Mbit/s; what you can send is not measured"
    else:
        reason = "no state was downloaded, so what you can send and receive a second is not measured"
    reason += f"; of each average you compute {parts}" + (", as you said" if link.told_mbits else "")
    return Setting(name="link", value=f"an initial peer answers in {answers}", reason=reason)


def link_warning(run: RunConfig, link: Link, parameters: int) -> str | None:
    """If the state came more slowly than an average must come."""
    if not link.download_seconds:
        return None
    seconds = all_reduce_bytes(run, parameters) * link.download_seconds / max(link.download_bytes, 1)
    limit = run.swarm.allreduce_timeout_seconds
    if seconds <= limit:
        return None
    return (
        f"At the speed of the download an average takes {seconds:.0f} s, and the run gives up after {limit:g} s; "
        "you may be left out of averages. A wired connection, or less other traffic, may help."
    )


def _files() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return "as many as wanted" if limit == resource.RLIM_INFINITY else f"{limit} at once"
