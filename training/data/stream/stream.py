"""Streams prepared shards as endless batches, from a folder or over the network.

A peer fetches a row group at a time (`training.data.store.blocks`), in an order of its own
(`training.data.stream.order`), and keeps fetched row groups in a cache with a limit (`training.data.store.cache`).
While the trainer computes on one window of the order, some threads fetch the next window, and another thread puts the
next batches together. If nothing can be fetched, the trainer goes on with samples that were fetched before; these count
as repeated, and the peer's place in its order stays where it is.
"""

from __future__ import annotations

import mmap
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import BoolTensor, LongTensor

from training.data.config import SHUFFLED_SAMPLES
from training.data.store.blocks import Blocks, DamagedError
from training.data.store.layouts import TextRows
from training.data.store.sets import Shards
from training.data.store.shards import check_fit, check_text_fit
from training.data.stream.order import Order, Place, Window
from training.errors import BadInput
from training.model.config import ModelConfig
from training.storage.remote import TRIES, MissingError, UnreachableError, pause_seconds

WINDOW_BYTES = 20_000_000
"""Largest window, in bytes of codes or tokens; two windows are in memory at a time: 9765 samples of 1024 codes each."""
FETCHED_AT_A_TIME = 4
"""Row groups that are fetched over the network at the same time."""
PATIENCE_SECONDS = 10.0
"""Longest wait of the trainer for the next window, before it continues with samples that were fetched before."""
BATCHES_AHEAD = 2
"""Batches that a thread makes ahead for the trainer; making a batch takes up to 1 % of a fast trainer's time."""
REPEATED_BLOCKS = 8
"""Row groups that are taken from the cache together."""
LOOK_SECONDS = 0.05
"""Pause between two looks of a waiting trainer at the next window."""
DAMAGED_IN_A_ROW = 16
"""Damaged row groups in a row after which the stream gives up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Samples of one micro-batch."""

    text: LongTensor
    """(B, T_text); 0 is padding."""
    codes: LongTensor
    """(B, image tokens), row by row."""
    captions: list[str]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Arguments of the model's forward pass; the first dimension is the sample."""
        return self.text, self.codes

    @property
    def predicted_tokens(self) -> int:
        """Image tokens, all of which the model predicts."""
        return self.codes.numel()

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextBatch:
    """Blocks of text of one micro-batch."""

    tokens: LongTensor
    """(B, T)."""
    starts: BoolTensor
    """(B, T): whether a document begins at this token. `starts.cumsum(1)` numbers the documents of a block: attention
    between tokens with different numbers crosses a border."""

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Arguments of the model's forward pass; the first dimension is the sample."""
        return self.tokens, self.starts

    @property
    def predicted_tokens(self) -> int:
        """Tokens that the model predicts: all but the first ones of documents and of blocks."""
        return int((~self.starts[:, 1:]).sum())

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """Samples of a block, ready to be drawn."""

    captions: list[str]
    text: np.ndarray
    """(rows, T_text), in the smallest type that has room for the tokenizer's ids."""
    codes: np.ndarray
    """uint16 (rows, image tokens)."""

    def __len__(self) -> int:
        return len(self.captions)


class Samples(Protocol):
    """The samples of opened shards, and the orders in which peers take them."""

    shards: Shards
    blocks: Blocks
    order: Order

    def read(self, block: int, *, is_offline: bool = False) -> Sized:
        """Reads the samples of a block, ready to be drawn; raises as `Blocks.read` does."""

    def batch(self, drawn: Sequence[tuple[Any, int]]) -> Batch | TextBatch:
        """Builds a micro-batch from samples; each is given as a block that `read` has returned and a row in it."""


