"""Models from a Hugging Face `config.json` whose weights and cache are counted, but not their training.

They are Gemma 4, Llama 4, and hybrids with state-space layers. A reader lists the parameters of the model and of each
kind of its layers, and what a layer caches; the family `listed` counts them. Sizes and defaults are those of
transformers 5.23 (models/*/configuration_*.py, modeling_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture, LayerCache, ListedLayer, Listing
from calculator.models.config_values import (
    even,
    flag,
    has_long_rotation,
    head_width,
    size,
    tied,
    trained_length,
)
from calculator.models.decoders import (
    USUAL_LENGTH,
    cycle_of,
    grouped_heads,
    layer_types,
    numbers_of_experts,
    rotated_layers,
)

Config = Mapping[str, object]
NOTHING = LayerCache()
Shapes = dict[str, tuple[int, ...]]


def _linear(name: str, rows: int, columns: int, biased: bool = False) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (rows, columns)}
    return shapes | {f"{name}.bias": (rows,)} if biased else shapes


def _norm(name: str, *shape: int) -> Shapes:
    return {f"{name}.norm": shape}


def _gated(name: str, width: int, inner: int, biased: bool = False) -> Shapes:
    """The parameters of a gated feed-forward."""
    shapes = _linear(f"{name}.gate", inner, width, biased) | _linear(f"{name}.in", inner, width, biased)
    return shapes | _linear(f"{name}.out", width, inner, biased)


def _experts(number: int, width: int, inner: int) -> Shapes:
    """The parameters of gated experts and of their router."""
    experts = {"experts.in": (number, 2 * inner, width), "experts.out": (number, width, inner)}
    return {"router.weight": (number, width), **experts}


class _Attention:
    """Sizes of grouped attention, as a config says."""

    def __init__(self, config: Config, heads: int, keys: int, hidden: int, head_dim: int | None = None):
        self.hidden_size = size(config, hidden, "hidden_size")
        self.num_heads, self.key_heads = grouped_heads(config, heads, keys)
        own = config.get("head_dim", head_dim) is not None
        self.head_dim = even(config, head_dim, "head_dim") if own else head_width(self.hidden_size, self.num_heads)

    def shapes(self, *, biased: bool = False, out_biased: bool = False) -> Shapes:
        """The parameters of the four projections."""
        inner, narrow = self.num_heads * self.head_dim, self.key_heads * self.head_dim
        shapes = _linear("attention.query", inner, self.hidden_size, biased)
        shapes |= _linear("attention.key", narrow, self.hidden_size, biased)
        shapes |= _linear("attention.value", narrow, self.hidden_size, biased)
        return shapes | _linear("attention.out", self.hidden_size, inner, out_biased)

    def cache(self, window: int = 0) -> LayerCache:
        """Keys and values of all tokens, or of those in a window."""
        return LayerCache(values_per_token=2 * self.key_heads * self.head_dim, window=window)

    def head_norms(self) -> Shapes:
        """Norms of queries and keys, head by head."""
        return _norm("attention.query", self.head_dim) | _norm("attention.key", self.head_dim)


def _layer(shapes: Shapes, cache: LayerCache, buffers: int = 0) -> ListedLayer:
    return ListedLayer(shapes=tuple(shapes.items()), cache=cache, buffers=buffers)


def _model(
    config: Config,
    attention: _Attention,
    kinds: list[str],
    layers: Mapping[str, ListedLayer],
    *,
    vocabulary: int,
    positions: int,
    is_tied: bool | None = None,
    further: Shapes | None = None,
    rotations: tuple[int, ...] | None = None,
    experts: int = 0,
    scales: int = 0,
) -> Architecture:
    """A model with a token embedding, layers, a last norm and an output head."""
    width, words = attention.hidden_size, size(config, vocabulary, "vocab_size")
    is_tied = tied(config, False) if is_tied is None else is_tied
    outside = {"embedding.tokens": (words, width)} | (further or {}) | _norm("last", width)
    if not is_tied:
        outside["head.weight"] = (words, width)
    rotations = (attention.head_dim,) if rotations is None else rotations
    longest = trained_length(config, positions)
    used = tuple((kind, layer) for kind, layer in layers.items() if kind in kinds)
    return Architecture(
        name=f"config ({config.get('model_type')})",
        family="listed",
        hidden_size=width,
        num_layers=len(kinds),
        num_heads=attention.num_heads,
        num_key_value_heads=attention.key_heads,
        head_dim=attention.head_dim,
        intermediate_size=0,
        vocab_size=words,
        sequence_length=min(longest, USUAL_LENGTH),
        max_positions=longest,
        tied_embeddings=is_tied,
        long_rotation=has_long_rotation(config),
        num_experts=experts,
        attention_cycle=cycle_of(kinds),
        listing=Listing(outside=tuple(outside.items()), layers=used, rotations=rotations, scales=scales),
    )


def gemma4_config(config: Config) -> Architecture:
    """Reads a config of Gemma 4's text model, whose last layers may use the keys and values of earlier ones."""
    unified = config.get("model_type") == "gemma4_unified_text"
    layers, d = size(config, 30, "num_hidden_layers"), size(config, 2304, "hidden_size")
    if config.get("use_bidirectional_attention") == "all":
        raise BadSetup('In config, use_bidirectional_attention "all" makes a model that does not generate text.')
    types = layer_types(config, layers) or ["sliding" if (layer + 1) % 6 else "full" for layer in range(layers)]
    types[-1] = "full"  # whatever the config says
    shared = size(config, None, "num_kv_shared_layers") if config.get("num_kv_shared_layers") else 0
    if shared and set(types[: max(layers - shared, 0)]) != set(types):
        raise BadSetup(
            f"In config, the last {shared} layers (num_kv_shared_layers) use keys and values that no earlier layer of "
            "their kind makes: those of another model, as an assistant does; no supported family is like it."
        )
    kinds = [f"{kind} {'shared' if layer >= layers - shared else 'own'}" for layer, kind in enumerate(types)]
    attentions = {
        "sliding": _Attention(config, 8, 4, 2304, 256),
        "full": _Attention(_of_full_layers(config), 8, 4, 2304, 512),
    }
    beside = 0 if unified or config.get("hidden_size_per_layer_input") == 0 else 256
    beside = size(config, beside, "hidden_size_per_layer_input") if beside else 0
    common, number = _gemma4_layer(config, d, beside)
    inner = size(config, 9216, "intermediate_size")
    twice = 2 if flag(config, False, "use_double_wide_mlp") else 1
    made = {}
    for kind in dict.fromkeys(kinds):
        name, reuses = kind.split()[0], kind.endswith("shared")
        a, window = attentions[name], size(config, 1024 if unified else 512, "sliding_window")
        cache = NOTHING if reuses else a.cache(window if name == "sliding" else 0)
        joined = name == "full" and flag(config, False, "attention_k_eq_v")
        own = _gemma4_attention(config, a, reuses=reuses, joined=joined)
        own |= _gated("feed_forward", d, inner * (twice if reuses else 1))
        made[kind] = _layer(common | own, cache, buffers=1)
    further: Shapes = {}
    if beside:
        further["embedding.of_layers"] = (size(config, 262_144, "vocab_size_per_layer_input"), layers * beside)
        further |= _linear("shared.projection", layers * beside, d) | _norm("shared.projection", beside)
    return _model(
        config, attentions["sliding"], kinds, made, vocabulary=262_144, positions=262_144 if unified else 131_072,
        is_tied=tied(config, True), further=further, experts=number, scales=2 if beside else 1,
        rotations=tuple([attentions[name].head_dim for name in dict.fromkeys(types)]),
    )  # fmt: skip


