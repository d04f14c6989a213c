"""Continued texts read as the tokenizer would have them: no space is lost, no letter comes twice."""

from types import SimpleNamespace

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from training.data.store.text_tokenizer import TextTokenizer
from training.generate.pictures import Sampling
from training.generate.texts import continued


def told(inner, prompt, ids):
    """The pieces behind a prompt, if a model draws these ids."""
    model = SimpleNamespace(config=SimpleNamespace(block_length=64), continue_text=lambda begun, **_: iter(ids))
    tokenizer = TextTokenizer(inner, inner.token_to_id("</s>"))
    return list(continued(model, tokenizer, prompt, sampling=Sampling(), most_tokens=20, seed=0))


def words_of(*words):
    return tokenizers.Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(["<unk>", "</s>", *words])}, unk_token="<unk>")
    )


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_the_first_word_keeps_its_space(scheme):
    """As with the tokenizers of Llama 2 and Mistral, whose decoders take the space off a text's first word."""
    inner = words_of("▁Once", "▁upon", "▁a", "▁time", ".")
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    inner.decoder = decoders.Metaspace(prepend_scheme=scheme)
    assert told(inner, "Once upon", [4, 5, 6]) == [" a", " time", "."]


def test_letters_of_several_bytes_come_whole_and_all_kinds_of_spaces_stay():
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner.model = models.BPE({sign: at for at, sign in enumerate([*alphabet, "</s>"])}, [])
    rest = " 42\u00a0% \u3000für\u202fé\x1b"
    ids = [one for word in inner.pre_tokenizer.pre_tokenize_str(rest) for one in map(inner.token_to_id, word[0])]
    pieces = told(inner, "café", ids)
    assert "".join(pieces) == rest.replace("\x1b", "\N{REPLACEMENT CHARACTER}") and "ü" in pieces


def test_a_tokenizer_that_writes_the_prompt_otherwise():
    """One of small letters: the prompt is not in what it decodes."""
    inner = words_of("once", "upon", "a")
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    inner.decoder = decoders.WordPiece()
    assert "".join(told(inner, "Once", [3, 4])) == " upon a"
