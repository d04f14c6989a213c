"""The shapes of the models: presets, and any model of a supported family from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture
from calculator.models.config_values import activation_of, flag, head_width, share, size, switched_off, tied
from calculator.models.decoders import DECODER_READERS, DECODERS
from calculator.models.diffusion_models import DIFFUSION_MODELS, DIFFUSION_READERS
from calculator.models.hybrid_models import HYBRID_READERS, HYBRIDS_WITH_PICTURES
from calculator.models.listed_models import LISTED_READERS
from calculator.models.other_decoders import OTHER_DECODERS, OTHER_READERS
from calculator.models.picture_models import PICTURE_MODELS, PICTURE_READERS

LARGEST_GRID = 512
"""Largest side of the square of image tokens: pictures of 4096 pixels with a codec that reduces them 8 times. Masks are
counted row by row, so a grid of millions would never finish."""


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
        released=name.startswith("gpt2"),
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
    """The run's own kind of model, from the fields of its recipe (`training.model.config.ModelConfig`).

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
        released=False,
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
            fusable=False,
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
        *DECODERS,
        *OTHER_DECODERS,
        *PICTURE_MODELS,
        *DIFFUSION_MODELS,
    )
}


def from_config(config: Mapping[str, object]) -> Architecture:
    """Reads a model from its Hugging Face `config.json`; if it also reads pictures or sounds, only its text model.

    Raises:
        BadSetup: If the family is not supported or a size is missing or wrong.
    """
    if not isinstance(config, Mapping):
        raise BadSetup("config is the object of a Hugging Face config.json.")
    key = "model_type" if config.get("model_type") or not config.get("_class_name") else "_class_name"
    kind, text = config.get(key), config.get("text_config")
    readers = {
        "bert": _bert_config,
        "t5": _t5_config,
        "gpt2": _gpt2_config,
        "gptj": _gptj_config,
        "text-to-image": _recipe_config,
        **DECODER_READERS,
        **OTHER_READERS,
        **HYBRID_READERS,
        **LISTED_READERS,
        **PICTURE_READERS,
        **DIFFUSION_READERS,
    }
    if isinstance(text, Mapping) and kind not in READS_TEXT_CONFIG:
        inner = text.get("model_type") or USUAL_TEXT_MODELS.get(str(kind))
        if inner in (*DECODER_READERS, *OTHER_READERS, *HYBRID_READERS, *LISTED_READERS):
            # The whole model ties its embeddings, or not, as the outer config says.
            outer = config.get("tie_word_embeddings")
            tying = {} if outer is None else {"tie_word_embeddings": outer}
            return from_config({**text, **tying, "model_type": inner})
    if not isinstance(kind, str) or kind not in readers:
        raise BadSetup(
            f"{key} {kind!r:.60} is not supported, and no supported family is like it. Configs of the presets' "
            "families are read; the page and `python -m calculator --help` list the presets."
        )
    return readers[kind](config)


def quantization_of(config: Mapping[str, object] | None) -> str | None:
    """Reads the method by which a config's weights are quantized, such as "awq"; None if they are not.

    >>> quantization_of({"quantization_config": {"quant_method": "awq", "bits": 4}})
    'awq'
    """
    told = (config or {}).get("quantization_config")
    if not isinstance(told, Mapping):
        return None
    return f"{told.get('quant_method') or 'in a way that it does not name'}"[:40]


READS_TEXT_CONFIG = ("gemma3", *HYBRIDS_WITH_PICTURES)
"""Models whose own readers read the sizes of their text model in `text_config`."""
USUAL_TEXT_MODELS = {
    **dict.fromkeys(("llava", "llava_next", "llava_next_video", "video_llava", "vipllava"), "llama"),
    "mistral3": "mistral",
}
"""The model_type of a text model that its config may omit (transformers 5.23, models/*/configuration_*.py)."""


