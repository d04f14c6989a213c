"""Lineage of a run: the training to which some weights belong, also after all its programs were restarted.

An id is made once, with the first weights. Every key under which peers meet carries it (`run_prefix`), so that peers
of two lineages never average together, even in one DHT. A maintainer who goes back to an older checkpoint makes a
branch: a new id that names its ancestors.

Each peer announces its lineage with a signed message. A volunteer believes those of the run's servers, whose peer ids
stand in the addresses that it was given; messages of others count only where no server announces any.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from training.errors import BadInput, reason_of
from training.storage.whole import write_whole
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.dht import LONGEST_SERVER_MESSAGE, post_message, posted_messages
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import PeerRecord

STATE_FILE, BRANCH_FILE = "lineage.json", "branch.json"
"""Files in a role's state folder: its lineage, and the branch that `restore` tells it to follow."""
PATIENCE_SECONDS = 15.0
"""Seconds that a peer without a lineage waits for the servers at its initial peers to announce theirs."""
MOST_ANCESTORS = 8
"""Older ones are forgotten, so that a message stays short."""
_ID = re.compile(r"[0-9a-f]{16}")
_EPOCH = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """Id of a training and its ancestors; see the module."""

    id: str
    """16 hexadecimal digits."""
    ancestors: tuple[tuple[str, int], ...] = ()
    """Lineages that it branched off, the nearest first, each with the last epoch whose weights both have."""

    @classmethod
    def begin(cls) -> Lineage:
        """Makes a new lineage without ancestors."""
        return cls(id=secrets.token_hex(8))

    def branch(self, epoch: int) -> Lineage:
        """Makes a lineage that goes on from this one's weights of an epoch.

        >>> Lineage(id="b" * 16, ancestors=(("a" * 16, 40),)).branch(30).ancestors
        (('bbbbbbbbbbbbbbbb', 30), ('aaaaaaaaaaaaaaaa', 30))
        """
        older = tuple((ancestor, min(shared, epoch)) for ancestor, shared in self.ancestors)
        return Lineage(id=secrets.token_hex(8), ancestors=((self.id, epoch), *older)[:MOST_ANCESTORS])

    @property
    def ids(self) -> frozenset[str]:
        """Its own id and those of its ancestors."""
        return frozenset((self.id, *(ancestor for ancestor, _ in self.ancestors)))

    @property
    def first_epoch(self) -> int:
        """Updates in the weights with which it began."""
        return self.ancestors[0][1] if self.ancestors else 0

    def descends_from(self, other: str) -> bool:
        """Returns True if it is a branch of another lineage, or a branch of such a branch."""
        return any(ancestor == other for ancestor, _ in self.ancestors)

    def has(self, lineage: str | None, epoch: int) -> bool:
        """Returns True if weights of a lineage and an epoch belong to this one too, or may (lineage None: unknown)."""
        return lineage in (None, self.id) or epoch <= dict(self.ancestors).get(lineage, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageMessage:
    """An announcement of a lineage."""

    lineage: Lineage
    epoch: int
    """The newest that they have seen."""
    signer: str = ""
    """Their peer id; empty: read from this machine's own disk."""

    @classmethod
    def read(cls, text: str, signer: str = "") -> LineageMessage | None:
        """From what was announced; None if it is malformed.

        >>> LineageMessage.read("aaaaaaaaaaaaaaaa 7") == LineageMessage(lineage=Lineage(id="a" * 16), epoch=7)
        True
        >>> LineageMessage.read("aaaaaaaaaaaaaaaa 7 bbbbbbbbbbbbbbbb") is LineageMessage.read("") is None
        True
        """
        ids, epochs = text.split(" ")[::2], text.split(" ")[1::2]
        if len(ids) != len(epochs) or len(ids) > 1 + MOST_ANCESTORS:
            return None
        if not all(map(_ID.fullmatch, ids)) or not all(map(_EPOCH.fullmatch, epochs)):
            return None
        own, *ancestors = zip(ids, map(int, epochs), strict=True)
        return cls(lineage=Lineage(id=own[0], ancestors=tuple(ancestors)), epoch=own[1], signer=signer)

    def packed(self) -> str:
        """The text that carries it: ids and epochs, its own first."""
        pairs = ((self.lineage.id, self.epoch), *self.lineage.ancestors)
        return " ".join(f"{lineage} {epoch}" for lineage, epoch in pairs)


def run_prefix(run_id: str, lineage: Lineage | None) -> str:
    """Begins the keys in the DHT, and the names of calls, by which peers of one lineage find each other.

    Args:
        run_id: The run's.
        lineage: None: of no lineage, for programs whose peers have no other run beside them (benchmarks, tests).
    """
    return run_id if lineage is None else f"{run_id}_{lineage.id}"  # no run's id has a "_"; hivemind forbids dots


def choose(messages: Iterable[LineageMessage], trusted: Collection[str]) -> LineageMessage | None:
    """The message that a peer goes by: a trusted one if there is any, not of a lineage that another has branched off,
    of the newest epoch, of the smallest id. Without a trusted one, a lineage that more peers name comes first.

    >>> a = LineageMessage(lineage=Lineage(id="a" * 16), epoch=7, signer="A")
    >>> b = LineageMessage(lineage=Lineage(id="b" * 16), epoch=5)
    >>> choose([a, b], trusted=[]) is a, choose([a, b], trusted=[""]) is b
    (True, True)
    """
    messages = list(messages)
    believed = [message for message in messages if message.signer in trusted] or messages
    left_behind = {ancestor for message in believed for ancestor, _ in message.lineage.ancestors}
    newest = [message for message in believed if message.lineage.id not in left_behind] or believed
    has_trusted = any(message.signer in trusted for message in believed)
    named = Counter(
        lineage for lineage, _ in {(message.lineage.id, message.signer) for message in newest if not has_trusted}
    )
    return min(
        newest, key=lambda message: (-named[message.lineage.id], -message.epoch, message.lineage.id), default=None
    )


# -- messages in the DHT -----------------------------------------------------------------------------------------------


def post_lineage(dht: DHT, run_id: str, message: LineageMessage, identity: Identity) -> None:
    """Announces a lineage; renew it within `MESSAGE_SECONDS` of `training.swarm.node.dht`."""
    post_message(dht, f"{run_id}_lineage", message.packed(), identity)


def taken_over(messages: Iterable[LineageMessage], records: Iterable[PeerRecord]) -> LineageMessage | None:
    """Returns the lineage that most peers with weights train, by their records.

    A server that knows no run and has no trusted server takes it over. Announcements of lineages do not count here:
    they outlive their peer, and a record does not.

    Args:
        messages: What everybody announces. The ancestors are those that most of these peers name.
        records: Of all peers, only believable ones.

    Returns:
        None if there is no such lineage.
    """
    trained = [record for record in records if record.epoch and record.lineage is not None]
    lineage, count = next(iter(Counter(record.lineage for record in trained).most_common(1)), ("", 0))
    if 2 * count <= len(trained):
        return None
    peers = {record.peer_id: record.epoch for record in trained if record.lineage == lineage}
    named = Counter(
        message.lineage.ancestors for message in messages if message.lineage.id == lineage and message.signer in peers
    )
    ancestors, _ = next(iter(named.most_common(1)), ((), 0))
    first = max(peers, key=peers.get)
    return LineageMessage(lineage=Lineage(id=lineage, ancestors=ancestors), epoch=peers[first], signer=first)


def posted_lineages(dht: DHT, run_id: str, *, total_epochs: int | None = None) -> list[LineageMessage]:
    """Reads the lineages that all peers announce; skips malformed ones and epochs after the run's last one.

    Args:
        dht: A running node.
        run_id: The run's.
        total_epochs: Of the run; None: not known.

    Raises:
        TrainingError: If the DHT does not answer.
    """
    messages = posted_messages(dht, f"{run_id}_lineage", longest=LONGEST_SERVER_MESSAGE)
    read = [
        message
        for signer, text in messages.items()
        if (message := LineageMessage.read(text, str(peer_id_of(signer)))) is not None
    ]
    return [message for message in read if total_epochs is None or message.epoch <= total_epochs]


def lineages_in(records: Iterable[PeerRecord]) -> list[LineageMessage]:
    """Reads lineages from peers' records, which do not name ancestors."""
    return [
        LineageMessage(lineage=Lineage(id=record.lineage), epoch=record.epoch, signer=record.peer_id)
        for record in records
        if record.lineage is not None
    ]


def post_site(dht: DHT, run_id: str, url: str, identity: Identity) -> None:
    """Announces the address at which a server publishes the run and serves its checkpoints; renew it as a lineage."""
    post_message(dht, f"{run_id}_site", url, identity)


def posted_sites(dht: DHT, run_id: str, trusted: Collection[str]) -> list[str]:
    """The addresses that trusted servers announce.

    Raises:
        TrainingError: If the DHT does not answer.
    """
    messages = posted_messages(dht, f"{run_id}_site", longest=LONGEST_SERVER_MESSAGE)
    return sorted(
        url
        for signer, url in messages.items()
        if str(peer_id_of(signer)) in trusted and url.startswith(("http://", "https://"))
    )


# -- on disk -----------------------------------------------------------------------------------------------------------


def read_kept(folder: Path, name: str = STATE_FILE) -> LineageMessage | None:
    """Reads the lineage in a role's state folder; None if there is none.

    Raises:
        BadInput: If the file is damaged: another lineage in its place would be another run.
    """
    path = folder / name
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        pairs = [(kept["id"], kept["epoch"]), *kept["ancestors"]]
        message = LineageMessage.read(" ".join(f"{lineage} {epoch}" for lineage, epoch in pairs))
        if message is None:
            raise ValueError("it names no lineage")
        return message
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read: {reason_of(error)}.",
            cure="Put a copy of the file back, or delete it: the lineage then comes from the run's other peers.",
        ) from None


def keep(folder: Path, message: LineageMessage, name: str = STATE_FILE) -> None:
    """Writes what `read_kept` reads."""
    kept = {"id": message.lineage.id, "epoch": message.epoch, "ancestors": message.lineage.ancestors}
    write_whole(folder / name, json.dumps(kept) + "\n")
