"""Records of progress in the DHT: each peer's report on the epoch that it is in."""

from __future__ import annotations

from contextlib import suppress

from hivemind.dht.schema import BytesWithPublicKey, SchemaValidator
from hivemind.dht.validation import RecordValidatorBase
from pydantic.v1 import BaseModel, StrictBool, conbytes, confloat, conint

from training.swarm.engine.ids import MOST_ID_BYTES


class PeerProgress(BaseModel):
    """A peer's record of its progress: hivemind's record, but with upper bounds of its numbers, and with the
    micro-batch that the peer computes."""

    peer_id: conbytes(strict=True, max_length=MOST_ID_BYTES)
    epoch: conint(strict=True, ge=0, le=10**9)
    samples_accumulated: conint(strict=True, ge=0, le=10**12)
    """Samples of the epoch that the peer is in."""
    samples_per_second: confloat(strict=True, ge=0, le=10**7)
    time: confloat(strict=True, ge=0, le=10**11)
    """DHT time at which the peer stored the record; it does so every few seconds, also during a micro-batch."""
    counted_at: confloat(strict=True, ge=0, le=10**11)
    """DHT time at which the peer counted these samples; then it began its next micro-batch."""
    step_samples: conint(strict=True, ge=0, le=10**6)
    """Samples of a micro-batch, which count all at once; 0: unknown, or the peer computes none now."""
    client_mode: StrictBool

    def whole_samples(self, at: float) -> float:
        """Samples of the micro-batches that the peer should have done from `counted_at` to a DHT time."""
        samples = max(0.0, at - self.counted_at) * self.samples_per_second
        return samples // self.step_samples * self.step_samples if self.step_samples else samples

    def is_free(self, at: float, *, within_seconds: float) -> bool:
        """Returns True if the peer's micro-batch under way at a DHT time should be done within some seconds."""
        begun = max(0.0, at - self.counted_at) * self.samples_per_second
        left = self.step_samples - begun % self.step_samples if self.step_samples else 0.0
        return left <= within_seconds * self.samples_per_second


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
