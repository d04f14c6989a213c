"""The run as a file: a TOML recipe becomes one frozen `RunConfig` on which all peers agree.

A peer compares digests of recipes when it joins, so that nobody trains another model by mistake. Settings of a single
machine (its name, its micro-batch size, its addresses) are not in the recipe: see `training.volunteer.settings`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from calculator.parts.optimizers import LAMB_MIN_8BIT_SIZE
from calculator.step.setups import MOST_RANK
from calculator.swarm.exchange import CODECS
from calculator.swarm.forecast import PATIENCE_WINDOWS
from calculator.swarm.settings import (
    COMPRESSION_THRESHOLD,
    DEFAULTS,
    EPOCHS_OF_2021,
    INNER_BATCH_SIZE,
    LEARNING_RATE_OF_2021,
    REQUEST_TIMEOUT_SECONDS,
)
from training.errors import BadInput, TrainingError, reason_of
from training.storage.remote import Refusal, read_document

RECIPES = Path(__file__).parent / "recipes"
LARGEST_RECIPE_BYTES, DEEPEST = 1 << 14, 20
"""Limits of a recipe: its size (ours have up to 5600 bytes), and how deep its tables and lists may be nested. `tomllib`
takes a second for the worst recipe of this size, and half an hour for a dotted key of 1 MiB."""
RECIPE_SECONDS, SILENCE_SECONDS = 60.0, 20.0
"""Within the first a recipe must have come; after the second a server that sends nothing is given up."""
RECORDS_MISSED = 6
"""A peer counts as gone when it has not renewed its metric record so many times."""
NOT_IN_DIGEST = {
    "title": True,
    "description": True,
    "data": {"shards"},
    "swarm": {"max_epochs_alone"},
    "monitor": True,
    "membership": True,
}
"""Fields that peers need not agree on, because they do not change what peers exchange."""

TEXT_TO_IMAGE, CAUSAL_LM = "text-to-image", "causal-lm"
TASK_PLUGINS = "training_together.tasks"
"""Entry points under which an installed package offers tasks; see `training.tasks.task.Task`."""

Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seconds = Annotated[float, Field(gt=0)]

AttentionType = Literal["full", "row", "column", "conv"]
Codec = Literal[*CODECS]


class Section(BaseModel):
    """A frozen table of the recipe; unknown keys are refused and field docstrings are the descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(Section):
    """The text-to-image transformer (paper, section 3.1)."""

    hidden_size: Positive
    """D, width of the residual stream."""
    num_layers: Positive
    """L, layers computed; each is one attention and one feed-forward block."""
    num_heads: Positive
    """N, attention heads."""
    head_dim: Positive
    """H, width of one head."""
    attention_cycle: Annotated[tuple[AttentionType, ...], Field(min_length=1)] = ("row", "column", "row", "row")
    """Attention masks, repeated over all layers but the last."""
    last_attention: AttentionType = "conv"
    """Attention mask of the last layer."""
    conv_kernel_size: Positive = 5
    """Side of the neighbourhood that a `conv` layer sees, in image tokens."""
    shared_groups: Positive | None = 4
    """Layers i and j share weights if i mod this = j mod this; the last layer has its own. None: no sharing."""
    text_vocab_size: Positive
    """Text ids of the tokenizer; the model appends one padding id for each position."""
    text_seq_len: Positive
    """Text tokens per sample, padding included."""
    image_grid: Positive
    """Side of the square of image tokens."""
    image_vocab_size: Positive
    """Entries of the image codec's codebook."""
    reversible: bool = True
    """Reversible layers (Bruegger et al. 2019): activations are recomputed from the output instead of kept."""
    rotary: bool = True
    """Rotary position embeddings (Su et al. 2021) for text, row and column."""
    shift_tokens: bool = True
    """Each block sees part of its channels from the previous token (text) or the tokens above and left (image)."""
    tied_embeddings: bool = True
    """Input and output embeddings are one matrix (Press and Wolf 2016)."""
    text_padding_id: Count = 0
    """Id that pads the text. 0: a different id for each position (dalle-pytorch 1.6.6). Otherwise this id, such as 1,
    T5's `</s>` (the 2021 run, whose weights never saw the ids of positions)."""
    text_padding_mask: bool = False
    """Whether attention ignores padding tokens of the text, as the 2021 run's fork of dalle-pytorch did."""

    @property
    def image_seq_len(self) -> int:
        """Image tokens per sample."""
        return self.image_grid**2

    @property
    def seq_len(self) -> int:
        """T, tokens per sample, text and image together."""
        return self.text_seq_len + self.image_seq_len


