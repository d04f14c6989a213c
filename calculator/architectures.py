"""The shapes of the models: presets, and any model of a supported family from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calculator.errors import BadSetup

LARGEST_GRID = 512
"""Largest side of the square of image tokens: pictures of 4096 pixels with a codec that reduces them 8 times. Masks are
counted row by row, so a grid of millions would never finish."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters that belong together: those outside of the layers, or those in each layer of a stack."""

    stack: str
    """"layers", "encoder" or "decoder"; empty outside of the layers."""
    shapes: Mapping[str, tuple[int, ...]]
    shareable: bool = True
    """Whether the layers of a shared group use the same ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """The sizes that decide a model's memory."""

    name: str
    family: str
    """One of "bert", "t5", "gpt2", "gptj", "text-to-image"."""
    hidden_size: int
    """D, width of the residual stream."""
    num_layers: int
    """L, layers; of the encoder, if there are two stacks."""
    num_heads: int
    """N, attention heads."""
    head_dim: int
    """H, width of a head."""
    intermediate_size: int
    """F, inner width of the feed-forward."""
    vocab_size: int
    """V, rows of the token embedding."""
    sequence_length: int
    """Tokens per sequence, unless a setup says otherwise; of the encoder, if there are two stacks."""
    max_positions: int = 0
    """Rows of the learned or precomputed position table; 0 where positions have no limit."""
    num_decoder_layers: int = 0
    """Layers of the decoder (T5)."""
    target_length: int = 0
    """Tokens per sequence of the decoder (T5), unless a setup says otherwise."""
    activation: str = "gelu_new"
    """Of the feed-forward: "relu", "gelu" (one kernel) or "gelu_new" (composed of separate operations)."""
    gated: bool = False
    """Whether the feed-forward multiplies by a second projection (GEGLU, T5 v1.1)."""
    dropout: float = 0.1
    """The model's own probability in the residual stream."""
    attention_dropout: float = 0.1
    """The model's own probability on attention weights."""
    tied_embeddings: bool = True
    """Whether the output head is the token embedding."""
    token_types: int = 0
    """Rows of the token type embedding (BERT)."""
    rotary_dim: int = 0
    """Channels of a head that are rotated (GPT-J)."""
    relative_buckets: int = 0
    """Rows of the relative position bias (T5)."""
    text_length: int = 0
    """Text tokens per sample (text-to-image); the rest of the sequence is image tokens."""
    image_vocab_size: int = 0
    """Entries of the codebook (text-to-image)."""
    shared_groups: int = 0
    """Distinct layer groups of the model itself; 0 where every layer has its own weights."""
    own_last_layer: bool = False
    """Whether the last layer has its own weights in addition to the shared groups (text-to-image)."""
    reversible: bool = False
    """Whether the model's layers are reversible."""
    attention_cycle: tuple[str, ...] = ()
    """Attention masks, repeated over all layers but the last (text-to-image)."""
    last_attention: str = ""
    """Attention mask of the last layer (text-to-image)."""
    conv_kernel_size: int = 0
    """Rows of image tokens that a convolution-like layer attends to (text-to-image)."""

    def attention_kind(self, layer: int) -> str:
        """The attention mask of a layer; empty where all are alike."""
        if not self.attention_cycle:
            return ""
        last = layer == self.num_layers - 1
        return self.last_attention if last else self.attention_cycle[layer % len(self.attention_cycle)]


def _bert(name: str, hidden_size: int, num_layers: int, num_heads: int) -> Architecture:
    return Architecture(
        name=name,
        family="bert",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=4 * hidden_size,
        vocab_size=30_522,
        sequence_length=512,
        max_positions=512,
        activation="gelu",
        token_types=2,
    )


def _t5(
    name: str, hidden_size: int, head_dim: int, intermediate_size: int, layers: int, num_heads: int
) -> Architecture:
    return Architecture(
        name=name,
        family="t5",
        hidden_size=hidden_size,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        vocab_size=32_128,
        sequence_length=512,
        target_length=512,
        activation="relu",
        relative_buckets=32,
    )


def _gpt2(
    name: str, hidden_size: int, num_layers: int, num_heads: int, length: int, vocab_size: int = 50_257
) -> Architecture:
    return Architecture(
        name=name,
        family="gpt2",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=4 * hidden_size,
        vocab_size=vocab_size,
        sequence_length=length,
        max_positions=length,
    )


