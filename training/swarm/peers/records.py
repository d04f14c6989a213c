"""Records of progress in the DHT: each peer's report on the epoch that it is in."""

from __future__ import annotations

from contextlib import suppress

from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint

from training.swarm.engine.ids import MOST_ID_BYTES


class PeerProgress(BaseModel):
    """A peer's record of its progress: hivemind's record, but with upper bounds of its numbers."""

    peer_id: conbytes(strict=True, max_length=MOST_ID_BYTES)
    epoch: conint(strict=True, ge=0, le=10**9)
    samples_accumulated: conint(strict=True, ge=0, le=10**12)
    """Samples of the epoch that the peer is in."""
    samples_per_second: confloat(strict=True, ge=0, le=10**7)
    time: confloat(strict=True, ge=0, le=10**11)
    client_mode: StrictBool


class _AllProgress(BaseModel):
    """Schema of the DHT's key for progress: `{prefix}_progress`. A peer that has left stores None."""

    progress: dict[BytesWithPublicKey, PeerProgress | None]


def progress_validator(prefix: str) -> RecordValidatorBase:
    """Makes a validator that refuses malformed records under the key of progress.

    All nodes of a run need it: a peer that asks for the records of all peers gets none if one of them is malformed.

    Args:
        prefix: Prefix of the run and its lineage; see `lineage.run_prefix`.
    """
    return SchemaValidator(_AllProgress, prefix=prefix)


def read_progress(value: object) -> PeerProgress | None:
    """Reads a record. Returns None if it is malformed; a node may have stored such a record before it had the
    validator.

    A malformed record hides no others: anybody could store one at the node of a peer that has just started.
    """
    with suppress(ValueError):
        return PeerProgress.parse_obj(value)
    return None