class LanguageModelConfig(Section):
    """A decoder that continues text, built by the library `transformers`."""

    architecture: dict[str, Any] | None = None
    """The model as a Hugging Face `config.json` describes it, `model_type` among its fields. None: that of `from`."""
    pretrained: Annotated[str | None, Field(alias="from", min_length=1, max_length=500)] = None
    """Folder or hub id of the weights with which training begins. None: they are drawn from the seed."""
    block_length: Annotated[int, Field(ge=2)]
    """T, tokens of a sample, each of which predicts the next; the shards are packed into blocks of this length."""
    separate_documents: bool = True
    """Whether attention stays within a document where a block holds several."""

    @model_validator(mode="after")
    def _is_a_model(self) -> LanguageModelConfig:
        if self.architecture is None and self.pretrained is None:
            raise ValueError("give architecture = { model_type = ... }, or from = a folder or hub id of weights")
        return self


class AdapterConfig(Section):
    """What is trained in place of all weights: LoRA's adapters (Hu et al. 2021) beside the linear layers of weights
    that stay as they are. Beside a frozen matrix W, two thin ones are trained, and W + (alpha / rank) B A computes.
    Only they are exchanged, averaged and saved."""

    rank: Annotated[int, Field(gt=0, le=MOST_RANK)]
    """Rows of A and columns of B."""
    alpha: Annotated[float, Field(ge=1e-6, le=1e6)]
    """Scale of the adapters, divided by the rank; often one or two times the rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all-linear"] = "all-linear"
    """The linear layers beside which adapters stand, by their names in transformers, such as `["q_proj", "v_proj"]`,
    or `all-linear`."""
    freeze_a: bool = False
    """Whether only B is trained, and A stays as it is drawn from the run's seed (LoRA-FA, Zhang et al. 2023; FFA-LoRA,
    Sun et al. 2024). Peers then exchange less than half, keep fewer activations, and the average of their B is exactly
    that of their updates B A, also after local updates."""
    frozen_bits: Literal[32, 16, 4] = 16
    """Bits of a frozen weight. With 16 (bfloat16) and 4, peers compute in 16 bits; with 4, linear layers are stored in
    NF4 (QLoRA, Dettmers et al. 2023), which is meant for CUDA and slow elsewhere."""
    base_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of the frozen weights, so that all peers have the same beside their adapters. `join` without it says what
    to enter here."""

    @field_validator("targets", mode="before")
    @classmethod
    def _are_names(cls, targets: object) -> object:
        # Said once: pydantic would list what is wrong with each of the two types.
        names = targets if isinstance(targets, list | tuple) else []
        if targets != "all-linear" and (not names or not all(isinstance(name, str) and name for name in names)):
            raise ValueError('give "all-linear", or a list of names of linear layers such as ["q_proj", "v_proj"]')
        if "all-linear" in names:
            raise ValueError('"all-linear" stands alone; write targets = "all-linear", or only names of layers')
        if len(set(names)) < len(names):
            raise ValueError("a name is given twice; give each once")
        return targets


class CodecConfig(Section):
    """The image codec: picture <-> grid of codebook entries."""

    kind: Literal["small", "vqgan"] = "small"
    """`small` is the project's own VQ model, trained by `prepare`; `vqgan` is VQ-GAN f=8 (Esser et al. 2021)."""
    image_size: Positive
    """Side of a picture, pixels."""
    downsampling: Positive = 8
    """f, pixels per image token along a side."""
    codebook_size: Positive
    """Entries of the codebook."""
    weights: str | None = None
    """Checkpoint of the codec (path or hub id); None: trained by `prepare` and stored beside the shards."""


