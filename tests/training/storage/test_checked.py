"""Documents with a checksum: what a disk has changed in one is noticed."""

from __future__ import annotations

import doctest

import pytest

from training.storage import checked
from training.storage.checked import packed, unpacked


def test_the_examples():
    assert doctest.testmod(checked).failed == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "7", '{"epoch": 8, "checksum": "c2cb3fce"}', '{"epoch": 7, "checksum": null}']
)
def test_what_is_no_whole_document_is_refused(text):
    with pytest.raises(ValueError):
        unpacked(text)


def test_what_was_packed_is_the_same_again():
    document = {"id": "a" * 16, "seconds": 1 / 3, "ancestors": [["b" * 16, 40]], "name": "Ada – \u2126"}
    assert unpacked(packed(document)) == document
