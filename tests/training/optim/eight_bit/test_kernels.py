"""The compiled loops give PyTorch's codes, and a machine without them trains all the same."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch

from training.optim import moments
from training.optim.eight_bit import blockwise, kernels
from training.optim.lamb import Lamb8bit


def random_values(size, seed=0):
    """Values over many decades, both signs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator) * 10 ** (8 * torch.rand(size, generator=generator) - 7)


NASTY = {
    "one value": torch.tensor([-3.0]),
    "one value more than a block": random_values(257),
    "many decades": random_values(10_000),
    "zeros": torch.zeros(300),
    "minus zeros": -torch.zeros(300),
    "denormal numbers": random_values(3000, seed=1) * 1e-40,
    "one denormal number": torch.tensor([0.0, 1e-45, -1e-45]),
    "the largest numbers": torch.tensor([3.4e38, -3.4e38, 1e38, 1e-38] * 100),
    "equal values": torch.full((1000,), -0.37),
    "the borders of the signed type": (lambda v: torch.cat([(v[1:] + v[:-1]) / 2, v]))(blockwise.codebook(True).values),
    "the borders of the other": (lambda v: torch.cat([(v[1:] + v[:-1]) / 2, v]))(blockwise.codebook(False).values),
}


def stored(values, block_size, signed, *, native):
    codes = torch.zeros(values.numel(), dtype=torch.uint8)
    scales = torch.zeros(blockwise.block_count(values.numel(), block_size))
    how = dict(block_size=block_size, signed=signed, native=native)
    blockwise.quantize(values.clone() if signed else values.abs(), codes, scales, **how)
    restored = torch.empty_like(values)
    blockwise.dequantize(codes, scales, restored, **how)
    return codes, scales, restored


@pytest.mark.compiler
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("block_size", [1, 7, 256, 65_536])
@pytest.mark.parametrize("kind", NASTY)
def test_codes_scales_and_values_are_pytorchs_bit_for_bit(kind, block_size, signed):
    assert kernels.kernels() is not None
    both = (stored(NASTY[kind], block_size, signed, native=compiled) for compiled in (True, False))
    for ours, expected in zip(*both, strict=True):
        assert torch.equal(ours, expected)


def updated(native, weights, gradients, threads=1, **settings):
    """Weights and states after one update for each of the gradients."""
    weights = [weight.clone() for weight in weights]
    optimizer = Lamb8bit(weights, lr=2.5e-3, block_size=256, min_8bit_size=0, native=native, **settings)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for gradient in gradients:
            for weight, part in zip(weights, gradient, strict=True):
                weight.grad = part.clone()
            optimizer.step()
    finally:
        torch.set_num_threads(before)
    return weights, [optimizer.state[weight] for weight in weights]


@pytest.mark.compiler
@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.0}, {"max_grad_norm": math.inf}],
    ids=lambda settings: next(iter(settings), "defaults"),
)
def test_an_update_is_pytorchs_but_for_ties(settings):
    """The first update starts from equal codes; sums differ in their last bit, so that a value on a border may turn."""
    sizes = (1, 255, 70_001, 300_000)
    weights = [0.02 * random_values(size, seed=size) for size in sizes]
    for scale in (1.0, 1e-30, 1e15):
        gradients = [[scale * random_values(size, seed=7 + size) for size in sizes]]
        (ours, our_states), (theirs, their_states) = (
            updated(compiled, weights, gradients, **settings) for compiled in (True, False)
        )
        for weight, expected, state, expected_state in zip(ours, theirs, our_states, their_states, strict=True):
            assert torch.allclose(weight, expected, rtol=1e-6, atol=1e-9)
            for moment in ("moment1", "moment2"):
                steps = (state[moment].int() - expected_state[moment].int()).abs()
                assert int(steps.max()) <= 1 and int(steps.sum()) <= 1 + 1e-4 * steps.numel()
                assert torch.allclose(state[f"{moment}_scales"], expected_state[f"{moment}_scales"], rtol=1e-6, atol=0)


@pytest.mark.compiler
def test_the_number_of_threads_changes_nothing():
    weights = [0.02 * random_values(900_001)]
    gradients = [[random_values(900_001, seed=step)] for step in range(3)]
    (one,), (state,) = updated(True, weights, gradients)
    (three,), (other,) = updated(True, weights, gradients, threads=3)
    assert torch.equal(one, three) and torch.equal(state["moment1"], other["moment1"])