class SampleSet(Samples):
    """Samples of a text-to-image model: pictures and captions.

    Args:
        shards: Result of `open_shards`.
        model: The recipe's model; its sizes must be those of the shards.
        shuffle_buffer: Samples that are mixed with each other, as far as there is memory for them.

    Raises:
        BadInput: If the shards were prepared for another model, or hold no pictures.
    """

    def __init__(self, shards: Shards, *, model: ModelConfig, shuffle_buffer: int = SHUFFLED_SAMPLES):
        check_fit(shards.manifest, model, source=shards.source)
        self.shards, self._text_seq_len = shards, model.text_seq_len
        sample_bytes = np.dtype(np.uint16).itemsize * model.image_seq_len
        self.blocks, self.order = _blocks_and_order(shards, shuffle_buffer, sample_bytes)
        self._id_type = np.min_scalar_type(shards.tokenizer.vocab_size)

    def read(self, block: int, *, is_offline: bool = False) -> _Block:
        rows = self.blocks.read(block, is_offline=is_offline)
        text = self.shards.tokenizer.encode(rows.captions, self._text_seq_len).numpy()
        return _Block(captions=rows.captions, text=_in_own_pages(text, self._id_type), codes=_in_own_pages(rows.codes))

    def batch(self, drawn: Sequence[tuple[_Block, int]]) -> Batch:
        return Batch(
            text=_gathered([block.text[row] for block, row in drawn]),
            codes=_gathered([block.codes[row] for block, row in drawn]),
            captions=[block.captions[row] for block, row in drawn],
        )


class TextSet(Samples):
    """Samples of a language model: blocks of text.

    Args:
        shards: Result of `open_shards`, of the kind `text`.
        block_length: T, tokens of a sample for which the model is made.
        vocab_size: Ids for which the model has room.
        shuffle_buffer: Samples that are mixed with each other, as far as there is memory for them.

    Raises:
        BadInput: If the shards were prepared for another model, or hold no text.
    """

    def __init__(self, shards: Shards, *, block_length: int, vocab_size: int, shuffle_buffer: int = SHUFFLED_SAMPLES):
        check_text_fit(shards.manifest, block_length=block_length, vocab_size=vocab_size, source=shards.source)
        self.shards = shards
        sample_bytes = shards.manifest.token_type.itemsize * block_length
        self.blocks, self.order = _blocks_and_order(shards, shuffle_buffer, sample_bytes)

    def read(self, block: int, *, is_offline: bool = False) -> TextRows:
        rows = self.blocks.read(block, is_offline=is_offline)
        return TextRows(tokens=_in_own_pages(rows.tokens), starts=_in_own_pages(rows.starts))

    def batch(self, drawn: Sequence[tuple[TextRows, int]]) -> TextBatch:
        tokens = _gathered([block.tokens[row] for block, row in drawn])
        starts = np.stack([block.starts[row] for block, row in drawn])
        return TextBatch(
            tokens=tokens,
            starts=torch.from_numpy(np.unpackbits(starts, axis=1, count=tokens.shape[1]).astype(bool)),
        )