class DataConfig(Section):
    """Where the prepared shards are and which samples are left out."""

    shards: str
    """Folder or address (`https://`, `hf://`, `s3://`) of the prepared shards: Parquet files of codes and captions,
    Brotli-compressed."""
    shuffle_buffer: Positive = 8192
    """Samples that a peer mixes with each other: row groups with so many together, chosen at random from the whole
    set."""


class OptimizerConfig(Section):
    """What moves the weights, on the host: LAMB (You et al. 2020), AdamW (Loshchilov and Hutter 2019) or Muon (Jordan
    et al. 2024), with moments in 8 bit (Dettmers et al. 2021) or in 32."""

    name: Literal["lamb8bit", "lamb", "adamw8bit", "adamw", "muon"] = "lamb8bit"
    """`lamb8bit` and `adamw8bit` store the moments in block-wise 8 bits, the others in 32. LAMB scales each tensor's
    update to the norm of its weights, which suits very large batches; its learning rates are ten times those of AdamW,
    or more. `muon` makes the momentum of hidden matrices orthogonal, and is AdamW for embeddings, the output layer,
    norms and biases, with the same learning rate. Its update takes some 30 d operations per weight of layers of width
    d, with d = 1024 thirty times as long as the others."""
    betas: tuple[Decay, Decay] = (0.9, 0.96)
    """Decay of the first and the second moment; with `muon`, of parameters that AdamW updates."""
    eps: Annotated[float, Field(gt=0)] = 1e-6
    """Added to the root of the second moment. In 8 bit, second moments below some 10^-7 of their block's largest
    become 0; with AdamW and an eps far below the gradients, such weights would leap."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.045
    """Decoupled weight decay; biases, norms and scales are exempt."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 4.0
    """The averaged gradient is clipped to this global norm."""
    muon_momentum: Decay = 0.95
    """Decay of the momentum of hidden matrices (`muon`)."""
    min_8bit_size: Positive = LAMB_MIN_8BIT_SIZE
    """Tensors with fewer values store their moments in 32 bits."""

    @model_validator(mode="after")
    def _has_what_is_set(self) -> OptimizerConfig:
        if self.name != "muon" and self.muon_momentum != type(self).model_fields["muon_momentum"].default:
            raise ValueError(
                f"muon_momentum is only for muon, and name is {self.name}; omit muon_momentum from the recipe"
            )
        return self


class ScheduleConfig(Section):
    """Learning rate over epochs. One epoch is one global optimizer update."""

    peak_learning_rate: Annotated[float, Field(gt=0)] = LEARNING_RATE_OF_2021
    """Learning rate at the end of the warm-up (paper, section 3.3)."""
    warmup_epochs: Count = 3_125
    """Linear warm-up, in epochs."""
    total_epochs: Positive = EPOCHS_OF_2021
    """The rate falls linearly to zero at this epoch."""


