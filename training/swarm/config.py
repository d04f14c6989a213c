"""The `[swarm]` table of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from calculator.swarm.exchange import CODECS
from calculator.swarm.forecast import PATIENCE_WINDOWS
from calculator.swarm.settings import (
    COMPRESSION_THRESHOLD,
    DEFAULTS,
    EPOCHS_ALONE,
    INNER_BATCH_SIZE,
    LOCAL_MODES,
    METRICS_SECONDS,
    MODES,
    REQUEST_TIMEOUT_SECONDS,
    SPARSE_STATES_EVERY,
)
from training.section import Count, Positive, Seconds, Section

RECORDS_MISSED = 6
"""Number of records that a peer has to miss before it counts as gone; see `metrics_every_seconds`."""

Codec = Literal[*CODECS]


class SwarmConfig(Section):
    """How peers meet, average and exchange state (hivemind)."""

    target_batch_size: Positive
    """Samples that all peers together contribute to one epoch."""
    matchmaking_seconds: Seconds = DEFAULTS.matchmaking_seconds
    """How long a peer looks for a group; an epoch should last at least five times as long."""
    allreduce_timeout_seconds: Seconds = DEFAULTS.allreduce_timeout_seconds
    """Longest all-reduce within a group."""
    next_chunk_timeout_seconds: Seconds = DEFAULTS.next_chunk_timeout_seconds
    """Longest silence of a sender in the middle of a part; after it, the group goes on without the sender."""
    average_state_every: Positive = DEFAULTS.average_state_every
    """Parameters are averaged once in this many epochs; gradients in every epoch."""
    state_bits: Literal[8, 16] = DEFAULTS.state_bits
    """Bits in which large tensors of parameters are averaged. Averaging in 8 bits (paper, section 3.3) leaves weights
    that differed by 0.1 % differing by 0.5 %; 16 bits leave 0.03 %."""
    compression_threshold: Positive = COMPRESSION_THRESHOLD
    """Tensors with at least this many values travel in 8 bits, smaller ones in 16 (paper, section 3.3)."""
    gradient_codec: Codec = DEFAULTS.gradient_codec
    """Codec of large tensors. `blockwise8` has one scale per 512 values; `uniform8`, the 2021 run's, has one range for
    a whole part and clips the tails of heavy-tailed gradients; `float16` takes twice the bytes; `float32`, which
    applies to small tensors as well, four times. Parameters in 8 bits use the same codec."""
    mode: Literal[*MODES] = DEFAULTS.mode
    """`synchronous`: every epoch is one update with the average gradient of all peers, made in the background while the
    next epoch computes. `delayed`: gradients are averaged in the background as well, so no peer waits for the network,
    and each update uses gradients that were computed one update earlier. `diloco`, for very slow links (Douillard et
    al. 2023): each peer updates its own weights, and at the end of an epoch the peers await the average of how far
    their weights have moved. `sparse`, for the slowest links (Sarfi et al. 2025): as `diloco`, but peers send only the
    largest of these distances, and send the rest later; equal weights stay equal to the last bit, so
    `average_state_every` is at least 100."""
    inner_batch_size: Positive = INNER_BATCH_SIZE
    """Samples of one local update between exchanges (`diloco`, `sparse`). `peak_learning_rate` is that of these
    updates. The papers' peers make 30 (sparse) to 500 (DiLoCo) between two exchanges: `target_batch_size` divided by
    the peers and by this number."""
    sparse_kept: Annotated[int, Field(ge=8, le=1024)] = DEFAULTS.sparse_kept
    """Values of each 4096 that a peer sends (`sparse`). 100 take 0.23 bits a parameter and message; 64, the paper's
    number, 0.16; 256, for runs of few exchanges, 0.5."""
    delay_outer_step: bool = False
    """Peers train on while they exchange how far they have moved (`diloco`, `sparse`), so no peer waits for the
    network. A peer computes with weights that lack the others' last stretch, and holds 4 more bytes a parameter on the
    host."""
    powersgd_rank: Count = 0
    """Gradients of large matrices are averaged as products of two thin matrices of this rank (PowerSGD, Vogels et al.
    2019); the error is added to the next gradient. 0: no low-rank compression."""
    max_group_size: Annotated[int, Field(ge=2)] = DEFAULTS.max_group_size
    """Most peers in one all-reduce."""
    aggregation: Literal["mean", "centered-clip"] = "mean"
    """How a group averages. Default: `mean`, or `centered-clip` where `membership.unvouched` is true.
    `mean`: weighted by samples; one hostile peer can move the average anywhere. `centered-clip` (Karimireddy et al.
    2021): no peer pulls an average far, as long as most peers of its group are honest. Then each peer has its own
    momentum, with the optimizer's first beta (`muon`: its momentum), and the optimizer has none. It costs no bytes, and
    less than a tenth of the time of an average. AdamW then divides by the size of averaged momenta, not of gradients:
    where gradients are mostly noise, its updates are some four times as long, and need a learning rate four times
    smaller."""
    audit_share: Annotated[float, Field(ge=0, le=0.5)] = 0.03
    """Share of the traffic, roughly, that peers use to check the reducers (`centered-clip`). Each peer draws parts at
    random and computes their averages again; groups leave out a reducer that has sent another result. 0: no checks."""
    max_epochs_alone: Count = EPOCHS_ALONE
    """Epochs in a row that a peer may end without any other peer. After them it keeps the gradients of the next epoch
    and waits for others: a lone peer's small batches would carry the weights away from the others' weights. 0: the peer
    trains on alone."""
    metrics_every_seconds: Seconds = METRICS_SECONDS
    """Longest interval at which a peer renews its metric record."""

    @model_validator(mode="after")
    def _has_time_for_its_steps(self) -> SwarmConfig:
        if self.next_chunk_timeout_seconds >= self.allreduce_timeout_seconds:
            raise ValueError(
                f"next_chunk_timeout_seconds is {self.next_chunk_timeout_seconds:g}: a silent peer would not be "
                f"given up within allreduce_timeout_seconds = {self.allreduce_timeout_seconds:g}; make it shorter"
            )
        return self

    @model_validator(mode="after")
    def _has_ways_of_averaging_that_go_together(self) -> SwarmConfig:
        if self.local_updates and (self.inner_batch_size > self.target_batch_size or self.powersgd_rank):
            raise ValueError(
                f"mode {self.mode} needs inner_batch_size of at most target_batch_size, and powersgd_rank = 0"
            )
        if self.delay_outer_step and not self.local_updates:
            raise ValueError(
                f'delay_outer_step needs mode diloco or sparse, not {self.mode}; for gradients, use mode = "delayed"'
            )
        if self.mode == "sparse" and self.average_state_every < SPARSE_STATES_EVERY:
            raise ValueError(
                f"mode sparse needs average_state_every of at least {SPARSE_STATES_EVERY}, not "
                f"{self.average_state_every}: an average of all parameters sends many times the bytes of an exchange"
            )
        if self.aggregation == "centered-clip" and (self.local_updates or self.powersgd_rank):
            raise ValueError(
                "aggregation centered-clip does not go with mode diloco or sparse, which were not tried with it, nor "
                "with powersgd_rank, whose thin matrices one peer can spoil; omit these, or use aggregation mean"
            )
        return self

    @property
    def local_updates(self) -> bool:
        """True if each peer updates its own weights between exchanges."""
        return self.mode in LOCAL_MODES

    @property
    def updates_in_background(self) -> bool:
        """True if a peer computes the next epoch's first gradients while the optimizer updates."""
        return not self.local_updates or self.delay_outer_step

    @property
    def request_timeout_seconds(self) -> float:
        """Longest wait for another peer's answer; shorter than the search for a group."""
        return min(REQUEST_TIMEOUT_SECONDS, self.matchmaking_seconds * 2 / 3)

    @property
    def averaging_timeout_seconds(self) -> float:
        """Longest average: several windows of `matchmaking_seconds` to find a group, then the all-reduce."""
        return PATIENCE_WINDOWS * self.matchmaking_seconds + self.allreduce_timeout_seconds

    @property
    def metrics_expiration_seconds(self) -> float:
        """Age in seconds at which a record no longer counts, and its peer counts as gone."""
        return RECORDS_MISSED * self.metrics_every_seconds
