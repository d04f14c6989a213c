"""JSON documents with a checksum, by which a reader notices that a disk has changed them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

KEY = "checksum"
"""Field with the checksum of all other fields."""


def packed(document: Mapping[str, object]) -> str:
    """Writes a document with its checksum as a line of JSON.

    >>> packed({"epoch": 7})
    '{"epoch": 7, "checksum": "c2cb3fce"}\\n'
    """
    return json.dumps({**document, KEY: _checksum(document)}) + "\n"


def unpacked(text: str) -> dict:
    """Reads a document; one of an earlier version has no checksum.

    Raises:
        ValueError: If the text is no JSON object, or its checksum differs.

    >>> unpacked('{"epoch": 7, "checksum": "c2cb3fce"}'), unpacked('{"epoch": 7}')
    ({'epoch': 7}, {'epoch': 7})
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    if KEY in document and document.pop(KEY) != _checksum(document):
        raise ValueError("its content differs from its checksum")
    return document


def _checksum(document: Mapping[str, object]) -> str:
    return f"{zlib.crc32(json.dumps(dict(document), sort_keys=True).encode()):08x}"