@pytest.mark.compiler
def test_gradients_that_are_not_finite_change_nothing_in_compiled_loops_either():
    weight = random_values(1000)
    before = weight.clone()
    optimizer = Lamb8bit([weight], lr=1e-3, min_8bit_size=0)
    for fault in (math.nan, math.inf, 1e30):  # the last one's square is not finite
        weight.grad = torch.zeros(1000)
        weight.grad[3] = fault
        optimizer.step()
    assert optimizer.skipped_steps == 3 and torch.equal(weight, before)


def fresh_choice(monkeypatch, caplog, folder, compiler=None):
    """What `kernels` chooses in a new process with this cache and compiler, and what it says."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    if compiler is not None:
        monkeypatch.setenv("CC", str(compiler))
    with caplog.at_level(logging.INFO, logger=kernels.__name__):
        chosen = kernels.kernels.__wrapped__()
    return chosen, [record.getMessage() for record in caplog.records if record.name == kernels.__name__]


def script(folder: Path, text: str) -> Path:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def libraries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.compiler
def test_the_library_is_made_once_and_found_again(monkeypatch, caplog, tmp_path):
    chosen, said = fresh_choice(monkeypatch, caplog, tmp_path)
    assert chosen is not None and len(said) == 1 and "compiled" in said[0]
    (library,) = libraries(tmp_path)
    made = library.stat().st_mtime_ns
    assert library.parent.stat().st_mode & 0o777 == 0o700
    assert fresh_choice(monkeypatch, caplog, tmp_path)[0] is not None
    assert [path.stat().st_mtime_ns for path in libraries(tmp_path)] == [made]


def test_without_a_compiler_one_line_says_so_and_training_goes_on(monkeypatch, caplog, tmp_path):
    chosen, said = fresh_choice(monkeypatch, caplog, tmp_path, compiler=tmp_path / "missing")
    assert chosen is None and len(said) == 1 and "three times as long" in said[0] and "missing" in said[0]
    monkeypatch.setattr(moments, "kernels", lambda: None)
    weights, gradients = [random_values(70_000)], [[random_values(70_000, seed=1)]]
    (ours,), _ = updated(True, weights, gradients)
    (expected,), _ = updated(False, weights, gradients)
    assert torch.equal(ours, expected)


@pytest.mark.compiler
@pytest.mark.parametrize(
    "fault, told",
    [
        ("#error none of this", "none of this"),
        ("__attribute__((constructor)) static void die(void) { __builtin_trap(); }", "ended with -"),
    ],
    ids=["does not compile", "kills the process"],
)
def test_a_bad_compiler_is_survived(monkeypatch, caplog, tmp_path, fault, told):
    """The processor's own traps are tried in a child process, before this one loads anything."""
    (tmp_path / "fault.h").write_text(fault)
    compiler = script(tmp_path, f'[ "$1" = --version ] && exec cc --version\nexec cc -include {tmp_path}/fault.h "$@"')
    cache = tmp_path / "cache"
    chosen, said = fresh_choice(monkeypatch, caplog, cache, compiler=compiler)
    assert chosen is None and len(said) == 1 and told in said[0]


@pytest.mark.compiler
@pytest.mark.parametrize("bytes_left", [0, 20, 1000, 10_000])
def test_a_torn_library_is_not_loaded_but_made_anew(bytes_left, monkeypatch, caplog, tmp_path):
    fresh_choice(monkeypatch, caplog, tmp_path / "first")
    (library,) = libraries(tmp_path / "first")
    other = tmp_path / "other"  # a library that this process has loaded would be found loaded
    torn = other / library.relative_to(tmp_path / "first")
    torn.parent.mkdir(parents=True, mode=0o700)
    torn.write_bytes(library.read_bytes()[:bytes_left])
    assert fresh_choice(monkeypatch, caplog, other)[0] is not None
    assert libraries(other) == [torn] and torn.stat().st_size > 10_000


@pytest.mark.compiler
def test_a_folder_that_others_can_write_to_is_not_trusted(monkeypatch, caplog, tmp_path):
    shared = tmp_path / "training-together" / "kernels"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    assert fresh_choice(monkeypatch, caplog, tmp_path)[0] is not None
    assert libraries(tmp_path) == []
