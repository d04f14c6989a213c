"""Preparation of a peer for training: checks its settings, chooses how to train, and builds the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from training.compute.choices import Choices, choose
from training.compute.in_use import settings_in_use
from training.compute.machine import torch_device, usable_cores
from training.compute.micro_batches import is_out_of_memory
from training.errors import TrainingError
from training.processes.notices import Notices
from training.swarm.config import SwarmConfig
from training.swarm.engine.codecs import exchange_codec
from training.swarm.epoch.selftest import check_exchange
from training.tasks.task import Task, TrainedModel
from training.volunteer.settings import PeerSettings
from training.volunteer.startup import check_files, check_flags


def check_settings(swarm: SwarmConfig, settings: PeerSettings, notices: Notices) -> None:
    """Checks flags, recipe, the process's limits and the codecs, before anything is started.

    Raises:
        BadInput: If two settings contradict each other, or one does not suit this machine.
        TrainingError: If averaging does not work on this machine.
    """
    torch.set_num_threads(settings.threads or usable_cores())
    check_flags(
        swarm,
        micro_batch_size=settings.wishes.micro_batch_size,
        threads=settings.threads,
        client_mode=settings.client_mode,
        announce_maddrs=settings.announce_maddrs,
        name=settings.name,
    )
    if (few_files := check_files(swarm)) is not None:
        notices.warn(few_files)
    check_exchange(exchange_codec(swarm.compression_threshold, swarm.gradient_codec), swarm.compression_threshold)


def choose_settings(
    task: Task, settings: PeerSettings, notices: Notices, *, build: Callable[[], TrainedModel]
) -> Choices:
    """Chooses device, precision and micro-batch of this peer, and prints each choice with its reason."""
    choices = choose(task, settings.wishes, build=build)
    in_use = settings_in_use(
        task.run.swarm,
        optimizer=task.run.optimizer.name,
        parameters=choices.trained_parameters,
        threads=torch.get_num_threads(),
    )
    every = (*choices.settings, *in_use)
    for setting in every:
        notices.show(setting)
    notices.events.write("chosen", choices=[asdict(setting) for setting in every])
    return choices


def model_on_device(task: Task, wanted: str | None) -> TrainedModel:
    """Builds the model with its initial weights, on the device that trains it.

    Args:
        task: Task to train.
        wanted: Device that the volunteer has asked for; see `torch_device`.

    Raises:
        TrainingError: If the device has not enough memory.
    """
    device = torch_device(wanted)
    try:
        return task.build_model().to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"{device} has not enough memory for the model's weights. Close other programs, or choose another "
            "device with --device; `python -m training plan` says what the model takes."
        ) from None
