"""The small codec: it learns, comes back from disk the same, and says what is wrong with a file."""

import json
import random

import numpy as np
import pytest
import torch

from training.data.demo.captions import parse_caption
from training.data.demo.draw import draw_picture
from training.errors import BadInput
from training.model.codecs.codec import SmallCodec, load_codec, save_codec, train_small_codec
from training.model.codecs.config import CodecConfig

CONFIG = CodecConfig(image_size=32, downsampling=8, codebook_size=32)


@pytest.fixture(scope="module")
def pictures():
    captions = [f"a {colour} {shape}" for colour in ("red", "blue", "green") for shape in ("square", "circle", "star")]
    drawn = [draw_picture(parse_caption(captions[i % 9]), random.Random(i), size=32) for i in range(90)]
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in drawn])).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def codec(pictures):
    return train_small_codec(pictures, CONFIG, steps=200, batch_size=16)


def test_forms_and_ranges(codec, pictures):
    codes = codec.encode(pictures[:5].float() / 255)
    assert codes.shape == (5, 16) and codes.dtype == torch.int64 and codes.min() >= 0 and codes.max() < 32
    decoded = codec.decode(codes)
    assert decoded.shape == (5, 3, 32, 32) and decoded.dtype == torch.float32
    assert decoded.min() >= 0 and decoded.max() <= 1


def test_it_learns_to_reconstruct(codec, pictures):
    """Against the best that one picture could do for all: their mean."""
    pixels = pictures.float() / 255
    error = (codec.decode(codec.encode(pixels)) - pixels).square().mean()
    assert error < 0.2 * (pixels - pixels.mean(0)).square().mean()


def test_codes_are_the_nearest_entries(codec):
    vectors = torch.randn(50, SmallCodec.CODE_WIDTH, generator=torch.Generator().manual_seed(0))
    slow = [min(range(32), key=lambda k: float((codec.codebook[k] - vector).square().sum())) for vector in vectors]
    assert codec.nearest(vectors).tolist() == slow


def test_the_whole_codebook_lives(codec, pictures):
    assert len(codec.encode(pictures.float() / 255).unique()) >= 24


def test_training_is_reproducible(pictures):
    first, again = (train_small_codec(pictures, CONFIG, steps=12, batch_size=4, seed=1) for _ in range(2))
    other = train_small_codec(pictures, CONFIG, steps=12, batch_size=4, seed=2)
    assert all(torch.equal(first.state_dict()[name], tensor) for name, tensor in again.state_dict().items())
    assert not torch.equal(first.codebook, other.codebook)


def test_training_leaves_the_global_random_state_alone(pictures):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    train_small_codec(pictures, CONFIG, steps=2, batch_size=2)
    assert torch.equal(torch.rand(3), expected)


def test_saved_and_loaded_it_is_the_same(codec, pictures, tmp_path):
    digest = save_codec(codec, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"codec.safetensors", "codec.json"}
    assert (
        json.loads((tmp_path / "codec.json").read_text())["digest"] == digest == save_codec(codec, tmp_path / "again")
    )
    pixels = pictures.float() / 255
    for source in (tmp_path, tmp_path / "codec.safetensors", str(tmp_path)):
        loaded = load_codec(source, CONFIG)
        assert torch.equal(loaded.encode(pixels), codec.encode(pixels))
        assert torch.equal(loaded.decode(loaded.encode(pixels)), codec.decode(codec.encode(pixels)))


def test_16_bits_are_stored_unless_they_lose_something(codec, tmp_path):
    """A codec of an earlier version has 32 bits: it keeps its digest, which says what codes mean."""
    assert {tensor.dtype for tensor in codec.tensors().values()} == {torch.float16}
    torch.manual_seed(0)
    fine = SmallCodec(CONFIG)
    digest = save_codec(fine, tmp_path)
    assert {tensor.dtype for tensor in fine.tensors().values()} == {torch.float32}
    assert save_codec(load_codec(tmp_path, CONFIG), tmp_path / "again") == digest


def test_broken_missing_or_other_files_are_refused(codec, tmp_path):
    with pytest.raises(BadInput, match="codec"):
        load_codec(tmp_path, CONFIG)
    save_codec(codec, tmp_path)
    with pytest.raises(BadInput, match="recipe"):
        load_codec(tmp_path, CONFIG.model_copy(update={"codebook_size": 64}))
    content = bytearray((tmp_path / "codec.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "codec.safetensors").write_bytes(content)
    with pytest.raises(BadInput, match="SHA-256"):
        load_codec(tmp_path, CONFIG)


@pytest.mark.parametrize("form", [torch.zeros(2, 3, 16, 16, dtype=torch.uint8), torch.zeros(2, 3, 32, 32)])
def test_pictures_of_another_form_are_refused(form):
    with pytest.raises(BadInput, match="uint8"):
        train_small_codec(form, CONFIG, steps=1)
