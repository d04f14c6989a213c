"""Models of the run designer: pictures from captions, or a language model of a family, a size and a block length.

Each kind gives the sizes that the calculator needs, and the tables of the model's recipe.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from calculator.choose.advice import PeerTraining
from calculator.models.architecture import Architecture
from calculator.models.architectures import from_config
from calculator.parts.adapters import ALL_LINEAR
from calculator.parts.optimizers import OF_RECIPES
from calculator.parts.parameters import count_parameters
from calculator.swarm.settings import BATCH_OF_2021, LEARNING_RATE_OF_2021

BATCHES = (256, 512, 1024, 2048, 4096, 8192, BATCH_OF_2021)
"""Samples of an update; the largest is the 2021 run's (paper, section 3.3)."""

MOST_FORECAST = 8
"""The largest micro-batch of pictures with which volunteers are forecast, even if more is advised: each update waits
for the last peer's micro-batch, and the micro-batches of many volunteers together may exceed a small batch."""

PICTURE_SIZES = {
    "demo": dict(hidden_size=128, num_layers=5, num_heads=4),
    "small": dict(hidden_size=512, num_layers=16, num_heads=8),
    "middle": dict(hidden_size=768, num_layers=32, num_heads=12),
    "dalle-2021": dict(hidden_size=1024, num_layers=64, num_heads=16),
    "large": dict(hidden_size=1536, num_layers=64, num_heads=24),
    "huge": dict(hidden_size=3072, num_layers=64, num_heads=48),
}
"""Sizes of text-to-image models; the first is the demo's own, the others have the 2021 run's structure."""
SHAPES = dict(head_dim=32, text_vocab_size=64, text_seq_len=16, image_grid=8, image_vocab_size=256)
PICTURES = dict(head_dim=64, text_vocab_size=32_100, text_seq_len=256, image_grid=32, image_vocab_size=8192)
PICTURE_RATES = {"demo": (3e-2, 256)}
PICTURE_RATE = (LEARNING_RATE_OF_2021, BATCH_OF_2021)
"""Learning rate and batch of the demo's recipe, for its model, and of the 2021 run (paper, section 3.3), for all
others; the rate is proportional to the root of the batch (You et al. 2020, arXiv:1904.00962, section 4.3)."""