def _of_full_layers(config: Config) -> Config:
    """Reads the sizes of layers that see all tokens; transformers writes them for each such layer, publishers once."""
    given = config.get("per_layer_config")
    if isinstance(given, Mapping):
        own = next(iter(given.values()), {})  # the same for all of them
        own = own if isinstance(own, Mapping) else {}
        width, heads = own.get("head_dim", config.get("head_dim", 256)), own.get("num_key_value_heads")
    else:
        width = config.get("global_head_dim", 512)
        heads = config.get("num_global_key_value_heads") if flag(config, False, "attention_k_eq_v") else None
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads")
    sizes = {name: config.get(name) for name in names if config.get(name) is not None}
    return sizes | {"head_dim": width} | ({"num_key_value_heads": heads} if heads is not None else {})


def _gemma4_layer(config: Config, width: int, beside: int) -> tuple[Shapes, int]:
    """Parameters of a layer besides attention and feed-forward, and the number of its experts."""
    names = ("attention.norm", "attention.last_norm", "feed_forward.norm", "feed_forward.last_norm")
    shapes: Shapes = dict.fromkeys(names, (width,))
    if beside:
        shapes |= _linear("feed_forward.beside.gate", beside, width) | _linear("feed_forward.beside.out", width, beside)
        shapes |= _norm("feed_forward.beside", width)
    if not flag(config, False, "enable_moe_block"):
        return shapes, 0
    number = size(config, None, "num_experts")
    experts = _experts(number, width, size(config, None, "moe_intermediate_size"))
    experts["router.choice.weight"] = experts.pop("router.weight")
    shapes |= experts | {"router.scale": (width,), "router.expert_scale": (number,)}
    return shapes | dict.fromkeys(("experts.norm", "experts.last_norm", "experts.other_norm"), (width,)), number


