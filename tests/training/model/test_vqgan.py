"""VQ-GAN: the very function of taming-transformers on random weights, its layout there and back, files refused."""

import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from training.errors import BadInput
from training.model.codecs.config import CodecConfig
from training.model.codecs.vqgan import VqGan, VqGanShape, load_vqgan, published_name

pytest.importorskip("diffusers", reason="diffusers is not installed: pip install diffusers")

_spec = importlib.util.spec_from_file_location("parity_fixtures", Path(__file__).parent / "parity_fixtures.py")
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
random_weight = _fixtures.random_weight

SHAPE = VqGanShape(
    widths=(32, 32, 64),
    blocks_per_level=2,
    attention=(False, False, True),
    map_width=24,
    entry_width=24,
    codebook_size=48,
)
CONFIG = CodecConfig(kind="vqgan", image_size=32, downsampling=4, codebook_size=48)


@pytest.fixture(scope="module")
def codec():
    torch.manual_seed(0)
    codec = VqGan(SHAPE, CONFIG)
    for parameter in codec.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    torch.nn.init.zeros_(codec.scores.bias)
    torch.nn.init.zeros_(codec.encoder.conv_out.bias)
    torch.nn.init.zeros_(codec.quant_conv.bias)
    return codec.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def pictures():
    return torch.rand(9, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_codes_and_pictures_are_those_of_taming_transformers():
    """Recorded by `make_vqgan_parity.py`: the same codes, pictures within 1e-4; half an image unit is 2e-3."""
    recorded = np.load(Path(__file__).parent / "parity" / "vqgan.npz")
    names = json.loads(bytes(recorded["shapes"]))
    codec = VqGan.from_tensors({name: random_weight(name, tuple(shape)) for name, shape in names.items()}, CONFIG)
    codes = torch.from_numpy(recorded["codes"]).long()
    assert len(codes.unique()) > 8
    assert torch.equal(codec.encode(torch.from_numpy(recorded["pictures"]).float() / 255), codes)
    torch.testing.assert_close(codec.decode(codes), torch.from_numpy(recorded["decoded"]), atol=1e-4, rtol=0)


def test_forms_and_ranges(codec, pictures):
    codes = codec.encode(pictures)
    assert codes.shape == (9, 64) and codes.dtype == torch.int64 and codes.max() < 48
    decoded = codec.decode(codes)
    assert decoded.shape == pictures.shape and decoded.min() >= 0 and decoded.max() <= 1


def test_names_are_the_published_ones(codec):
    """Names from the checkpoint of vqgan_gumbel_f8, whose attention sits at its last level."""
    names = set(codec.tensors())
    assert names >= {
        "encoder.conv_in.weight",
        "encoder.down.0.block.1.norm2.weight",
        "encoder.down.0.downsample.conv.bias",
        "encoder.down.2.block.0.nin_shortcut.weight",
        "encoder.down.2.attn.1.proj_out.weight",
        "encoder.mid.block_2.conv1.weight",
        "encoder.mid.attn_1.q.weight",
        "encoder.norm_out.weight",
        "decoder.up.2.block.2.conv2.weight",
        "decoder.up.2.attn.2.norm.bias",
        "decoder.up.1.upsample.conv.weight",
        "decoder.up.1.block.0.nin_shortcut.weight",
        "quantize.proj.weight",
        "quantize.embed.weight",
        "quant_conv.bias",
        "post_quant_conv.bias",
    }
    assert codec.tensors()["encoder.mid.attn_1.q.weight"].shape == (64, 64, 1, 1)
    assert len(names) == len(codec.state_dict())
    assert published_name("encoder.conv_norm_out.bias", SHAPE) == "encoder.norm_out.bias"


def same(first, second):
    return all(torch.equal(first.state_dict()[name], tensor) for name, tensor in second.state_dict().items())


class Evil:
    def __reduce__(self):
        return (print, ("code of a stranger",))


def test_a_checkpoint_with_code_is_not_opened(codec, tmp_path, capsys):
    torch.save({"state_dict": codec.tensors(), "callbacks": Evil()}, tmp_path / "vqgan.ckpt")
    with pytest.raises(BadInput, match="code"):
        load_vqgan(tmp_path / "vqgan.ckpt", CONFIG)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(BadInput):
        load_vqgan(tmp_path / "bare.pt", CONFIG)
    assert "stranger" not in capsys.readouterr().out


def test_other_weights_are_refused(codec, tmp_path):
    tensors = codec.tensors()
    for change, message in (
        ({"extra.weight": torch.zeros(1)}, "left over, such as 'extra.weight'"),
        ({"quant_conv.bias": torch.zeros(3)}, "has the shape"),
        ({"decoder.conv_in.weight": tensors["decoder.conv_in.weight"].transpose(0, 1)}, "has the shape"),
    ):
        with pytest.raises(BadInput, match=message):
            VqGan.from_tensors({**tensors, **change}, CONFIG)
    with pytest.raises(BadInput, match="VQ-GAN"):
        VqGan.from_tensors({"weight": torch.zeros(1)}, CONFIG)
    with pytest.raises(BadInput, match="codebook_size"):
        VqGan.from_tensors(tensors, CONFIG.model_copy(update={"codebook_size": 64}))
    (tmp_path / "torn.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"torn\.safetensors"):
        load_vqgan(tmp_path / "torn.safetensors", CONFIG)


def test_missing_diffusers_names_the_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "diffusers.models.autoencoders.vae", None)
    with pytest.raises(BadInput, match="pip install diffusers"):
        VqGan(SHAPE, CONFIG)
