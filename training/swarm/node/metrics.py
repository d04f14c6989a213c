"""A peer's metrics: a signed record in the DHT, with a valid range for each field.

A record is stored under the public key of its peer's identity and signed with that key. When a node that knows the run
stores or reads records, it refuses those that are unsigned, signed with another key, malformed or out of range.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Literal, NamedTuple

from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time
from pydantic.v1 import BaseModel, confloat, conint, conlist, constr, validator

from training.recipe import RunConfig
from training.swarm.engine.ids import peer_id_of
from training.swarm.engine.process import DHT, Answer
from training.swarm.node.identity import Identity
from training.swarm.node.record_tickets import accounts_of
from training.swarm.node.voices import Accounts, by_voice
from training.trust.proof import LARGEST_KEY_BYTES, LARGEST_PROOF_BYTES

_Count = conint(strict=True, ge=0, le=10**12)
_Seconds = confloat(strict=True, ge=0, le=10**10)
_Time = confloat(strict=True, ge=0, le=10**11)
_Epoch = conint(strict=True, ge=0, le=10**9)
EPOCHS_AHEAD = 20
"""Most epochs by which a peer is further than the others' records show, because records come late."""
AHEAD_SECONDS = 10.0
"""Seconds: a record whose time is further in the future comes from a clock that is ahead."""
LARGEST_LOSS = 10**6
_Loss = confloat(strict=True, ge=0, le=LARGEST_LOSS)
LONGEST_NAME = 40
PLAIN = r"[^\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+\Z"
"""Pattern of a plain text: no control characters, and none that are invisible or change the direction of the text
around them. Records with such characters are refused, since terminals, logs and pages show the texts."""
RECENT_EPOCHS = 64
"""Number of epochs that a record repeats for a monitor that was away; about 35 bytes each."""
MOST_SEEN = 64
"""Number of groupmates whose samples a record tells; 15 bytes each. With 3 peers, these are of 32 epochs."""
TAIL = 8
"""Number of characters at the end of a peer id that stand for a peer; nobody finds another key with the same ones."""
Missed = Literal["late", "unreachable", "refused", "paused", "catching up"]
"""Reason why an epoch's update has no samples of a peer that was there:

- `late`: the others had averaged before the peer was ready;
- `unreachable`: the peer found no group, or its connections broke, so it updated with its own gradients alone;
- `refused`: its gradients were not finite, so the average left them out;
- `paused`: it computed nothing, because its volunteer had paused it or because it waited for others;
- `catching up`: it was taking over the others' weights.
"""


class RecentEpoch(NamedTuple):
    """An epoch that a peer has finished."""

    epoch: _Epoch
    loss: _Loss
    """Mean loss over the samples of the peer."""
    samples: _Count
    """Samples that the peer contributed."""
    time: _Time
    """End of the epoch by the peer's clock."""
    seconds: _Seconds = 0.0
    """Seconds that the peer has trained for it."""


class Seen(NamedTuple):
    """Samples that another peer has brought to an average with this one."""

    epoch: _Epoch
    """Epoch that the other peer has finished with it."""
    peer: constr(strict=True, min_length=TAIL, max_length=TAIL)
    """End of its peer id."""
    samples: _Count | None
    """Number of samples; None if the record's peer averages no part, and so does not see it."""


class MissedEpoch(NamedTuple):
    """An epoch whose update has no samples of the peer."""

    epoch: _Epoch
    reason: Missed


class Voucher(NamedTuple):
    """Signature by which an earlier key of a volunteer says that another peer is the same volunteer's."""

    key: constr(strict=True, max_length=LARGEST_KEY_BYTES)
    """Public key as OpenSSH writes it."""
    signature: constr(strict=True, max_length=LARGEST_PROOF_BYTES)
    """Signature of `training.trust.proof.voucher_statement`, in base64."""