def _gemma4_attention(config: Config, a: _Attention, *, reuses: bool, joined: bool) -> Shapes:
    """The parameters of attention; `joined`: keys are values as well; `reuses`: both are those of an earlier layer."""
    biased = flag(config, False, "attention_bias")
    shapes = a.shapes(biased=biased, out_biased=biased) | a.head_norms()
    unused = ("attention.key", "attention.value") if reuses else ("attention.value",) if joined else ()
    return {name: shape for name, shape in shapes.items() if not name.startswith(unused)}


def llama4_config(config: Config) -> Architecture:
    """Reads a config of Llama 4's text model, whose layers with rotary embeddings see a chunk of the tokens."""
    a = _Attention(config, 40, 8, 5120, 128)
    layers, d, inner = size(config, 48, "num_hidden_layers"), a.hidden_size, size(config, 8192, "intermediate_size")
    number, _ = numbers_of_experts(config, 16, 1)
    biased = flag(config, False, "attention_bias")
    shapes = a.shapes(biased=biased, out_biased=biased) | _norm("attention", d) | _norm("feed_forward", d)
    sparse = {"experts.in": (number, d, 2 * inner), "experts.out": (number, inner, d)}
    sparse |= {"router.weight": (number, d), **_gated("shared", d, inner)}
    dense = _gated("feed_forward", d, size(config, 16_384, "intermediate_size_mlp"))
    chunk = 0 if config.get("attention_chunk_size", 8192) is None else size(config, 8192, "attention_chunk_size")
    made = {
        f"{seen} {kind}": _layer(shapes | own, a.cache(chunk if seen == "chunked" else 0))
        for seen in ("chunked", "full")
        for kind, own in (("experts", sparse), ("dense", dense))
    }
    usual = ["chunked" if turns else "full" for turns in rotated_layers(config, layers)]
    seen = layer_types(config, layers, ("full_attention", "chunked_attention")) or usual
    every, given = size(config, 1, "interleave_moe_layer_step"), config.get("moe_layers")
    if given is not None and (not isinstance(given, list) or not all(isinstance(layer, int) for layer in given)):
        raise BadSetup(f"moe_layers in config is a list of numbers of layers, not {given!r:.60}.")
    with_experts = frozenset(range(every - 1, layers, every) if given is None else given)
    kinds = [f"{name} {'experts' if layer in with_experts else 'dense'}" for layer, name in enumerate(seen)]
    return _model(config, a, kinds, made, vocabulary=202_048, positions=131_072, experts=number)


