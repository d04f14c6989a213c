"""Downloads the run's state while this peer's model and optimizer are still being made.

A newcomer could receive the state as soon as its node runs. But it has no optimizer yet to load it into, and it must
not start threads before its averagers' processes are forked. So a process of its own downloads and checks the state
and puts it into shared memory. The network and a second core are then busy from the first second on.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from hivemind.dht import DHT

from training.config import RunConfig
from training.errors import TrainingError
from training.swarm.download import (
    Landing,
    TrainingState,
    donor_seconds,
    download_newer_state,
    most_state_bytes,
)
from training.swarm.lineage import Lineage

logger = logging.getLogger(__name__)

SILENT_CHUNKS = 4
"""The download is given up if nothing arrives for so many times the longest silence of a donor."""

END_SECONDS = 2.0
"""A process that has sent its result ends by itself within this time."""

_ALIGNMENT = 64
"""Each tensor begins at a multiple of so many bytes, as in torch's own memory."""
_MOST_TENSORS_A_PARAMETER = 8
"""The parameter itself and the optimizer's state of it."""
_RECEIVED = struct.Struct("q")
"""At the beginning of the shared memory: bytes that have come. The trainer sees by them that the download goes on."""

Place = tuple[torch.dtype, torch.Size, int]
"""Where a tensor lies in the shared memory; the last is its first byte."""


class EarlyDownload:
    """A download in the background; `take` gives its result, once.

    Make it as soon as the node runs. It takes as much memory as the state needs, until the taken state is dropped.

    Args:
        dht: A running node.
        run: The recipe.
        shapes: Of the parameters in the optimizer's order.
        first_epoch: An older state is of no use.
        lineage: That of the run which this peer joins.
    """

    def __init__(
        self,
        dht: DHT,
        run: RunConfig,
        *,
        shapes: Sequence[torch.Size],
        first_epoch: int = 1,
        lineage: Lineage | None = None,
    ):
        self._process: BaseProcess | None = None
        self._patience_seconds = SILENT_CHUNKS * donor_seconds(run)
        most_bytes = most_state_bytes(shapes) + _ALIGNMENT * (1 + _MOST_TENSORS_A_PARAMETER * len(shapes))
        try:
            # Only pages that are written to take memory, so the most that a donor may send can be reserved.
            self._memory = mmap.mmap(-1, most_bytes)
        except OSError as error:  # the system refuses to reserve so much; the ordinary download follows
            logger.info("No state comes early: %s", error)
            return
        context = multiprocessing.get_context("fork")
        self._answer, answer = context.Pipe(duplex=False)
        wanted = {"shapes": shapes, "first_epoch": first_epoch, "lineage": lineage}
        given = (answer, self._memory, dht, run, wanted)
        self._process = context.Process(target=_work, args=given, daemon=True, name="early-download")
        self._process.start()
        answer.close()  # the process has the only copy now: if it dies, `recv` raises EOFError
        # Averagers are forked later and live as long as the peer: with the memory in theirs it would never be freed.
        if hasattr(mmap, "MADV_DONTFORK"):  # on Linux only
            self._memory.madvise(mmap.MADV_DONTFORK)

    def take(self) -> TrainingState | None:
        """Waits for the state; its tensors lie in shared memory. None if the download failed or was taken before."""
        if self._process is None:
            return None
        state = "the download has ended without a word"
        with suppress(EOFError, OSError):
            if self._await_answer():
                state = self._answer.recv()
                # `drop` kills it. Killed in a call to the node, it may leave a lock behind that hivemind shares between
                # processes, so it gets the time to end by itself.
                self._process.join(END_SECONDS)
        if isinstance(state, TrainingState):
            taken = replace(state, tensors=tuple(_tensor(self._memory, place) for place in state.tensors))
        else:
            logger.info("No state came early: %s", state)
            taken = None
        self.drop()
        return taken

    def drop(self) -> None:
        """Ends the download if it still runs, and frees its memory, except for a state that was taken."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._answer.close()
            self._process = self._memory = None

    def _await_answer(self) -> bool:
        """Whether the process has sent its result; waits for it as long as bytes of the state arrive."""
        received, moved = -1, time.monotonic()
        while not self._answer.poll(1.0):
            before, (received,) = received, _RECEIVED.unpack_from(self._memory)
            if received != before:
                moved = time.monotonic()
            if time.monotonic() - moved > self._patience_seconds:
                return False
        return True


class _SharedLanding(Landing):
    """Puts tensors one behind the other into the shared memory."""

    def __init__(self, memory: mmap.mmap):
        self._memory = memory
        self.places: list[Place] = []
        self.begin()

    def begin(self) -> None:
        self.places.clear()
        self._end = _ALIGNMENT

    def arrived(self, received_bytes: int) -> None:
        _RECEIVED.pack_into(self._memory, 0, received_bytes)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        place = (tensor.dtype, tensor.shape, self._end)
        self._end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if self._end > len(self._memory):
            raise TrainingError("sent tensors that are too large", cure="Nothing: another peer is asked.")
        self.places.append(place)
        return _tensor(self._memory, place).copy_(tensor)


def _tensor(memory: mmap.mmap, place: Place) -> torch.Tensor:
    dtype, shape, offset = place
    if not shape.numel():
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=offset).view(shape)


def _work(answer: Connection, memory: mmap.mmap, dht: DHT, run: RunConfig, wanted: Mapping[str, object]) -> None:
    """The process's main function: sends the state, with the places of its tensors, or why there is none."""
    # The trainer's OpenMP threads do not exist in a forked process: work for them never ends (pytorch issue 17199).
    torch.set_num_threads(1)
    landing = _SharedLanding(memory)
    try:
        state = download_newer_state(dht, run, landing=landing, **wanted)
        said = replace(state, tensors=tuple(landing.places))
    except Exception as error:  # for example, the node has ended; the ordinary download follows and reports it
        said = str(error) or type(error).__name__
    with suppress(OSError):  # the trainer may be gone as well
        answer.send(said)
