"""Gradients are those of the samples, once each, whatever the pieces, the precision, and the memory on the way."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from calculator.choose.advice import KEPT_ACTIVATION_BYTES
from tests.support.programs import run_program
from training.compute.micro_batches import MicroBatches
from training.data.stream.stream import Batch
from training.errors import TrainingError
from training.model.transformer import build_model
from training.recipe import load_recipe

ROOT = Path(__file__).parents[3]
RUN = load_recipe("demo")
SAMPLES = 12


def batch_of(samples=SAMPLES):
    generator = torch.Generator().manual_seed(0)
    return Batch(
        text=torch.randint(1, RUN.model.text_vocab_size, (samples, RUN.model.text_seq_len), generator=generator),
        codes=torch.randint(0, RUN.model.image_vocab_size, (samples, RUN.model.image_seq_len), generator=generator),
        captions=[""] * samples,
    )


@pytest.fixture
def model():
    return build_model(RUN.model, seed=0)


@pytest.fixture(scope="module")
def expected():
    """The mean gradient of all samples at once."""
    model, batch = build_model(RUN.model, seed=0), batch_of()
    model(batch.text, batch.codes).loss.backward()
    return flat(model)


def made(model, **settings):
    return MicroBatches(model, **{"activation_budget_bytes": KEPT_ACTIVATION_BYTES, **settings})


def flat(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def total(model, micro_batches, batch):
    """Weighted mean of the pieces' gradients, and the pieces."""
    pieces, mean = [], 0
    for piece in micro_batches.gradients_of(batch):
        mean = mean + flat(model) * piece.samples / len(batch.captions)
        model.zero_grad()
        pieces.append(piece)
    return mean, pieces


def error(gradient, expected):
    return float((gradient - expected).norm() / expected.norm())


@pytest.mark.parametrize("size", [1, 5, 12, 100])
def test_pieces_add_up_to_the_batch(model, expected, size):
    mean, pieces = total(model, made(model, micro_batch_size=size, precision="float32"), batch_of())
    assert sum(piece.samples for piece in pieces) == SAMPLES
    assert max(piece.samples for piece in pieces) == min(size, SAMPLES)
    assert error(mean, expected) < 1e-5


@pytest.mark.parametrize("precision, most", [("bfloat16", 0.02), ("float16", 0.005)])
def test_lower_precision_gives_nearly_the_same_gradient_in_float32(model, expected, precision, most):
    mean, pieces = total(model, made(model, micro_batch_size=6, precision=precision), batch_of())
    assert mean.dtype == torch.float32 and all(math.isfinite(piece.loss) for piece in pieces)
    assert 1e-6 < error(mean, expected) < most


def test_float16_that_overflows_is_computed_again_with_a_smaller_factor(model, expected):
    micro_batches = made(model, micro_batch_size=6, precision="float16")
    micro_batches.loss_scale = 2.0**21
    mean, pieces = total(model, micro_batches, batch_of())
    assert sum(piece.samples for piece in pieces) == SAMPLES
    assert micro_batches.loss_scale < 2.0**21 and error(mean, expected) < 0.01


def test_samples_that_no_factor_helps_leave_the_factor_and_no_gradient(model):
    micro_batches = made(model, micro_batch_size=6, precision="float16")
    before = micro_batches.loss_scale = 4.0
    handle = model.output.bias.register_hook(lambda gradient: gradient * math.inf)
    bad = next(micro_batches.gradients_of(batch_of()))
    assert math.isnan(bad.loss) and all(parameter.grad is None for parameter in model.parameters())
    assert micro_batches.loss_scale == before
    handle.remove()
    assert math.isfinite(next(micro_batches.gradients_of(batch_of())).loss)


def test_what_a_failed_backward_has_left_is_dropped(model, expected):
    """Memory that runs out amid backward, when some gradients are there already."""
    failures, met = iter([True, False, True]), []

    def run_out(gradient):
        if next(failures, False):
            met.append(sum(parameter.grad is not None for parameter in model.parameters()))
            raise torch.OutOfMemoryError("CUDA out of memory")

    model.output.bias.register_post_accumulate_grad_hook(run_out)
    told = []
    micro_batches = made(model, micro_batch_size=8, precision="float32", tell=told.append)
    mean, pieces = total(model, micro_batches, batch_of())
    assert met and all(met) and len(told) == 2
    assert [piece.samples for piece in pieces] == [4, 2, 2, 2, 2]
    assert error(mean, expected) < 1e-5


def test_where_one_sample_is_too_much_activations_go_first_and_then_it_says_so(model):
    model.final_norm.register_forward_pre_hook(lambda module, inputs: torch.empty(1 << 60))
    told = []
    micro_batches = made(
        model, micro_batch_size=2, precision="float32", activation_budget_bytes=1 << 20, tell=told.append
    )
    with pytest.raises(TrainingError, match="a single sample"):
        next(micro_batches.gradients_of(batch_of()))
    assert micro_batches.activation_budget_bytes == 0 and ["2 samples" in told[0], "recomputed" in told[1]] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: out of memory",
    ],
)
def test_libraries_that_get_no_memory_count_as_out_of_memory(model, expected, words):
    """PyTorch raises plain errors for these, and cuBLAS takes its memory beside PyTorch's."""
    failures = iter([True])

    def run_out(module, inputs):
        if next(failures, False):
            raise RuntimeError(words)

    model.final_norm.register_forward_pre_hook(run_out)
    mean, pieces = total(model, made(model, micro_batch_size=12, precision="float32"), batch_of())
    assert [piece.samples for piece in pieces] == [6, 6] and error(mean, expected) < 1e-5


def test_other_errors_are_not_taken_for_a_lack_of_memory(model):
    batch = batch_of()
    wrong = Batch(text=batch.text, codes=batch.codes + RUN.model.image_vocab_size, captions=batch.captions)
    with pytest.raises((RuntimeError, IndexError)):
        next(made(model, micro_batch_size=4, precision="float32").gradients_of(wrong))


@pytest.mark.swarm
@pytest.mark.timeout(300)
def test_no_sample_is_lost_or_counted_twice_when_the_address_space_ends(tmp_path):
    """A real averager in a process whose memory is limited after a third of the samples."""
    program = [sys.executable, Path(__file__).with_name("out_of_memory.py"), tmp_path]
    done = run_program(program, env={"PYTHONPATH": str(ROOT), "PATH": ""}, within=280)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["pieces"][0] == 24 and len(set(facts["pieces"])) > 1
    assert sum(facts["pieces"]) == facts["counted"] == 96
    assert facts["told"] and facts["pieces"][-1] < 64 and facts["error"] < 1e-5
    assert facts["inner_counted"] == 96 and facts["inner_error"] < 1e-5