def _bert_config(config: Mapping[str, object]) -> Architecture:
    switched_off(config, is_decoder=False, add_cross_attention=False, chunk_size_feed_forward=0)
    if not tied(config, True):
        raise BadSetup(
            "tie_word_embeddings in config of a bert is only supported as true: otherwise transformers makes its head "
            "a second bias, which no step uses or trains."
        )
    hidden_size, heads = size(config, 768, "hidden_size"), size(config, 12, "num_attention_heads")
    positions = size(config, 512, "max_position_embeddings")
    return Architecture(
        name="config (bert)",
        family="bert",
        hidden_size=hidden_size,
        num_layers=size(config, 12, "num_hidden_layers"),
        num_heads=heads,
        head_dim=head_width(hidden_size, heads),
        intermediate_size=size(config, 3072, "intermediate_size"),
        vocab_size=size(config, 30_522, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=activation_of(config, "gelu", "hidden_act"),
        dropout=share(config, 0.1, "hidden_dropout_prob"),
        attention_dropout=share(config, 0.1, "attention_probs_dropout_prob"),
        token_types=size(config, 2, "type_vocab_size"),
    )


def _t5_config(config: Mapping[str, object]) -> Architecture:
    switched_off(config, is_encoder_decoder=True)
    dropout = share(config, 0.1, "dropout_rate")
    projection = config.get("feed_forward_proj", "relu")
    activations = {"relu": ("relu", False), "gelu": ("gelu", False), "gated-gelu": ("gelu_new", True)}
    if not isinstance(projection, str) or projection not in activations:
        raise BadSetup(f"feed_forward_proj in config is one of {', '.join(activations)}, not {projection!r:.60}.")
    activation, gated = activations[projection]
    layers = size(config, 6, "num_layers")
    return Architecture(
        name="config (t5)",
        family="t5",
        hidden_size=size(config, 512, "d_model"),
        num_layers=layers,
        num_decoder_layers=size(config, layers, "num_decoder_layers"),
        num_heads=size(config, 8, "num_heads"),
        head_dim=size(config, 64, "d_kv"),
        intermediate_size=size(config, 2048, "d_ff"),
        vocab_size=size(config, 32_128, "vocab_size"),
        sequence_length=size(config, 512, "n_positions"),
        target_length=size(config, 512, "n_positions"),
        activation=activation,
        gated=gated,
        dropout=dropout,
        attention_dropout=dropout,
        tied_embeddings=tied(config, True),
        relative_buckets=size(config, 32, "relative_attention_num_buckets"),
    )


def _gpt2_config(config: Mapping[str, object]) -> Architecture:
    switched_off(config, add_cross_attention=False, reorder_and_upcast_attn=False)
    hidden_size, heads = size(config, 768, "n_embd", "hidden_size"), size(config, 12, "n_head", "num_attention_heads")
    positions = size(config, 1024, "n_positions", "max_position_embeddings")
    return Architecture(
        name="config (gpt2)",
        family="gpt2",
        hidden_size=hidden_size,
        num_layers=size(config, 12, "n_layer", "num_hidden_layers"),
        num_heads=heads,
        head_dim=head_width(hidden_size, heads),
        intermediate_size=size(config, 4 * hidden_size, "n_inner"),
        vocab_size=size(config, 50_257, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=activation_of(config, "gelu_new", "activation_function"),
        dropout=share(config, 0.1, "resid_pdrop"),
        attention_dropout=share(config, 0.1, "attn_pdrop"),
        tied_embeddings=tied(config, True),
    )


def _recipe_config(config: Mapping[str, object]) -> Architecture:
    """The model of a run's recipe: the fields of `training.model.config.ModelConfig` that decide its memory."""
    sizes = ("hidden_size", "num_layers", "num_heads", "head_dim")
    sizes += ("text_vocab_size", "text_seq_len", "image_grid", "image_vocab_size")
    # `training.model.config.AttentionType`, which the browser, where this runs, does not have.
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
    grid = size(config, None, "image_grid")
    if grid > LARGEST_GRID:
        raise BadSetup(f"image_grid in config is a whole number from 1 to {LARGEST_GRID}, not {grid}.")
    shared = config.get("shared_groups", 4)
    return text_to_image(
        name="config (text-to-image)",
        **{name: size(config, None, name) for name in sizes},
        feed_forward_multiplier=size(config, 4, "feed_forward_multiplier"),
        shared_groups=None if shared is None else size(config, 4, "shared_groups"),
        reversible=flag(config, True, "reversible"),
        tied_embeddings=flag(config, True, "tied_embeddings"),
        attention_cycle=tuple(cycle),
        last_attention=last,
        conv_kernel_size=size(config, 5, "conv_kernel_size"),
    )


def _gptj_config(config: Mapping[str, object]) -> Architecture:
    hidden_size, heads = (
        size(config, 4096, "n_embd", "hidden_size"),
        size(config, 16, "n_head", "num_attention_heads"),
    )
    positions = size(config, 2048, "n_positions", "max_position_embeddings")
    rotary_dim = size(config, 64, "rotary_dim")
    if rotary_dim % 2 or rotary_dim > head_width(hidden_size, heads):
        raise BadSetup(
            f"rotary_dim in config is an even number up to the head width {hidden_size // heads}, not {rotary_dim}."
        )
    return Architecture(
        name="config (gptj)",
        family="gptj",
        hidden_size=hidden_size,
        num_layers=size(config, 28, "n_layer", "num_hidden_layers"),
        num_heads=heads,
        head_dim=head_width(hidden_size, heads),
        intermediate_size=size(config, 4 * hidden_size, "n_inner"),
        vocab_size=size(config, 50_400, "vocab_size"),
        sequence_length=positions,
        max_positions=positions,
        activation=activation_of(config, "gelu_new", "activation_function"),
        dropout=share(config, 0.0, "resid_pdrop"),
        attention_dropout=share(config, 0.0, "attn_pdrop"),
        tied_embeddings=tied(config, False),
        rotary_dim=rotary_dim,
        fusable=False,
    )
