"""Models of pictures: parameters equal those of transformers, and so does what ViT keeps for backward."""

import random

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.flops import forward_flops
from calculator.models.architectures import PRESETS, from_config
from calculator.parts.parameters import count_parameters
from tests.calculator.recorded_steps import assert_equal_when_traced_again, steps_of

PUBLISHED = {
    # released checkpoints, huggingface.co/google/vit-base-patch16-224 and vit-large-patch16-224
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
}
SMALL = {
    "model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 72,
    "image_size": [40, 24], "patch_size": 8, "num_labels": 7,
}  # fmt: skip


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_count_equals_the_published_one(name, published):
    assert count_parameters(PRESETS[name]) == published


def test_a_larger_picture_has_a_longer_table_of_positions():
    """The released vit-large-patch16-384."""
    assert estimate(Setup(model="vit-large", image_size=384)).parameters == 304_715_752


def _model(config: dict):
    transformers = pytest.importorskip("transformers")
    values = {key: value for key, value in config.items() if key != "model_type"}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**values))


@pytest.mark.parametrize("config", [SMALL, {**SMALL, "qkv_bias": False, "image_size": 33}, {"model_type": "vit"}])
def test_parameters_equal_the_model_of_transformers(config):
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = _model(config)
    read = from_config(config)
    assert count_parameters(read) == sum(parameter.numel() for parameter in model.parameters())
    # As transformers writes it, with its own names and the names of all classes.
    assert from_config(model.config.to_dict()) == read


def test_operations_equal_those_that_torch_counts():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    model = _model({**SMALL, "attn_implementation": "eager"})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 3, 40, 24))
    assert forward_flops(from_config(SMALL)) == counter.get_total_flops()


@pytest.mark.parametrize("seed", range(12))
def test_saved_activations_equal_those_of_transformers(seed):
    torch = pytest.importorskip("torch")
    from tests.calculator.tape.test_saved_activations import CudaRules, saved_bytes

    draw = random.Random(f"pictures {seed}")
    config = {
        **SMALL, "hidden_act": draw.choice(["gelu", "relu", "gelu_new"]), "qkv_bias": draw.random() < 0.5,
        "hidden_dropout_prob": draw.choice([0.0, 0.1]), "attention_probs_dropout_prob": draw.choice([0.0, 0.1]),
    }  # fmt: skip
    batch, precision = draw.randint(1, 3), draw.choice(["fp32", "amp-bf16", "bf16"])
    attention = draw.choice(["eager", "sdpa"])
    model = _model({**config, "attn_implementation": attention}).train()
    if precision == "bf16":
        model = model.to(torch.bfloat16)

    def run(model):
        pictures, labels = torch.zeros(batch, 3, 40, 24), torch.zeros(batch, dtype=torch.long)
        return (pictures, labels), model(pixel_values=pictures, labels=labels).loss

    expected = saved_bytes(model, run, CudaRules(torch.bfloat16 if precision == "amp-bf16" else None))
    setup = Setup(config=config, micro_batch_size=batch, precision=precision, attention=attention)
    assert estimate(setup).saved_activations == expected, setup


@pytest.mark.exhaustive
@pytest.mark.compiler
def test_recorded_steps_are_traced_again(tmp_path):
    """By the program that draws such steps; one with an optimizer on the host, one whose update is the peak, and one
    with adapters."""
    pytest.importorskip("peft")
    plain, adapted = steps_of("pictures", "vit"), steps_of("adapters", "vit-lora")
    assert_equal_when_traced_again([plain[0], plain[2], adapted[0]], tmp_path)


def test_a_recording_holds_for_other_sizes():
    """One picture, or one patch, has other events than several."""
    from calculator.step import timeline

    setups = [
        Setup(config=SMALL, micro_batch_size=batch, image_size=side, precision=precision, checkpointing=True)
        for precision in ("fp32", "amp-bf16")
        for batch in (1, 2, 3)
        for side in (8, 16, 40)
    ]
    found = [estimate(setup).gpu for setup in setups]
    for setup, gpu in zip(setups, found, strict=True):
        timeline.play.cache_clear()
        timeline._recordings.cache_clear()
        assert estimate(setup).gpu == gpu, setup


REFUSED = {
    "image_size in config is at most 16384 pixels, not 20000.": {"image_size": 20_000},
    "A picture of 4 x 4 pixels has no patch of 8 x 8; give image_size 8 or more.": {"image_size": 4},
    "ViT is counted for two classes or more; give num_labels 2 or more in config.": {"num_labels": 1},
    "id2label in config is an object with the name of each class, not 'cat'.": {"num_labels": None, "id2label": "cat"},
    "problem_type in config is only supported as": {"problem_type": "regression"},
}


@pytest.mark.parametrize(("sentence", "values"), REFUSED.items())
def test_a_wrong_config_is_refused_in_a_sentence(sentence, values):
    with pytest.raises(BadSetup, match=sentence[:40]) as refused:
        from_config({**SMALL, **values})
    assert str(refused.value).startswith(sentence) and str(refused.value).endswith(".")


def test_what_pictures_decide_is_refused_as_a_choice():
    with pytest.raises(BadSetup, match="sequence_length of vit-large is fixed at 197 by the size of its pictures"):
        estimate(Setup(model="vit-large", sequence_length=128))
    with pytest.raises(BadSetup, match="image_size is for models of pictures, which gpt2 is not"):
        estimate(Setup(model="gpt2", image_size=224))
    with pytest.raises(BadSetup, match="FSDP2 is not counted for vit-base; choose sharding zero-1 or none"):
        estimate(Setup(model="vit-base", gpus=2, sharding="zero-3"))