JOINED_ATTENTION = ("gpt2", "phi3")
"""Families whose queries, keys and values come from one layer."""
FAMILIES = {"llama": "Llama", "qwen3": "Qwen3", "gemma3_text": "Gemma 3"}
"""`model_type` -> name, of the families of language models to choose from."""
LANGUAGE_SIZES = {
    "stories": dict(hidden_size=128, intermediate_size=336, num_hidden_layers=3, num_attention_heads=8),
    "15m": dict(hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6),
    "160m": dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12),
    "410m": dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=24, num_attention_heads=16),
    "1b": dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16),
    "2.8b": dict(hidden_size=2560, intermediate_size=6912, num_hidden_layers=32, num_attention_heads=32),
}
"""Sizes of language models. The first is the recipe `stories`, the second llama2.c's `stories15M`
(github.com/karpathy/llama2.c, train.py); the others have the widths and numbers of layers of
Pythia's models of this name (Biderman et al. 2023, arXiv:2304.01373, table 1), whose learning rates are known. Their
gated feed-forward layers are two thirds as wide as Pythia's, so that they have as many weights (Shazeer 2020,
arXiv:2002.05202, section 2)."""
STORIES_VOCABULARY, USUAL_VOCABULARY = 640, 32_000
"""Ids of the tokenizer of the recipe `stories`, and of Llama 2 (Touvron et al. 2023, arXiv:2307.09288, section 2.2)."""
STORIES_RATE = (1e-2, 128 * 128)
"""Learning rate of the recipe `stories` with Muon, and the tokens of its update."""
SMALL_RATE = (5e-4, 4 * 128 * 256)
"""Learning rate of llama2.c's `stories15M` with Adam, and the tokens of its update (train.py)."""
PYTHIA_TOKENS = 1024 * 2048
"""Tokens of an update with which all of Pythia's models were trained; no larger update is proposed."""
PYTHIA_RATES = {"160m": 6e-4, "410m": 3e-4, "1b": 2.5e-4, "2.8b": 1.6e-4}
"""Peak learning rates of Pythia's models with Adam (github.com/EleutherAI/pythia, models/)."""
TOKENS_PER_PARAMETER = 20
"""Tokens for each weight that make the best use of a given amount of computing (Hoffmann et al. 2022, arXiv:2203.15556,
table 3)."""
PYTHIA_ADAM = dict(name="adamw8bit", betas=[0.9, 0.95], weight_decay=0.1, max_grad_norm=1.0)
"""Adam's settings for Pythia's models (same files); the moments in 8 bits are ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DesignedModel(ABC):
    """The model that a run trains. Hashable, so that caches can remember results for it."""

    size: str
    """Name of a size of its kind."""

    task: ClassVar[str]
    """The task's name in recipes."""
    description: ClassVar[str]
    """Description of the model in a sentence for the recipe."""

    @property
    @abstractmethod
    def config(self) -> dict[str, object]:
        """The model as the calculator reads it."""

    @property
    def sequence_length(self) -> int | None:
        """T, tokens of a sample; None: as the configuration says."""
        return None

    @property
    @abstractmethod
    def optimizer(self) -> dict[str, object]:
        """The recipe's `[optimizer]`."""

    @property
    def most_forecast(self) -> int:
        """The largest micro-batch with which volunteers are forecast; see `MOST_FORECAST`."""
        return MOST_FORECAST

    @property
    @abstractmethod
    def batches(self) -> tuple[int, ...]:
        """Samples of an update, ascending, with which this kind of model is known to learn."""

    @abstractmethod
    def learning_rate(self, batch: int) -> float:
        """Peak learning rate for updates of `batch` samples."""

    @abstractmethod
    def tables(self) -> dict[str, dict[str, object]]:
        """The recipe's tables that describe the model, by name, in their order."""

    @property
    @abstractmethod
    def shown(self) -> dict[str, object]:
        """Prompts of the recipe's `[monitor]`, by key."""

    @property
    @abstractmethod
    def prepare_command(self) -> str:
        """The command that prepares shards for the model."""

    @property
    def host_optimizer(self) -> str:
        """Name of the host's optimizer in the calculator."""
        return OF_RECIPES[str(self.optimizer["name"])]

    def architecture(self) -> Architecture:
        """The sizes of the model."""
        return _architecture(self)

    @property
    def parameters(self) -> int:
        """The number of distinct weights."""
        return count_parameters(self.architecture())

    @property
    def adapters(self) -> dict[str, object]:
        """Adapters that are trained in place of the model, as fields of `PeerTraining`; empty without adapters."""
        return {}

    @property
    def samples(self) -> float:
        """Samples that such a model needs at least to be trained from its first weights on."""
        length = self.sequence_length or self.architecture().sequence_length
        return TOKENS_PER_PARAMETER * self.parameters / length

    def training(self, *, local_updates: bool = False, delay_outer_step: bool = False) -> PeerTraining:
        """Settings with which a peer trains the model."""
        return PeerTraining(
            config=self.config,
            sequence_length=self.sequence_length,
            reversible=self.architecture().reversible,
            optimizer=self.host_optimizer,
            local_updates=local_updates,
            delay_outer_step=delay_outer_step,
            **self.adapters,
        )


@lru_cache(maxsize=128)
def _architecture(model: DesignedModel) -> Architecture:
    return from_config(model.config)


