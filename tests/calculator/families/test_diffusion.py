"""Diffusion transformers: parameters and operations equal those of diffusers, and what cannot be done is refused."""

from dataclasses import replace

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.flops import forward_flops
from calculator.models.architectures import PRESETS, from_config
from calculator.parts.parameters import count_parameters, parameter_tensors
from tests.calculator.recorded_steps import assert_equal_when_traced_again, steps_of

PUBLISHED = {
    # released checkpoints, huggingface.co/black-forest-labs/FLUX.1-dev and stabilityai/stable-diffusion-3-medium
    "flux-dev": 11_901_408_320,
    "sd3-medium": 2_028_328_000,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel", "in_channels": 8, "num_layers": 2, "num_single_layers": 3,
    "attention_head_dim": 16, "num_attention_heads": 3, "joint_attention_dim": 24, "pooled_projection_dim": 20,
    "guidance_embeds": True, "axes_dims_rope": [4, 6, 6],
}  # fmt: skip
SD3 = {
    "_class_name": "SD3Transformer2DModel", "sample_size": 8, "in_channels": 4, "out_channels": 4, "num_layers": 3,
    "attention_head_dim": 16, "num_attention_heads": 3, "joint_attention_dim": 24, "caption_projection_dim": 48,
    "pooled_projection_dim": 20, "pos_embed_max_size": 6,
}  # fmt: skip
CONFIGS = (
    FLUX,
    {**FLUX, "guidance_embeds": False, "patch_size": 2},
    SD3,
    {**SD3, "qk_norm": "rms_norm", "out_channels": None},
    {**SD3, "dual_attention_layers": [0, 2], "qk_norm": "rms_norm", "patch_size": 1, "pos_embed_max_size": 8},
)


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_count_equals_the_published_one(name, published):
    assert count_parameters(PRESETS[name]) == published


def _model(config: dict):
    diffusers = pytest.importorskip("diffusers")
    values = {key: value for key, value in config.items() if key != "_class_name"}
    return getattr(diffusers, config["_class_name"])(**values)


@pytest.mark.parametrize("config", CONFIGS)
def test_parameters_equal_the_model_of_diffusers(config):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = _model(config)
    read = from_config(config)
    shapes = [tensor.shape for tensor in parameter_tensors(read) for _ in range(tensor.copies)]
    assert sorted(shapes) == sorted(tuple(parameter.shape) for parameter in model.parameters())
    # As diffusers writes it, with all of its keys.
    assert from_config({**model.config, "_class_name": config["_class_name"]}) == read


@pytest.mark.parametrize("config", CONFIGS)
def test_operations_equal_those_that_torch_counts(config):
    torch = pytest.importorskip("torch")
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    a, model, tokens = from_config({**config, "image_size": 48}), _model(config), 10
    given = {
        "encoder_hidden_states": torch.zeros(1, tokens, 24),
        "pooled_projections": torch.zeros(1, 20),
        "timestep": torch.zeros(1),
    }
    if a.family == "flux":
        given |= {"hidden_states": torch.zeros(1, a.image_tokens, 8)}
        given |= {"txt_ids": torch.zeros(tokens, 3), "img_ids": torch.zeros(a.image_tokens, 3)}
        given |= {"guidance": torch.zeros(1)} if a.guided else {}
    else:
        given |= {"hidden_states": torch.zeros(1, 4, 6, 6)}
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model(**given)
    assert forward_flops(a, tokens) == counter.get_total_flops()


@pytest.mark.exhaustive
@pytest.mark.compiler
@pytest.mark.parametrize("kind", ["FluxTransformer2DModel", "SD3Transformer2DModel"])
@pytest.mark.parametrize(("file", "name"), [("pictures", "diffusion"), ("adapters", "diffusion-lora")])
def test_a_recorded_step_is_traced_again(file, name, kind, tmp_path):
    pytest.importorskip("diffusers")
    steps = steps_of(file, name)
    of_this_class = [step for step in steps if step["setup"]["config"]["_class_name"] == kind]
    assert_equal_when_traced_again(of_this_class[:2], tmp_path)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_recording_holds_for_other_sizes(config):
    from calculator.step import timeline

    setups = [
        Setup(config=config, micro_batch_size=batch, image_size=side, sequence_length=length, precision=precision)
        for precision in ("fp32", "amp-bf16", "bf16")
        for batch in (1, 2, 3)
        for side, length in ((16, 1), (48, 7))
    ]
    found = [estimate(setup).gpu for setup in setups]
    for setup, gpu in zip(setups, found, strict=True):
        timeline.play.cache_clear()
        timeline._recordings.cache_clear()
        assert estimate(setup).gpu == gpu, setup


