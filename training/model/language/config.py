"""The `[model]` and `[adapter]` tables of a recipe that trains a language model."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from calculator.step.setups import MOST_RANK
from training.section import Section


class LanguageModelConfig(Section):
    """A decoder that continues text, built by the library `transformers`."""

    architecture: dict[str, Any] | None = None
    """Table of the model's settings as in a Hugging Face `config.json`, with `model_type`. None: the settings of
    `from`."""
    pretrained: Annotated[str | None, Field(alias="from", min_length=1, max_length=500)] = None
    """Folder or hub id of the weights with which training begins. None: the weights are drawn from the seed."""
    block_length: Annotated[int, Field(ge=2)]
    """T, number of tokens of a sample, each of which predicts the next; the shards are packed into blocks of this
    length. Attention stays within a document where a block holds several."""

    @model_validator(mode="after")
    def _is_a_model(self) -> LanguageModelConfig:
        if self.architecture is None and self.pretrained is None:
            raise ValueError("give architecture = { model_type = ... }, or from = a folder or hub id of weights")
        return self


class AdapterConfig(Section):
    """LoRA's adapters (Hu et al. 2021), which are trained in place of all weights, beside linear layers whose weights
    do not change. Beside a frozen matrix W, two thin matrices A and B are trained, and the layer computes with W +
    (alpha / rank) B A. Only A and B are exchanged, averaged and saved."""

    rank: Annotated[int, Field(gt=0, le=MOST_RANK)]
    """Number of rows of A and of columns of B."""
    alpha: Annotated[float, Field(ge=1e-6, le=1e6)]
    """Scale of the adapters, divided by the rank; often one or two times the rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | Literal["all-linear"] = "all-linear"
    """Names in transformers of the linear layers beside which adapters are added, such as `["q_proj", "v_proj"]`, or
    `all-linear`."""
    freeze_a: bool = False
    """True if only B is trained, and A stays as it is drawn from the run's seed (LoRA-FA, Zhang et al. 2023; FFA-LoRA,
    Sun et al. 2024). Peers then exchange less than half, keep fewer activations, and the average of their B gives
    exactly the average of their updates B A, also after local updates."""
    frozen_bits: Literal[32, 16, 4] = 16
    """Bits of a frozen weight. With 16 (bfloat16) and 4, peers compute in 16 bits; with 4, linear layers are stored in
    NF4 (QLoRA, Dettmers et al. 2023), which is meant for CUDA and slow elsewhere."""
    base_digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest of the frozen weights, so that all peers have equal ones beside their adapters. Without it, `join` prints
    the digest to enter here."""

    @field_validator("targets", mode="before")
    @classmethod
    def _are_names(cls, targets: object) -> object:
        # Reported once: pydantic would list the faults of each of the two types.
        names = targets if isinstance(targets, list | tuple) else []
        if targets != "all-linear" and (not names or not all(isinstance(name, str) and name for name in names)):
            raise ValueError('give "all-linear", or a list of names of linear layers such as ["q_proj", "v_proj"]')
        if "all-linear" in names:
            raise ValueError('"all-linear" stands alone; write targets = "all-linear", or only names of layers')
        if len(set(names)) < len(names):
            raise ValueError("a name is given twice; give each once")
        return targets

    @property
    def calculator_fields(self) -> dict[str, Any]:
        """Returns the adapters as fields of `calculator.step.setups.Setup`."""
        return {
            "lora_rank": self.rank,
            "lora_targets": self.targets if isinstance(self.targets, str) else ",".join(self.targets),
            "lora_freeze_a": self.freeze_a,
            "base_bits": self.frozen_bits,
        }
