"""The optimizer with which a peer takes part, made from the run's recipe."""

from __future__ import annotations

from functools import partial

from hivemind.dht import DHT
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from training.config import RunConfig
from training.optim.lamb import build_optimizer, parameter_groups
from training.optim.schedule import learning_rate_factor
from training.swarm.averaging import state_codec
from training.swarm.codecs import exchange_codec
from training.swarm.download import DOWNLOAD_SECONDS
from training.swarm.identity import Identity
from training.swarm.local_updates import build_local_update_optimizer
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.powersgd import gradient_averager


def build_swarm_optimizer(
    model: nn.Module, run: RunConfig, *, dht: DHT, identity: Identity, micro_batch_size: int, client_mode: bool = False
) -> SwarmOptimizer:
    """The optimizer with which a peer takes part in a run.

    Starts two averagers, each a process. hivemind then makes this process ignore SIGINT: listen to signals again.

    Args:
        model: Its parameters are trained; host copies in float32 belong to the optimizer.
        run: The recipe.
        dht: A running node that signs with `identity`.
        identity: Whose progress is reported.
        micro_batch_size: Samples a `step`.
        client_mode: Accept no incoming connections.
    """
    swarm, schedule = run.swarm, run.schedule
    settings = dict(
        run=run,
        dht=dht,
        target_batch_size=swarm.target_batch_size,
        batch_size_per_step=micro_batch_size,
        params=parameter_groups(model, run.optimizer.weight_decay),
        optimizer=partial(build_optimizer, run.optimizer, lr=schedule.peak_learning_rate),
        scheduler=lambda optimizer: LambdaLR(optimizer, lambda epoch: learning_rate_factor(epoch, schedule)),
        matchmaking_time=swarm.matchmaking_seconds,
        averaging_timeout=swarm.averaging_timeout_seconds,
        allreduce_timeout=swarm.allreduce_timeout_seconds,
        next_chunk_timeout=swarm.next_chunk_timeout_seconds,
        load_state_timeout=DOWNLOAD_SECONDS,
        offload_optimizer=True,
        delay_optimizer_step=swarm.delay_optimizer_step,
        delay_grad_averaging=swarm.delay_gradient_averaging,
        delay_state_averaging=True,
        average_state_every=swarm.average_state_every,
        client_mode=client_mode,
        grad_compression=exchange_codec(swarm.compression_threshold, swarm.gradient_codec),
        state_averaging_compression=exchange_codec(
            swarm.compression_threshold, "float16" if swarm.state_bits == 16 else swarm.gradient_codec
        ),
        load_state_compression=state_codec(swarm.newcomer_bits, swarm.compression_threshold),
        grad_averager_factory=partial(
            gradient_averager(swarm.powersgd_rank),
            request_timeout=swarm.request_timeout_seconds,
            min_group_size=swarm.min_group_size,
            allow_state_sharing=False,
            epochs_apart=int(swarm.delay_gradient_averaging),  # the others may have begun the next one meanwhile
        ),
        tracker_opts=dict(
            private_key=identity.private_key,
            min_refresh_period=min(0.5, swarm.matchmaking_seconds / 5),
            max_refresh_period=min(10.0, 4 * swarm.matchmaking_seconds),
            default_refresh_period=min(3.0, swarm.matchmaking_seconds),
            metadata_expiration=swarm.metrics_expiration_seconds,
        ),
        shutdown_timeout=2,
    )
    if swarm.mode == "diloco":
        return build_local_update_optimizer(model, settings)
    return SwarmOptimizer(**settings)