class PeerRecord(BaseModel):
    """A peer's record. Totals are those since the start of the program."""

    name: constr(strict=True, min_length=1, max_length=LONGEST_NAME, regex=PLAIN)
    """Name that the volunteer has chosen; other peers may have it too."""
    peer_id: constr(strict=True, min_length=1, max_length=80)
    """Id that follows from the key that signed the record."""
    status: Literal["joining", "training", "waiting", "paused", "leaving"]
    """`joining` until the first sample, `waiting` while it waits for other peers, `paused` while its volunteer or its
    machine lets it compute nothing, `leaving` in its last record."""
    lineage: constr(strict=True, regex=r"[0-9a-f]{16}\Z") | None = None
    """Lineage of the peer's weights; None while it has none. See `training.swarm.run.lineage`."""
    epoch: _Epoch
    """Epoch of the peer, which may be behind or ahead of the run's."""
    loss: _Loss | None
    """Mean loss over the peer's samples of the last complete epoch."""
    samples: _Count
    """Samples that the peer has contributed in total."""
    samples_per_second: confloat(strict=True, ge=0, le=10**7)
    """Speed over the last epoch, waiting included."""
    seconds: _Seconds
    """Seconds that the peer has trained in total."""
    group_size: conint(strict=True, ge=0, le=10**6)
    """Number of peers whose gradients entered the last average; 1 if the peer stepped alone."""
    averaged_epochs: _Count
    """Number of epochs in which the peer averaged gradients with others."""
    alone_epochs: _Count
    """Number of epochs in which the peer stepped alone although other peers were training."""
    micro_batch_size: conint(strict=True, ge=1, le=10**6)
    """Samples per forward pass."""
    bytes_sent: _Count
    """Total bytes of tensors that the peer has sent for averaging."""
    bytes_received: _Count
    """Total bytes of tensors that the peer has received for averaging."""
    version: constr(strict=True, max_length=40, regex=PLAIN)
    """Version of the program."""
    time: _Time
    """Time of the record, in seconds since 1970 by the peer's clock."""
    recent: conlist(RecentEpoch, max_items=RECENT_EPOCHS) = []
    """Last epochs of this lineage, oldest first."""
    seen: conlist(Seen, max_items=MOST_SEEN) = []
    """Samples that others have brought to the last averages with this peer, newest epoch first."""
    missed: conlist(MissedEpoch, max_items=RECENT_EPOCHS) = []
    """Those of the last epochs whose updates have no samples of this peer."""
    voucher: Voucher | None = None
    """Proof that the peer's volunteer is that of an earlier key; None if there is no such key."""

    @validator("recent")
    def _in_order(cls, recent: list[RecentEpoch], values: dict[str, object]) -> list[RecentEpoch]:
        epochs = [one.epoch for one in recent]
        if epochs != sorted(set(epochs)) or (epochs and epochs[-1] > values.get("epoch", 0)):
            raise ValueError("recent epochs must ascend, up to the peer's own")
        return recent


def is_name(text: str) -> bool:
    """Returns True if others take a text as the name of a peer."""
    return len(text) <= LONGEST_NAME and re.match(PLAIN, text) is not None


def of_right_clocks(records: Sequence[PeerRecord], now: float) -> list[PeerRecord]:
    """Leaves out the records of peers whose clocks are ahead.

    The DHT keeps such a record longer than others, and refuses newer ones of its peer meanwhile, so the record does not
    show that its peer is still there.
    """
    return [record for record in records if record.time <= now + AHEAD_SECONDS]


class _Records(BaseModel):
    """Schema of the key that holds a run's peer records: `{run_id}_metrics`."""

    metrics: dict[BytesWithPublicKey, PeerRecord]


def validator(run_id: str) -> RecordValidatorBase:
    """Makes the validator of the key of peer records, which refuses other values than peer records."""
    return SchemaValidator(_Records, prefix=run_id)