class SwarmConfig(Section):
    """How peers meet, average and exchange state (hivemind)."""

    target_batch_size: Positive
    """Samples that all peers together contribute to one epoch."""
    matchmaking_seconds: Seconds = DEFAULTS.matchmaking_seconds
    """How long a peer looks for a group; an epoch should last at least five times as long."""
    allreduce_timeout_seconds: Seconds = DEFAULTS.allreduce_timeout_seconds
    """Longest all-reduce within a group."""
    next_chunk_timeout_seconds: Seconds = DEFAULTS.next_chunk_timeout_seconds
    """A sender that is silent for this long is given up."""
    average_state_every: Positive = DEFAULTS.average_state_every
    """Parameters are averaged once in this many epochs; gradients in every epoch."""
    state_bits: Literal[8, 16] = DEFAULTS.state_bits
    """Bits in which large tensors of parameters are averaged. Averaging in 8 bits (paper, section 3.3) leaves weights
    that differed by 0.1 % differing by 0.5 %; 16 bits leave 0.03 %."""
    newcomer_bits: Literal[8, 16] = DEFAULTS.newcomer_bits
    """Bits in which newcomers download large tensors of parameters. 8 saves a quarter of the download; the rounding
    errors last until the next average of parameters. Checkpoints are downloaded in the same bits."""
    compression_threshold: Positive = COMPRESSION_THRESHOLD
    """Tensors with at least this many values travel in 8 bits, smaller ones in 16 (paper, section 3.3)."""
    gradient_codec: Codec = DEFAULTS.gradient_codec
    """Codec of large tensors. `blockwise8` has one scale per 512 values; `uniform8`, the 2021 run's, has one range for
    a whole part and clips the tails of heavy-tailed gradients; `float16` takes twice the bytes; `float32`, which
    applies to small tensors as well, four times. Parameters in 8 bits use the same codec."""
    mode: Literal["synchronous", "diloco"] = "synchronous"
    """`synchronous`: every epoch is one update with the average gradient of all peers. `diloco`, for very slow links
    (Douillard et al. 2023): each peer updates its own weights, and at the end of an epoch the peers average how far
    their weights have moved."""
    inner_batch_size: Positive = INNER_BATCH_SIZE
    """Samples of one local update between exchanges (`diloco`)."""
    powersgd_rank: Count = 0
    """Gradients of large matrices are averaged as products of two thin matrices of this rank (PowerSGD, Vogels et al.
    2019); the error is added to the next gradient. 0: no low-rank compression."""
    delay_optimizer_step: bool = True
    """The optimizer updates in the background while the next epoch computes."""
    delay_gradient_averaging: bool = DEFAULTS.delay_gradient_averaging
    """Gradients are also averaged in the background: no peer waits for the network, and each update uses gradients
    that were computed one update earlier. Needs delay_optimizer_step."""
    max_group_size: Annotated[int, Field(ge=2)] = DEFAULTS.max_group_size
    """Most peers in one all-reduce."""
    aggregation: Literal["mean", "centered-clip"] = "mean"
    """How a group averages. Default: `mean`, or `centered-clip` where `membership.unvouched` is true.
    `mean`: weighted by samples; one hostile peer can move it anywhere. `centered-clip`
    (Karimireddy et al. 2021): no peer pulls an average far, as long as most peers of its group are honest. Then each
    peer has its own momentum, with the optimizer's first beta (`muon`: muon_momentum), and the optimizer has none. It
    costs no bytes, and less than a tenth of the time of an average. AdamW then divides by the size of averaged momenta,
    not of gradients: where gradients are mostly noise, its updates are some four times as long, and need a learning
    rate as much smaller."""
    clip_weight: Annotated[float, Field(ge=1)] = 1.0
    """A peer's samples count as at most so many times those of the median peer (`centered-clip`). With 1, a minority of
    peers has a minority of the weight, whatever it claims. With 2, fast peers count more, but a third of all peers can
    claim half of the weight."""
    audit_share: Annotated[float, Field(ge=0, le=0.5)] = 0.03
    """About what share of the traffic peers use for checking those that average parts (`centered-clip`). Each
    peer computes averages of parts again that it has drawn at random, and a peer that has answered with another one is
    left out of groups. 0: nobody is checked."""
    max_epochs_alone: Count = 10
    """A peer that has ended so many epochs in a row without any other peer keeps the gradients of the next one and
    waits for others: a lone peer's small batches would carry the weights away from what the others have. 0: it trains
    on alone."""
    metrics_every_seconds: Seconds = 10.0
    """A peer renews its metric record at least this often."""

    @property
    def request_timeout_seconds(self) -> float:
        """Longest wait for another peer's answer, shorter than the matchmaking."""
        return min(REQUEST_TIMEOUT_SECONDS, self.matchmaking_seconds * 2 / 3)

    @property
    def averaging_timeout_seconds(self) -> float:
        """Longest averaging: a group is looked for through some windows of matchmaking, then averages."""
        return PATIENCE_WINDOWS * self.matchmaking_seconds + self.allreduce_timeout_seconds

    @property
    def metrics_expiration_seconds(self) -> float:
        """A peer whose record is older counts as gone."""
        return RECORDS_MISSED * self.metrics_every_seconds


