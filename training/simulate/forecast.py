"""Forecast of a recipe with its volunteers: throughput, time to finish, use of the peers' time, and limits reached."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from calculator.errors import BadSetup
from calculator.parts.optimizers import OF_RECIPES
from calculator.swarm.collaboration import Collaboration, Kind
from calculator.swarm.forecast import (
    DAY_SECONDS,
    MESSAGE_BYTES,
    PROGRESS_RECORD_BYTES,
    ExchangedVectors,
    Volunteers,
    forecast,
)
from calculator.swarm.settings import ExchangeSettings
from training.errors import BadInput
from training.recipe import RunConfig
from training.simulate.population import Spread, draw
from training.simulate.swarm import Rules, Swarm
from training.tasks.shape import shape_of

WARM_UP_EPOCHS = 2
"""Number of epochs until peers that started together finish at different times, and averages run in the background."""
MOST_SIMULATED_SECONDS = 400 * DAY_SECONDS
"""Simulated time after which a run that has not finished its epochs counts as one that never finishes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a simulated swarm after the warm-up."""

    volunteers: int
    epochs: int
    peers: float
    """Mean number of peers present at the same time."""
    simulated_seconds: float
    epoch_seconds: float
    samples_per_epoch: float
    samples_per_second: float
    """Samples per second that entered an update."""
    ideal_samples_per_second: float
    """Throughput of the present peers if nothing were lost, in samples per second."""
    shares: dict[str, float]
    """Shares of all volunteers' time, by cause (`training.simulate.accounts.Cause`)."""
    group_size: float
    all_reduce_seconds: float
    sent_bytes: float
    """Bytes sent per peer and epoch."""
    alone: float
    """Share of updates that peers made on their own although others were present."""
    left_behind: float
    """Share of peers' epochs that were lost because a peer found no full group."""
    given_up: float
    """Share of peers' epochs that were lost because a link was too slow for its group."""
    newcomer_seconds: float | None
    stalled: bool
    """True if the run stalled, so that no further epoch ends."""
    limits: tuple[str, ...]
    """Sentences about limits, from the closed form and from the simulation."""
    events: int
    wall_seconds: float

    @property
    def throughput_over_ideal(self) -> float:
        """Throughput relative to the ideal one."""
        return self.samples_per_second / self.ideal_samples_per_second if self.ideal_samples_per_second else 0.0

    def days(self, epochs: int) -> float | None:
        """Days until `epochs` updates; None if the run never gets there, because no update is shared."""
        return None if self.stalled or not self.samples_per_second else epochs * self.epoch_seconds / DAY_SECONDS


def simulate(
    kinds: Sequence[Volunteers],
    rules: Rules,
    *,
    epochs: int = 30,
    spread: Spread | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda epoch: None,
) -> Outcome:
    """Simulates a number of epochs.

    Args:
        kinds: Groups of volunteers with their numbers, machines and links.
        rules: Sizes that the volunteers exchange, and rules by which they meet.
        epochs: Number of counted epochs; `WARM_UP_EPOCHS` before them do not count.
        spread: Differences between volunteers of a kind; None: the default.
        seed: Seed of all random draws.
        progress: Called with the number of each epoch that has ended.
    """
    began, chance = time.perf_counter(), random.Random(seed)
    swarm = Swarm(draw(kinds, spread or Spread(), chance), rules, chance)
    for target in range(1, WARM_UP_EPOCHS + epochs + 1):
        ended = swarm.clock.play(lambda target=target: swarm.epoch >= target or swarm.stalled, MOST_SIMULATED_SECONDS)
        if swarm.stalled or not ended:
            break
        progress(target)
        if target == WARM_UP_EPOCHS:
            swarm.begin_tally()
    swarm.end_tally()
    return _outcome(swarm, kinds, time.perf_counter() - began)


