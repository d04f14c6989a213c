"""Each setting of the recipe's swarm reaches hivemind's optimizer and both averagers; peers that use it: the others."""

from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import Float16Compression, Uniform8BitQuantization
from hivemind.compression.base import TensorRole

from training.config import load_recipe
from training.swarm import build
from training.swarm.codecs import BlockwiseCodec

DEMO = load_recipe("demo")
NAMES = {
    "target_batch_size": "target_batch_size",
    "matchmaking_seconds": "matchmaking_time",
    "averaging_timeout_seconds": "averaging_timeout",
    "allreduce_timeout_seconds": "allreduce_timeout",
    "next_chunk_timeout_seconds": "next_chunk_timeout",
    "average_state_every": "average_state_every",
    "delay_optimizer_step": "delay_optimizer_step",
    "delay_gradient_averaging": "delay_grad_averaging",
}
"""The recipe's names and hivemind's."""


@pytest.fixture
def handed_over(monkeypatch):
    """What the optimizer would be made with, for a recipe with these settings of the swarm."""
    monkeypatch.setattr(build, "SwarmOptimizer", lambda **settings: settings)

    def give(**changes):
        assert not any(value == getattr(DEMO.swarm, name) for name, value in changes.items())
        run = DEMO.model_copy(update={"swarm": DEMO.swarm.model_copy(update=changes)})
        identity = SimpleNamespace(private_key=None)
        return build.build_swarm_optimizer(torch.nn.Linear(3, 3), run, dht=None, identity=identity, micro_batch_size=4)

    return give


def test_numbers_reach_hivemind_under_its_names(handed_over):
    changes = dict(
        target_batch_size=999, matchmaking_seconds=2.5, averaging_timeout_seconds=44.0, allreduce_timeout_seconds=22.0,
        next_chunk_timeout_seconds=7.0, average_state_every=9, delay_gradient_averaging=True,
    )  # fmt: skip
    made = handed_over(**changes, request_timeout_seconds=1.25, min_group_size=3, metrics_expiration_seconds=77.0)
    assert {name: made[NAMES[name]] for name in changes} == changes
    of_gradients = made["grad_averager_factory"].keywords
    assert (of_gradients["request_timeout"], of_gradients["min_group_size"]) == (1.25, 3)
    assert made["tracker_opts"]["metadata_expiration"] == 77.0 and made["batch_size_per_step"] == 4
    assert handed_over(delay_optimizer_step=False)["delay_optimizer_step"] is False
    assert made["load_state_timeout"] and made["offload_optimizer"], "never endless, and on the host"


def test_codecs_are_those_that_the_recipe_names(handed_over):
    plain = handed_over()
    assert isinstance(plain["grad_compression"].greater_equal, BlockwiseCodec)
    assert isinstance(plain["state_averaging_compression"], Float16Compression)
    made = handed_over(gradient_codec="uniform8", state_bits=8, newcomer_bits=8, compression_threshold=777)
    for name in ("grad_compression", "state_averaging_compression"):
        assert made[name].threshold == 777 and isinstance(made[name].greater_equal, Uniform8BitQuantization), name
    served, before = (
        settings["load_state_compression"].role_compressions[TensorRole.PARAMETER] for settings in (made, plain)
    )
    assert served.threshold == 777 and isinstance(served.greater_equal, BlockwiseCodec)
    assert isinstance(before, Float16Compression)


def test_powersgd_has_the_rank_that_the_recipe_says(handed_over):
    assert handed_over(powersgd_rank=3)["grad_averager_factory"].keywords["averager_rank"] == 3
    assert "averager_rank" not in handed_over()["grad_averager_factory"].keywords
