"""What a validator reports on a peer: what its checks of the peer's work have found (`training.swarm.work`).

The server stores it and reads nothing else out of it than that it has this shape; moderators judge it.
"""

from __future__ import annotations

import json
import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.trust.refusals import Refusal
from training.trust.ticket import PEER_ID

LARGEST_DETAIL_BYTES = 4000
"""Of a report as JSON: room for `MOST_CHECKS` with numbers of `_DIGITS`."""
MOST_CHECKS, MOST_COPIED = 50, 10
LARGEST_COUNT = 10**12
LARGEST_SHARE = 1e9
"""Stands for all greater ones, and for what is no number."""
_DIGITS = 4
"""Significant ones of a share; its error is far greater than what they leave off."""

PeerId = Annotated[str, Field(pattern=rf"^{PEER_ID.pattern}$")]
Share = Annotated[float, Field(ge=-LARGEST_SHARE, le=LARGEST_SHARE, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]


class Check(BaseModel):
    """One check: the validator has computed some of the samples again that the peer declared."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    epoch: Count
    """Of the update."""
    samples: Count
    """How many it has computed again; 0: the peer declared none that it could, so that share and error say nothing."""
    share: Share
    """How much of them it has found in the update, over what there should be: about 1 for an honest peer."""
    error: Annotated[Share, Field(ge=0)]
    """Standard error of the share."""


class Findings(BaseModel):
    """All that a report says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    checks: Annotated[tuple[Check, ...], Field(min_length=1, max_length=MOST_CHECKS)]
    copied_from: Annotated[tuple[PeerId, ...], Field(max_length=MOST_COPIED)] = ()
    """Peers that have sent copies of this one's updates, or this one of theirs."""
    undeclared: Count
    """Updates for which it declared no samples that the validator could compute again."""

    @property
    def told(self) -> str:
        """How many checks, in words."""
        return f"{len(self.checks)} check{'s' * (len(self.checks) != 1)} of work"


def read_findings(text: str) -> Findings:
    """From anybody.

    Raises:
        Refusal: If it is no JSON of this shape.
    """
    try:
        return Findings.model_validate_json(text)
    except ValidationError:
        raise Refusal("malformed") from None


def write_findings(found: dict) -> str:
    """The JSON that travels. Shares are rounded, and those that are not finite become the largest that is accepted.

    Args:
        found: Of the shape of `Findings`; the server refuses any other.
    """
    return json.dumps(_rounded(found), separators=(",", ":"))


def _rounded(value: object) -> object:
    match value:
        case float():
            within = LARGEST_SHARE if math.isnan(value) else max(-LARGEST_SHARE, min(value, LARGEST_SHARE))
            return float(f"{within:.{_DIGITS}g}")
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value
