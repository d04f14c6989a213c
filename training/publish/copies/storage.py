"""Storage that fsspec knows: a folder, `s3://`, and whatever else is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from training.data.store.source import TRIES, pause_seconds
from training.errors import BadInput, TrainingError, reason_of
from training.storage.s3 import arrows_s3

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def open_storage(address: str, *, what: str, flag: str) -> tuple[AbstractFileSystem, str]:
    """The file system of an address, and the path in it. `s3://` takes s3fs, or else the S3 client in pyarrow.

    Args:
        address: A folder, or an address that fsspec knows, such as `s3://BUCKET/PATH`.
        what: What is to be kept there, for messages.
        flag: Which flag has named it, for messages.

    Raises:
        BadInput: If it names no place, or a library for it is not installed. Nothing is sent yet.
    """
    import fsspec  # seldom needed, and slow to load

    try:
        return fsspec.core.url_to_fs(address)
    except ImportError as error:
        if not address.startswith("s3://"):
            raise BadInput(
                f"{address} cannot be used: {error}.",
                cure=f"Install the library that the message names, or give another {flag}.",
            ) from None
        return arrows_s3(address)
    except ValueError as error:
        raise BadInput(
            f"{address} is no place for {what}: {error}.",
            cure=f"Give {flag} a folder, or an address such as s3://BUCKET/PATH.",
        ) from None


def tried(name: str, address: str, act: Callable[[], Any]) -> Any:
    """What `act` returns, which is called again if it fails.

    Args:
        name: Of the file that it reads or writes, for messages.
        address: Where that is, for messages.
        act: May raise anything; `BadInput` is not tried again.

    Raises:
        TrainingError: If it fails several times.
    """
    for failures in range(1, TRIES + 1):
        try:
            return act()
        except BadInput:
            raise
        except Exception as error:  # of any library of a storage
            reason = " ".join((reason_of(error) or type(error).__name__).split())[:300]
        if failures < TRIES:
            time.sleep(pause_seconds(failures))
    raise TrainingError(
        f"{name} cannot be read or written at {address}: {reason}.",
        cure="Give the same command again; it goes on where it broke off.",
    )
