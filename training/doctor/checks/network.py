"""Checks of the network, by hivemind: codecs, this machine's port, its node, and the run's peers."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from training.doctor.examination import Answer
from training.doctor.facts import Facts
from training.doctor.finding import Fault, Finding, fine, skipped
from training.errors import BadInput, TrainingError
from training.recipe import RunConfig

CODECS = Fault(
    name="averaging-broken",
    why="Averages would fail without any message, and this peer would train alone.",
    remedy="Install the versions in constraints/training.txt, numpy below 2.4 in particular.",
)
FEW_FILES = Fault(
    name="few-open-files",
    why="Each connection to another peer takes a file. Without more, averages fail as soon as a group is large.",
    remedy="Raise the limit: `ulimit -n 16384`; if that is refused, in /etc/security/limits.conf.",
)
SOME_FILES = Fault(
    name="open-files-limited",
    level="warning",
    why="A full group of this run may need more connections than this program may open.",
    remedy="Raise the limit: `ulimit -n 16384`; if that is refused, in /etc/security/limits.conf.",
)
LISTEN = Fault(
    name="cannot-listen",
    why="The peer cannot listen there, and `join` ends.",
    remedy="Stop the program that uses the port (`ss -ltnp` lists them), or give addresses of this machine with "
    "--host-maddrs, such as /ip4/0.0.0.0/tcp/PORT: all of IPv4. Behind a router, that is the machine's own address, "
    "and not the one that the Internet sees.",
)
NODE = Fault(
    name="network-node-broken",
    why="All traffic between peers passes through this program of hivemind's, p2pd.",
    remedy="Install hivemind again: `pip install --force-reinstall --no-deps -r constraints/training.txt`.",
)
UNREACHABLE = Fault(
    name="peers-unreachable",
    why="This machine finds nobody to train with.",
    remedy="Give the address of the run's site rather than those of peers: it names the servers that are on. If a "
    "connection is refused, the run's bootstrap peer is off. If it is accepted and then nothing comes, that peer "
    "hangs: try again later. If this machine lacks IPv4 or IPv6, and the addresses need it, use a network that has it. "
    "If there is no answer, a firewall may be in the way: try another network, such as a phone's; if it works there, "
    "ask for outgoing TCP connections to the ports in the addresses. Peers do not connect through a proxy.",
)
OTHER_ID = Fault(
    name="peer-of-another-id",
    why="The peer id names the server that volunteers trust. Another one there is not believed.",
    remedy="Give the address of the run's site instead, which has the server's current id: it may have a new one.",
)
SOME_FAIL = Fault(
    name="some-peers-fail",
    level="warning",
    why="One peer is enough to join, but with fewer of them the run is found less surely.",
    remedy="Give the address of the run's site instead, which names those that are on.",
)
CLOCK = Fault(
    name="clock-off",
    why="Peers refuse nodes whose clock differs by more than 3 seconds, and records with a wrong time vanish at once.",
    remedy="Set the clock: `sudo timedatectl set-ntp true`; on macOS, `sudo sntp -sS time.apple.com`; in WSL, "
    "`sudo hwclock -s` or `wsl --shutdown`.",
)
NOT_REACHED = Fault(
    name="not-reachable",
    level="warning",
    why="Others cannot connect to this machine, so the run's servers relay for it, and it averages small parts. `join` "
    "finds this out by itself.",
    remedy="Nothing needs to be done. To be reachable, forward a port in your router and give it with --host-maddrs "
    "/ip4/0.0.0.0/tcp/PORT.",
)
DIFFERS = Fault(
    name="recipe-differs",
    why="Peers with different recipes would spoil each other's weights, so `join` ends.",
    remedy="Give the address of the run's site, which has the recipe.",
)
UNKNOWN_RUN = Fault(
    name="run-unknown",
    why="These peers do not train the run that the recipe names.",
    remedy="Give the address of the run's site, which has both. If they belong together, the run has ended.",
)
RUN_SILENT = Fault(
    name="run-silent",
    level="warning",
    why="A peer was reached, but the run's records were not found in time. In training, the same would cost averages.",
    remedy="Run the doctor again. If it stays so, this network loses much, or the run's servers are overloaded.",
)
OTHER_TOKENS = Fault(
    name="shards-of-other-tokens",
    why="Their numbers stand for other words or pictures, which would spoil everybody's weights, so `join` ends.",
    remedy="Use the shards that the run's recipe names, without --shards, or a copy of them.",
)
FAULTS = (
    *(CODECS, FEW_FILES, SOME_FILES, LISTEN, NODE, UNREACHABLE, OTHER_ID, SOME_FAIL),
    *(CLOCK, NOT_REACHED, DIFFERS, UNKNOWN_RUN, RUN_SILENT, OTHER_TOKENS),
)

LARGE_VALUES = 65_536
"""Number of values of a test tensor that is sent in 8 bit."""


def examine(facts: Facts, answer: Answer) -> None:
    """Answers all checks that need hivemind, those that probe the run among them."""
    import torch

    torch.set_num_threads(1)
    answer("averaging", [check_codecs()])
    answer("open files", [check_files(facts.run_or_none())])
    answer("port", [check_port(facts.asked.host_maddrs)])
    probe_run(facts, answer)


def check_codecs() -> Finding:
    """Averages tensors through each codec, as `join` does through the run's codec."""
    from training.swarm.engine.codecs import exchange_codec
    from training.swarm.epoch.selftest import check_exchange

    codecs = ("blockwise8", "uniform8", "float16", "float32")
    try:
        for name in codecs:
            check_exchange(exchange_codec(LARGE_VALUES, name), LARGE_VALUES)
    except TrainingError as error:
        return CODECS.found(str(error))
    return fine(f"Averages are right in {', '.join(codecs)}.")