def believable(records: Sequence[PeerRecord], total_epochs: int, accounts: Accounts | None = None) -> list[PeerRecord]:
    """Leaves out records with epochs that the run cannot have reached.

    These are epochs after the run's last one, or more than `EPOCHS_AHEAD` after the epoch of half of all peers. So a
    minority that claims to be far ahead misleads nobody. With fewer than three peers nobody knows which is right.

    Args:
        records: Records of all peers.
        total_epochs: Number of epochs of the run.
        accounts: Accounts from the peers' tickets; see `record_tickets.accounts_of`. The peers of one account count as
            one, and peers for which no ticket vouches count only if there are no others.
    """
    possible = [record for record in records if record.epoch <= total_epochs]
    trained = [record.epoch for record in of_voices([r for r in possible if r.status != "joining"], accounts)]
    if len(trained) < 3:
        return possible
    return [record for record in possible if record.epoch <= median_high(trained) + EPOCHS_AHEAD]


def of_voices(records: Sequence[PeerRecord], accounts: Accounts | None = None) -> list[PeerRecord]:
    """Returns the newest record of each voice (`training.swarm.node.voices`)."""
    by_peer = {PeerID.from_base58(record.peer_id).to_bytes(): record for record in records} if accounts else {}
    if not by_peer:
        return list(records)
    voices = by_voice(by_peer, accounts).values()
    return [max((by_peer[peer] for peer in peers), key=lambda record: record.epoch) for peers in voices]


def read_believable(dht: DHT, run: RunConfig) -> list[PeerRecord]:
    """Reads a run's records, without those that `of_right_clocks` and `believable` leave out.

    Raises:
        TimeoutError: If the DHT does not answer in time.
    """
    records = read_records(dht, run.run_id)
    return believable(records, run.schedule.total_epochs, accounts_of_records(dht, records))


def accounts_of_records(dht: DHT, records: Sequence[PeerRecord]) -> Accounts:
    """Returns the accounts of the records' peers; see `record_tickets.accounts_of`."""
    return accounts_of(dht, (PeerID.from_base58(record.peer_id) for record in records))


def named_accounts(dht: DHT, records: Sequence[PeerRecord]) -> dict[str, str]:
    """Returns the accounts of the records' peers, by peer id; empty in an open run."""
    return {str(PeerID(peer)): account for peer, (account, _) in accounts_of_records(dht, records).items()}


@dataclass(frozen=True, kw_only=True)
class MetricsBoard:
    """The place in the DHT where a run's peers post their records."""

    dht: DHT
    run_id: str
    expiration_seconds: float
    """Time after which a record disappears unless it is renewed."""

    def post(self, record: PeerRecord, identity: Identity) -> Answer:
        """Stores a record under its signer's key. The result of the returned answer is True if a node has accepted
        it."""
        return self.dht.store(
            f"{self.run_id}_metrics",
            subkey=identity.signer().local_public_key,
            value=record.dict(),
            expiration_time=get_dht_time() + self.expiration_seconds,
            return_future=True,
        )

    def read(self, timeout_seconds: float = 10.0) -> list[PeerRecord]:
        """Returns the unexpired records of all peers, in the order of their peer ids.

        Raises:
            TimeoutError: If the DHT does not answer in time.
        """
        return read_records(self.dht, self.run_id, timeout_seconds=timeout_seconds)


def read_records(dht: DHT, run_id: str, *, timeout_seconds: float = 10.0) -> list[PeerRecord]:
    """Returns the valid records of a run, without those whose peer id does not belong to their key. See
    `MetricsBoard.read`."""
    found = dht.get(f"{run_id}_metrics", latest=True, return_future=True).result(timeout=timeout_seconds)
    entries = found.value if found is not None and isinstance(found.value, dict) else {}
    records = {
        record.peer_id: record
        for subkey, entry in entries.items()
        if isinstance(entry, ValueWithExpiration)
        and isinstance(entry.value, dict)
        and (record := PeerRecord.parse_obj(entry.value)).peer_id == str(peer_id_of(subkey))
    }
    return [records[peer_id] for peer_id in sorted(records)]
