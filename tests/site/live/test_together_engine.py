"""The training of the page Train together, run by node, compared with PyTorch and the trainer's own functions."""

from __future__ import annotations

import base64
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.swarm.shapes import SETTINGS, Shapes, dice, drawings, seen
from benchmarks.swarm.together import page_settings
from calculator.swarm.sparse import exchanged
from node import run_node
from training.optim.adamw import AdamW8bit
from training.optim.config import ScheduleConfig
from training.optim.schedule import learning_rate_factor
from training.swarm.defence.clipping import Clipping, clipped_shares
from training.swarm.engine.codecs import BlockwiseCodec, decode, encode

ENGINE = Path(__file__).parents[1] / "scripts" / "together_engine.mjs"
RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "together.json"
BLOCK = 512


@pytest.fixture
def engine(tmp_path):
    """Asks the page's scripts: `engine(ask, ...)`."""

    def answer(ask: str, **given: object):
        file = tmp_path / "tasks.json"
        file.write_text(json.dumps([{"ask": ask, **given}]))
        ended = run_node(ENGINE, file)
        assert ended.returncode == 0, ended.stdout
        return json.loads(ended.stdout)[0]

    return answer


def given(values) -> str:
    return base64.b64encode(np.asarray(values, dtype=np.float32).tobytes()).decode()


def read(text: str, kind=np.float32) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def heavy_tailed(length: int, seed: int) -> torch.Tensor:
    """As gradients are: most values are small, few are large."""
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(length, generator=drawn) * torch.rand(length, generator=drawn).pow(8)


def test_the_first_weights_are_equal_to_the_last_bit(engine):
    assert engine("dice", seed=5, count=1000) == list(itertools.islice(dice(5), 1000))
    assert np.array_equal(read(engine("weights", settings=page_settings())), Shapes().vector().numpy())


def test_the_gradient_is_pytorchs(engine):
    model, pairs = Shapes(), seen()[::5]
    loss = model(pairs)
    loss.backward()
    facts = {"settings": page_settings(), "drawings": drawings(), "weights": given(model.vector()), "pairs": pairs}
    found = engine("gradient", **facts)
    wanted = model.vector(gradients=True).numpy()
    assert found["loss"] / len(pairs) == pytest.approx(float(loss), rel=1e-5)
    assert np.allclose(read(found["gradient"]) / len(pairs), wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max())
    assert (wanted != 0).mean() > 0.5, "most weights take part"


def test_what_the_model_has_learned_is_seen_alike(engine):
    model = Shapes()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0)
    for _ in range(40):
        optimizer.zero_grad()
        model(seen()).backward()
        optimizer.step()
    found = engine("look", settings=page_settings(), drawings=drawings(), weights=given(model.vector()))
    wanted = model.look()
    assert wanted["right"] > len(seen()) / 2
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    assert (found["right"], found["rightUnseen"]) == (wanted["right"], wanted["right_unseen"])
    pixels = np.asarray(model.mosaic(), dtype=int)
    shown = read(found["pictures"], np.uint8).reshape(*pixels.shape[:2], 4)
    assert np.abs(shown[..., :3] - pixels).max() <= 1 and (shown[..., 3] == 255).all()


@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_adam_is_pytorchs_and_the_trainers(engine, size):
    """The gradients of size 1 are clipped to the norm of the settings."""
    settings, start = page_settings(), torch.randn(3000, generator=torch.Generator().manual_seed(1))
    gradients = [size * heavy_tailed(3000, seed) for seed in range(5)]
    factors = [0.2, 0.4, 0.6, 0.8, 1.0]
    facts = {"weights": given(start), "gradients": list(map(given, gradients)), "factors": factors}
    found = read(engine("adam", settings=settings, **facts))
    common = {"lr": settings["rate"], "betas": SETTINGS.betas, "eps": SETTINGS.eps, "weight_decay": 0.0}
    for kind in ("torch", "trainer"):
        weights = torch.nn.Parameter(start.clone())
        clip = {"max_grad_norm": SETTINGS.max_norm, "min_8bit_size": 10**9}
        optimizer = (
            torch.optim.AdamW([weights], **common) if kind == "torch" else AdamW8bit([weights], **common, **clip)
        )
        for gradient, factor in zip(gradients, factors, strict=True):
            optimizer.param_groups[0]["lr"] = settings["rate"] * factor
            weights.grad = gradient.clone()
            if kind == "torch":
                torch.nn.utils.clip_grad_norm_([weights], SETTINGS.max_norm)
            optimizer.step()
        assert np.allclose(found, weights.detach().numpy(), rtol=1e-5, atol=1e-6), kind
    assert np.abs(found - start.numpy()).max() > settings["rate"]


