"""The page about a set: samples, lengths and counts, from a folder and an address; what strangers wrote stays text."""

import base64
import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.shard_server import shard_server
from tests.training.data.text_shards import document, prepare_documents, write_documents
from training.data.store.sets import open_shards
from training.data.store.shards import Manifest, SplitEntry, describe_file, describe_shard, write_shard
from training.data.store.show import look, page, plain
from training.data.store.tokenizer import Tokenizer
from training.errors import BadInput
from training.model.codecs.codec import SmallCodec, load_codec, save_codec
from training.recipe import load_recipe

RUN = load_recipe("demo")
CAPTIONS = [
    '<script>alert("1")</script>',
    "a cat \u202egnp.exe",
    "دائرة \u200dحمراء",
    "x" * 299,
    "</figcaption><b>",
] * 8
RANGES = [("1", 1, 1), *((f"{1 << bit} to {(2 << bit) - 1}", 1 << bit, (2 << bit) - 1) for bit in range(1, 6))]
EMPTY = ("meta", "img", "link", "br", "hr")


class Tree(HTMLParser):
    """Elements, texts and pictures of a page; a browser would find the same, since all its tags are closed."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.texts, self.pictures = [], [], [], []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "img":
            self.pictures.append(dict(attributes)["src"])
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def within(self, tag):
        return [text for at, text in self.texts if at == tag]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Forty pictures whose codes are drawn by chance."""
    folder = tmp_path_factory.mktemp("pictures") / "<b>set"
    folder.mkdir()
    save_codec(SmallCodec(RUN.codec).eval(), folder)
    codes = np.random.default_rng(0).integers(0, 256, (40, 64)).astype(np.uint16)
    write_shard(folder / "train-00000.parquet", ids=[str(one) for one in range(40)], captions=CAPTIONS, codes=codes)
    Tokenizer.train(CAPTIONS, 64).save(folder / "tokenizer.json")
    manifest = Manifest(
        run_id="demo",
        input_digest="a" * 64,
        image_seq_len=64,
        image_vocab_size=256,
        text_vocab_size=9,
        codec_digest=json.loads((folder / "codec.json").read_text())["digest"],
        reconstruction_error=0.25,
        pictures=1052,
        picture_bytes=0,
        near_duplicates=0,
        left_out={"short caption": 1000, "<i>odd\u202e</i>": 12},
        splits={"train": SplitEntry(samples=40, shards=("train-00000.parquet",))},
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={"train-00000.parquet": describe_shard(folder / "train-00000.parquet")},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder, codes


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder / "a.jsonl", 60)
    with (folder / "a.jsonl").open("a") as file:
        file.write('{"text": "<b>w1</b> \u202ew2"}\n{\n')
    prepare_documents(folder / "shards", folder / "a.jsonl")
    return folder / "shards"


def test_pictures_are_those_of_their_captions(pictures):
    folder, codes = pictures
    tree = Tree(page(look(str(folder), count=7)))
    shown = tree.within("figcaption")
    assert len(shown) == len(tree.pictures) == 7
    decoded = (
        (load_codec(folder, RUN.codec).decode(torch.from_numpy(codes.astype(np.int64))).clamp(0, 1) * 255)
        .round()
        .byte()
    )
    known = {picture.permute(1, 2, 0).numpy().tobytes(): CAPTIONS[at] for at, picture in enumerate(decoded)}
    found = []
    for address in tree.pictures:
        content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
        found.append(plain(known[np.asarray(Image.open(io.BytesIO(content))).tobytes()]))
    assert found == shown
    assert Tree(page(look(str(folder), count=7, seed=1))).pictures != tree.pictures
    assert len(Tree(page(look(str(folder), count=900))).pictures) == 40


def test_text_is_shown_with_the_borders_of_its_documents(text):
    found = look(str(text), count=100)
    assert len(found.samples) == open_shards(text, kind="text").samples
    documents = [document(number) for number in range(60)] + ["<b>w1</b> \u202ew2"]
    assert all(sum(part.tokens for part in sample.parts) == 16 for sample in found.samples)
    for sample in found.samples:
        for number, part in enumerate(sample.parts):
            assert part.begins or number == 0
            is_whole = part.begins and number < len(sample.parts) - 1
            if is_whole:
                assert part.text in documents
            else:
                assert any(part.text in one for one in documents)
    tree = Tree(page(found))
    borders = [text for text in tree.within("div") if "begins" in text]
    assert len(borders) == sum(part.begins for sample in found.samples for part in sample.parts) > 40
    counts = [len(document(number).split()) for number in range(60)] + [2]
    expected = {name: sum(low <= count <= high for count in counts) for name, low, high in RANGES}
    assert {bar.name: bar.count for bar in found.lengths} == {name: count for name, count in expected.items() if count}
    assert [(bar.name, bar.count) for bar in found.left_out] == [("broken line", 1)] and found.read == 62


@pytest.mark.parametrize("kind", ["pictures", "text"])
def test_an_address_shows_what_the_folder_does(pictures, text, tmp_path, monkeypatch, kind):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = pictures[0] if kind == "pictures" else text
    with shard_server(folder) as server:
        there, here = look(server.url, count=5), look(str(folder), count=5)
        assert there.samples == here.samples and there.lengths == here.lengths and there.source == server.url


def test_damaged_row_groups_are_named(pictures, tmp_path):
    for path in pictures[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "train-00000.parquet").read_bytes())
    content[100] ^= 1
    (tmp_path / "train-00000.parquet").write_bytes(content)
    with pytest.raises(BadInput, match=r"row group 0 of train-00000\.parquet"):
        look(str(tmp_path))


def test_a_codec_of_other_sizes_is_not_built(pictures, tmp_path):
    for path in pictures[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    described = json.loads((tmp_path / "codec.json").read_text())
    described["config"]["codebook_size"] = 10**12
    (tmp_path / "codec.json").write_text(json.dumps(described))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["files"]["codec.json"] = describe_file(tmp_path / "codec.json").model_dump()
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="1000000000000"):
        look(str(tmp_path))