class MonitorConfig(Section):
    """What the monitor keeps and shows."""

    checkpoint_every_epochs: Positive = 100
    """Epochs between two checkpoints."""
    keep_last: Positive = 3
    """This many of the newest checkpoints are kept."""
    keep_every_epochs: Count | None = None
    """Of each so many epochs, the first checkpoint is kept as well, so that the run can go back to it. None: ten times
    checkpoint_every_epochs; 0: none is kept for this."""
    keep_best: Count = 1
    """This many of the checkpoints with the lowest loss are kept as well."""
    disk_budget_gb: Annotated[float, Field(gt=0)] = 20.0
    """Most that all checkpoints may take on the monitor's disk, in GB (10^9 bytes). If it is exceeded, those that the
    run has gone back from go first, then those kept by keep_every_epochs, the oldest before the others, then the best,
    then the last; never the newest. While a checkpoint is written, there are two, so the budget should have room for
    two."""
    max_loss_rise: Annotated[float, Field(ge=0)] = 2.0
    """No checkpoint is taken while the run's loss is more than so many times what it was before the last checkpoint, or
    over the last 50 epochs (and more than 1 above it): somebody may have spoiled the weights. 0: checkpoints are taken
    whatever the loss is."""
    pictures_every_epochs: Positive = 100
    """Epochs between two drawings, or continuations, of the fixed prompts."""
    prompts: tuple[str, ...] = ()
    """Prompts that are drawn, or continued, repeatedly as the run progresses."""
    top_k: Positive | None = 256
    """Sampling keeps this many of the largest logits (paper, section 3.4)."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sampling keeps the likeliest ids up to this total probability (paper: 0.75)."""
    continuation_tokens: Positive = 100
    """Most tokens with which a language model continues a prompt."""

    @property
    def kept_every_epochs(self) -> int:
        """`keep_every_epochs` as it applies; 0: no checkpoint is kept for this."""
        return 10 * self.checkpoint_every_epochs if self.keep_every_epochs is None else self.keep_every_epochs


class MembershipConfig(Section):
    """Who may take part in the run: without this table all who know the run's address, with it members only, who have
    a ticket of the membership server that `key` and `url` name."""

    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{43}$")] | None = None
    """Public key of the membership server, which `membership` prints."""
    url: Annotated[str, Field(max_length=200)] | None = None
    """Address of the membership server: https://, or http:// on the same machine."""
    unvouched: bool = False
    """People whom nobody vouches for may be members as well, if their program computes for it (`membership
    --work-bits`). In averages their gradients count a quarter of the others', and the run averages by centered-clip."""

    @property
    def open(self) -> bool:
        """Whether all who know the run's address may take part."""
        return self.key is None

    @model_validator(mode="after")
    def _is_clear(self) -> MembershipConfig:
        if (self.open and (self.unvouched or self.url)) or not (self.open or self.url):
            raise ValueError("a run for members needs both key and url; `membership` prints both, or omit the table")
        if self.url is not None and not _is_safe(self.url):
            raise ValueError(
                "url is to be https://ADDRESS, or http://127.0.0.1:PORT on one machine, without a question mark: "
                "volunteers send credentials there; use such an address"
            )
        return self


def _is_safe(url: str) -> bool:
    """Whether only the server itself can read what is sent to an address."""
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment or parts.username or parts.password) and url.isprintable()
    is_local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost", "::1")
    return plain and bool(parts.hostname) and " " not in url and (parts.scheme == "https" or is_local)