class _Mamba:
    """Sizes of a state-space mixer (Mamba 2): its state has a constant size."""

    def __init__(self, inner: int, heads: int, groups: int, state: int, kernel: int):
        if inner % heads:
            raise BadSetup(f"In config, {heads} state-space heads do not divide the inner width {inner}.")
        self.inner, self.heads, self.state, self.kernel = inner, heads, state, kernel
        self.channels = inner + 2 * groups * state

    def shapes(self, width: int, *, biased: bool, conv_biased: bool, out_biased: bool, normed: bool = True) -> Shapes:
        """The parameters of the mixer."""
        shapes = {"attention.convolution.weight": (self.channels, 1, self.kernel)}
        shapes |= {"attention.convolution.bias": (self.channels,)} if conv_biased else {}
        shapes |= _linear("attention.in", self.projected, width, biased)
        shapes |= _linear("attention.out", width, self.inner, out_biased)
        shapes |= dict.fromkeys(("attention.decay.rate", "attention.decay.bias", "attention.direct"), (self.heads,))
        return shapes | (_norm("attention.inner", self.inner) if normed else {})

    @property
    def projected(self) -> int:
        """Outputs of the first matrix: gate, input of the convolution, and time steps."""
        return self.inner + self.channels + self.heads

    def cache(self, attention: LayerCache = NOTHING, *, precise: bool) -> LayerCache:
        """The last tokens before the convolution, and the state, beside an attention's keys and values."""
        kept, state = self.channels * self.kernel, self.inner * self.state
        values = attention.values_per_token
        if precise:
            return LayerCache(values_per_token=values, state_values=kept, precise_values=state)
        return LayerCache(values_per_token=values, state_values=kept + state)


def falcon_h1_config(config: Config) -> Architecture:
    """Reads a config of Falcon-H1, whose layers have attention beside a state-space mixer."""
    a = _Attention(config, 32, 8, 4096)
    layers, d = size(config, 32, "num_hidden_layers"), a.hidden_size
    inner = size(config, 1024, "mamba_d_ssm")
    if "mamba_d_ssm" in config and config.get("mamba_d_ssm") is None:
        inner = int(size(config, 2, "mamba_expand") * d)
    mixer = _Mamba(
        inner, size(config, 128, "mamba_n_heads"), size(config, 1, "mamba_n_groups"),
        size(config, 256, "mamba_d_state"), size(config, 4, "mamba_d_conv"),
    )  # fmt: skip
    biased = flag(config, False, "attention_bias")
    shapes = {f"attention.state_space.{name}": shape for name, shape in mixer.shapes(
        d, biased=flag(config, False, "mamba_proj_bias"), conv_biased=flag(config, True, "mamba_conv_bias"),
        out_biased=flag(config, False, "projectors_bias"), normed=flag(config, False, "mamba_rms_norm"),
    ).items()}  # fmt: skip
    shapes |= a.shapes(biased=biased, out_biased=biased) | _norm("attention", d) | _norm("feed_forward", d)
    shapes |= _gated("feed_forward", d, size(config, 14_336, "intermediate_size"), flag(config, False, "mlp_bias"))
    made = {"whole": _layer(shapes, mixer.cache(a.cache(), precise=True), buffers=mixer.projected)}
    return _model(config, a, ["whole"] * layers, made, vocabulary=128_000, positions=8192)


