"""What a peer tells about itself: a signed record in the DHT, with a range for each field.

A record is stored under the key of its peer's identity and signed by it. Every node that knows the run refuses records
that are unsigned, signed by another, malformed or out of range, when they are stored and when they are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hivemind.dht import DHT
from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from hivemind.utils import MPFuture, ValueWithExpiration, get_dht_time
from pydantic.v1 import BaseModel, StrictFloat, confloat, conint, constr

from training.swarm.identity import Identity, peer_id_of

_Count = conint(strict=True, ge=0, le=10**12)
_Seconds = confloat(strict=True, ge=0, le=10**10)


class PeerRecord(BaseModel):
    """A peer's record. Totals are over its whole life, also over restarts with the same state folder."""

    name: constr(strict=True, min_length=1, max_length=40, regex=r"^[^\x00-\x1f\x7f]+$")
    """Chosen by the volunteer; not unique."""
    peer_id: constr(strict=True, min_length=1, max_length=80)
    """Follows from the key that signed the record."""
    status: Literal["joining", "training", "leaving"]
    """`joining` until the first sample, `leaving` in its last record."""
    epoch: conint(strict=True, ge=0, le=10**9)
    """The peer's own epoch."""
    loss: confloat(strict=True, ge=0, le=10**6) | None
    """Mean loss over its samples of the last whole epoch."""
    samples: _Count
    """Samples that it has contributed in all."""
    samples_per_second: confloat(strict=True, ge=0, le=10**7)
    """Its speed over the last epoch, waiting included."""
    seconds: _Seconds
    """Time that it has trained in all."""
    group_size: conint(strict=True, ge=0, le=10**6)
    """Peers whose gradients entered the last average; 1 when it stepped alone."""
    averaged_epochs: _Count
    """Epochs in which it averaged gradients with others."""
    alone_epochs: _Count
    """Epochs in which it stepped alone although others were there."""
    micro_batch_size: conint(strict=True, ge=1, le=10**6)
    """Sequences that it computes at once."""
    bytes_sent: _Count
    """Bytes of tensors that it has sent for averaging in all."""
    bytes_received: _Count
    """Bytes of tensors that it has received for averaging in all."""
    version: constr(strict=True, max_length=40)
    """Version of the program."""
    time: StrictFloat
    """When the record was made, seconds since the epoch by the peer's clock."""


class _Records(BaseModel):
    """Keys of a run that hold peer records: `{run_id}_metrics`."""

    metrics: dict[BytesWithPublicKey, PeerRecord]


def validators(run_id: str, identity: Identity) -> list[RecordValidatorBase]:
    """What a DHT node of the run needs to sign its own records and to check those of others."""
    return [SchemaValidator(_Records, prefix=run_id), identity.signer()]


@dataclass(frozen=True, kw_only=True)
class MetricsBoard:
    """The place in the DHT where a run's peers post their records."""

    dht: DHT
    run_id: str
    expiration_seconds: float
    """A record disappears after this time unless it is renewed."""

    def post(self, record: PeerRecord, identity: Identity) -> MPFuture:
        """Stores a record under its signer's key; the result says whether some node has accepted it."""
        return self.dht.store(
            f"{self.run_id}_metrics",
            subkey=identity.signer().local_public_key,
            value=record.dict(),
            expiration_time=get_dht_time() + self.expiration_seconds,
            return_future=True,
        )

    def read(self, timeout_seconds: float = 10.0) -> list[PeerRecord]:
        """The records of all peers that are there now, in the order of their peer ids.

        Raises:
            TimeoutError: If the DHT does not answer in time.
        """
        return read_records(self.dht, self.run_id, timeout_seconds=timeout_seconds)


def read_records(dht: DHT, run_id: str, *, timeout_seconds: float = 10.0) -> list[PeerRecord]:
    """The sound records of a run; see `MetricsBoard.read`. A record that names another peer is left out."""
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