def _blocks_and_order(shards: Shards, shuffle_buffer: int, sample_bytes: int) -> tuple[Blocks, Order]:
    blocks = Blocks(shards.manifest, shards.names, shards.files, shards.cache)
    content = f"{shards.manifest.input_digest} {shards.split}"
    window = min(shuffle_buffer, WINDOW_BYTES // sample_bytes)
    return blocks, Order(blocks.rows, window_samples=window, content=content)


def _gathered(rows: Sequence[np.ndarray]) -> LongTensor:
    """Gathers rows of small integers into one tensor with a single copy, since the trainer waits for it."""
    gathered = np.empty((len(rows), len(rows[0])), dtype=np.int64)
    for at, row in enumerate(rows):
        gathered[at] = row
    return torch.from_numpy(gathered)


def _in_own_pages(values: np.ndarray, kind: np.dtype | None = None) -> np.ndarray:
    """Copies values to memory that goes back to the system when they are dropped; the allocator would keep 30 MB."""
    kind = values.dtype if kind is None else kind
    copy = np.frombuffer(mmap.mmap(-1, values.size * kind.itemsize), dtype=kind).reshape(values.shape)
    copy[:] = values
    return copy


class SampleStream:
    """Endless batches of a set, beginning at a place in a peer's order.

    - `waiting_seconds` grows: the link or the server is too slow for this trainer; use a nearer server.
    - `skipped_samples` grows: the stored set is damaged; copy it to its place again.
    - `repeated_samples` grows: the server did not answer, and the trainer went on with what it had.

    Args:
        samples: The set.
        place: Place of the first sample.
        micro_batch_size: B, samples of a batch.
        tell: Called with a sentence when something is wrong, and when it is right again.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        place: Place,
        micro_batch_size: int,
        tell: Callable[[str], None] = lambda text: None,
    ):
        self.order = samples.order
        self.place = place
        """Place of the next sample; all before it were given to the trainer, except those skipped."""
        self.waiting_seconds, self.skipped_samples, self.repeated_samples = 0.0, 0, 0
        self._skipped, self._repeated = 0, 0
        self._samples, self._blocks, self._size, self._tell = samples, samples.blocks, micro_batch_size, tell
        self._trouble, self._is_told, self._damaged = "", False, 0
        self._closed, self._tasks = threading.Event(), queue.SimpleQueue()
        self._threads = FETCHED_AT_A_TIME if samples.shards.files.is_remote else 1
        for _ in range(self._threads):
            # Daemons: a program that ends does not wait for a server that is silent.
            threading.Thread(target=self._work, daemon=True, name="samples").start()
        self._windows = samples.order.windows(place)
        self._last: _Loading | None = None
        self._ready: queue.Queue[_Ready | Exception] = queue.Queue(BATCHES_AHEAD)
        threading.Thread(target=self._assemble, daemon=True, name="batches").start()

    def __iter__(self) -> Iterator[Batch | TextBatch]:
        return self

    def __next__(self) -> Batch | TextBatch:
        """Returns the next batch.

        Raises:
            BadInput: If no samples come and none were fetched before, or too many row groups in a row are damaged.
        """
        began = time.monotonic()
        ready = self._ready.get()
        self.waiting_seconds += time.monotonic() - began
        if isinstance(ready, Exception):
            self._ready.put(ready)  # the next call raises the same error
            raise ready
        self.place, self.skipped_samples, self.repeated_samples = ready.place, ready.skipped, ready.repeated
        return ready.batch

    def close(self) -> None:
        """Stops fetching; afterwards the stream gives no batches."""
        self._closed.set()
        for _ in range(self._threads):
            self._tasks.put(None)
        with suppress(queue.Empty):  # the thread may be waiting for room
            while True:
                self._ready.get_nowait()

    # -- the thread that puts batches together ------------------------------------------------------------------------

    def _assemble(self) -> None:
        drawn = self._draw()
        try:
            while not self._closed.is_set():
                samples = list(islice(drawn, self._size))
                *_, start, number = samples[-1]
                batch = self._samples.batch([(block, row) for block, row, *_ in samples])
                place = self.order.behind(start, number)
                counts = {"skipped": self._skipped, "repeated": self._repeated}
                self._ready.put(_Ready(batch=batch, place=place, **counts))
        except Exception as error:  # the trainer's thread raises it
            self._ready.put(error)

    def _draw(self) -> Iterator[tuple[Sized, int, Place, int]]:
        """Yields each sample as a block and a row in it, with two values that say where the sample after it is: a place
        in the order, and a number of samples after that place. Repeated samples leave both as they were."""
        start, number = self.place, 0
        self._coming = self._begin_window()
        while True:
            window, found = self._next_window()
            for drawn, (at, row) in enumerate(window.picks.tolist(), start=1):
                if window.start is not None:
                    start, number = window.start, drawn
                elif self._coming.done.is_set():
                    break
                else:
                    self._repeated += 1
                if found[at] is not None:
                    yield found[at], row, start, number

    def _next_window(self) -> tuple[Window, list[Sized | None]]:
        """Returns the next window of the order, or, if it does not come, a window of samples that were fetched before.

        Raises as `__next__`.
        """
        began = time.monotonic()
        while not self._coming.done.wait(LOOK_SECONDS):
            if self._closed.is_set():
                raise ValueError("the stream is closed")
            has_waited = time.monotonic() - began > PATIENCE_SECONDS
            if (self._trouble or has_waited) and (repeated := self._repeated_window()) is not None:
                return repeated
            if self._trouble and self._last is None:
                raise BadInput(f"{self._trouble}. Check the address and the network.")
        self._last = self._coming
        if self._is_told:
            self._tell("The shards come again.")
            self._is_told = False
        self._count_damage(self._last)
        self._coming = self._begin_window()
        return self._last.window, self._last.found

    def _begin_window(self) -> _Loading:
        loading = _Loading(next(self._windows))
        for at in range(len(loading.window.blocks)):
            self._tasks.put((loading, at))
        return loading

    def _count_damage(self, loading: _Loading) -> None:
        if loading.error is not None:
            raise loading.error
        for block, rows, fault in zip(loading.window.blocks, loading.found, loading.faults, strict=True):
            self._damaged = 0 if rows is not None else self._damaged + 1
            if rows is None:
                self._skipped += int(self._blocks.rows[block])
                self._tell(f"Skipped {self._blocks.rows[block]} samples, {self._blocks.name(block)}: {fault}.")
            if self._damaged >= min(DAMAGED_IN_A_ROW, len(self._blocks.rows)):
                source, last = self._samples.shards.source, self._blocks.name(block)
                raise BadInput(
                    f"{self._damaged} parts in a row of the shards at {source} cannot be used; the last is {last}: "
                    f"{fault}. Prepare or fetch the shards again."
                )

    def _repeated_window(self) -> tuple[Window, list[Sized | None]] | None:
        """Returns a window of samples from the cache, or else from the last window; None if neither has samples."""
        cached = self._blocks.cached()
        blocks = random.sample(cached, min(len(cached), REPEATED_BLOCKS))
        found = [rows for rows in map(self._cached_rows, blocks) if rows is not None]
        if not found and self._last is not None:
            found = [rows for rows in self._last.found if rows is not None]
        if not found:
            return None
        if not self._is_told:
            reason = self._trouble or f"the next samples did not come within {PATIENCE_SECONDS:.0f} s"
            self._tell(f"Training goes on with samples that were fetched before: {reason}.")
            self._is_told = True
        picks = [(at, row) for at, rows in enumerate(found) for row in range(len(rows))]
        random.shuffle(picks)
        return Window(start=None, blocks=(), picks=np.array(picks)), found

    def _cached_rows(self, block: int) -> Sized | None:
        try:
            return self._samples.read(block, is_offline=True)
        except (DamagedError, MissingError):
            return None

    # -- the threads that fetch -------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            loading, at = task
            try:
                loading.put(at, *self._fetch(loading.window.blocks[at]))
            except Exception as error:  # a fault of the program; the trainer's thread raises it
                loading.fail(error)

    def _fetch(self, block: int) -> tuple[Sized | None, str]:
        """Reads the samples of a block, and tries again while the source does not answer.

        Returns the samples and an empty text, or None and the reason why the block cannot be used.
        """
        failures = TRIES
        while not self._closed.is_set():
            try:
                rows = self._samples.read(block)
                self._trouble = ""
                return rows, ""
            except (DamagedError, MissingError) as error:
                return None, str(error)
            except UnreachableError as error:
                self._trouble = str(error)
            self._closed.wait(pause_seconds(failures))
            failures += 1
        return None, "the stream is closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ready:
    """A batch for the trainer, and the place and counts of `SampleStream` once the trainer has taken it."""

    batch: Batch | TextBatch
    place: Place
    skipped: int
    repeated: int


class _Loading:
    """A window whose blocks are being fetched."""

    def __init__(self, window: Window):
        self.window = window
        self.found: list[Sized | None] = [None] * len(window.blocks)
        self.faults = [""] * len(window.blocks)
        self.error: Exception | None = None
        self.done = threading.Event()
        self._left, self._lock = len(window.blocks), threading.Lock()

    def put(self, at: int, rows: Sized | None, fault: str) -> None:
        """Notes the result for one block of the window; sets `done` after the last block.

        Args:
            at: Index of the block in the window.
            rows: Samples of the block; None if it cannot be used.
            fault: The reason why it cannot be used; empty if it can.
        """
        self.found[at], self.faults[at] = rows, fault
        with self._lock:
            self._left -= 1
            if not self._left:
                self.done.set()

    def fail(self, error: Exception) -> None:
        """Ends the window with an error of the program, which the trainer's thread raises."""
        self.error = error
        self.done.set()
