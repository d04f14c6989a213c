"""The throughput of a mix of volunteers, in closed form: Volunteers and ExchangedVectors -> Forecast.

One epoch is one update of all peers. A volunteer's time is either spent on samples that count or lost to a cause, and
the shares add up to 1. All figures are means over many epochs of peers that join and leave independently.
`training/simulate` plays the same rules event by event; it is compared with this module and with measured swarms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from calculator.errors import BadSetup
from calculator.parts.optimizers import LAMB_BLOCK_SIZE
from calculator.swarm.exchange import (
    GATHERED_PARTS,
    LARGEST_PART_BYTES,
    SPARSE_BLOCK,
    USUAL_GROUP,
    WIRE_BYTES_PER_BYTE,
    ExchangeCost,
    Link,
    all_reduce_seconds,
    balanced_parts,
    even_parts,
    exchange_cost,
    load,
    message_seconds,
    part_bytes,
    vector_bytes,
)
from calculator.swarm.settings import MODES, ExchangeSettings
from calculator.units import show_bytes, show_rate, show_time

DAY_SECONDS = 86_400
MOST_VOLUNTEERS = 1_000_000
LEAST = 1e-6
"""Smallest speed and presence that are forecast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The trainer's costs besides computing and bytes.

    The first two are fitted to two measured swarms of two peers; each of the others says whether it is measured or
    assumed. The remaining measured swarms are held out (benchmarks/swarm/simulation.py).
    """

    step_seconds_per_parameter: float = 1.82e-9
    """Seconds per parameter and micro-batch to accumulate the gradient. Fitted to gradients on the host; local updates,
    which accumulate where the model is, count the same."""
    link_share: float = 0.834
    """Share of a link's rate that an average reaches."""
    update_seconds_per_parameter: float = 7e-9
    """The optimizer's update on the host, one thread (benchmarks/results/optimizer_step.json)."""
    coding_seconds_per_parameter: float = 1.1e-8
    """Encoding a sparse message and adding up what it leaves unsent, one thread: measured for 3 million parameters
    (training/swarm/epoch/sparse.py)."""
    reading_seconds_per_parameter: float = 1.4e-9
    """Checking and decoding one of a group's sparse messages, one thread, measured likewise."""
    join_seconds: float = 0.005
    """Time of a group's leader for each peer that joins. Assumed: groups of four are too small to show it."""
    start_seconds: float = 10.0
    """Time from the start of the program to the first byte of the state: imports and the self-test. Assumed."""


COSTS = Costs()

