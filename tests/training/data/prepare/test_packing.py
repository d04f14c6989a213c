"""Packing, against the definition: all documents in one line, cut into blocks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.prepare.packing import Packer

END = 99
SETTINGS = {"end_of_text": END, "kind": np.dtype("<u2")}
DOCUMENTS = st.lists(st.lists(st.integers(0, 98), min_size=1, max_size=20), max_size=20)


@settings(max_examples=40)
@given(DOCUMENTS, st.integers(2, 9), st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)))
def test_blocks_are_the_documents_in_one_line(documents, length, taken, stopped):
    """Whenever blocks are taken, and whenever the packer is stopped and made again."""
    packer, found, starts = Packer(block_length=length, **SETTINGS), [], []
    for number, document in enumerate(documents):
        half = len(document) // 2
        packer.add(np.array(document[:half], dtype=np.int64), begins=True)
        packer.add(np.array(document[half:], dtype=np.int64), begins=False)
        if number in taken:
            packed = packer.take()
            found += packed.tokens.ravel().tolist()
            starts += packed.starts.ravel().tolist()
        if number in stopped:
            packer = Packer.from_rest(packer.rest, block_length=length, **SETTINGS)
    packed = packer.take()
    assert packed.tokens.shape == packed.starts.shape and packed.tokens.shape[1] == length
    assert packed.tokens.dtype == np.uint16
    line, begins = [], set()
    for document in documents:
        line += [END] if line else []
        begins.add(len(line))
        line += document
    full = len(line) // length * length
    assert found + packed.tokens.ravel().tolist() == line[:full]
    assert starts + packed.starts.ravel().tolist() == [at in begins for at in range(full)]
    assert packer.rest["tokens"] == line[full:]


def test_ids_above_16_bit_keep_their_value():
    packer = Packer(block_length=2, end_of_text=70_000, kind=np.dtype("<u4"))
    packer.add(np.array([65_536]), begins=True)
    packer.add(np.array([3]), begins=True)
    assert packer.take().tokens.tolist() == [[65_536, 70_000]] and packer.rest["tokens"] == [3]


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_full_is_no_block(count):
    packer = Packer(block_length=4, **SETTINGS)
    for _ in range(count):
        packer.add(np.array([1, 2]), begins=True)
    assert packer.blocks == 0 and packer.take().tokens.shape == (0, 4)