class RunConfig(Section):
    """One collaborative run, as its recipe describes it. All peers agree on every field.

    Each task has a class of its own, which says what its `[model]` may hold; `run_of` chooses it.
    """

    run_id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """The run's name in the DHT."""
    title: str
    """The run's name for people."""
    description: str = ""
    """One sentence on what is trained."""
    task: Annotated[str, Field(max_length=100)] = TEXT_TO_IMAGE
    """What is trained: `text-to-image`, `causal-lm`, or a task that an installed package offers."""
    seed: int = 0
    """Seed of the initial weights, the same for all peers."""
    kind: ClassVar[Literal["pictures", "text"]]
    """What the shards of such runs hold."""
    model: SerializeAsAny[Section]
    codec: CodecConfig | None = None
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    swarm: SwarmConfig
    monitor: MonitorConfig = MonitorConfig()
    membership: MembershipConfig = MembershipConfig()

    @model_validator(mode="before")
    @classmethod
    def _choose_aggregation(cls, fields: Any) -> Any:
        """Where members may be unvouched for, a recipe that does not choose averages by CenteredClip."""
        tables = [fields.get(name) for name in ("swarm", "membership")] if isinstance(fields, dict) else []
        if not tables or not all(isinstance(table, dict) for table in tables):
            return fields
        swarm, membership = tables
        if membership.get("unvouched") is not True or "aggregation" in swarm:
            return fields
        return {**fields, "swarm": {**swarm, "aggregation": "centered-clip"}}

    @model_validator(mode="after")
    def _parts_agree(self) -> RunConfig:
        _check_times(self.swarm)
        _check_modes(self.swarm)
        if self.membership.unvouched and self.swarm.aggregation == "mean":
            raise ValueError(
                "membership.unvouched does not go with swarm.aggregation mean, which one hostile member can move "
                "anywhere; write centered-clip there, or omit it"
            )
        if self.schedule.warmup_epochs >= self.schedule.total_epochs:
            raise ValueError("schedule.warmup_epochs must be smaller than schedule.total_epochs")
        return self

    @property
    def worker_momentum(self) -> float:
        """Decay of the momentum that each peer has of its own; 0: the optimizer has the momentum, for all."""
        if self.swarm.aggregation != "centered-clip":
            return 0.0
        return self.optimizer.muon_momentum if self.optimizer.name == "muon" else self.optimizer.betas[0]

    @property
    def host_optimizer(self) -> OptimizerConfig:
        """The optimizer of averaged gradients: without momentum of its own if these have it already.

        Muon then makes the peers' averaged momentum orthogonal, with Nesterov's step further: it knows the average
        before. Any scale of it will do, as Newton-Schulz divides by the norm. A second momentum would delay what the
        first one has delayed already.
        """
        if not self.worker_momentum:
            return self.optimizer
        return self.optimizer.model_copy(update={"betas": (0.0, self.optimizer.betas[1]), "muon_momentum": 0.0})

    @property
    def calculator_config(self) -> dict[str, Any] | None:
        """The model as the calculator reads it, `model_type` among its fields; None if only the task knows it."""
        return None

    @property
    def calculator_adapters(self) -> dict[str, Any]:
        """What is trained in place of the model, as fields of `calculator.step.setups.Setup`; empty: the model."""
        return {}

    @property
    def digest(self) -> str:
        """Hex digest of what all peers must agree on: each field but those of `NOT_IN_DIGEST`.

        A maintainer may change these in mid-run; peers that still have the old ones stay in the run.
        """
        fields = self.model_dump(mode="json", exclude=NOT_IN_DIGEST)
        # Sorted, so that the order of the lines in the file does not matter.
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


class TextToImageRun(RunConfig):
    """A run that trains a text-to-image transformer."""

    kind = "pictures"
    model: ModelConfig
    codec: CodecConfig

    @model_validator(mode="after")
    def _sizes_agree(self) -> TextToImageRun:
        _check_sizes(self.model, self.codec)
        return self

    @property
    def calculator_config(self) -> dict[str, Any]:
        """See `RunConfig.calculator_config`."""
        return {"model_type": TEXT_TO_IMAGE, **self.model.model_dump()}


