"""Clipping in place of the mean, and checks of reducers: a recipe with `aggregation = "centered-clip"` has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hivemind.dht import DHT
from hivemind.p2p import P2P

from training.swarm.config import SwarmConfig
from training.swarm.defence.auditor import Auditor
from training.swarm.defence.clipping import Clipping, clipping_of_gradients, clipping_of_parameters
from training.swarm.node.dht import signer_of
from training.swarm.round.pipe import AveragerSettings, Caught


def for_gradients(settings: AveragerSettings, swarm: SwarmConfig) -> AveragerSettings:
    """The settings of the gradients' averager, with clipping and checks of reducers."""
    return _with(settings, swarm, clipping_of_gradients(swarm))


def for_parameters(settings: AveragerSettings, swarm: SwarmConfig) -> AveragerSettings:
    """The settings of the parameters' averager, with clipping and checks of reducers."""
    return _with(settings, swarm, clipping_of_parameters(swarm))


def _with(settings: AveragerSettings, swarm: SwarmConfig, clipping: Clipping) -> AveragerSettings:
    guard = partial(make_auditor, share=swarm.audit_share, clipping=clipping) if swarm.audit_share else None
    return replace(settings, reduction=clipping, guard=guard)


def make_auditor(
    connection: P2P,
    dht: DHT,
    prefix: str,
    report: Callable[[object], None],
    *,
    share: float,
    clipping: Clipping | None,
) -> Auditor | None:
    """See `round.guard.MakeGuard`."""
    signer = signer_of(dht)
    if signer is None:
        return None
    caught = lambda *facts: report(Caught(*facts))  # noqa: E731
    return Auditor(connection, prefix, signer=signer, share=share, clipping=clipping, caught=caught)
