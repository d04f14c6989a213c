"""What peers send each other in an average and how long it takes, in closed form.

hivemind averages by a butterfly all-reduce: the vector is cut into parts, each peer collects one part from all others,
averages it and returns the result. Peer i of n, whose part is the fraction f_i of V bytes, sends (1 - f_i) V of its own
vector and (n - 1) f_i V of results, and receives as much: V (1 + (n - 2) f_i) each way (hivemind 1.1.12,
averaging/load_balancing.py). A peer in client mode has no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calculator.errors import BadSetup

CODECS = ("blockwise8", "uniform8", "float16", "float32")
"""How values travel, as a recipe chooses (training/swarm/codecs.py)."""
COMPRESSION_THRESHOLD = 65_536
"""Tensors with fewer values travel in 16 bit where large ones take 8 (paper, section 3.3)."""
BLOCK_SIZE = 512
"""Values that share one float32 scale in `blockwise8` (training/swarm/codecs.py)."""
CODEBOOK_BYTES = 8 + 256 * 4
"""What each part of `uniform8` carries beside its codes: a length and 256 float32 values (hivemind 1.1.12,
compression/quantization.py)."""
SMALLEST_PART_BYTES, LARGEST_PART_BYTES = 1 << 14, 1 << 19
PARTS_OF_A_VECTOR = 32
"""An average of V values travels in parts of V / 32 bytes, within these bounds; the upper one is hivemind's default
(1.1.12, averaging/partition.py)."""
WIRE_BYTES_PER_BYTE = 1514 / 1448
"""Ethernet frame over what it carries: 14 bytes of Ethernet, 20 of IPv4, 32 of TCP with time stamps (RFC 894, 791,
7323) around 1448."""


def part_values(values: int, codec: str) -> int:
    """Values in one part of a vector.

    >>> part_values(20_000_000, "uniform8"), part_values(20_000_000, "float16")
    (524288, 262144)
    """
    bytes_per_value = {"blockwise8": 1 + 4 / BLOCK_SIZE, "uniform8": 1, "float16": 2, "float32": 4}[codec]
    return int(part_bytes(values) / bytes_per_value)


def part_bytes(values: int) -> int:
    """Bytes of one part of an average of so many values: small enough that a small model's go to all of a group.

    >>> part_bytes(1_300_000), part_bytes(125_000_000)
    (40625, 524288)
    """
    return min(max(values // PARTS_OF_A_VECTOR, SMALLEST_PART_BYTES), LARGEST_PART_BYTES)


def encoded_bytes(values: int, codec: str, *, of: int | None = None) -> int:
    """Bytes of some values on their way, as the codec lays them out.

    Args:
        values: How many.
        codec: One of `CODECS`.
        of: Values of the whole vector, which decide the length of a part; None: these are all.

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
    """Bytes of all parameters or gradients: in 8 bit but for small tensors, which take 16, or all in 16 or 32 bit.

    >>> vector_bytes(1_000_000, 4_000, "uniform8") - 996_000
    41024
    >>> vector_bytes(1_000_000, 4_000, "float32")
    4000000
    """
    if codec in ("float16", "float32"):
        return encoded_bytes(parameters, codec)
    large = encoded_bytes(parameters - small_parameters, codec, of=parameters)
    return large + encoded_bytes(small_parameters, "float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A peer's way to the others. Up and down do not disturb each other."""

    up_bytes_per_second: float
    down_bytes_per_second: float
    latency_seconds: float = 0.0
    """One way, to another peer."""
    client_mode: bool = False
    """Whether it accepts no connections, and so averages no part."""

    @property
    def slower_bytes_per_second(self) -> float:
        """Of both ways: as much goes up as comes down."""
        return min(self.up_bytes_per_second, self.down_bytes_per_second)


def even_parts(links: Sequence[Link]) -> tuple[float, ...]:
    """Fractions of the vector when nobody declares a bandwidth: all but clients alike.

    Raises:
        BadSetup: If all are in client mode.
    """
    servers = sum(not link.client_mode for link in links)
    if not servers:
        raise BadSetup("All volunteers are in client mode, so nobody can average: at least one must be reachable.")
    return tuple([0.0 if link.client_mode else 1 / servers for link in links])


def balanced_parts(links: Sequence[Link]) -> tuple[float, ...]:
    """Fractions that make the slowest peer's time shortest, as hivemind chooses when bandwidths are declared.

    hivemind solves a linear program: the least x with (1 + (n - 2) f_i) / b_i <= x for all servers i, where the
    fractions f_i >= 0 add up to 1. Its solution is a level, as of water: f_i = (x b_i - 1) / (n - 2), and no less than
    0, at the smallest x at which these reach 1; but x is at least 1 / b of the slowest, who must send its own vector.
    Where that leaves slack, the shares are scaled down to 1 in all: as fast, though hivemind may cut otherwise.
    """
    even = even_parts(links)
    peers, rates = len(links), [0.0 if link.client_mode else link.slower_bytes_per_second for link in links]
    if peers <= 2:
        return even
    servers = [rate for rate in rates if rate]
    level = max(1 / min(servers), (peers - 2 + len(servers)) / sum(servers))
    shares = [max(0.0, (level * rate - 1) / (peers - 2)) for rate in rates]
    total = sum(shares)
    return tuple([share / total for share in shares]) if total else even


def load(fraction: float, peers: int) -> float:
    """What a peer sends, and receives, over the bytes of the vector."""
    return 1 + (peers - 2) * fraction if fraction else 1.0


def message_seconds(link: Link, reducers: int, size_bytes: float, longest_bytes: float, link_share: float) -> float:
    """Between two parts from one peer to another: those to all reducers share its link, each being one message.

    hivemind gives up a sender that is silent for longer than `next_chunk_timeout` (averaging/allreduce.py).
    """
    part = min(longest_bytes, size_bytes / max(reducers, 1))
    return part * WIRE_BYTES_PER_BYTE * max(reducers - 1, 0) / (link.slower_bytes_per_second * link_share)


def all_reduce_seconds(links: Sequence[Link], size_bytes: float, parts: Sequence[float], link_share: float) -> float:
    """Time of one all-reduce: the slowest peer's.

    Args:
        links: Of all peers of the group.
        size_bytes: Of the vector as it travels.
        parts: Fractions of the vector, as of `even_parts`.
        link_share: Share of a link's rate that an average reaches.
    """
    if len(links) < 2:
        return 0.0
    wire, peers = size_bytes * WIRE_BYTES_PER_BYTE / link_share, len(links)
    slowest = max(load(part, peers) / link.slower_bytes_per_second for link, part in zip(links, parts, strict=True))
    return wire * slowest + 4 * max(link.latency_seconds for link in links)
