"""Lineage of a run: identifies the training to which weights belong, also after all its programs were restarted.

An id is made once, with the first weights. All keys under which peers meet contain it (`run_prefix`), so that peers of
two lineages never average together, even in one DHT. A maintainer who goes back to an older checkpoint makes a branch:
a new id that names its ancestors.

A peer announces its lineage with a signed message. A volunteer believes the run's servers, whose peer ids are in the
addresses that it was given; messages of others count only where no server announces a lineage.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from training.errors import BadInput, reason_of
from training.storage.checked import packed, unpacked
from training.storage.whole import write_whole
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT
from training.swarm.node.dht import LONGEST_SERVER_MESSAGE, post_message, posted_messages
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import PeerRecord

STATE_FILE, BRANCH_FILE = "lineage.json", "branch.json"
"""Files in a role's state folder: its lineage, and the branch that `restore` orders it to follow."""
PATIENCE_SECONDS = 15.0
"""Seconds that a peer without a lineage waits for the servers at its initial peers to announce theirs."""
MOST_ANCESTORS = 8
"""Most ancestors of a lineage; older ones are dropped, so that a message stays short."""
_ID = re.compile(r"[0-9a-f]{16}")
_EPOCH = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """Id of a training and its ancestors; see the module."""

    id: str
    """Id of the lineage: 16 hexadecimal digits."""
    ancestors: tuple[tuple[str, int], ...] = ()
    """Lineages from which this one branched off, the nearest first, each with the last epoch whose weights both
    have."""

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
        """Id of the lineage and those of its ancestors."""
        return frozenset((self.id, *(ancestor for ancestor, _ in self.ancestors)))

    @property
    def first_epoch(self) -> int:
        """Epoch of the weights with which the lineage began."""
        return self.ancestors[0][1] if self.ancestors else 0

    def descends_from(self, other: str) -> bool:
        """Returns True if this lineage is a branch of another lineage, or a branch of such a branch."""
        return any(ancestor == other for ancestor, _ in self.ancestors)

    def has(self, lineage: str | None, epoch: int) -> bool:
        """Returns True if weights of a lineage and an epoch belong to this lineage. None, an unknown lineage, may
        belong to it."""
        return lineage in (None, self.id) or epoch <= dict(self.ancestors).get(lineage, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageMessage:
    """Announcement of a lineage by a peer."""

    lineage: Lineage
    epoch: int
    """Newest epoch of the lineage that the peer has seen."""
    signer: str = ""
    """Peer id of the announcing peer; empty if the message was read from this machine's disk."""

    @classmethod
    def read(cls, text: str, signer: str = "") -> LineageMessage | None:
        """Reads an announcement; None if it is malformed.

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
        """Writes the announcement as a text: ids and epochs, the lineage's own first."""
        pairs = ((self.lineage.id, self.epoch), *self.lineage.ancestors)
        return " ".join(f"{lineage} {epoch}" for lineage, epoch in pairs)


def run_prefix(run_id: str, lineage: Lineage | None) -> str:
    """Makes the prefix of the keys in the DHT, and of the names of calls, by which peers of one lineage find each
    other.

    Args:
        run_id: Id of the run.
        lineage: Lineage of the peers; None for programs whose peers have no other run beside them (benchmarks, tests).
    """
    return run_id if lineage is None else f"{run_id}_{lineage.id}"  # no run's id has a "_"; hivemind forbids dots


def choose(messages: Iterable[LineageMessage], trusted: Collection[str]) -> LineageMessage | None:
    """Chooses the announcement that a peer follows; None if there is none.

    If trusted peers announce a lineage, only their messages count. Lineages from which others have branched off do not
    count. Of the remaining messages, that of the newest epoch is chosen, and of these the one with the smallest id.
    Without a trusted message, the lineage that most peers name comes first.

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
    """Announces a lineage; call it again within `MESSAGE_SECONDS` of `training.swarm.node.dht`."""
    post_message(dht, f"{run_id}_lineage", message.packed(), identity)


def taken_over(messages: Iterable[LineageMessage], records: Iterable[PeerRecord]) -> LineageMessage | None:
    """Returns the lineage that most peers with weights train, by their records; None if there is none.

    A server that knows no run and has no trusted server takes over this lineage. Announcements of lineages do not count
    here: they outlive their peer, and a record does not.

    Args:
        messages: Announcements of all peers. The ancestors are those that most peers of the lineage name.
        records: Believable records of all peers.

    Returns:
        An announcement of the lineage; None if no peer has weights.
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
        run_id: Id of the run.
        total_epochs: Number of epochs of the run; None: unknown.

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
    """Announces the address at which a server publishes the run and its checkpoints; call it again as
    `post_lineage`."""
    post_message(dht, f"{run_id}_site", url, identity)


def posted_sites(dht: DHT, run_id: str, trusted: Collection[str]) -> list[str]:
    """Returns the addresses that trusted servers announce.

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
    """Reads the lineage in a role's state folder; None if the folder has none.

    Raises:
        BadInput: If the file is damaged: a new lineage in its place would be another run.
    """
    path = folder / name
    try:
        kept = unpacked(path.read_text(encoding="utf-8"))
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
    """Writes an announcement to a role's state folder, for `read_kept`."""
    kept = {"id": message.lineage.id, "epoch": message.epoch, "ancestors": message.lineage.ancestors}
    write_whole(folder / name, packed(kept))