def text_to_image(
    *,
    name: str,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    text_vocab_size: int,
    text_seq_len: int,
    image_grid: int,
    image_vocab_size: int,
    feed_forward_multiplier: int = 4,
    shared_groups: int | None = 4,
    reversible: bool = True,
    tied_embeddings: bool = True,
    attention_cycle: tuple[str, ...] = ("row", "column", "row", "row"),
    last_attention: str = "conv",
    conv_kernel_size: int = 5,
) -> Architecture:
    """The run's own kind of model, from the fields of its recipe (`training.config.ModelConfig`).

    >>> small = text_to_image(
    ...     name="demo", hidden_size=128, num_layers=5, num_heads=4, head_dim=32, text_vocab_size=64, text_seq_len=24,
    ...     image_grid=8, image_vocab_size=256,
    ... )
    >>> small.sequence_length, small.attention_kind(1), small.attention_kind(4)
    (88, 'column', 'conv')
    """
    return Architecture(
        name=name,
        family="text-to-image",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=feed_forward_multiplier * hidden_size,
        vocab_size=text_vocab_size + text_seq_len + image_vocab_size,
        sequence_length=text_seq_len + image_grid**2,
        # 1 for the bos, which stands before the text.
        max_positions=text_seq_len + 1 + image_grid**2,
        activation="gelu",
        gated=True,
        dropout=0.0,
        attention_dropout=0.0,
        tied_embeddings=tied_embeddings,
        text_length=text_seq_len,
        image_vocab_size=image_vocab_size,
        shared_groups=shared_groups or 0,
        own_last_layer=True,
        reversible=reversible,
        attention_cycle=attention_cycle,
        last_attention=last_attention,
        conv_kernel_size=conv_kernel_size,
    )


PRESETS: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        # Devlin et al. 2019, arXiv:1810.04805, section 3
        _bert("bert-base", 768, 12, 12),
        _bert("bert-large", 1024, 24, 16),
        # Raffel et al. 2020, arXiv:1910.10683, section 3.7; the released v1.0 checkpoints
        _t5("t5-small", 512, 64, 2048, 6, 8),
        _t5("t5-base", 768, 64, 3072, 12, 12),
        _t5("t5-large", 1024, 64, 4096, 24, 16),
        _t5("t5-3b", 1024, 128, 16_384, 24, 32),
        _t5("t5-11b", 1024, 128, 65_536, 24, 128),
        # Radford et al. 2019, table 2; the released checkpoints
        _gpt2("gpt2", 768, 12, 12, 1024),
        _gpt2("gpt2-medium", 1024, 24, 16, 1024),
        _gpt2("gpt2-large", 1280, 36, 20, 1024),
        _gpt2("gpt2-xl", 1600, 48, 25, 1024),
        # Brown et al. 2020, arXiv:2005.14165, table 2.1; "XL" has 24 heads there, which do not divide 2048,
        # and "13B" is 5140 wide there, which 40 heads of 128 are not
        _gpt2("gpt3-125m", 768, 12, 12, 2048),
        _gpt2("gpt3-350m", 1024, 24, 16, 2048),
        _gpt2("gpt3-760m", 1536, 24, 16, 2048),
        _gpt2("gpt3-1.3b", 2048, 24, 16, 2048),
        _gpt2("gpt3-2.7b", 2560, 32, 32, 2048),
        _gpt2("gpt3-6.7b", 4096, 32, 32, 2048),
        _gpt2("gpt3-13b", 5120, 40, 40, 2048),
        _gpt2("gpt3-175b", 12_288, 96, 96, 2048),
        # Wang and Komatsuzaki 2021; the released checkpoint, whose 50 400 rows include 143 of padding
        Architecture(
            name="gpt-j-6b",
            family="gptj",
            hidden_size=4096,
            num_layers=28,
            num_heads=16,
            head_dim=256,
            intermediate_size=16_384,
            vocab_size=50_400,
            sequence_length=2048,
            max_positions=2048,
            dropout=0.0,
            attention_dropout=0.0,
            tied_embeddings=False,
            rotary_dim=64,
        ),
        # Ramesh et al. 2021, arXiv:2102.12092, section 2.2: 64 layers, 62 heads x 64, 256 text and 1024 image tokens,
        # 16 384 text and 8192 image ids; here as a dense decoder
        _gpt2("dalle-12b", 3968, 64, 62, 1280, 16_384 + 8192),
        # The run's own model (arXiv:2207.03481, section 3.1; training/recipes/dalle-2021.toml)
        text_to_image(
            name="dalle-2021",
            hidden_size=1024,
            num_layers=64,
            num_heads=16,
            head_dim=64,
            text_vocab_size=32_100,
            text_seq_len=256,
            image_grid=32,
            image_vocab_size=8192,
        ),
    )
}


