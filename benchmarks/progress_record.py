"""The record of all peers' progress in hivemind's DHT: bytes of one read, and the size beyond which it gets no answer.

    python benchmarks/progress_record.py --json benchmarks/results/progress_record.json      (as root, Linux)

DHT nodes communicate by TCP in a network namespace of their own, where the loopback interface counts the bytes of a
read. The nodes that read hold no replica of the record themselves, like nearly all nodes of a large swarm. An entry is
as many random bytes as a peer's signed progress adds to the record. The limit of a record's size is tested with fewer
and longer entries, because entries are stored one by one. The program takes a few minutes; hivemind logs errors for
answers that are too long.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402

from calculator.swarm import MESSAGE_BYTES, PROGRESS_RECORD_BYTES  # noqa: E402

NODES = 14
PEERS = (50, 150)
LONG_ENTRY_BYTES = 50_000
READS = 4
QUIET_SECONDS = 1.0
"""All bytes that are sent within this time after a read begins count as its bytes."""


def loopback_bytes() -> int:
    """Bytes sent over the namespace's loopback interface so far."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() == "lo")


async def fill(node, key: str, entries: int, size: int) -> None:
    """Stores entries of a dictionary, one by one, as peers do."""
    from hivemind.utils import get_dht_time

    until = get_dht_time() + 600
    for number in range(entries):
        await node.store(key, os.urandom(size), until, subkey=f"peer{number}")


async def bytes_of_a_read(nodes, key: str) -> float:
    """Median bytes of reads by nodes that hold no replica, less the bytes of an equal time without a read."""
    from hivemind.dht import DHTID

    found = []
    place = DHTID.generate(source=key)
    for node in [node for node in nodes if node.protocol.storage.get(place) is None][:READS]:
        before = loopback_bytes()
        await node.get(key, latest=True)
        await asyncio.sleep(QUIET_SECONDS)
        after = loopback_bytes()
        await asyncio.sleep(QUIET_SECONDS)
        found.append(after - before - (loopback_bytes() - after))
    return statistics.median(found)


async def measure() -> list[dict]:
    """Starts the nodes and measures; the results of the record."""
    from hivemind.dht.node import DHTNode

    host = ["/ip4/127.0.0.1/tcp/0"]
    first = await DHTNode.create(host_maddrs=host)
    known = [str(address) for address in await first.protocol.p2p.get_visible_maddrs()]
    nodes = [first, *[await DHTNode.create(initial_peers=known, host_maddrs=host) for _ in range(NODES - 1)]]
    results = []
    for peers in PEERS:
        await fill(first, f"progress{peers}", peers, PROGRESS_RECORD_BYTES)
        copies = await bytes_of_a_read(nodes, f"progress{peers}") / (peers * PROGRESS_RECORD_BYTES)
        results.append(result(f"{peers} peers: bytes of one read, relative to those of the record", "", copies))
    for share in (0.8, 1.2):
        entries = round(share * MESSAGE_BYTES / LONG_ENTRY_BYTES)
        await fill(first, f"long{entries}", entries, LONG_ENTRY_BYTES)
        newcomer = await DHTNode.create(initial_peers=known, host_maddrs=host)
        found = await newcomer.get(f"long{entries}", latest=True)
        got = 0 if found is None else len(found.value)
        words = f"a record of {share:g} times the longest answer: share of its entries that a newcomer gets"
        results.append(result(words, "", got / entries))
        await newcomer.shutdown()
    for node in nodes:
        await node.shutdown()
    return results


def main(arguments: list[str] | None = None) -> None:
    """Prints the table; writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args(arguments)
    if not flags.inside:
        program = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, __file__, "--inside"]
        given = ["--json", str(flags.json)] if flags.json else []
        sys.exit(subprocess.run(["unshare", "--net", *program, *given], check=False).returncode)
    results = asyncio.run(measure())
    for entry in results:
        print(f"{entry['metric']:<90}{entry['ours']:>8.2f}")
    if flags.json:
        from importlib.metadata import version

        record(flags.json, "progress_record", {"hivemind": version("hivemind")}, results)


if __name__ == "__main__":
    main()
