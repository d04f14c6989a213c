"""Samples of a peer: a stream in the peer's own order, and its place in that order, which is kept across restarts."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from pathlib import Path

from training.data.store.sets import open_shards
from training.data.stream.order import Place, read_place
from training.data.stream.stream import Batch, SampleStream, TextBatch
from training.errors import reason_of
from training.swarm.node.identity import Identity
from training.tasks.task import Task
from training.volunteer.settings import PeerSettings

PLACE_FILE = "place"
"""File of the state folder in which a peer keeps its place."""


class OwnSamples:
    """Batches of samples for a peer, and the peer's place in their order.

    The file keeps the place after the last sample that has entered an update. If the peer is killed, the gradients that
    it has not averaged yet are lost with it; their samples come again, and no others. Samples whose gradients the peer
    drops because the others went on without it count as used.

    Args:
        stream: Samples from the kept place on.
        file: File that keeps the place.
        tell: Called with a sentence if the place cannot be kept.
    """

    def __init__(self, stream: SampleStream, file: Path, tell: Callable[[str], None]):
        self.stream, self._file, self._tell = stream, file, tell
        self._is_told = False
        self._left, self._added = 0, 0
        self._behind: deque[tuple[int, Place]] = deque()
        """Number of samples added up, and place in the order, after each computed batch."""

    def __next__(self) -> Batch | TextBatch:
        """Returns the next batch; see `SampleStream`."""
        batch = next(self.stream)
        self._left = len(batch)
        return batch

    def computed(self, samples: int, *, is_added: bool, held: int) -> None:
        """Notes that a piece of the batch has been computed.

        Args:
            samples: Number of samples of the piece.
            is_added: True if the piece's gradient was added to the others; False if it was not finite.
            held: Number of samples whose gradients have not entered an update yet.
        """
        self._left -= samples
        self._added += samples if is_added else 0
        if not self._left:
            self._behind.append((self._added, self.stream.place))
        place = None
        while self._behind and self._behind[0][0] <= self._added - held:
            place = self._behind.popleft()[1]
        if place is not None:
            self._keep(place)

    def close(self) -> None:
        """Stops fetching; afterwards there is no further batch."""
        self.stream.close()

    def _keep(self, place: Place) -> None:
        try:
            place.write(self._file, order=self.stream.order)
        except OSError as error:
            if not self._is_told:
                self._tell(
                    f"The place in the order of samples cannot be kept in {self._file}: {reason_of(error)}. After a "
                    "restart, samples come again."
                )
                self._is_told = True


def own_samples(
    task: Task,
    settings: PeerSettings,
    file: Path,
    *,
    seed: int,
    micro_batch_size: int,
    tell: Callable[[str], None],
) -> OwnSamples:
    """Opens the samples of the training split, from the kept place on; without one, from the beginning of a new order.

    Args:
        task: Task to train.
        settings: Settings of this peer; a place that was kept with another seed does not count.
        file: File that keeps the place.
        seed: Seed of the order if no place is kept.
        micro_batch_size: Number of samples of a batch.
        tell: Called with a sentence when a shard or the place causes trouble.

    Raises:
        BadInput: If the shards cannot be used.
    """
    run = task.run
    source = settings.shards or run.data.shards
    samples = task.samples(open_shards(source, "train", kind=run.kind, cache_gb=settings.cache_gb))
    place = read_place(file, order=samples.order)
    if place is None or (settings.seed is not None and place.seed != seed):
        place = Place(seed=seed)
    return OwnSamples(SampleStream(samples, place=place, micro_batch_size=micro_batch_size, tell=tell), file, tell)


def sample_seed(settings: PeerSettings, identity: Identity, epoch: int) -> int:
    """Makes a seed in [0, 2**32) that differs between peers; for a peer that keeps no place, also between restarts."""
    if settings.seed is not None:
        return settings.seed % 2**32
    return int.from_bytes(hashlib.sha256(f"{identity.peer_id}:{epoch}".encode()).digest()[:4])