class LanguageRun(RunConfig):
    """A run that trains a language model."""

    kind = "text"
    model: LanguageModelConfig
    codec: None = None
    adapter: AdapterConfig | None = None

    @model_validator(mode="after")
    def _adapts_a_trained_model(self) -> LanguageRun:
        if self.adapter is not None and self.model.pretrained is None:
            raise ValueError("adapter needs a trained model; give model.from = a folder or hub id of its weights")
        return self

    @property
    def calculator_config(self) -> dict[str, Any] | None:
        """See `RunConfig.calculator_config`; None if the architecture is that of `from`, which has to be read first."""
        return self.model.architecture

    @property
    def calculator_adapters(self) -> dict[str, Any]:
        """See `RunConfig.calculator_adapters`."""
        if self.adapter is None:
            return {}
        targets = self.adapter.targets
        named = targets if isinstance(targets, str) else ",".join(targets)
        return {
            "lora_rank": self.adapter.rank,
            "lora_targets": named,
            "lora_freeze_a": self.adapter.freeze_a,
            "base_bits": self.adapter.frozen_bits,
        }


RUNS: dict[str, type[RunConfig]] = {TEXT_TO_IMAGE: TextToImageRun, CAUSAL_LM: LanguageRun}
"""Task -> the class of its runs."""


def _check_sizes(model: ModelConfig, codec: CodecConfig) -> None:
    """Raises ValueError if the codec's grid or codebook differs from the model's."""
    if codec.image_size % codec.downsampling or codec.image_size // codec.downsampling != model.image_grid:
        raise ValueError(
            f"model.image_grid is {model.image_grid}, but codec.image_size {codec.image_size} / "
            f"downsampling {codec.downsampling} gives {codec.image_size / codec.downsampling:g}; "
            "make them equal"
        )
    if codec.codebook_size != model.image_vocab_size:
        raise ValueError(
            f"model.image_vocab_size is {model.image_vocab_size}, but codec.codebook_size is "
            f"{codec.codebook_size}; make them equal"
        )


def _check_times(swarm: SwarmConfig) -> None:
    """Raises ValueError if a time-out is too short for the steps that it includes."""
    if swarm.next_chunk_timeout_seconds >= swarm.allreduce_timeout_seconds:
        raise ValueError(
            f"swarm.next_chunk_timeout_seconds is {swarm.next_chunk_timeout_seconds:g}: a silent peer would not be "
            f"given up within allreduce_timeout_seconds = {swarm.allreduce_timeout_seconds:g}; make it shorter"
        )


def _check_modes(swarm: SwarmConfig) -> None:
    """Raises ValueError if two ways of averaging exclude each other."""
    if swarm.delay_gradient_averaging and not swarm.delay_optimizer_step:
        raise ValueError("swarm.delay_gradient_averaging needs swarm.delay_optimizer_step; set both or neither")
    if swarm.mode == "diloco" and swarm.delay_gradient_averaging:
        raise ValueError(
            "swarm.mode diloco awaits its exchanges, or the updates that a peer makes meanwhile would be lost; omit "
            "swarm.delay_gradient_averaging"
        )
    if swarm.mode == "diloco" and (swarm.inner_batch_size > swarm.target_batch_size or swarm.powersgd_rank):
        raise ValueError(
            "swarm.mode diloco needs swarm.inner_batch_size of at most swarm.target_batch_size, and "
            "swarm.powersgd_rank = 0"
        )
    if swarm.aggregation == "centered-clip" and (swarm.mode == "diloco" or swarm.powersgd_rank):
        raise ValueError(
            "swarm.aggregation centered-clip does not go with swarm.mode diloco, which was not tried with it, nor with "
            "swarm.powersgd_rank, whose thin matrices one peer can spoil; omit these, or use aggregation mean"
        )