def test_layers_that_cost_the_same_are_played_once():
    """Every layer played gives the same step."""
    from calculator.step.play import _options
    from calculator.step.resolve import training_of
    from calculator.step.timeline import play

    for config in (FLUX, SD3):
        for checkpointing in (False, True):
            deep = {"num_layers": 6} | ({"num_single_layers": 6} if config is FLUX else {})
            setup = Setup(config={**config, **deep}, image_size=32, checkpointing=checkpointing, micro_batch_size=2)
            training = training_of(setup)
            architecture, options = training.architecture, _options(training, 4)
            folded, whole = play(architecture, options), play(architecture, replace(options, folded=False))
            assert folded.after_forward[:5] == whole.after_forward[:5]
            for phase in ("forward", "backward"):
                peaks = [
                    max(instant.levels.live for instant in timeline.instants if instant.phase == phase)
                    for timeline in (folded, whole)
                ]
                assert peaks[0] == peaks[1], (config, checkpointing, phase)


REFUSED_CONFIGS = {
    "axes_dims_rope in config is a list of even numbers whose sum is attention_head_dim, 16, not [4, 6].": {
        **FLUX, "axes_dims_rope": [4, 6],
    },
    "attention_head_dim in config is an even number, not 15.": {**FLUX, "attention_head_dim": 15},
    "qk_norm in config is null or 'rms_norm', not 'layer_norm'.": {**SD3, "qk_norm": "layer_norm"},
    "caption_projection_dim in config is only supported as 48, not 32.": {**SD3, "caption_projection_dim": 32},
    "dual_attention_layers in config is a list of layers from 0 to 2, not [3].": {**SD3, "dual_attention_layers": [3]},
    "A picture of 8 x 8 pixels has no patch of 16 x 16; give image_size 16 or more.": {**SD3, "image_size": 8},
    "config (sd3) has a table of 6 x 6 positions, for pictures of up to 96 x 96 pixels, not 112 x 112; give a smaller "
    "image_size.": {**SD3, "image_size": 112},
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "config"), REFUSED_CONFIGS.items())
def test_a_wrong_config_is_refused_in_a_sentence(sentence, config):
    with pytest.raises(BadSetup) as refused:
        from_config(config)
    assert str(refused.value) == sentence


REFUSED = {
    "diffusers builds flux-dev without dropout; omit dropout.": {"dropout": 0.1},
    "diffusers checkpoints all blocks of a model or none; checkpointing of flux-dev is true or false, not 2.": {
        "checkpointing": 2
    },
    "Layers of flux-dev have different weights; omit shared_groups.": {"shared_groups": 2},
    "FSDP2 is not counted for flux-dev; choose sharding zero-1 or none.": {"gpus": 2, "sharding": "zero-3"},
    "Tensor parallelism is counted for Llama": {"gpus": 2, "sharding": "tensor"},
    "QLoRA is not counted for flux-dev; choose LoRA with base_bits 16 or 32.": {"lora_rank": 8, "base_bits": 4},
    "GaLore is counted for Gemma, Llama": {"optimizer": "galore"},
    "Reversible layers exist for the text-to-image family only, not for flux-dev.": {"reversible": True},
    "target_length is for models with an encoder and a decoder (T5); flux-dev has one stack.": {"target_length": 8},
}


@pytest.mark.parametrize(("sentence", "values"), REFUSED.items())
def test_what_is_not_counted_is_refused_in_a_sentence(sentence, values):
    with pytest.raises(BadSetup) as refused:
        estimate(Setup(model="flux-dev", **values))
    assert str(refused.value).startswith(sentence) and str(refused.value).endswith(".")


@pytest.mark.parametrize(
    "values",
    [
        {"gpus": 2, "sharding": "zero-1"}, {"gpus": 4}, {"accumulation_steps": 4}, {"attention": "eager"},
        {"offload_optimizer": True, "delta_rule": True}, {"optimizer": "paged-adamw8bit"}, {"embeddings_32bit": True},
    ],
)  # fmt: skip
def test_other_techniques_are_answered(values):
    result = estimate(Setup(model="sd3-medium", **values))
    assert result.gpu.total == max(instant.bytes for instant in result.timeline)
    assert any("only the transformer is counted" in note for note in result.notes)


def test_a_picture_is_cut_to_whole_patches_and_eager_attention_makes_no_difference():
    plain = estimate(Setup(model="flux-dev", image_size=512, checkpointing=True))
    assert estimate(Setup(model="flux-dev", image_size=527, checkpointing=True)).gpu == plain.gpu
    eager = estimate(Setup(model="flux-dev", image_size=512, checkpointing=True, attention="eager"))
    assert eager.gpu == plain.gpu and any("make no difference" in note for note in eager.notes)