PROGRESS_RECORD_BYTES = 890
"""Bytes that one peer's signed progress adds to the record that all peers read (tests/training/simulate)."""
MESSAGE_BYTES = 4 * 2**20
"""Longest answer of the DHT (hivemind 1.1.12, p2p/p2p_daemon_bindings/control.py, DEFAULT_MAX_MSG_SIZE)."""
PROGRESS_COPIES = 8
"""Answers to one read of the progress: from each of 5 replicas and some caches, as measured with hivemind 1.1.12."""
SLOWEST_LOOK_SECONDS, QUICKEST_LOOK_SECONDS = 10.0, 0.5
"""Longest and shortest time between two reads of the progress (training/swarm/optimizer.py)."""
PATIENCE_WINDOWS = 4
"""Matchmaking windows for which a group waits for peers that are known to train; the trainer uses this value."""
GONE_SECONDS = 3.5
"""Seconds after which the others of an average give up a peer that answered their calls before; the trainer uses
this value."""
ADVISED_WINDOWS = 5
"""Matchmaking windows that an epoch should last at least (training.swarm.config.SwarmConfig)."""
DOWNLOADED_MOMENT_BYTES = 2 * (1 + 4 / LAMB_BLOCK_SIZE)
"""Bytes per parameter of the two 8-bit moments, with their scales, that a newcomer downloads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Volunteers:
    """A number of volunteers of one kind."""

    count: int
    """Volunteers who take part, though not all at the same time."""
    samples_per_second: float
    """Forward and backward passes of one volunteer."""
    link: Link
    micro_batch_size: int = 1
    present: float = 1.0
    """Share of the time for which each volunteer is present."""
    session_seconds: float = math.inf
    """Mean time from joining to leaving, which a volunteer does not announce."""

    def __post_init__(self):
        checks = {
            "count": (1 <= self.count <= MOST_VOLUNTEERS, f"a whole number from 1 to {MOST_VOLUNTEERS:,}"),
            "samples_per_second": (LEAST <= self.samples_per_second < 1e6, "from 0.000001 to below 1,000,000"),
            "micro_batch_size": (1 <= self.micro_batch_size <= 4096, "from 1 to 4096"),
            "present": (LEAST <= self.present <= 1, "from 0.000001 to 1"),
            "session_seconds": (self.session_seconds >= 60, "at least 60"),
        }
        for name, (sound, accepted) in checks.items():
            if not sound:
                raise BadSetup(f"{name} of volunteers is {accepted}; it is {getattr(self, name)!r:.60}.")
        link = self.link
        if not 1 <= link.slower_bytes_per_second < math.inf or not 0 <= link.latency_seconds <= 10:
            raise BadSetup(
                "A link of volunteers has at least 1 byte per second each way and a latency of at most 10 s; this has "
                f"{link.up_bytes_per_second:g} up, {link.down_bytes_per_second:g} down, and {link.latency_seconds:g} s."
            )

    def step_seconds(self, exchange: ExchangedVectors, costs: Costs = COSTS) -> float:
        """Time of one micro-batch, including the accumulation of its gradient."""
        added = costs.step_seconds_per_parameter * exchange.parameters
        return self.micro_batch_size / self.samples_per_second + added


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangedVectors(ExchangeSettings):
    """The vectors that peers exchange, and when, as a recipe says (`training.swarm.config.SwarmConfig`)."""

    parameters: int
    target_batch_size: int
    small_parameters: int = 0
    """Parameters in tensors below the recipe's threshold, which are sent in 16 bits."""
    optimizer_bytes: int | None = None
    """Bytes of the optimizer's state; None: those of two moments in 8 bits."""

    def __post_init__(self):
        checks = {
            "parameters": 1 <= self.parameters <= 10**13,
            "target_batch_size": 1 <= self.target_batch_size <= 10**9,
            "small_parameters": 0 <= self.small_parameters <= self.parameters,
            "state_bits": self.state_bits in (8, 16),
            "average_state_every": self.average_state_every >= 1,
            "matchmaking_seconds": 0 < self.matchmaking_seconds <= 3600,
            "next_chunk_timeout_seconds": 0 < self.next_chunk_timeout_seconds < math.inf,
            "allreduce_timeout_seconds": 0 < self.allreduce_timeout_seconds < math.inf,
            "max_group_size": self.max_group_size >= 2,
            "mode": self.mode in MODES,
            "sparse_kept": 8 <= self.sparse_kept <= SPARSE_BLOCK // 4,
        }
        for name, sound in checks.items():
            if not sound:
                raise BadSetup(f"{name} of an exchange cannot be {getattr(self, name)!r:.60}.")

    def cost(self, peers: int = USUAL_GROUP) -> ExchangeCost:
        """The cost of an exchange in a group."""
        return exchange_cost(self, self.parameters, peers, small_parameters=self.small_parameters)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradient, or of what takes its place, as it is sent."""
        return self.cost().message_bytes

    def update_seconds(self, peers: int, costs: Costs = COSTS) -> float:
        """Seconds of the update on the host; in sparse mode also those of encoding and decoding the messages."""
        seconds = costs.update_seconds_per_parameter
        if self.cost().gathers and peers > 1:
            seconds += costs.coding_seconds_per_parameter + peers * costs.reading_seconds_per_parameter
        return seconds * self.parameters

    def exchange_seconds(self, links: Sequence[Link], parts: Sequence[float], costs: Costs = COSTS) -> float:
        """Seconds of the network for an exchange; see `all_reduce_seconds`."""
        cost = self.cost()
        return all_reduce_seconds(links, cost.message_bytes, parts, costs.link_share, gathers=cost.gathers)

    def sent_bytes(
        self, part: float = 1 / USUAL_GROUP, peers: int = USUAL_GROUP, *, states: float | None = None
    ) -> float:
        """Bytes that a peer sends in an epoch.

        Args:
            part: Fraction of the vector that the peer averages.
            peers: Peers of the group.
            states: Averages of the parameters in this epoch; None: their mean number.
        """
        if peers < 2:
            return 0.0
        cost, states = self.cost(), 1 / self.average_state_every if states is None else states
        return cost.message_bytes * load(part, peers, cost.gathers) + states * self.state_bytes * load(part, peers)

    def vanished_seconds(self, link: Link) -> float:
        """Seconds for which the others of an average wait for a peer that vanishes. A peer that accepts no connections
        cannot be asked whether it is there, so it counts as slow."""
        longest = self.next_chunk_timeout_seconds
        return longest if link.client_mode else min(longest, GONE_SECONDS)

    @property
    def state_bytes(self) -> int:
        """Bytes of the parameters as they are sent in an average."""
        return self.cost().state_bytes

    @property
    def newcomer_bytes(self) -> int:
        """Bytes that a newcomer downloads: weights in 16 bit, and the optimizer's state or the outer momentum in 32,
        which sparse updates do without."""
        if self.local_updates:
            moments = 4 * self.parameters if self.mode == "diloco" else 0
        elif self.optimizer_bytes is not None:
            moments = self.optimizer_bytes
        else:
            moments = DOWNLOADED_MOMENT_BYTES * self.parameters
        return math.ceil(vector_bytes(self.parameters, self.small_parameters, "float16") + moments)

    def message_seconds(self, link: Link, reducers: int, costs: Costs = COSTS) -> float:
        """See `calculator.swarm.exchange.message_seconds`; if it exceeds the time-out, the group drops the peer."""
        cost = self.cost()
        if cost.gathers:  # what is sent from one answer to the next one to the same peer
            longest = min(cost.message_bytes / GATHERED_PARTS, LARGEST_PART_BYTES)
            return message_seconds(link, reducers, math.inf, longest, costs.link_share)
        return message_seconds(link, reducers, cost.message_bytes, part_bytes(self.parameters), costs.link_share)

    def parts(self, links: Sequence[Link]) -> tuple[float, ...]:
        """The fraction of the vector that each peer averages."""
        return balanced_parts(links) if self.declared_links else even_parts(links)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of a volunteer's time, by use."""

    computing: float
    """Computing samples that enter an update."""
    adding_up: float
    """Accumulating gradients: on the host, or with local updates where the model is."""
    last_micro_batch: float
    """Waiting for the slowest peer's last micro-batch, if peers wait for gradients."""
    meeting: float
    """Waiting for a group, and the lost work of peers whose group is not full."""
    averaging: float
    """Waiting for the network, as far as computing does not hide it."""
    joining: float
    """Starting the program and downloading the state."""
    leaving: float
    """Samples of peers that leave before the update, and waiting for peers that vanish."""

    @property
    def total(self) -> float:
        """The sum of all shares: 1, apart from rounding."""
        return sum(asdict(self).values())

    @property
    def communication(self) -> float:
        """Everything lost to the network and to the pace of other peers."""
        return self.last_micro_batch + self.meeting + self.averaging


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A limit that a run reaches."""

    name: str
    sentence: str
    stops: bool
    """True if it stops the run, rather than only wasting time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The throughput and the costs of a run."""

    peers: float
    """Mean number of peers that are present at the same time."""
    groups: int
    """All-reduce groups that form at the same time."""
    ideal_samples_per_second: float
    """The throughput if nothing were lost."""
    epoch_seconds: float
    computing_seconds: float
    """The part of an epoch for which peers compute, at their full speed."""
    all_reduce_seconds: float
    """Time of one exchange."""
    longest_seconds: float
    """Time of the longest exchange: an average of the parameters may take longer than that of gradients."""
    shares: Shares
    sent_bytes: int
    """Bytes that each peer sends per epoch: gradients, and parameters every `average_state_every` epochs.
    The peer that sends the most counts."""
    progress_bytes: int
    """Bytes that each peer receives per epoch to know the progress of the others."""
    newcomer_seconds: float
    limits: tuple[Limit, ...]

    @property
    def samples_per_second(self) -> float:
        """Samples per second that enter an update."""
        return self.ideal_samples_per_second * self.shares.computing

    def days(self, epochs: int) -> float:
        """Days until this many updates are done."""
        return epochs * self.epoch_seconds / DAY_SECONDS

    @property
    def works(self) -> bool:
        """Returns True if no limit stops the run."""
        return not any(limit.stops for limit in self.limits)


def forecast(volunteers: Sequence[Volunteers], exchange: ExchangedVectors, costs: Costs = COSTS) -> Forecast:
    """The throughput that these volunteers reach together.

    Raises:
        BadSetup: If there are no volunteers, or none that can average.
    """
    if not volunteers:
        raise BadSetup("There are no volunteers; name at least one kind.")
    peers = sum(kind.count * kind.present for kind in volunteers)
    group = _group(volunteers, min(peers, exchange.max_group_size))
    parts = exchange.parts(group)
    reduced = exchange.exchange_seconds(group, parts, costs)
    state = all_reduce_seconds(group, exchange.state_bytes, parts, costs.link_share)
    meeting = 0.0 if len(group) < 2 else costs.join_seconds * len(group) + 4 * max(x.latency_seconds for x in group)
    joining, newcomer = _joining(volunteers, exchange, costs)
    there = {kind: kind.count * kind.present * (1 - joining[kind]) for kind in volunteers}
    ideal = sum(kind.count * kind.present * kind.samples_per_second for kind in volunteers)
    plain = sum(there[kind] * kind.samples_per_second for kind in volunteers)
    slowed = sum(there[kind] * kind.micro_batch_size / kind.step_seconds(exchange, costs) for kind in volunteers)
    if not plain:
        raise BadSetup("All sessions end before the state is downloaded; longer sessions or faster links are needed.")
    computing, stepping = exchange.target_batch_size / plain, exchange.target_batch_size / slowed
    in_background = state / exchange.average_state_every + exchange.update_seconds(len(group), costs)
    met, awaited = _waits(exchange, stepping, meeting, reduced, in_background)
    awaits_gradients = peers > 1 and not exchange.is_delayed
    last = _last_micro_batch(volunteers, exchange, costs) if awaits_gradients else 0.0
    epoch = stepping + last + met + awaited
    unshared, delay = _left_over(volunteers, exchange, epoch, meeting + reduced)
    met, epoch = met + delay, epoch + delay
    lost, vanishing = _leaving(volunteers, len(group), epoch, reduced, exchange)
    epoch += vanishing
    trained = plain / ideal
    counted = trained * computing / epoch * (1 - lost) * (1 - unshared)
    shares = Shares(
        computing=counted,
        adding_up=trained * (stepping - computing) / epoch,
        last_micro_batch=trained * last / epoch,
        meeting=trained * (met + computing * (1 - lost) * unshared) / epoch,
        averaging=trained * awaited / epoch,
        joining=1 - trained,
        leaving=trained * (vanishing + computing * lost) / epoch,
    )
    epoch /= 1 - lost  # lost samples are computed again; without the peers that found no group, an update is smaller
    made = Forecast(
        peers=peers,
        groups=max(1, math.ceil(peers / exchange.max_group_size)),
        ideal_samples_per_second=ideal,
        epoch_seconds=epoch,
        computing_seconds=computing,
        all_reduce_seconds=reduced,
        longest_seconds=max(reduced, state),
        shares=shares,
        sent_bytes=_sent_bytes(exchange, parts, len(group)),
        progress_bytes=round(looks(epoch) * PROGRESS_COPIES * PROGRESS_RECORD_BYTES * peers),
        newcomer_seconds=newcomer,
        limits=(),
    )
    return replace(made, limits=tuple(_limits(made, exchange, group, unshared)))


def _waits(
    exchange: ExchangedVectors, stepping: float, meeting: float, reduced: float, in_background: float
) -> tuple[float, float]:
    """Seconds per epoch for which a peer waits for its group and for the network.

    Args:
        exchange: What peers exchange, and when.
        stepping: Seconds for which peers compute.
        meeting: Seconds until a group has formed.
        reduced: Seconds of the average of gradients.
        in_background: Seconds of the average of parameters and of the update.
    """
    if exchange.is_delayed:  # all of it happens while the next epoch computes
        return 0.0, max(0.0, meeting + reduced + in_background - stepping)
    # A peer starts looking one window early, and computes on meanwhile.
    met = max(0.0, meeting - min(stepping, exchange.matchmaking_seconds))
    # Local updates need the averaged weights at once, so nothing hides their average and their update.
    return met, reduced + max(0.0, in_background - (0.0 if exchange.local_updates else stepping))


def looks(epoch_seconds: float) -> float:
    """How often a peer reads the others' progress in an epoch: every 10 s, and more often towards the end.

    A tracker reads it again after 5/6 of the estimated remaining time, but at the earliest after half a second
    (hivemind 1.1.12, optim/progress_tracker.py).
    """
    # Each wait is 5/6 of the rest, so the rest shrinks to a sixth: hence the logarithm to the base 6.
    near = min(epoch_seconds, 6 * SLOWEST_LOOK_SECONDS / 5)
    closing = max(0.0, math.log(max(near, 1e-9) / QUICKEST_LOOK_SECONDS, 6))
    return 1 + closing + (epoch_seconds - near) / SLOWEST_LOOK_SECONDS


def _group(volunteers: Sequence[Volunteers], size: float) -> list[Link]:
    """Links of a typical group: kinds are as frequent as among all present peers, and each kind has at least one."""
    peers = sum(kind.count * kind.present for kind in volunteers)
    wanted = max(1, round(size))
    links: list[Link] = []
    for kind in volunteers:
        links += [kind.link] * max(1, round(wanted * kind.count * kind.present / peers))
    return links if len(links) > 1 or wanted < 2 else links * 2


def _joining(
    volunteers: Sequence[Volunteers], exchange: ExchangedVectors, costs: Costs
) -> tuple[dict[Volunteers, float], float]:
    """The share of a session until the state is downloaded, by kind; and the mean time of that in seconds.

    A newcomer's donor is a random reachable peer, whose upload rate is divided among its newcomers.
    """
    size = exchange.newcomer_bytes * WIRE_BYTES_PER_BYTE / costs.link_share
    donors = [kind for kind in volunteers if not kind.link.client_mode]
    weight = sum(kind.count * kind.present for kind in donors)
    if not weight:
        raise BadSetup("All volunteers are in client mode, so none can average: at least one must be reachable.")
    up = sum(kind.count * kind.present * kind.link.up_bytes_per_second for kind in donors) / weight
    arrivals = sum(kind.count * kind.present / kind.session_seconds for kind in volunteers)
    busy = arrivals * size / (weight * up)
    shares, seconds, people = {}, 0.0, 0.0
    for kind in volunteers:
        # The uploads are partly taken by other newcomers; the floor keeps the rate above 0.
        rate = min(kind.link.down_bytes_per_second, up * max(1 - busy, 1e-3))
        until = costs.start_seconds + size / rate
        shares[kind] = 1 - kind.session_seconds / (kind.session_seconds + until) if busy < 1 else 1.0
        if math.isinf(kind.session_seconds):
            shares[kind] = 0.0
        seconds += until * kind.count
        people += kind.count
    return shares, seconds / people


def _last_micro_batch(volunteers: Sequence[Volunteers], exchange: ExchangedVectors, costs: Costs) -> float:
    """Mean time for which a peer waits until all have finished the micro-batch during which the epoch ended.

    The rest of each peer's micro-batch is uniform between 0 and its length. Equal peers start together and finish
    together, so that they do not wait.
    """
    lengths = [kind.step_seconds(exchange, costs) for kind in volunteers]
    if len(volunteers) == 1:
        return 0.0
    longest, slices = max(lengths), 60
    mean_last = 0.0
    for number in range(slices):
        left = longest * (number + 0.5) / slices
        # The mean of a maximum: the integral of the probability that not all peers are done by then.
        mean_last += longest / slices * (1 - math.prod(min(1.0, left / length) for length in lengths))
    present = [kind.count * kind.present for kind in volunteers]
    own = sum(length / 2 * weight for length, weight in zip(lengths, present, strict=True)) / sum(present)
    return max(0.0, mean_last - own)


def _left_over(
    volunteers: Sequence[Volunteers], exchange: ExchangedVectors, epoch: float, others: float
) -> tuple[float, float]:
    """The share of peers whose work is lost because their group is not full; and the seconds per epoch that they wait.

    Full groups average at once. The remaining peers wait for more, and their work is lost if the others have moved on
    to the next epoch by then.

    Args:
        volunteers: All kinds.
        exchange: What they exchange.
        epoch: Seconds of an epoch without this wait.
        others: Seconds until the full groups have averaged.
    """
    present = sum(kind.count * kind.present for kind in volunteers)
    spread = math.sqrt(sum(kind.count * kind.present * (1 - kind.present) for kind in volunteers))
    numbers = [present + step / 2 * spread for step in range(-3, 4)]  # numbers of peers, taken as equally likely
    most = exchange.max_group_size
    rest = sum(peers % most / peers if peers >= most + 1 else 0.0 for peers in numbers) / len(numbers)
    patience = (PATIENCE_WINDOWS - 1) * exchange.matchmaking_seconds  # the first window lies before the epoch's end
    if exchange.is_delayed:
        return (rest, 0.0) if patience > epoch else (0.0, 0.0)
    noticed = max(exchange.matchmaking_seconds, others)
    return (rest, rest * (noticed - others)) if noticed < patience else (0.0, rest * patience)


def _leaving(
    volunteers: Sequence[Volunteers], group: int, epoch: float, reduced: float, exchange: ExchangedVectors
) -> tuple[float, float]:
    """The share of samples lost with peers that leave; and the seconds per epoch spent waiting for vanished peers."""
    present = [kind.count * kind.present for kind in volunteers]
    leaving = sum(weight / kind.session_seconds for weight, kind in zip(present, volunteers, strict=True))
    a_peer = leaving / sum(present)
    # A peer that leaves has computed half an epoch on average.
    lost = min(0.99, a_peer * epoch / 2)
    if group < 2 or exchange.is_delayed or not leaving:
        return lost, 0.0
    vanish = 1 - math.exp(-a_peer * group * reduced)
    waits = (exchange.vanished_seconds(kind.link) / kind.session_seconds for kind in volunteers)
    return lost, vanish * sum(weight * wait for weight, wait in zip(present, waits, strict=True)) / leaving


def _sent_bytes(exchange: ExchangedVectors, parts: Sequence[float], peers: int) -> int:
    """Bytes per epoch of the peer that sends the most."""
    return round(max(exchange.sent_bytes(part, peers) for part in parts))


def _limits(made: Forecast, exchange: ExchangedVectors, group: list[Link], unshared: float) -> list[Limit]:
    """The limits that the run reaches, those that stop it first."""
    found = [
        *_progress_limits(made, group),
        *_average_limits(made, exchange, group),
        *_pace_limits(made, exchange, group, unshared),
    ]
    return sorted(found, key=lambda limit: not limit.stops)


def _progress_limits(made: Forecast, group: list[Link]) -> Iterator[Limit]:
    """Limits of the record of all peers' progress."""
    most = MESSAGE_BYTES // PROGRESS_RECORD_BYTES
    if made.peers > most:
        yield Limit(
            name="progress record",
            stops=True,
            sentence=f"All peers' progress is one record of the DHT, and hivemind refuses answers above "
            f"{MESSAGE_BYTES // 2**20} MiB: beyond {most:,} peers nobody learns that an epoch is over.",
        )
    up = sorted(link.up_bytes_per_second for link in group)[len(group) // 2]
    record = made.peers * PROGRESS_RECORD_BYTES
    traffic = looks(made.epoch_seconds) * record * made.peers / made.epoch_seconds
    if made.peers > 1 and traffic > up / 2:
        yield Limit(
            name="progress traffic",
            stops=record * made.peers / up > made.epoch_seconds,
            sentence=f"Each of the few peers that hold the progress record sends it to {made.peers:,.0f} others, "
            f"{show_rate(8 * traffic, 'bit')} in total; a typical one of them has {show_rate(8 * up, 'bit')}. Peers "
            "learn too late that an epoch is over.",
        )


def _average_limits(made: Forecast, exchange: ExchangedVectors, group: list[Link]) -> Iterator[Limit]:
    """Limits of the links, in an average and in a download of the state."""
    reducers = sum(not link.client_mode for link in group)
    each = {link: exchange.message_seconds(link, reducers) for link in set(group)}
    waits = [each[link] for link in group]
    late = sum(seconds > exchange.next_chunk_timeout_seconds for seconds in waits)
    if late:
        yield Limit(
            name="links too slow for the group",
            stops=late > len(group) // 2,
            sentence=f"In a group of {len(group)}, {late} peers need up to {show_time(max(waits))} from one part to "
            f"the next, but are dropped after {exchange.next_chunk_timeout_seconds:g} s (next_chunk_timeout_seconds).",
        )
    if made.longest_seconds > exchange.allreduce_timeout_seconds:
        alone = made.all_reduce_seconds > exchange.allreduce_timeout_seconds
        what, seconds, harm = (
            ("One average", made.all_reduce_seconds, "every peer would train alone")
            if alone
            else ("An average of the parameters", made.longest_seconds, "the peers' weights would drift apart")
        )
        yield Limit(
            name="average times out",
            stops=True,
            sentence=f"{what} takes {show_time(seconds)}, but is aborted after "
            f"{exchange.allreduce_timeout_seconds:g} s (allreduce_timeout_seconds): {harm}.",
        )
    if made.shares.joining > 0.5:
        yield Limit(
            name="state download",
            stops=made.shares.joining > 0.99,
            sentence=f"Volunteers spend {made.shares.joining:.0%} of their time on starting and on downloading "
            f"{show_bytes(exchange.newcomer_bytes)} of state: sessions are too short for the links.",
        )


def _pace_limits(made: Forecast, exchange: ExchangedVectors, group: list[Link], unshared: float) -> Iterator[Limit]:
    """Limits of the epochs' length and of the group's size, which only slow the run down."""
    windows = ADVISED_WINDOWS * exchange.matchmaking_seconds
    if made.peers > 1 and made.computing_seconds < windows:
        yield Limit(
            name="short epochs",
            stops=False,
            sentence=f"Peers compute an epoch in {show_time(made.computing_seconds)}; it should last {windows:g} s, "
            f"{ADVISED_WINDOWS} windows of matchmaking. A larger target batch helps.",
        )
    if made.all_reduce_seconds > made.computing_seconds:
        slowest = min(link.slower_bytes_per_second for link in group)
        yield Limit(
            name="averages longer than epochs",
            stops=False,
            sentence=f"One average takes {show_time(made.all_reduce_seconds)}, computing "
            f"{show_time(made.computing_seconds)}. The slowest link of a group, {show_rate(8 * slowest, 'bit')}, sets "
            "the pace; a larger batch or local updates help.",
        )
    if made.groups > 1:
        yield Limit(
            name="group size",
            stops=False,
            sentence=f"Peers average in {made.groups} groups of at most {exchange.max_group_size}. Until peers of "
            "different groups meet in a later one, the groups' weights differ."
            + (f" Peers without a full group are left behind: {unshared:.0%} of the work is lost." if unshared else ""),
        )