def check_files(run: RunConfig | None) -> Finding:
    """Checks that a group's connections fit into the limit of open files."""
    from training.volunteer import startup

    if run is None:
        return skipped("Not checked: this needs a readable --recipe.")
    try:
        warning = startup.check_files(run.swarm)
    except BadInput as error:
        return FEW_FILES.found(str(error))
    return SOME_FILES.found(warning) if warning else fine("A full group's connections fit into the limit.")


def check_port(host_maddrs: Sequence[str]) -> Finding:
    """Checks that this machine can listen at the addresses that `join` would use."""
    from training.swarm.node.addresses import place_of

    for address in host_maddrs:
        try:
            host, port = place_of(address) or ("", 0)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((host, port))
        except BadInput as error:
            return LISTEN.found(str(error))
        except (OSError, OverflowError) as error:
            return LISTEN.found(
                f"This machine cannot listen on {address}: {getattr(error, 'strerror', None) or error}."
            )
    return fine(f"This machine can listen on {', '.join(host_maddrs)}.")


def probe_run(facts: Facts, answer: Answer) -> None:
    """Probes the run, and judges each step of `training.swarm.run.probe`."""
    from training.swarm.run.probe import probe
    from training.swarm.run.servers import Servers

    judged = _Judge(facts, answer)

    def whom() -> tuple[RunConfig | None, Sequence[str]]:
        servers = Servers(facts.initial_peers())
        faults = servers.ask_sites()
        if faults and not servers.addresses:
            answer("peers", [UNREACHABLE.found(" ".join(map(str, faults)))])
            judged.answered.add("peers")
        return facts.run_or_none(), servers.addresses

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(probe(facts.asked.host_maddrs, Path(folder), whom, judged))
    if facts.asked.client_mode:
        answer("reachability", [skipped("Not checked: with --client-mode this peer accepts no connections.")])
    for check in {"network node", "peers", "clock", "reachability", "run", "tokens"} - judged.answered:
        needs = "a readable --recipe, and " if check in ("run", "tokens") else ""
        answer(check, [skipped(f"Not checked: this needs {needs}--initial-peers that answer.")])


