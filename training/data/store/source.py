"""Where a set of shards is: a folder, a web server, or a store that fsspec knows; all are asked for parts of files."""

from __future__ import annotations

import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Protocol

from training.errors import BadInput, reason_of
from training.processes.redirects import open_checked
from training.storage.s3 import arrows_s3

TRIES, TRY_TIMEOUT_SECONDS = 4, 30.0
"""How often in a row a request may fail, and how long a server may be silent."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
"""The pause after the first failure, which doubles with each further one, and the longest."""
PROGRESS_BYTES = 1 << 16
"""A request that has brought so much before it failed counts as a success: a slow link may break off often."""
CHUNK_BYTES = 1 << 16
TRY_AGAIN_CODES = (408, 425, 429)
"""Answers below 500 which say that the same request may succeed later."""


class UnreachableError(Exception):
    """The source gives nothing now; it may later."""


class MissingError(Exception):
    """The source answers, but has no such file, or not so much of it."""


class Source(Protocol):
    """A set's files."""

    is_remote: bool
    """Whether a cache saves time."""
    reads_parts: bool
    """Whether a part of a file takes less time than the whole, as far as is known."""

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        """So many bytes of a file.

        Raises:
            UnreachableError: If nothing comes, after several tries.
            MissingError: If the file is not there or shorter.
        """

    def read_all(self, name: str, *, limit: int) -> bytes:
        """A whole file, of which at most `limit` + 1 bytes; raises the same."""

    def download(self, name: str, path: Path, *, length: int) -> None:
        """Writes a file of a known length to a path; raises the same."""


def open_source(address: str) -> Source:
    """The source at an address: `http(s)://`, `hf://`, `s3://`, or a folder.

    Raises:
        BadInput: If the address is of another kind, or the library for it is missing.
    """
    scheme, separator, _ = address.partition("://")
    if not separator:
        return Folder(Path(address))
    if scheme in ("http", "https"):
        return Web(address)
    return Store(address)


def data_set_address(address: str) -> str:
    """The address at which a data set of the hub is read: without `datasets/`, the hub takes it for a model.

    >>> data_set_address("hf://OWNER/NAME"), data_set_address("https://example.org/shards")
    ('hf://datasets/OWNER/NAME', 'https://example.org/shards')
    """
    if address.startswith("hf://") and not address.startswith("hf://datasets/"):
        return address.replace("hf://", "hf://datasets/", 1)
    return address


def pause_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row: peers that failed together must not come back together."""
    return min(FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10), LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.5)


class Folder:
    """A folder on this machine."""

    is_remote = False
    reads_parts = True

    def __init__(self, folder: Path):
        self._folder = folder

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        """See `Source.read`."""
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                content = file.read(length)
        except OSError as error:
            raise MissingError(f"{self._folder / name} cannot be read: {reason_of(error)}") from None
        if len(content) < length:
            raise MissingError(f"{self._folder / name} ends after {start + len(content)} bytes")
        return content

    def read_all(self, name: str, *, limit: int) -> bytes:
        """See `Source.read_all`."""
        try:
            with (self._folder / name).open("rb") as file:
                return file.read(limit + 1)
        except OSError as error:
            raise MissingError(f"{self._folder / name} cannot be read: {reason_of(error)}") from None

    def download(self, name: str, path: Path, *, length: int) -> None:
        """See `Source.download`."""
        path.write_bytes(self.read(name, length=length))


class _Remote:
    """Repeats requests that fail, each from the byte where the last one broke off."""

    is_remote = True
    reads_parts = True

    def __init__(self, address: str):
        self._address = address.rstrip("/")

    def read(self, name: str, *, start: int = 0, length: int) -> bytes:
        """See `Source.read`."""
        return b"".join(self._arriving(name, start, length))

    def read_all(self, name: str, *, limit: int) -> bytes:
        """See `Source.read_all`."""
        return b"".join(self._arriving(name, 0, limit + 1, is_length_known=False))

    def download(self, name: str, path: Path, *, length: int) -> None:
        """See `Source.download`."""
        with path.open("wb") as file:
            for chunk in self._arriving(name, 0, length):
                file.write(chunk)

    def _arriving(self, name: str, start: int, length: int, *, is_length_known: bool = True) -> Iterator[bytes]:
        done = failures = 0
        while done < length:
            before = done
            try:
                for chunk in self._chunks(name, start + done, length - done):
                    done += len(chunk)
                    yield chunk
                if not is_length_known:
                    return
                if done == before:
                    raise MissingError(f"{self._address}/{name} ends after {start + done} bytes")
            except (MissingError, BadInput):
                raise
            except Exception as error:  # those of fsspec's stores are of many kinds
                failures = 1 if done - before >= PROGRESS_BYTES else failures + 1
                if failures == TRIES:
                    raise UnreachableError(f"{self._address}/{name} cannot be fetched: {reason_of(error)}") from None
                time.sleep(pause_seconds(failures))

    def _chunks(self, name: str, start: int, length: int) -> Iterator[bytes]:
        """At most so many bytes of a file, as one request brings them; none if the file ends before."""
        raise NotImplementedError


class Web(_Remote):
    """A web server; one that cannot send parts of a file sends more than is asked for."""

    def _chunks(self, name: str, start: int, length: int) -> Iterator[bytes]:
        address = f"{self._address}/{urllib.parse.quote(name)}"
        request = urllib.request.Request(address, headers={"Range": f"bytes={start}-{start + length - 1}"})
        try:
            response = open_checked(request, TRY_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            # Below 500 the address is wrong or refused (404, 403), and asking again does not help.
            if error.code < 500 and error.code not in TRY_AGAIN_CODES:
                raise MissingError(f"{address} cannot be fetched: {error}") from None
            raise
        with response:
            skipped = start if response.status != 206 else 0
            if skipped:
                self.reads_parts = False
            while length and (chunk := response.read1(CHUNK_BYTES)):
                wanted = chunk[skipped : skipped + length]
                skipped = max(skipped - len(chunk), 0)
                length -= len(wanted)
                yield wanted
            # `read1` does not report that the connection was lost.
            if length and response.length:
                raise IncompleteRead(b"", response.length)


class Store(_Remote):
    """A store that fsspec knows, such as `s3://`, and `hf://` of Hugging Face."""

    def __init__(self, address: str):
        import fsspec  # seldom needed, and slow to load

        super().__init__(address)
        scheme = address.partition("://")[0]
        try:
            self._files, self._root = fsspec.core.url_to_fs(self._address)
        except ImportError as error:
            if scheme != "s3":
                raise BadInput(
                    f"{address} cannot be read: {error}. Install the library that reads {scheme}://."
                ) from None
            self._files, self._root = arrows_s3(self._address)
        except ValueError as error:
            raise BadInput(
                f"{address} cannot be read: {error}. Give a folder, or an address with https://, hf:// or s3://."
            ) from None

    def _chunks(self, name: str, start: int, length: int) -> Iterator[bytes]:
        try:
            yield self._files.cat_file(f"{self._root}/{name}", start=start, end=start + length)
        except FileNotFoundError:
            raise MissingError(f"{self._address}/{name} is not there") from None