def run_of(fields: Mapping[str, Any]) -> RunConfig:
    """The run that a recipe's fields describe.

    Raises:
        ValidationError: If a field is wrong.
        BadInput: If nothing that is installed knows the task.
    """
    return _run_class(fields.get("task", TEXT_TO_IMAGE)).model_validate(fields)


def _run_class(task: object) -> type[RunConfig]:
    offered = {plugin.name: plugin for plugin in entry_points(group=TASK_PLUGINS)}
    if not isinstance(task, str) or task not in {*RUNS, *offered}:
        raise BadInput(
            f"The recipe's task is {task!r:.100}; installed are {', '.join(sorted({*RUNS, *offered}))}.",
            cure="Install the package that offers this task, or correct `task` in the recipe.",
        )
    # Ours first: no package may take their names.
    return RUNS[task] if task in RUNS else offered[task].load().run_config


def recipe_names() -> list[str]:
    """Names of the recipes that come with the project."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(source: str) -> RunConfig:
    """Reads a recipe.

    Args:
        source: The name of a recipe of the project, a path to a TOML file, or an http(s) URL of one.

    Raises:
        BadInput: If it cannot be found, is not TOML, or a field is wrong; the message names the field.
    """
    return parse_recipe(read_recipe(source), source=source)


def parse_recipe(text: str, *, source: str = "recipe") -> RunConfig:
    """A recipe from its TOML text; see `load_recipe`."""
    fields = _fields(text, source)
    try:
        return run_of(fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {fault['msg'].removeprefix('Value error, ')}"
            + ("" if fault["loc"] == () else f" (got {fault['input']!r:.60})" if fault["type"] != "missing" else "")
            for fault in error.errors()
        )
        raise BadInput(
            f"{source} does not describe a run: {faults}.",
            cure="Correct the fields that the message names; the recipe page lists what each may be.",
        ) from None


def _fields(text: str, source: str) -> dict[str, Any]:
    """A recipe's fields.

    Raises:
        BadInput: If the text is too long, or no TOML.
    """
    if len(text) > LARGEST_RECIPE_BYTES:
        raise BadInput(f"{source} has more than {LARGEST_RECIPE_BYTES} characters.", cure="Give a recipe.")
    too_deep = BadInput(f"{source} has tables or lists nested more than {DEEPEST} deep.", cure="Give a recipe.")
    try:
        fields = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # also Python's own, for a number of thousands of digits
        raise BadInput(
            f"{source} is not valid TOML: {error}.", cure="Correct the place that the message names."
        ) from None
    if _is_deep(fields):  # messages quote a field's text, which Python cannot make of such a value
        raise too_deep
    return fields


def _is_deep(fields: dict[str, Any]) -> bool:
    """Returns whether tables and lists are nested more than `DEEPEST` levels deep."""
    level: list[object] = [fields]
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
    return any(isinstance(one, dict | list) for one in level)


def read_recipe(source: str) -> str:
    """The recipe's text, unparsed; arguments as in `load_recipe`."""
    if source.startswith(("http://", "https://")):
        try:
            how = {"most_bytes": LARGEST_RECIPE_BYTES, "seconds": RECIPE_SECONDS, "silence_seconds": SILENCE_SECONDS}
            return read_document(source, **how).decode("utf-8-sig")
        except Refusal as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise BadInput(f"The recipe at {source} cannot be read: {error}. Check the address.") from None
            raise TrainingError(
                f"The server of {source} is there, but not ready (HTTP 503): the run's monitor is probably starting.",
                cure="Try again in a minute.",
            ) from None
        except (OSError, ValueError) as error:  # no answer, not text, not an address
            raise BadInput(f"The recipe at {source} cannot be read: {error}. Check address and network.") from None
    named = RECIPES / f"{source}.toml"
    path = named if named.is_file() else Path(source)
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a byte-order mark
    except (OSError, ValueError) as error:
        raise BadInput(
            f"No recipe {source!r}: {reason_of(error)}. "
            f"Give a TOML file, its URL, or one of: {', '.join(recipe_names())}."
        ) from None