@dataclass(frozen=True, kw_only=True, slots=True)
class PictureModel(DesignedModel):
    """A text-to-image transformer of one of `PICTURE_SIZES`."""

    task: ClassVar[str] = "text-to-image"
    description: ClassVar[str] = "A text-to-image model, trained together."

    captions: tuple[int, int] | None = None
    """Ids of the captions' tokenizer, and tokens of the longest caption, of pictures of 64 pixels that are prepared
    already; None: as suits the size."""

    @property
    def config(self) -> dict[str, object]:
        """See `DesignedModel.config`."""
        return {"model_type": self.task, **self._sizes}

    @property
    def _has_small_pictures(self) -> bool:
        """True if pictures have 64 pixels, and their codec is the one that `prepare` trains."""
        return self.size == "demo" or self.captions is not None

    @property
    def _sizes(self) -> dict[str, object]:
        shapes = SHAPES if self._has_small_pictures else PICTURES
        head_dim = (SHAPES if self.size == "demo" else PICTURES)["head_dim"]
        ids, length = self.captions or (shapes["text_vocab_size"], shapes["text_seq_len"])
        of_captions = dict(text_vocab_size=ids, text_seq_len=length)
        return {**shapes, **of_captions, "head_dim": head_dim, **PICTURE_SIZES[self.size]}

    @property
    def optimizer(self) -> dict[str, object]:
        """See `DesignedModel.optimizer`."""
        return dict(name="lamb8bit")

    @property
    def batches(self) -> tuple[int, ...]:
        """See `DesignedModel.batches`."""
        return BATCHES

    def learning_rate(self, batch: int) -> float:
        """See `DesignedModel.learning_rate`."""
        rate, its_batch = PICTURE_RATES.get(self.size, PICTURE_RATE)
        return rate * math.sqrt(batch / its_batch)

    def tables(self) -> dict[str, dict[str, object]]:
        """See `DesignedModel.tables`."""
        structure = dict(attention_cycle=["row", "column", "row", "row"], last_attention="conv")
        codec = dict(kind="small", image_size=64, downsampling=8, codebook_size=256)
        if not self._has_small_pictures:
            codec = dict(kind="vqgan", image_size=256, downsampling=8, codebook_size=8192, weights="vqgan-gumbel-f8")
        return {"model": self._sizes | structure | dict(shared_groups=4, reversible=True), "codec": codec}

    @property
    def shown(self) -> dict[str, object]:
        """See `DesignedModel.shown`."""
        of_shapes = ["a red circle", "a blue square"]
        return dict(prompts=of_shapes if self.size == "demo" else ["a photo of a lighthouse", "a red flower"])

    @property
    def prepare_command(self) -> str:
        """See `DesignedModel.prepare_command`."""
        return "prepare --images pictures --captions captions.jsonl --out shards --recipe my-run.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class LanguageModel(DesignedModel):
    """A decoder of one of `FAMILIES` and `LANGUAGE_SIZES` that continues text."""

    task: ClassVar[str] = "causal-lm"
    description: ClassVar[str] = "A language model, trained together."

    family: str
    block_length: int
    """T, tokens of a sample."""
    vocabulary: int | None = None
    """Ids of the tokenizer of text that is prepared already; None: as suits the size."""

    @property
    def config(self) -> dict[str, object]:
        """See `DesignedModel.config`: as in a `config.json` of the Hugging Face Hub."""
        sizes = LANGUAGE_SIZES[self.size]
        of_stories = self.size == "stories"
        head_dim = sizes["hidden_size"] // sizes["num_attention_heads"]
        of_family = {
            "llama": {},
            "qwen3": dict(head_dim=head_dim),
            # The scores' scale, which would otherwise be that of heads of 256.
            "gemma3_text": dict(head_dim=head_dim, query_pre_attn_scalar=head_dim),
        }[self.family]
        return {
            "model_type": self.family,
            "vocab_size": self.vocabulary or (STORIES_VOCABULARY if of_stories else USUAL_VOCABULARY),
            **sizes,
            "num_key_value_heads": sizes["num_attention_heads"],
            **of_family,
            "max_position_embeddings": self.block_length,
            "tie_word_embeddings": self.size in ("stories", "15m") or self.family == "gemma3_text",
            **(dict(initializer_range=0.05) if of_stories else {}),
        }

    @property
    def sequence_length(self) -> int:
        """See `DesignedModel.sequence_length`."""
        return self.block_length

    @property
    def most_forecast(self) -> int:
        """See `DesignedModel.most_forecast`: as many tokens as those pictures have, if blocks are shorter."""
        tokens = MOST_FORECAST * (PICTURES["text_seq_len"] + PICTURES["image_grid"] ** 2)
        return max(MOST_FORECAST, 1 << (tokens // self.block_length).bit_length() - 1)

    @property
    def optimizer(self) -> dict[str, object]:
        """See `DesignedModel.optimizer`."""
        return dict(name="muon") if self.size == "stories" else PYTHIA_ADAM

    @property
    def batches(self) -> tuple[int, ...]:
        """See `DesignedModel.batches`."""
        return tuple([batch for batch in BATCHES if batch * self.block_length <= PYTHIA_TOKENS])

    def learning_rate(self, batch: int) -> float:
        """See `DesignedModel.learning_rate`: that of the known batch, or less for a smaller one, by the root of tokens.

        With Adam the rate goes by the root of the batch (Malladi et al. 2022, arXiv:2205.10287, section 5). A larger
        rate than the known one is never proposed.
        """
        smaller = {"stories": STORIES_RATE, "15m": SMALL_RATE}
        rate, tokens = smaller.get(self.size) or (PYTHIA_RATES[self.size], PYTHIA_TOKENS)
        return rate * math.sqrt(min(1.0, batch * self.block_length / tokens))

    def tables(self) -> dict[str, dict[str, object]]:
        """See `DesignedModel.tables`."""
        return {
            "model": dict(block_length=self.block_length),
            "model.architecture": self.config,
        }

    @property
    def shown(self) -> dict[str, object]:
        """See `DesignedModel.shown`."""
        half = self.block_length // 2
        if self.size == "stories":  # openings of stories that `evaluate` can judge
            prompts = [
                "Kate has a red key. She puts it in the drawer.",
                "Hugo is hungry. He runs to the library with Max.",
            ]
            return dict(prompts=prompts, top_k=1, continuation_tokens=min(64, half))
        prompts = ["Once upon a time", "The city lies by the sea, and"]
        return dict(prompts=prompts, continuation_tokens=min(100, half))

    @property
    def prepare_command(self) -> str:
        """See `DesignedModel.prepare_command`."""
        sizes = f"--vocabulary {self.config['vocab_size']} --block-length {self.block_length}"
        return f"prepare --text texts {sizes} --out shards"


ADAPTED_BATCHES = (32, 64, 128, 256)
"""Samples of an update of adapters: the largest is that of the recipe `lora-7b`, whose settings the next ones are."""
ADAPTED_RATE = 2e-4
ADAPTED_ADAM = dict(name="adamw", betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, max_grad_norm=0.3)
RANK, ALPHA, ATTENTION = 16, 32.0, ["q_proj", "v_proj"]
LEAST_ADAPTED_UPDATES = 100
"""The least number of updates of adapters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptedModel(LanguageModel):
    """Adapters beside a published language model; `size` is its name, and `family` its `model_type`."""

    description: ClassVar[str] = "Adapters of a language model, trained together."

    base_config: str
    """The settings of the model's `config.json` that a recipe has, in JSON."""
    base_digest: str
    """Digest of the model's weights."""
    frozen_bits: int
    """Bits of one of the model's weights: 32, 16 or 4."""

    @property
    def config(self) -> dict[str, object]:
        """See `DesignedModel.config`: that of the published model."""
        return json.loads(self.base_config)

    @property
    def _targets(self) -> list[str] | str:
        """Layers beside which adapters stand, by their names in transformers."""
        return ALL_LINEAR if self.family in JOINED_ATTENTION else ATTENTION

    @property
    def adapters(self) -> dict[str, object]:
        """See `DesignedModel.adapters`."""
        targets = self._targets if isinstance(self._targets, str) else ",".join(self._targets)
        return dict(lora_rank=RANK, lora_targets=targets, lora_freeze_a=True, base_bits=self.frozen_bits)

    @property
    def samples(self) -> float:
        """See `DesignedModel.samples`."""
        return LEAST_ADAPTED_UPDATES * ADAPTED_BATCHES[0]

    @property
    def optimizer(self) -> dict[str, object]:
        """See `DesignedModel.optimizer`."""
        return ADAPTED_ADAM

    @property
    def batches(self) -> tuple[int, ...]:
        """See `DesignedModel.batches`."""
        return ADAPTED_BATCHES

    def learning_rate(self, batch: int) -> float:
        """See `DesignedModel.learning_rate`."""
        return ADAPTED_RATE

    def tables(self) -> dict[str, dict[str, object]]:
        """See `DesignedModel.tables`."""
        adapter = dict(rank=RANK, alpha=ALPHA, targets=self._targets, freeze_a=True, frozen_bits=self.frozen_bits)
        return {
            "model": {"from": self.size, "block_length": self.block_length},
            "model.architecture": self.config,
            "adapter": {**adapter, "base_digest": self.base_digest},
        }