def granite_hybrid_config(config: Config) -> Architecture:
    """Reads a config of Granite 4, most of whose layers have a state-space mixer in place of attention."""
    a = _Attention(config, 32, 0, 4096)
    layers, d = size(config, 32, "num_hidden_layers"), a.hidden_size
    mixer = _Mamba(
        int(size(config, 2, "mamba_expand") * d), size(config, 128, "mamba_n_heads"), size(config, 1, "mamba_n_groups"),
        size(config, 256, "mamba_d_state"), size(config, 4, "mamba_d_conv"),
    )  # fmt: skip
    shared = size(config, 1024, "shared_intermediate_size")
    shapes = _linear("shared.in", 2 * shared, d) | _linear("shared.out", d, shared)
    shapes |= _norm("attention", d) | _norm("feed_forward", d)
    number = 0 if config.get("num_local_experts") == 0 else size(config, 8, "num_local_experts")
    shapes |= _experts(number, d, size(config, 11_008, "intermediate_size")) if number else {}
    biased, mixed = flag(config, False, "attention_bias"), flag(config, False, "mamba_proj_bias")
    own = mixer.shapes(d, biased=mixed, conv_biased=flag(config, True, "mamba_conv_bias"), out_biased=mixed)
    made = {
        "state": _layer(shapes | own, mixer.cache(precise=True)),
        "whole": _layer(shapes | a.shapes(biased=biased, out_biased=biased), a.cache()),
    }
    rotated = config.get("position_embedding_type") == "rope"
    return _model(
        config, a, _state_kinds(config, layers, ["state"] * layers), made, vocabulary=32_000, positions=2048,
        experts=number, rotations=None if rotated else ())  # fmt: skip


def _state_kinds(config: Config, layers: int, usual: list[str]) -> list[str]:
    """The kinds of layers under `layer_types`, or under the older name `layers_block_type`."""
    names = {
        "mamba": "state", "linear_attention": "state", "attention": "whole", "full_attention": "whole", "mlp": "dense",
        "moe": "experts", "conv": "conv",
    }  # fmt: skip
    given = config.get("layer_types") or config.get("layers_block_type")
    if given is None:
        return usual
    if not isinstance(given, list) or len(given) != layers or not all(isinstance(x, str) and x in names for x in given):
        raise BadSetup(f"layer_types in config is a list of {', '.join(names)} for each of the {layers} layers.")
    return [names[kind] for kind in given]


def nemotron_h_config(config: Config) -> Architecture:
    """Reads a config of Nemotron-H, each of whose layers is a state-space mixer, attention, or a feed-forward."""
    a = _Attention(config, 32, 8, 4096, 128)
    d, pattern = a.hidden_size, config.get("hybrid_override_pattern")
    given = config.get("layer_types") or config.get("layers_block_type")
    if given is None and isinstance(pattern, str):
        signs = {"M": "state", "*": "whole", "-": "dense", "E": "experts"}
        if not pattern or set(pattern) - set(signs):
            raise BadSetup(f"hybrid_override_pattern in config has only {' '.join(signs)}, not {pattern!r:.60}.")
        kinds = [signs[sign] for sign in pattern]
    else:
        kinds = _state_kinds(
            config, len(given) if isinstance(given, list) else 4, ["state", "experts", "whole", "dense"]
        )
    heads = size(config, 128, "mamba_num_heads")
    mixer = _Mamba(
        heads * size(config, 64, "mamba_head_dim"), heads, size(config, 8, "n_groups", "mamba_n_groups"),
        size(config, 128, "ssm_state_size"), size(config, 4, "conv_kernel", "mamba_d_conv"),
    )  # fmt: skip
    biased, inner_biased = flag(config, False, "use_bias"), flag(config, False, "mlp_bias")
    conv_biased = flag(config, flag(config, True, "mamba_conv_bias"), "use_conv_bias")
    made = {
        "state": _layer(
            mixer.shapes(d, biased=biased, conv_biased=conv_biased, out_biased=biased), mixer.cache(precise=True)
        ),
        "whole": _layer(a.shapes(), a.cache()),
        "dense": _layer(_plain(d, size(config, 21_504, "intermediate_size"), inner_biased), NOTHING),
    }
    number = 0
    if "experts" in kinds:
        number = size(config, 8, "n_routed_experts", "num_local_experts")
        made["experts"] = _nemotron_experts(config, d, number, inner_biased)
    made = {
        kind: ListedLayer(shapes=(*layer.shapes, *_norm(kind, d).items()), cache=layer.cache, buffers=layer.buffers)
        for kind, layer in made.items()
    }
    # transformers does not tie its embeddings, whatever the config says.
    return _model(
        config, a, kinds, made, vocabulary=131_072, positions=4096, experts=number, rotations=(), is_tied=False
    )


