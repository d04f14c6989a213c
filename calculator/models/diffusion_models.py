"""The diffusion transformers of diffusers: their presets, and any of the two classes from a `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture
from calculator.models.config_values import even, flag, size, switched_off
from calculator.models.picture_models import sides, with_picture

LATENT_SCALE = 8
"""Pixels of a side for each latent (diffusers, AutoencoderKL of Stable Diffusion 3 and of Flux)."""
PACKED_LATENTS = 2
"""Latents of a side that are one token of Flux (diffusers, FluxPipeline._pack_latents)."""
USUAL_SIDE = 1024
"""Pixels of a picture's side (diffusers, FluxPipeline and StableDiffusion3Pipeline, default_sample_size)."""
FLUX_TEXT = 512
"""Tokens of T5 (diffusers, FluxPipeline, max_sequence_length)."""
SD3_TEXT = 333
"""Tokens of CLIP, 77, and of T5, 256 (diffusers, StableDiffusion3Pipeline, max_sequence_length)."""


def _diffusion(
    name: str,
    family: str,
    *,
    kinds: tuple[str, ...],
    num_heads: int,
    head_dim: int,
    sides: tuple[int, int] = (USUAL_SIDE, USUAL_SIDE),
    head_norms: bool = True,
    **sizes: int,
) -> Architecture:
    """Makes the architecture of a diffusion transformer.

    Args:
        name: Name of the preset, or of the config.
        family: "flux" or "sd3".
        kinds: The kind of each layer; see the module of the family.
        num_heads: Heads of attention.
        head_dim: Width of a head.
        sides: Height and width of a picture in pixels.
        head_norms: Whether queries and keys are normalized by head.
        sizes: Further fields of `Architecture`.
    """
    model = Architecture(
        name=name,
        family=family,
        hidden_size=num_heads * head_dim,
        num_layers=len(kinds),
        num_heads=num_heads,
        head_dim=head_dim,
        intermediate_size=4 * num_heads * head_dim,
        vocab_size=0,
        activation="gelu_tanh",
        dropout=0.0,
        attention_dropout=0.0,
        tied_embeddings=False,
        head_norms=head_norms,
        attention_cycle=kinds,
        **sizes,
    )
    return with_picture(model, *sides)


def _flux(name: str, layers: int, single_layers: int, **sizes) -> Architecture:
    return _diffusion(
        name,
        "flux",
        kinds=("double",) * layers + ("single",) * single_layers,
        sequence_length=FLUX_TEXT,
        patch_size=PACKED_LATENTS * LATENT_SCALE,
        **sizes,
    )


def _sd3(name: str, layers: int, dual: tuple[int, ...], patch: int, out_channels: int, **sizes) -> Architecture:
    return _diffusion(
        name,
        "sd3",
        kinds=_kinds(layers, dual),
        sequence_length=SD3_TEXT,
        patch_size=patch * LATENT_SCALE,
        output_channels=patch**2 * out_channels,
        **sizes,
    )


def _kinds(layers: int, dual: tuple[int, ...]) -> tuple[str, ...]:
    """The kind of each layer of Stable Diffusion 3; see `calculator.families.pictures.sd3`.

    >>> _kinds(3, (0,))
    ('dual', 'joint', 'last')
    """
    names = {(False, False): "joint", (True, False): "dual", (False, True): "last", (True, True): "end"}
    return tuple([names[index in dual, index == layers - 1] for index in range(layers)])


DIFFUSION_MODELS: tuple[Architecture, ...] = (
    # Released checkpoints: huggingface.co/black-forest-labs/FLUX.1-dev, stabilityai/stable-diffusion-3-medium-diffusers
    _flux(
        "flux-dev", 19, 38, num_heads=24, head_dim=128, channels=64, output_channels=64, text_width=4096,
        pooled_width=768, guided=True,
    ),
    _sd3(
        "sd3-medium", 24, (), 2, 16, num_heads=24, head_dim=64, channels=16, text_width=4096, pooled_width=2048,
        position_grid=192, head_norms=False,
    ),
)  # fmt: skip


def flux_config(config: Mapping[str, object]) -> Architecture:
    """Reads the config of a FluxTransformer2DModel."""
    head_dim = even(config, 128, "attention_head_dim")
    axes = config.get("axes_dims_rope", (16, 56, 56))
    if not isinstance(axes, list | tuple) or [n for n in axes if not _is_even(n)] or sum(axes) != head_dim:
        raise BadSetup(
            f"axes_dims_rope in config is a list of even numbers whose sum is attention_head_dim, {head_dim}, not "
            f"{axes!r:.60}."
        )
    channels, patch = size(config, 64, "in_channels"), size(config, 1, "patch_size")
    return _flux(
        "config (flux)",
        size(config, 19, "num_layers"),
        size(config, 38, "num_single_layers"),
        num_heads=size(config, 24, "num_attention_heads"),
        head_dim=head_dim,
        channels=channels,
        output_channels=patch**2 * size(config, channels, "out_channels"),
        text_width=size(config, 4096, "joint_attention_dim"),
        pooled_width=size(config, 768, "pooled_projection_dim"),
        guided=flag(config, False, "guidance_embeds"),
        sides=sides(config, USUAL_SIDE),
    )


def _is_even(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0 and value % 2 == 0


def sd3_config(config: Mapping[str, object]) -> Architecture:
    """Reads the config of an SD3Transformer2DModel."""
    if config.get("qk_norm") not in (None, "rms_norm"):
        raise BadSetup(f"qk_norm in config is null or 'rms_norm', not {config['qk_norm']!r:.60}.")
    heads, head_dim = size(config, 18, "num_attention_heads"), size(config, 64, "attention_head_dim")
    switched_off(config, caption_projection_dim=heads * head_dim)
    layers, channels = size(config, 18, "num_layers"), size(config, 16, "in_channels")
    dual = config.get("dual_attention_layers") or ()
    if not isinstance(dual, list | tuple) or not all(isinstance(n, int) and 0 <= n < layers for n in dual):
        raise BadSetup(f"dual_attention_layers in config is a list of layers from 0 to {layers - 1}, not {dual!r:.60}.")
    return _sd3(
        "config (sd3)",
        layers,
        tuple(dual),
        size(config, 2, "patch_size"),
        size(config, channels, "out_channels"),
        num_heads=heads,
        head_dim=head_dim,
        channels=channels,
        text_width=size(config, 4096, "joint_attention_dim"),
        pooled_width=size(config, 2048, "pooled_projection_dim"),
        position_grid=size(config, 96, "pos_embed_max_size"),
        head_norms=config.get("qk_norm") is not None,
        sides=sides(config, LATENT_SCALE * size(config, 128, "sample_size")),
    )


DIFFUSION_READERS: dict[str, Callable[[Mapping[str, object]], Architecture]] = {
    "FluxTransformer2DModel": flux_config,
    "SD3Transformer2DModel": sd3_config,
}
"""For each class of diffusers, which its config names as `_class_name`, the function that reads its config."""
