"""Settings of the recipe and of this machine, with their reasons, for the volunteer."""

from __future__ import annotations

import resource

from calculator.swarm.exchange import SPARSE_BLOCK, exchange_cost
from calculator.units import show_bytes, show_rate
from training.compute.machine import usable_cores
from training.optim.eight_bit.kernels import kernels
from training.processes.notices import Setting
from training.swarm.config import SwarmConfig


def settings_in_use(swarm: SwarmConfig, *, optimizer: str, parameters: int, threads: int) -> tuple[Setting, ...]:
    """Settings that `Choices` does not cover, set by the recipe or by this machine, with their reasons."""
    compiled = "loops compiled for this processor" if kernels() else "PyTorch only, since there is no C compiler"
    bits = {"float16": "16 bit", "float32": "32 bit"}.get(swarm.gradient_codec, "8 bit")
    state = "16 bit" if swarm.state_bits == 16 else bits
    large = f"tensors of {swarm.compression_threshold:,} values or more" if bits == "8 bit" else "all tensors"
    small = "smaller ones in 16 bit, " if bits == "8 bit" else ""
    local = swarm.local_updates
    meanwhile = "the update and the average of gradients" if swarm.mode == "delayed" else "the update"
    if local:
        meanwhile = "the exchange" if swarm.delay_outer_step else "nothing"
    cost = exchange_cost(swarm, parameters)
    gradients = f"gradients ({swarm.gradient_codec}), {large}"
    if swarm.mode == "sparse":
        bits, small = "2 bit", ""
        gradients = f"{swarm.sparse_kept} of each {SPARSE_BLOCK:,} distances"
    link = show_rate(8 * cost.most_sent_bytes / swarm.allreduce_timeout_seconds, "bit", digits=2)
    return (
        Setting(
            name="threads",
            value=str(threads),
            reason=f"this program may use {usable_cores()} processor cores",
        ),
        Setting(
            name="optimizer",
            value=f"{optimizer} with the model and SGD on the host" if local else f"{optimizer} on the host",
            reason=f"averaging needs weights and gradients there in any case; {compiled}"
            if optimizer.endswith("8bit")
            else "averaging needs weights and gradients there in any case",
        ),
        Setting(
            name=f"in {bits}",
            value=gradients,
            reason=f"set by the recipe; {small}parameters in {state} every {swarm.average_state_every} "
            f"epoch{'s' * (swarm.average_state_every > 1)}, the state for newcomers in 16 bit",
        ),
        Setting(
            name="meanwhile",
            value=meanwhile,
            reason="local updates exchange at fixed points, so nothing is delayed"
            if meanwhile == "nothing"
            else "set by the recipe; it runs while the next epoch computes",
        ),
        Setting(
            name="times",
            value=f"groups form for {swarm.matchmaking_seconds:g} s, then average for at most "
            f"{swarm.allreduce_timeout_seconds:g} s",
            reason=f"set by the recipe; among {cost.peers} peers, each sends at most "
            f"{show_bytes(cost.most_sent_bytes)} in one average, so it needs a link of at least {link}",
        ),
        Setting(
            name="files",
            value=_files(),
            reason="each connection to another peer takes one",
        ),
    )


def _files() -> str:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} at once"
