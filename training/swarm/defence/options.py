"""Clipping in place of the mean, and checks of reducers: a recipe with `aggregation = "centered-clip"` has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hivemind.p2p import P2P

from training.swarm.config import SwarmConfig
from training.swarm.defence.auditor import Auditor
from training.swarm.defence.clipping import Clipping, clipping_of_gradients, clipping_of_parameters
from training.swarm.engine.process import DHT
from training.swarm.node.dht import signer_of


def of_gradients(swarm: SwarmConfig) -> dict[str, object]:
    """Settings of the gradients' averager (see `AveragerSettings`) for clipping and for checks of reducers."""
    return _options(swarm, clipping_of_gradients(swarm))


def of_parameters(swarm: SwarmConfig) -> dict[str, object]:
    """Settings of the parameters' averager for clipping and for checks of reducers."""
    return _options(swarm, clipping_of_parameters(swarm))


def _options(swarm: SwarmConfig, clipping: Clipping) -> dict[str, object]:
    guard = partial(make_auditor, share=swarm.audit_share, clipping=clipping) if swarm.audit_share else None
    return {"reduction": clipping, "guard": guard}


def make_auditor(
    connection: P2P,
    dht: DHT,
    prefix: str,
    caught: Callable[[str, float, str], None],
    *,
    share: float,
    clipping: Clipping | None,
) -> Auditor | None:
    """Makes the guard that checks reducers; see `round.guard.MakeGuard`."""
    signer = signer_of(dht)
    if signer is None:
        return None
    return Auditor(connection, prefix, signer=signer, share=share, clipping=clipping, caught=caught)