def _outcome(swarm: Swarm, kinds: Sequence[Volunteers], wall_seconds: float) -> Outcome:
    tally, exchange = swarm.tally, swarm.rules.exchange
    seconds, there = swarm.clock.now - tally.began, sum(swarm.accounts.seconds.values())
    stalled = swarm.stalled or not tally.epochs
    speeds = [peer.person.samples_per_second for peer in swarm.peers]
    counted = max(tally.senders + tally.alone + tally.left_behind + tally.given_up, 1)
    peers = len(swarm.peers) if stalled else there / seconds
    ideal = sum(speeds) / max(len(speeds), 1) * peers
    return Outcome(
        volunteers=sum(kind.count for kind in kinds),
        epochs=tally.epochs,
        peers=peers,
        simulated_seconds=seconds,
        epoch_seconds=0.0 if stalled else seconds / tally.epochs,
        samples_per_epoch=tally.samples / max(tally.epochs, 1),
        samples_per_second=0.0 if stalled else tally.samples / seconds,
        ideal_samples_per_second=ideal,
        shares=swarm.accounts.shares(),
        group_size=tally.senders / max(tally.groups, 1),
        all_reduce_seconds=tally.averaging_seconds / max(tally.groups, 1),
        sent_bytes=tally.sent_bytes / max(tally.senders, 1),
        alone=tally.alone / counted,
        left_behind=tally.left_behind / counted,
        given_up=tally.given_up / counted,
        newcomer_seconds=tally.newcomer_seconds / tally.newcomers if tally.newcomers else None,
        stalled=stalled,
        limits=tuple(_limits(swarm, kinds, exchange, tally.samples / max(tally.epochs, 1), counted)),
        events=swarm.clock.played,
        wall_seconds=wall_seconds,
    )


def _limits(
    swarm: Swarm, kinds: Sequence[Volunteers], exchange: ExchangedVectors, samples: float, counted: int
) -> list[str]:
    try:
        found = [f"{limit.name}: {limit.sentence}" for limit in forecast(kinds, exchange, swarm.rules.costs).limits]
    except BadSetup as error:
        found = [str(error)]
    if swarm.stalled:
        most = MESSAGE_BYTES // PROGRESS_RECORD_BYTES
        found.insert(
            0, f"The run stalled: {len(swarm.peers):,} peers were present, and there can be no more than {most:,}."
        )
    if samples > 1.2 * exchange.target_batch_size:
        found.append(
            f"An update takes {samples / exchange.target_batch_size:.2g} times the target batch, "
            "since peers continue computing until they learn that the target is reached."
        )
    tally, seen = swarm.tally, "of all peers' epochs were lost"
    if tally.left_behind > 0.01 * counted:
        found.append(f"{tally.left_behind / counted:.1%} {seen} by peers without a full group.")
    if tally.given_up > 0.01 * counted:
        found.append(f"{tally.given_up / counted:.1%} {seen} by peers whose links are too slow for their group.")
    if tally.alone > 0.01 * counted:
        found.append(f"{tally.alone / counted:.1%} {seen} in averages that timed out: these peers trained alone.")
    if tally.aborted_states > 0.01 * tally.states:
        share = tally.aborted_states / tally.states
        found.append(f"{share:.1%} of all averages of the parameters timed out: their peers' weights drift apart.")
    return found


def collaboration_of(run: RunConfig, kinds: Sequence[Kind]) -> Collaboration:
    """Describes a recipe's run with these volunteers for the closed form.

    Raises:
        BadInput: If the recipe uses something that is not simulated.
    """
    swarm = run.swarm
    if swarm.powersgd_rank:
        raise BadInput("PowerSGD is not simulated; set swarm.powersgd_rank = 0 in the recipe to simulate without it.")
    shape = shape_of(run)
    return Collaboration(
        volunteers=tuple(kinds),
        config=shape.config,
        sequence_length=shape.seq_len,
        **{name: value for name, value in shape.adapters.items() if name != "base_bits"},
        optimizer=OF_RECIPES[run.optimizer.name],
        target_batch_size=swarm.target_batch_size,
        epochs=run.schedule.total_epochs,
        compression_threshold=swarm.compression_threshold,
        **{one.name: getattr(swarm, one.name) for one in fields(ExchangeSettings) if hasattr(swarm, one.name)},
    )