class _Judge:
    """Judge of the steps of a probe: answers the checks that they stand for."""

    def __init__(self, facts: Facts, answer: Answer):
        self._facts, self._answer = facts, answer
        self.answered: set[str] = set()

    def __call__(self, step: str, **told: object) -> None:
        check, judge = {
            "node": ("network node", self._node),
            "peers": ("peers", judge_peers),
            "clock": ("clock", judge_clock),
            "dial-back": ("reachability", judge_reach),
            "recipe": ("run", judge_run),
            "tokens": ("tokens", self._tokens),
        }[step]
        self._answer(check, [judge(**told)])
        self.answered.add(check)

    def _node(self, fault: str | None, seconds: float = 0.0) -> Finding:
        if fault is None:
            return fine(f"The network node starts, within {seconds:.1f} s.")
        if check_port(self._facts.asked.host_maddrs).level == "fault":
            return skipped("Not checked: this machine cannot listen where it should, as the check of the port says.")
        return NODE.found(f"The network node did not start: {fault}.")

    def _tokens(self, digests: Counter[str]) -> Finding:
        source = self._facts.source()
        if source is None:
            return skipped("Not checked: neither a recipe nor --shards says where the shards are.")
        try:
            return judge_tokens(source, self._facts.manifest().tokens_digest, digests)
        except TrainingError:
            return skipped("Not checked: the shards could not be read.")


def judge_peers(faults: dict[str, str | None]) -> Finding:
    """Judges the addresses of the run's peers.

    Args:
        faults: Address -> reason why no peer of its id answers there; None if the peer answers.
    """
    bad = {address: fault for address, fault in faults.items() if fault}
    told = "; ".join(f"{address} ({fault})" for address, fault in bad.items())
    if len(bad) < len(faults):
        if bad:
            return SOME_FAIL.found(f"{len(bad)} of {len(faults)} addresses fail: {told}.")
        return fine(f"{len(faults)} of the run's peers answer.")
    fault = OTHER_ID if any("peer id mismatch" in fault for fault in bad.values()) else UNREACHABLE
    return fault.found(f"No peer of the run answers: {told}.")


def judge_clock(seconds_ahead: Sequence[float]) -> Finding:
    """Compares this clock with those of the peers.

    Args:
        seconds_ahead: Seconds by which this clock is ahead of each peer's.
    """
    from training.swarm.node.clocks import MAX_DHT_TIME_DISCREPANCY_SECONDS, ahead_of_most

    if not seconds_ahead:
        return skipped("Not checked: no peer said its time.")
    ahead = ahead_of_most(seconds_ahead)
    told = f"This clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} that of the run's peers."
    return CLOCK.found(told) if abs(ahead) > MAX_DHT_TIME_DISCREPANCY_SECONDS else fine(told)


def judge_reach(outcome: str, text: str) -> Finding:
    """Judges the answer of a peer that was asked to connect back."""
    if outcome == "reached":
        return fine(f"A peer of the run has connected to this machine at {text}.")
    if outcome == "failed":
        return NOT_REACHED.found(f"A peer of the run could not connect to this machine: {text}.")
    return skipped(f"Not checked: {text}.")


def judge_run(outcome: str, text: str = "", members: int = 0) -> Finding:
    """Judges the peers' answers on the recipe."""
    if outcome == "same":
        return fine(f"The run trains this recipe; {members} volunteers train now.")
    return {"other": DIFFERS, "unknown": UNKNOWN_RUN}.get(outcome, RUN_SILENT).found(text)


def judge_tokens(source: str, ours: str, theirs: Counter[str]) -> Finding:
    """Compares the tokens of the shards with those on which the run trains.

    Args:
        source: Folder or address of the shards.
        ours: Digest of their tokens.
        theirs: Digest -> number of peers that train on these tokens.
    """
    told = ", ".join(f"{digest} ({count} peers)" for digest, count in theirs.most_common())
    if theirs and theirs[ours] < max(theirs.values()):
        return OTHER_TOKENS.found(f"The tokens of {source} are {ours}; the run's are {told}.")
    return fine(f"The tokens are {ours}, as in the run." if theirs else "No peer has announced its tokens yet.")
