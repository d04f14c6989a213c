"""The `[membership]` of a recipe."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from training.section import Section


class MembershipConfig(Section):
    """People who may take part: without this table, all who know the run's address; with it, only members.

    Members have a ticket of the membership server that `key` and `url` name.
    """

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")] | None = None
    """Public key of the membership server, which `membership` prints."""
    url: Annotated[str, Field(max_length=200)] | None = None
    """Address of the membership server: https://, or http:// on the same machine."""
    unvouched: bool = False
    """People whom nobody vouches for may be members as well, if their program computes for it (`membership
    --work-bits`). In averages their gradients count a quarter of the others', and the run averages by centered-clip."""

    @property
    def open(self) -> bool:
        """True if all who know the run's address may take part."""
        return self.key is None

    @model_validator(mode="after")
    def _is_clear(self) -> MembershipConfig:
        if (self.open and (self.unvouched or self.url)) or not (self.open or self.url):
            raise ValueError("a run for members needs both key and url; `membership` prints both, or omit the table")
        if self.url is not None and not _is_safe(self.url):
            raise ValueError(
                "url must be https://ADDRESS, or http://127.0.0.1:PORT on one machine, without a question mark: "
                "volunteers send credentials there; use such an address"
            )
        return self


def _is_safe(url: str) -> bool:
    """Returns True if only the server itself can read what is sent to an address."""
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment or parts.username or parts.password) and url.isprintable()
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    return plain and bool(parts.hostname) and " " not in url and (parts.scheme == "https" or is_local)