def from_config(config: Mapping[str, object]) -> Architecture:
    """A model from its Hugging Face `config.json`.

    Raises:
        BadSetup: If the family is not supported or a size is missing or wrong.
    """
    if not isinstance(config, Mapping):
        raise BadSetup("config is the object of a Hugging Face config.json.")
    kind = config.get("model_type")
    readers = {
        "bert": _bert_config,
        "t5": _t5_config,
        "gpt2": _gpt2_config,
        "gptj": _gptj_config,
        "text-to-image": _recipe_config,
    }
    if not isinstance(kind, str) or kind not in readers:
        raise BadSetup(f"model_type {kind!r:.60} is not supported; these are: {', '.join(readers)}.")
    return readers[kind](config)


def _size(config: Mapping[str, object], default: int | None, *names: str) -> int:
    """The size under the first of `names` that the config has."""
    for name in names:
        value = config.get(name)
        # transformers writes null where the model has the default.
        if value is None:
            continue
        # bool first, since true is a whole number to Python.
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000_000:
            raise BadSetup(f"{name} in config is a whole number from 1 to 10000000, not {value!r:.60}.")
        return value
    if default is None:
        raise BadSetup(f"config has no {names[0]}.")
    return default


def _share(config: Mapping[str, object], default: float, name: str) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise BadSetup(f"{name} in config is a number from 0 to below 1, not {value!r:.60}.")
    return value


def _activation(config: Mapping[str, object], default: str, name: str) -> str:
    value = config.get(name, default)
    if value not in ("relu", "gelu", "gelu_new"):
        raise BadSetup(f"{name} in config is one of relu, gelu, gelu_new, not {value!r:.60}.")
    return value


def _switched_off(config: Mapping[str, object], **names: object) -> None:
    """Refuses values of options that change the structure in a way that the calculator does not model."""
    for name, expected in names.items():
        value = config.get(name, expected)
        if value not in (expected, None):
            raise BadSetup(f"{name} in config is only supported as {expected!r}, not {value!r:.60}.")


