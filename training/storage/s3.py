"""S3 without a library of its own: by the client in pyarrow, as a file system of fsspec."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def arrows_s3(address: str) -> tuple[AbstractFileSystem, str]:
    """A client for `s3://BUCKET/PATH`, and the path; it takes keys and region from the environment by itself.

    AWS_ENDPOINT_URL names another server than Amazon's, as it does for Amazon's own tools.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    class Files(ArrowFSWrapper):
        def cat_file(self, path, start=None, end=None, **settings):
            # fsspec opens a file that cannot be sought if it reads from the beginning, and seeks the end in it.
            return super().cat_file(path, start=start, end=end, **{"seekable": True, **settings})

    server = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    elsewhere = {"endpoint_override": server.netloc, "scheme": server.scheme} if server.netloc else {}
    return Files(S3FileSystem(**elsewhere)), address.removeprefix("s3://").rstrip("/")
