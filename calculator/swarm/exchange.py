"""Bytes and time of an average among peers, in closed form.

hivemind averages by a butterfly all-reduce: the vector is cut into parts, each peer collects one part from all others,
averages it and returns the result. Peer i of n, whose part is the fraction f_i of V bytes, sends (1 - f_i) V of its own
vector and (n - 1) f_i V of results, and receives as much: V (1 + (n - 2) f_i) each way (hivemind 1.1.12,
averaging/load_balancing.py). A peer in client mode averages no part. Sparse messages are gathered instead: each peer
gets those of all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from calculator.errors import BadSetup
from calculator.swarm.settings import MODES

CODECS = ("blockwise8", "uniform8", "float16", "float32")
"""The encodings among which a recipe chooses (training/swarm/engine/codecs.py)."""
BLOCK_SIZE = 512
"""Values that share one float32 scale in `blockwise8` (training/swarm/engine/codecs.py)."""
SPARSE_BLOCK = 4096
"""Values of a block, of which `mode = "sparse"` sends the largest ones (Sarfi et al. 2025, arXiv:2508.15706)."""
USUAL_GROUP = 8
"""Peers of a group for which costs are stated where nobody knows yet how many there will be."""
CODEBOOK_BYTES = 8 + 256 * 4
"""Bytes in each part of `uniform8` besides its codes: a length and 256 float32 values (hivemind 1.1.12,
compression/quantization.py)."""
SMALLEST_PART_BYTES, LARGEST_PART_BYTES = 1 << 14, 1 << 19
PARTS_OF_A_VECTOR = 32
"""Rule of the length of parts: a vector of V values is sent in parts of V / `PARTS_OF_A_VECTOR` bytes, within the
bounds above; the upper bound is hivemind's default (1.1.12, averaging/partition.py)."""
GATHERED_PARTS = 8
"""Number of parts of a gathered message that each peer passes on: enough to divide them by the peers' bandwidths
(training/swarm/round/rounds.py)."""
WIRE_BYTES_PER_BYTE = 1514 / 1448
"""Bytes of an Ethernet frame over those of its payload: 14 bytes of Ethernet, 20 of IPv4 and 32 of TCP with time stamps
(RFC 894, 791, 7323) around 1448."""


def part_values(values: int, codec: str) -> int:
    """Values in one part of a vector.

    >>> part_values(20_000_000, "uniform8"), part_values(20_000_000, "float16")
    (524288, 262144)
    """
    bytes_per_value = {"blockwise8": 1 + 4 / BLOCK_SIZE, "uniform8": 1, "float16": 2, "float32": 4}[codec]
    return int(part_bytes(values) / bytes_per_value)


