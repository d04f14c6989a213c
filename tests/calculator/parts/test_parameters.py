"""Parameter counts equal the published ones and transformers' own models, difference 0."""

import pytest

from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS, from_config
from calculator.models.decoders import DECODERS
from calculator.models.diffusion_models import DIFFUSION_MODELS
from calculator.models.other_decoders import OTHER_DECODERS
from calculator.models.picture_models import PICTURE_MODELS
from calculator.parts.parameters import count_parameters, parameters_by_part, values_in_order
from tests.calculator.recorded_steps import steps_of

PUBLISHED = {
    # released checkpoints, huggingface.co/google-bert, masked-language head on tied embeddings, without pooler
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    # released v1.0 checkpoints, huggingface.co/google-t5
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    # released checkpoints, huggingface.co/openai-community
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    # released checkpoint, huggingface.co/EleutherAI/gpt-j-6b
    "gpt-j-6b": 6_050_882_784,
    # the 2021 run: dalle-pytorch 1.6.6 built with the run's settings
    "dalle-2021": 125_894_244,
}

ROUNDED = {
    # Brown et al. 2020, arXiv:2005.14165, table 2.1, in units of the last digit given there; its "760M" and "XL" are
    # sized by the 24 heads that do not divide their widths
    "gpt3-125m": (125e6, 1e6),
    "gpt3-350m": (356e6, 1e6),
    "gpt3-1.3b": (1.3e9, 0.05e9),
    "gpt3-2.7b": (2.7e9, 0.06e9),
    "gpt3-6.7b": (6.7e9, 0.06e9),
    "gpt3-13b": (13e9, 0.5e9),
    "gpt3-175b": (175e9, 1e9),
    "dalle-12b": (12e9, 0.5e9),  # Ramesh et al. 2021, arXiv:2102.12092
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_count_equals_the_published_one(name, published):
    assert count_parameters(PRESETS[name]) == published


@pytest.mark.parametrize(("name", "published"), ROUNDED.items())
def test_count_rounds_to_the_published_one(name, published):
    value, precision = published
    assert abs(count_parameters(PRESETS[name]) - value) <= precision


@pytest.mark.parametrize("name", PRESETS)
def test_parts_add_up(name):
    assert sum(parameters_by_part(PRESETS[name]).values()) == count_parameters(PRESETS[name])


def _configs(transformers):
    for a in PRESETS.values():
        if a.family == "bert":
            yield (
                a,
                transformers.BertForMaskedLM,
                transformers.BertConfig(
                    vocab_size=a.vocab_size,
                    hidden_size=a.hidden_size,
                    num_hidden_layers=a.num_layers,
                    num_attention_heads=a.num_heads,
                    intermediate_size=a.intermediate_size,
                ),
            )
        elif a.family == "t5":
            yield (
                a,
                transformers.T5ForConditionalGeneration,
                transformers.T5Config(
                    vocab_size=a.vocab_size,
                    d_model=a.hidden_size,
                    d_kv=a.head_dim,
                    d_ff=a.intermediate_size,
                    num_layers=a.num_layers,
                    num_heads=a.num_heads,
                ),
            )
        elif a.family == "gpt2":
            yield (
                a,
                transformers.GPT2LMHeadModel,
                transformers.GPT2Config(
                    vocab_size=a.vocab_size,
                    n_positions=a.max_positions,
                    n_embd=a.hidden_size,
                    n_layer=a.num_layers,
                    n_head=a.num_heads,
                ),
            )
        elif a.family == "gptj":
            yield (
                a,
                transformers.GPTJForCausalLM,
                transformers.GPTJConfig(
                    vocab_size=a.vocab_size,
                    n_positions=a.max_positions,
                    n_embd=a.hidden_size,
                    n_layer=a.num_layers,
                    n_head=a.num_heads,
                    rotary_dim=a.rotary_dim,
                    tie_word_embeddings=False,
                ),
            )


def test_every_preset_equals_the_model_of_transformers():
    """Built on the meta device, which takes no memory; the config is read back through `from_config` as well."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    compared = 0
    for architecture, model_class, config in _configs(transformers):
        config_of_one = config.to_dict()
        layers = architecture.num_layers
        counts = []
        # a model's count grows by the same amount with each layer: two depths decide it
        for depth in (1, 2):
            shallow = type(config)(**{**config_of_one, _depth_key(config): depth, "num_decoder_layers": depth})
            with torch.device("meta"):
                counts.append(sum(parameter.numel() for parameter in model_class(shallow).parameters()))
        expected = counts[0] + (counts[1] - counts[0]) * (layers - 1)
        assert count_parameters(architecture) == expected, architecture.name
        assert count_parameters(from_config(config_of_one)) == expected, architecture.name
        compared += 1
    # The run's own model is compared below, the others in test_decoders.py, test_pictures.py and test_diffusion.py.
    others = (*DECODERS, *OTHER_DECODERS)
    assert compared == len(PRESETS) - 1 - len(others) - len(PICTURE_MODELS) - len(DIFFUSION_MODELS)


TRACED = {
    step["setup"]["config"]["model_type"]: step["setup"]["config"]
    for file in ("several_gpus", "families", "decoders")
    for step in steps_of(file)
}
"""A traced config of each model type."""


@pytest.mark.parametrize("kind", TRACED)
def test_order_is_that_of_the_real_models_parameters(kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    read = from_config(TRACED[kind])
    with torch.device("meta"):
        model = getattr(transformers, family_of(read).auto_class).from_config(
            transformers.AutoConfig.for_model(**TRACED[kind])
        )
    # Where T5 has its tables of relative positions makes no difference.
    tables = read.relative_buckets * read.num_heads
    real = [parameter.numel() for parameter in model.parameters()]
    assert [count for count in values_in_order(read) if count != tables] == [n for n in real if n != tables]


def _depth_key(config) -> str:
    return {"gpt2": "n_layer", "gptj": "n_layer", "t5": "num_layers"}.get(config.model_type, "num_hidden_layers")


def test_the_runs_model_equals_the_trainers():
    pytest.importorskip("torch")
    from training.model.transformer import TextToImageTransformer
    from training.recipe import load_recipe

    recipe = load_recipe("demo").model
    model = TextToImageTransformer(recipe)
    assert count_parameters(architecture_of(recipe)) == sum(parameter.numel() for parameter in model.parameters())


def architecture_of(recipe):
    """The calculator's architecture for a recipe's model."""
    from calculator.models.architectures import text_to_image

    return text_to_image(
        name="recipe",
        hidden_size=recipe.hidden_size,
        num_layers=recipe.num_layers,
        num_heads=recipe.num_heads,
        head_dim=recipe.head_dim,
        text_vocab_size=recipe.text_vocab_size,
        text_seq_len=recipe.text_seq_len,
        image_grid=recipe.image_grid,
        image_vocab_size=recipe.image_vocab_size,
        shared_groups=recipe.shared_groups,
        reversible=recipe.reversible,
        tied_embeddings=recipe.tied_embeddings,
        attention_cycle=recipe.attention_cycle,
        last_attention=recipe.last_attention,
    )


@pytest.mark.parametrize("groups", [1, 5, 12])
def test_sharing_counts_each_group_once(groups):
    one, all_layers = (count_parameters(PRESETS["gpt2"], shared) for shared in (1, 0))
    layer = (all_layers - one) // 11
    assert count_parameters(PRESETS["gpt2"], groups) == one + layer * (groups - 1)
