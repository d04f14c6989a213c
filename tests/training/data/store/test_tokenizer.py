"""Captions to ids: padding is 0, words keep their ids, foreign tokenizers are checked."""

import json

import pytest

from training.data.store.tokenizer import Tokenizer
from training.errors import BadInput

CAPTIONS = ["a red circle", "a red square", "a blue circle above a red star"]


def test_ids_by_frequency_and_padding_behind():
    """Words by falling count (a 4, red 3, circle 2, then by alphabet), ids from 2 on."""
    tokenizer = Tokenizer.train(CAPTIONS, 64)
    assert tokenizer.vocab_size == 2 + 7
    ids = tokenizer.encode(["a red circle", "A RED dog"], 5).tolist()
    assert ids == [[2, 3, 4, 0, 0], [2, 3, 1, 0, 0]]


def test_long_captions_are_cut():
    assert Tokenizer.train(CAPTIONS, 64).encode(["a red a red a red"], 4).tolist() == [[2, 3, 2, 3]]


def test_vocabulary_is_bounded_and_rare_words_become_unknown():
    tokenizer = Tokenizer.train(CAPTIONS, 4)
    assert tokenizer.vocab_size == 4
    assert tokenizer.encode(["a red circle"], 3).tolist() == [[2, 3, 1]]


def test_saved_and_read_back(tmp_path):
    trained = Tokenizer.train(CAPTIONS, 64)
    trained.save(tmp_path / "tokenizer.json")
    trained.save(tmp_path / "again.json")
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "again.json").read_bytes()
    read = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert read.encode(CAPTIONS, 8).tolist() == trained.encode(CAPTIONS, 8).tolist()
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.json", "again.json"}


@pytest.mark.parametrize("content", ["", "{}", "no json", json.dumps({"model": {"type": "Nothing"}})])
def test_a_broken_file_is_named(tmp_path, content):
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(BadInput, match=r"t\.json is no tokenizer"):
        Tokenizer.from_file(tmp_path / "t.json")