def _plain(width: int, inner: int, biased: bool, name: str = "feed_forward") -> Shapes:
    return _linear(f"{name}.in", inner, width, biased) | _linear(f"{name}.out", width, inner, biased)


def _nemotron_experts(config: Config, width: int, number: int, biased: bool) -> ListedLayer:
    """Layer of experts without a gate, which may compute in a narrower space,
    and an expert that computes every token."""
    inner, narrow = size(config, 7688, "moe_intermediate_size"), width
    shapes = _plain(width, size(config, 7688, "moe_shared_expert_intermediate_size"), biased, "shared")
    if config.get("moe_latent_size") is not None:
        narrow = size(config, None, "moe_latent_size")
        shapes |= _plain(width, narrow, biased, "shared.latent")
    shapes |= {"experts.in": (number, inner, narrow), "experts.out": (number, narrow, inner)}
    return _layer(shapes | {"router.weight": (number, width)}, NOTHING, buffers=number)


def lfm2_config(config: Config) -> Architecture:
    """Reads a config of LFM2, most of whose layers have a short convolution in place of attention."""
    a = _Attention(config, 32, 8, 2560)
    layers, d = size(config, 32, "num_hidden_layers"), a.hidden_size
    inner = size(config, 12_288, "block_ff_dim", "intermediate_size")
    if flag(config, True, "block_auto_adjust_ff_dim"):
        multiple, factor = size(config, 256, "block_multiple_of"), config.get("block_ffn_dim_multiplier", 1.0)
        if factor is not None:
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 100:
                raise BadSetup(f"block_ffn_dim_multiplier in config is a number above 0, not {factor!r:.60}.")
            inner = -(-int(factor * int(2 * inner / 3)) // multiple) * multiple
        else:
            inner = int(2 * inner / 3)
    kernel, biased = size(config, 3, "conv_L_cache"), flag(config, False, "conv_bias")
    shared = _gated("feed_forward", d, inner) | _norm("attention", d) | _norm("feed_forward", d)
    mixer = {"attention.convolution.weight": (d, 1, kernel)} | ({"attention.convolution.bias": (d,)} if biased else {})
    mixer |= _linear("attention.in", 3 * d, d, biased) | _linear("attention.out", d, d, biased)
    made = {
        "conv": _layer(shared | mixer, LayerCache(state_values=d * kernel)),
        "whole": _layer(shared | a.shapes() | a.head_norms(), a.cache()),
    }
    whole = config.get("full_attn_idxs")
    if whole is not None and (not isinstance(whole, list) or not all(isinstance(layer, int) for layer in whole)):
        raise BadSetup(f"full_attn_idxs in config is a list of numbers of layers, not {whole!r:.60}.")
    usual = ["whole" if whole is None or layer in whole else "conv" for layer in range(layers)]
    is_tied = flag(config, tied(config, True), "tie_embedding")
    return _model(
        config, a, _state_kinds(config, layers, usual), made, vocabulary=65_536,
        positions=128_000, is_tied=is_tied,
    )  # fmt: skip


LISTED_READERS: dict[str, Callable[[Config], Architecture]] = {
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), gemma4_config),
    "llama4_text": llama4_config,
    "falcon_h1": falcon_h1_config,
    "granitemoehybrid": granite_hybrid_config,
    "nemotron_h": nemotron_h_config,
    "lfm2": lfm2_config,
}
"""For each `model_type`, the function that reads its config."""