def part_bytes(values: int) -> int:
    """Bytes of one part of a vector of `values` values: small enough that a small model has a part for each peer.

    >>> part_bytes(1_300_000), part_bytes(125_000_000)
    (40625, 524288)
    """
    return min(max(values // PARTS_OF_A_VECTOR, SMALLEST_PART_BYTES), LARGEST_PART_BYTES)


def encoded_bytes(values: int, codec: str, *, of: int | None = None) -> int:
    """Bytes of encoded values, headers included.

    Args:
        values: Number of values.
        codec: One of `CODECS`.
        of: Number of values of the whole vector, which decides the length of a part; None: `values` are all.

    >>> encoded_bytes(1024, "blockwise8"), encoded_bytes(1024, "uniform8"), encoded_bytes(1024, "float16")
    (1032, 2056, 2048)
    """
    if codec not in CODECS:
        raise BadSetup(f"codec is one of {', '.join(CODECS)}, not {codec!r}.")
    if codec in ("float16", "float32"):
        return values * (2 if codec == "float16" else 4)
    length = part_values(values if of is None else of, codec)
    whole, rest = divmod(values, length)
    if codec == "uniform8":
        return values + (whole + (rest > 0)) * CODEBOOK_BYTES
    return values + 4 * (whole * -(-length // BLOCK_SIZE) + -(-rest // BLOCK_SIZE))


def vector_bytes(parameters: int, small_parameters: int, codec: str) -> int:
    """Bytes of all parameters or gradients: in 8 bits, with small tensors in 16; or all in 16 or in 32 bits.

    >>> vector_bytes(1_000_000, 4_000, "uniform8") - 996_000
    41024
    >>> vector_bytes(1_000_000, 4_000, "float32")
    4000000
    """
    if codec in ("float16", "float32"):
        return encoded_bytes(parameters, codec)
    large = encoded_bytes(parameters - small_parameters, codec, of=parameters)
    return large + encoded_bytes(small_parameters, "float16")


def sparse_fields(values: int, kept: int, bits: int = 2) -> tuple[int, int, int]:
    """Low bits of a place, and bits of the fields `entries` and `buckets`, in the sparse code of a block.

    Args:
        values: Values of the block.
        kept: Values that the code keeps; at least 1.
        bits: Bits of a kept value; the trainer sends 2.

    >>> sparse_fields(4096, 64)
    (6, 512, 128)
    """
    low_bits = int(math.log2(values / kept))
    return low_bits, kept * (low_bits + bits), kept + ((values - 1) >> low_bits) + 1


def sparse_bytes(values: int, kept: int, bits: int = 2) -> int:
    """Bytes of a message of `mode = "sparse"` (training/swarm/epoch/sparse_code.py), if all blocks of 4096 are whole.

    >>> sparse_bytes(20_000_000, 64) * 8 / 20_000_000
    0.1601624
    """
    _, entries, buckets = sparse_fields(SPARSE_BLOCK, kept, bits)
    return -(-values // SPARSE_BLOCK) * (2 + -(-entries // 8) + -(-buckets // 8))


class Exchanging(Protocol):
    """Settings on which the cost of an exchange depends; the trainer's `SwarmConfig` has them, too."""

    mode: str
    gradient_codec: str
    state_bits: int
    sparse_kept: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeCost:
    """What one exchange takes of a peer's link in each direction."""

    peers: int
    """Peers of the group."""
    message_bytes: int
    """Bytes that a peer brings: its gradient, the distance that its weights have moved, or the largest values of it."""
    state_bytes: int
    """Bytes of the parameters as they are sent when they are averaged."""
    gathers: bool
    """True if every peer gets every message; False if the messages are averaged on their way."""

    @property
    def sent_bytes(self) -> int:
        """Bytes that a peer sends if all average equal parts. It receives as many."""
        return round(self.message_bytes * load(1 / self.peers, self.peers, self.gathers)) if self.peers > 1 else 0

    @property
    def most_sent_bytes(self) -> int:
        """Bytes that a peer sends in the longest exchange: that of messages, or an average of the parameters. Each has
        to end within the recipe's `allreduce_timeout_seconds`."""
        state = round(self.state_bytes * load(1 / self.peers, self.peers)) if self.peers > 1 else 0
        return max(self.sent_bytes, state)

    def seconds(self, bytes_per_second: float, link_share: float = 1.0) -> float:
        """Seconds of the exchange if all links have this rate; see `all_reduce_seconds`."""
        link = Link(up_bytes_per_second=bytes_per_second, down_bytes_per_second=bytes_per_second)
        links = [link] * self.peers
        return all_reduce_seconds(links, self.message_bytes, even_parts(links), link_share, gathers=self.gathers)


def exchange_cost(
    settings: Exchanging, parameters: int, peers: int = USUAL_GROUP, *, small_parameters: int = 0
) -> ExchangeCost:
    """The cost of an exchange in each mode. All commands and pages get it from here.

    Args:
        settings: The recipe's way of exchanging.
        parameters: Number of parameters that are trained.
        peers: Peers of the group.
        small_parameters: Parameters in tensors that travel in 16 bits where large ones take 8.

    >>> from calculator.swarm.settings import ExchangeSettings
    >>> billion = exchange_cost(ExchangeSettings(mode="sparse"), 10**9)
    >>> billion.message_bytes, billion.sent_bytes, round(billion.seconds(2.5e6))
    (29052779, 203369453, 85)
    >>> exchange_cost(ExchangeSettings(), 10**9).sent_bytes
    1763684517
    """
    if settings.mode not in MODES:
        raise BadSetup(f"mode is one of {', '.join(MODES)}, not {settings.mode!r:.60}.")
    if settings.mode == "sparse":
        message = sparse_bytes(parameters, settings.sparse_kept)
    else:
        message = vector_bytes(parameters, small_parameters, settings.gradient_codec)
    codec = "float16" if settings.state_bits == 16 else settings.gradient_codec
    return ExchangeCost(
        peers=peers,
        message_bytes=message,
        state_bytes=vector_bytes(parameters, small_parameters, codec),
        gathers=settings.mode == "sparse",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A peer's network link. Upload and download do not slow each other down."""

    up_bytes_per_second: float
    down_bytes_per_second: float
    latency_seconds: float = 0.0
    """Delay to another peer, one way."""
    client_mode: bool = False
    """True if the peer accepts no connections, and so averages no part."""

    @property
    def slower_bytes_per_second(self) -> float:
        """The rate of the slower direction, which limits an average: as much is sent as received."""
        return min(self.up_bytes_per_second, self.down_bytes_per_second)


def even_parts(links: Sequence[Link]) -> tuple[float, ...]:
    """Fractions of the vector if no peer declares a bandwidth: equal for all but clients.

    Raises:
        BadSetup: If all are in client mode.
    """
    _check_reachable(links)
    servers = sum(not link.client_mode for link in links)
    return tuple([0.0 if link.client_mode else 1 / servers for link in links])


def balanced_parts(links: Sequence[Link]) -> tuple[float, ...]:
    """Fractions of the vector if peers declare bandwidths; see `quickest_parts`.

    Raises:
        BadSetup: If all are in client mode.
    """
    _check_reachable(links)
    return quickest_parts([0.0 if link.client_mode else link.slower_bytes_per_second for link in links])


def _check_reachable(links: Sequence[Link]) -> None:
    if all(link.client_mode for link in links):
        raise BadSetup("All volunteers are in client mode, so none can average: at least one must be reachable.")


def quickest_parts(rates: Sequence[float]) -> tuple[float, ...]:
    """Fractions of the vector with which the slowest peer finishes earliest.

    hivemind solves a linear program: the least x with (1 + (n - 2) f_i) / b_i <= x for all servers i, where the
    fractions f_i >= 0 add up to 1. This function solves it by water-filling: f_i = max(0, (x b_i - 1) / (n - 2)), with
    the smallest x for which the sum reaches 1. But x is at least 1 / b of the slowest peer, which must send its own
    vector in any case. If the sum exceeds 1 there, the fractions are scaled down to a sum of 1, which takes no longer;
    hivemind may choose other fractions with the same x.

    All peers of a group compute the fractions from equal rates, and must find equal results to the last bit. So sums
    are exact: the results of `sum` differ between versions of Python.

    Args:
        rates: Rates of all peers, in any unit; 0: the peer averages no part. At least one is above 0.
    """
    peers, servers = len(rates), [rate for rate in rates if rate]
    if peers <= 2:  # whatever the parts are, each peer sends and gets the vector once
        return tuple([1 / len(servers) if rate else 0.0 for rate in rates])
    level = max(1 / min(servers), (peers - 2 + len(servers)) / math.fsum(servers))
    shares = [max(0.0, (level * rate - 1) / (peers - 2)) for rate in rates]
    total = math.fsum(shares)
    return tuple([share / total for share in shares])


def load(fraction: float, peers: int, gathers: bool = False) -> float:
    """The bytes that a peer sends, relative to the bytes of the vector or message.

    In an average it also receives as many. If messages are gathered, the reducer of a part answers each of the others
    with all copies but its own, and each peer receives peers - 1 messages.

    >>> load(1 / 8, 8), load(1 / 8, 8, gathers=True), load(0.0, 8, gathers=True)
    (1.75, 7.0, 1.0)
    """
    if gathers:
        return 1 - fraction + (peers - 1) ** 2 * fraction
    return 1 + (peers - 2) * fraction if fraction else 1.0


def message_seconds(link: Link, reducers: int, size_bytes: float, longest_bytes: float, link_share: float) -> float:
    """Seconds between two parts from a peer to the same reducer: meanwhile it sends one to each other reducer.

    hivemind drops a sender that is silent for longer than `next_chunk_timeout` (averaging/allreduce.py).
    """
    part = min(longest_bytes, size_bytes / max(reducers, 1))
    return part * WIRE_BYTES_PER_BYTE * max(reducers - 1, 0) / (link.slower_bytes_per_second * link_share)


def all_reduce_seconds(
    links: Sequence[Link], size_bytes: float, parts: Sequence[float], link_share: float, *, gathers: bool = False
) -> float:
    """Seconds of one all-reduce, which are those of the slowest peer.

    Args:
        links: Links of all peers of the group.
        size_bytes: Bytes of the encoded vector.
        parts: Fractions of the vector, as from `even_parts`.
        link_share: The fraction of a link's rate that an average reaches.
        gathers: True if messages are gathered instead of averaged; see `load`.
    """
    if len(links) < 2:
        return 0.0
    wire, peers = size_bytes * WIRE_BYTES_PER_BYTE / link_share, len(links)

    def seconds_a_byte(link: Link, part: float) -> float:
        sent = load(part, peers, gathers)
        received = peers - 1 if gathers else sent
        return max(sent / link.up_bytes_per_second, received / link.down_bytes_per_second)

    slowest = max(map(seconds_a_byte, links, parts))
    return wire * slowest + 4 * max(link.latency_seconds for link in links)