@pytest.mark.parametrize("outer", [page_settings()["outer"], {"rate": 0.7, "momentum": 0.9}])
def test_the_outer_optimizer_is_pytorchs(engine, outer):
    weights, distances = torch.nn.Parameter(torch.ones(50)), [heavy_tailed(50, seed) for seed in range(4)]
    nesterov = outer["momentum"] > 0
    optimizer = torch.optim.SGD([weights], lr=outer["rate"], momentum=outer["momentum"], nesterov=nesterov)
    for distance in distances:
        weights.grad = distance.clone()
        optimizer.step()
    found = read(engine("outer", outer=outer, weights=given(torch.ones(50)), distances=list(map(given, distances))))
    assert np.allclose(found, weights.detach().numpy(), atol=1e-6)


def test_the_learning_rate_is_the_trainers(engine):
    config = ScheduleConfig(warmup_epochs=10, total_epochs=160)
    wanted = [learning_rate_factor(epoch, config) for epoch in range(162)]
    assert engine("rates", epochs=list(range(162)), warmup=10, total=160) == pytest.approx(wanted)


@pytest.mark.parametrize("length", [1, BLOCK, 5000])
def test_8_bits_are_the_trainers(engine, length):
    """The message is, to the last bit; the values of the type differ by rounding."""
    values = heavy_tailed(length, 3)
    values[BLOCK : 2 * BLOCK] = 0
    found = engine("code", values=given(values), bits=8)
    message = encode(values, BlockwiseCodec.compression_type)
    assert base64.b64decode(found["scales"]) + base64.b64decode(found["codes"]) == message.buffer
    assert np.allclose(read(found["decoded"]), decode(message).numpy(), rtol=1e-6, atol=0)


def test_1_bit_with_error_feedback_is_the_calculators(engine):
    """Of all values of a block the sign is sent, and the mean magnitude of the block, in 16 bits by the calculator."""
    vectors, left = [heavy_tailed(1200, seed).numpy() for seed in range(4)], np.zeros(1200, dtype=np.float32)
    for values, found in zip(vectors, engine("feedback", vectors=list(map(given, vectors)), bits=1), strict=True):
        sent = []
        for start in range(0, 1200, BLOCK):
            block = slice(start, min(start + BLOCK, 1200))
            kept = block.stop - start
            arrived, _ = exchanged(values[block].tolist(), left[block].tolist(), kept=kept, bits=1, decay=1.0)
            sent += [arrived[place] for place in range(kept)]
        assert np.allclose(read(found["sent"]), sent, rtol=2**-8)
        assert np.allclose(read(found["left"]), left + values - read(found["sent"]), atol=1e-6)
        left = read(found["left"])
    code = engine("code", values=given(vectors[0]), bits=1)
    assert len(base64.b64decode(code["codes"])) == 1200 // 8
    assert len(base64.b64decode(code["scales"])) == 4 * math.ceil(1200 / BLOCK)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("hostile", [False, True])
def test_centered_clip_is_the_trainers(engine, count, hostile):
    common = heavy_tailed(2000, 0)
    vectors = [common + 0.3 * heavy_tailed(2000, seed) for seed in range(1, count + 1)]
    if hostile:
        vectors[-1] *= page_settings()["hostileFactor"]
    samples = [32, 48, 16, 32][:count]
    found = engine("shares", vectors=list(map(given, vectors)), samples=samples)
    assert found == pytest.approx(clipped_shares(vectors, samples, Clipping(weight_over_median=1.0)), rel=1e-6)
    if hostile and count > 2:
        assert found[-1] < 0.001


def test_the_page_trains_as_the_recorded_peers_did():
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["settings"] == json.loads(json.dumps(page_settings()))
    assert record["drawings"] == json.loads(json.dumps(drawings()))