def _heads(hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads:
        raise BadSetup(f"The width {hidden_size} in config is not divisible by its {num_heads} heads.")
    return hidden_size // num_heads


def _flag(config: Mapping[str, object], default: bool, name: str) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadSetup(f"{name} in config is true or false, not {value!r:.60}.")
    return value


def _tied(config: Mapping[str, object], default: bool) -> bool:
    return _flag(config, default, "tie_word_embeddings")


def _bert_config(config: Mapping[str, object]) -> Architecture:
    _switched_off(config, is_decoder=False, add_cross_attention=False, chunk_size_feed_forward=0)
    hidden_size, heads = _size(config, 768, "hidden_size"), _size(config, 12, "num_attention_heads")
    positions = _size(config, 512, "max_position_embeddings")
    return Architecture(
        name="config (bert)",
        family="bert",
        hidden_size=hidden_size,
        num_layers=_size(config, 12, "num_hidden_layers"),
        num_heads=heads,
        head_dim=_heads(hidden_size, heads),
        intermediate_size=_size(config, 3072, "intermediate_size"),
        vocab_size=_size(config, 30_522, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=_activation(config, "gelu", "hidden_act"),
        dropout=_share(config, 0.1, "hidden_dropout_prob"),
        attention_dropout=_share(config, 0.1, "attention_probs_dropout_prob"),
        tied_embeddings=_tied(config, True),
        token_types=_size(config, 2, "type_vocab_size"),
    )


def _t5_config(config: Mapping[str, object]) -> Architecture:
    _switched_off(config, is_encoder_decoder=True)
    dropout = _share(config, 0.1, "dropout_rate")
    projection = config.get("feed_forward_proj", "relu")
    activations = {"relu": ("relu", False), "gelu": ("gelu", False), "gated-gelu": ("gelu_new", True)}
    if not isinstance(projection, str) or projection not in activations:
        raise BadSetup(f"feed_forward_proj in config is one of {', '.join(activations)}, not {projection!r:.60}.")
    activation, gated = activations[projection]
    layers = _size(config, 6, "num_layers")
    return Architecture(
        name="config (t5)",
        family="t5",
        hidden_size=_size(config, 512, "d_model"),
        num_layers=layers,
        num_decoder_layers=_size(config, layers, "num_decoder_layers"),
        num_heads=_size(config, 8, "num_heads"),
        head_dim=_size(config, 64, "d_kv"),
        intermediate_size=_size(config, 2048, "d_ff"),
        vocab_size=_size(config, 32_128, "vocab_size"),
        sequence_length=_size(config, 512, "n_positions"),
        target_length=_size(config, 512, "n_positions"),
        activation=activation,
        gated=gated,
        dropout=dropout,
        attention_dropout=dropout,
        tied_embeddings=_tied(config, True),
        relative_buckets=_size(config, 32, "relative_attention_num_buckets"),
    )


def _gpt2_config(config: Mapping[str, object]) -> Architecture:
    _switched_off(config, add_cross_attention=False, reorder_and_upcast_attn=False)
    hidden_size, heads = _size(config, 768, "n_embd", "hidden_size"), _size(config, 12, "n_head", "num_attention_heads")
    positions = _size(config, 1024, "n_positions", "max_position_embeddings")
    return Architecture(
        name="config (gpt2)",
        family="gpt2",
        hidden_size=hidden_size,
        num_layers=_size(config, 12, "n_layer", "num_hidden_layers"),
        num_heads=heads,
        head_dim=_heads(hidden_size, heads),
        intermediate_size=_size(config, 4 * hidden_size, "n_inner"),
        vocab_size=_size(config, 50_257, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=_activation(config, "gelu_new", "activation_function"),
        dropout=_share(config, 0.1, "resid_pdrop"),
        attention_dropout=_share(config, 0.1, "attn_pdrop"),
        tied_embeddings=_tied(config, True),
    )


def _recipe_config(config: Mapping[str, object]) -> Architecture:
    """The model of a run's recipe: the fields of `training.config.ModelConfig` that decide its memory."""
    sizes = ("hidden_size", "num_layers", "num_heads", "head_dim")
    sizes += ("text_vocab_size", "text_seq_len", "image_grid", "image_vocab_size")
    # `training.config.AttentionType`, which the browser, where this runs, does not have.
    kinds = ("column", "conv", "full", "row")
    cycle = config.get("attention_cycle", ("row", "column", "row", "row"))
    if not isinstance(cycle, (list, tuple)) or not cycle or not all(kind in kinds for kind in cycle):
        raise BadSetup(f"attention_cycle is a list of {', '.join(kinds)}, not {cycle!r:.60}.")
    last = config.get("last_attention", "conv")
    if last not in kinds:
        raise BadSetup(f"last_attention is one of {', '.join(kinds)}, not {last!r:.60}.")
    if config.get("rotary", True) is not True or config.get("shift_tokens", True) is not True:
        raise BadSetup("The calculator knows the run's model only with rotary embeddings and token shift.")
    missing = [name for name in sizes if config.get(name) is None]
    if missing:
        raise BadSetup(f"config has no {missing[0]}; a recipe's model has all of: {', '.join(sizes)}.")
    grid = _size(config, None, "image_grid")
    if grid > LARGEST_GRID:
        raise BadSetup(f"image_grid in config is a whole number from 1 to {LARGEST_GRID}, not {grid}.")
    shared = config.get("shared_groups", 4)
    return text_to_image(
        name="config (text-to-image)",
        **{name: _size(config, None, name) for name in sizes},
        feed_forward_multiplier=_size(config, 4, "feed_forward_multiplier"),
        shared_groups=None if shared is None else _size(config, 4, "shared_groups"),
        reversible=_flag(config, True, "reversible"),
        tied_embeddings=_flag(config, True, "tied_embeddings"),
        attention_cycle=tuple(cycle),
        last_attention=last,
        conv_kernel_size=_size(config, 5, "conv_kernel_size"),
    )


def _gptj_config(config: Mapping[str, object]) -> Architecture:
    hidden_size, heads = (
        _size(config, 4096, "n_embd", "hidden_size"),
        _size(config, 16, "n_head", "num_attention_heads"),
    )
    positions = _size(config, 2048, "n_positions", "max_position_embeddings")
    rotary_dim = _size(config, 64, "rotary_dim")
    if rotary_dim % 2 or rotary_dim > _heads(hidden_size, heads):
        raise BadSetup(
            f"rotary_dim in config is an even number up to the head width {hidden_size // heads}, not {rotary_dim}."
        )
    return Architecture(
        name="config (gptj)",
        family="gptj",
        hidden_size=hidden_size,
        num_layers=_size(config, 28, "n_layer", "num_hidden_layers"),
        num_heads=heads,
        head_dim=_heads(hidden_size, heads),
        intermediate_size=_size(config, 4 * hidden_size, "n_inner"),
        vocab_size=_size(config, 50_400, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=_activation(config, "gelu_new", "activation_function"),
        dropout=_share(config, 0.0, "resid_pdrop"),
        attention_dropout=_share(config, 0.0, "attn_pdrop"),
        tied_embeddings=_tied(config, False),
        rotary_dim=rotary_dim,
    )
