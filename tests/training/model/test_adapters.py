"""Adapters beside frozen language models, compared with peft on a model of `transformers`."""

import json
import math
import re

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from calculator.choose.devices import device_named
from calculator.swarm.collaboration import Kind
from tests.training.model.test_language import ARCHITECTURES, GATED, LENGTH, batch
from training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from training.checkpoints.facts import MODEL_FILE
from training.cli import build_app
from training.compute.choices import Wishes, choose
from training.compute.plan import make_plan
from training.errors import BadInput
from training.model.language.adapters import digest_of, draw_adapters
from training.model.language.config import AdapterConfig, LanguageModelConfig
from training.model.language.folders import build_language_model, export_adapters, export_folder, merged
from training.model.trained import count_trained, load_trained_state, trained_parameters, trained_state
from training.optim.groups import parameter_groups
from training.recipe import load_recipe, parse_recipe
from training.simulate.forecast import collaboration_of
from training.tasks.known import task_of

LAYERS = {"llama": ["k_proj", "o_proj", "q_proj", "v_proj"], "gpt2": ["c_attn", "c_fc", "c_proj"]}
"""Linear layers of a decoder, without the feed-forward ones of Llama."""


@pytest.fixture(scope="module", params=LAYERS)
def base(request, tmp_path_factory):
    """A folder with a small model, and its family."""
    folder = tmp_path_factory.mktemp(request.param)
    architecture = {"model_type": request.param} | ARCHITECTURES[request.param]
    model = build_language_model(LanguageModelConfig(architecture=architecture, block_length=LENGTH), seed=5)
    export_folder(model, folder, tokenizer_file=None)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """As wide as a block of NF4."""
    folder = tmp_path_factory.mktemp("llama")
    architecture = {"model_type": "llama"} | GATED | {"hidden_size": 64, "intermediate_size": 128}
    model = build_language_model(LanguageModelConfig(architecture=architecture, block_length=LENGTH), seed=5)
    export_folder(model, folder, tokenizer_file=None)
    return folder


def family_of(folder) -> str:
    return json.loads((folder / "config.json").read_text())["model_type"]


def digest(folder) -> str:
    from safetensors.torch import load_file

    return digest_of(load_file(folder / "model.safetensors"))


def adapter(folder, **changes) -> AdapterConfig:
    settings = {"rank": 3, "alpha": 6.0, "frozen_bits": 32, "base_digest": digest(folder)}
    return AdapterConfig(**settings | changes)


def model_of(folder) -> LanguageModelConfig:
    return LanguageModelConfig(**{"from": str(folder)}, block_length=LENGTH)


def adapted(folder, *, trained: bool = True, seed: int = 1, **changes):
    """A model with adapters; with `trained`, B is not zero, as after some updates."""
    model = build_language_model(model_of(folder), seed, adapter(folder, **changes))
    if trained:
        generator = torch.Generator().manual_seed(9)
        with torch.no_grad():
            for parameter in trained_parameters(model):
                parameter.normal_(std=0.1, generator=generator)
    return model


def recipe_text(folder, *, adapter_lines: str = "") -> str:
    return f"""
run_id = "adapted"
title = "Adapted"
task = "causal-lm"
seed = 1
[model]
from = "{folder}"
block_length = {LENGTH}
[adapter]
rank = 3
alpha = 6.0
frozen_bits = 32
base_digest = "{digest(folder)}"
{adapter_lines}
[data]
shards = "nowhere"
[swarm]
target_batch_size = 64
"""


# -- what is computed ------------------------------------------------------------------------------------------------


def test_training_begins_with_the_function_of_the_frozen_model_and_the_same_adapters_everywhere(base):
    tokens, _ = batch()
    first = adapted(base, trained=False)
    network = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        assert torch.equal(first.logits(tokens), network(tokens).logits)
    state, torch_state = trained_state(first), torch.random.get_rng_state()
    again, other = adapted(base, trained=False), adapted(base, trained=False, seed=2)
    assert torch.equal(torch_state, torch.random.get_rng_state()), "building draws from the global random numbers"
    assert all(torch.equal(tensor, trained_state(again)[name]) for name, tensor in state.items())
    assert any(not torch.equal(tensor, trained_state(other)[name]) for name, tensor in state.items())
    drawn = [tensor for name, tensor in state.items() if "lora_A" in name]
    # As `nn.Linear` draws its weights: uniform up to 1 / sqrt(in).
    for tensor in drawn:
        assert 0.5 / math.sqrt(tensor.shape[1]) < tensor.abs().max() <= 1 / math.sqrt(tensor.shape[1])


@pytest.mark.parametrize("freeze_a", [False, True])
@pytest.mark.parametrize("stored_layers", [None, 0])
def test_loss_and_gradients_are_those_of_peft(base, tmp_path, stored_layers, freeze_a):
    tokens, starts = batch()
    ours = adapted(base, targets=LAYERS[family_of(base)], freeze_a=freeze_a)
    export_adapters(ours, tmp_path / "adapters")
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters", is_trainable=True
    )
    loss = functional.cross_entropy(theirs(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    expected = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.requires_grad}
    if freeze_a:
        expected = {name: gradient for name, gradient in expected.items() if "lora_B" in name}
    found_loss = ours(tokens, torch.zeros_like(starts), stored_layers=stored_layers).loss
    # Ours also predicts nothing after the last token of a row: the same tokens count.
    found_loss.backward()
    found = {
        f"base_model.model.{name.removeprefix('network.')}": parameter.grad
        for name, parameter in ours.named_parameters()
        if parameter.requires_grad
    }
    torch.testing.assert_close(found_loss, loss, rtol=1e-6, atol=0)
    assert found.keys() == expected.keys()
    norm = torch.stack([one.norm() for one in expected.values()]).norm()
    assert all((found[name] - one).norm() <= 2e-6 * norm for name, one in expected.items())
    assert all(parameter.grad is None for parameter in ours.parameters() if not parameter.requires_grad)


def test_all_linear_layers_but_the_output_are_adapted_by_default(llama):
    theirs = get_peft_model(
        AutoModelForCausalLM.from_pretrained(llama), LoraConfig(r=3, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    assert count_trained(adapted(llama)) == theirs.get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("bits, bound", [(16, 0.01), (4, 0.05)])
def test_frozen_weights_in_fewer_bits_compute_nearly_the_same(llama, bits, bound):
    tokens, starts = batch()
    precise, low = adapted(llama), adapted(llama, frozen_bits=bits)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = low(tokens, starts).loss
    assert found.dtype == torch.float32
    stored = {parameter.dtype for parameter in low.parameters() if not parameter.requires_grad}
    assert stored == ({torch.bfloat16} if bits == 16 else {torch.bfloat16, torch.uint8})
    found.backward()
    expected = precise(tokens, starts).loss
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=bound, atol=0)
    for ours, theirs in zip(trained_parameters(low), trained_parameters(precise), strict=True):
        assert functional.cosine_similarity(ours.grad.flatten(), theirs.grad.flatten(), dim=0) > 1 - 10 * bound
    assert list(low.continue_text([1, 2, 3], new_tokens=4))


def test_only_adapters_are_trained_and_saved(llama, tmp_path):
    model = adapted(llama, frozen_bits=16)
    groups = parameter_groups(model, load_recipe("stories").optimizer)
    assert {id(one) for group in groups for one in group["params"]} == {id(one) for one in trained_parameters(model)}
    text = recipe_text(llama).replace("frozen_bits = 32", "frozen_bits = 16")
    path = save_checkpoint(tmp_path, model=model, recipe_toml=text, epoch=3, metrics={}, shards="nowhere")
    values = 4 * count_trained(model)
    assert values < (path / MODEL_FILE).stat().st_size < values + 8192
    loaded, alone = load_checkpoint(path).model, load_checkpoint(path, computes=False).model
    tokens, _ = batch()
    assert {one.device.type for one in alone.parameters() if not one.requires_grad} == {"meta"}
    assert all(torch.equal(tensor, trained_state(model)[name]) for name, tensor in trained_state(alone).items())
    with torch.no_grad():
        assert torch.equal(loaded.logits(tokens), model.eval().logits(tokens))


def test_the_trained_part_alone_takes_no_memory_for_frozen_weights(llama):
    task = task_of(parse_recipe(recipe_text(llama)))
    part, whole = task.build_trained_part(), task.build_model()
    assert {one.device.type for one in part.parameters() if not one.requires_grad} == {"meta"}
    assert all(torch.equal(tensor, trained_state(whole)[name]) for name, tensor in trained_state(part).items())
    assert len(trained_state(part)) == 2 * 7 * 2
    with torch.no_grad():
        for parameter in trained_parameters(whole):
            parameter.fill_(0.5)
    load_trained_state(whole, trained_state(part))
    assert all(torch.equal(tensor, trained_state(part)[name]) for name, tensor in trained_state(whole).items())
    draw_adapters(whole.network, 7)
    assert any(not torch.equal(tensor, trained_state(part)[name]) for name, tensor in trained_state(whole).items())


def test_with_a_frozen_only_b_is_trained_and_saved_and_a_comes_from_the_seed(llama, tmp_path):
    both, model = adapted(llama, trained=False), adapted(llama, freeze_a=True)
    first = {name: tensor for name, tensor in both.state_dict().items() if "lora_A" in name}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in first.items())
    assert trained_state(model).keys() == {name for name in trained_state(both) if "lora_B" in name}
    text = recipe_text(llama, adapter_lines="freeze_a = true")
    path = save_checkpoint(tmp_path, model=model, recipe_toml=text, epoch=3, metrics={}, shards="nowhere")
    assert (path / MODEL_FILE).stat().st_size < 4 * count_trained(model) + 8192 < 4 * count_trained(both)
    tokens, _ = batch()
    with torch.no_grad():
        assert torch.equal(load_checkpoint(path).model.logits(tokens), model.eval().logits(tokens))
    part = task_of(parse_recipe(text)).build_trained_part()
    assert all(torch.equal(tensor, part.state_dict()[name]) for name, tensor in first.items())
    assert all((one.device.type == "cpu") == ("lora_" in name) for name, one in part.named_parameters())
    load_trained_state(part, trained_state(model))


# -- to peft and transformers, and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze_a", [False, True])
@pytest.mark.parametrize("bits, bound", [(32, 1e-12), (16, 2e-4), (4, 0.03)])
def test_merged_weights_compute_the_same_in_transformers(llama, tmp_path, bits, bound, freeze_a):
    model = adapted(llama, frozen_bits=bits, freeze_a=freeze_a)
    export_folder(merged(model, 1), tmp_path / "whole", tokenizer_file=None)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert network.dtype == (torch.float32 if bits == 32 else torch.bfloat16)
    tokens, _ = batch()
    with torch.no_grad():
        expected, found = model.eval().logits(tokens).float(), network.eval()(tokens).logits.float()
    # With 4 bits, adapters were trained beside rounded weights, and are merged into those that were not.
    assert 1 - functional.cosine_similarity(found.double().flatten(), expected.double().flatten(), dim=0) < bound


@pytest.mark.parametrize("freeze_a", [False, True])
def test_adapters_go_to_peft_by_the_command(base, tmp_path, freeze_a):
    model = adapted(base, freeze_a=freeze_a)
    text = recipe_text(base, adapter_lines=f"freeze_a = {str(freeze_a).lower()}")
    checkpoint = save_checkpoint(tmp_path, model=model, recipe_toml=text, epoch=3, metrics={}, shards="nowhere")
    convert(checkpoint, tmp_path / "theirs", "--adapters")
    assert {path.name for path in (tmp_path / "theirs").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "theirs").eval()
    tokens, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model.eval().logits(tokens), rtol=1e-6, atol=1e-6)


def convert(*arguments: object) -> None:
    done = CliRunner().invoke(build_app(), ["convert", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output


# -- what is refused -------------------------------------------------------------------------------------------------


def test_another_base_is_refused_in_one_sentence(llama, tmp_path):
    with pytest.raises(BadInput, match=digest(llama)):
        build_language_model(model_of(llama), 1, adapter(llama, base_digest="0" * 64))
    with pytest.raises(BadInput, match=f'base_digest = "{digest(llama)}"'):
        build_language_model(model_of(llama), 1, adapter(llama, base_digest=None))


def test_the_digest_does_not_depend_on_the_files_but_on_each_value(llama):
    from safetensors.torch import load_file

    tensors = load_file(llama / "model.safetensors")
    backwards = dict(reversed(tensors.items()))
    assert digest_of(backwards) == digest_of(tensors)
    name = next(iter(tensors))
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] += 1e-3
    assert digest_of(tensors) != digest_of(backwards)


@pytest.mark.parametrize(
    "line, said",
    [
        ("targets = []", 'adapter.targets: give "all-linear", or a list of names'),
        ('targets = "q_proj"', 'adapter.targets: give "all-linear", or a list of names'),
        ("targets = [3]", 'adapter.targets: give "all-linear", or a list of names'),
        ('targets = ["all-linear", "q_proj"]', 'adapter.targets: "all-linear" stands alone'),
        ('targets = ["q_proj", "q_proj"]', "adapter.targets: a name is given twice"),
        # 1e308 is infinite in float32, and infinity times B, which is 0, is no number.
        ("alpha = 1e308", "adapter.alpha: Input should be less than or equal to 1000000"),
        ("alpha = 1e-320", "adapter.alpha: Input should be greater than or equal to"),
    ],
)
def test_a_wrong_adapter_is_refused_in_words(llama, line, said):
    text = "\n".join(one for one in recipe_text(llama).splitlines() if not one.startswith("alpha"))
    other = "" if line.startswith("alpha") else "alpha = 6.0\n"
    with pytest.raises(BadInput, match=re.escape(said)):
        parse_recipe(text.replace("[adapter]\n", f"[adapter]\n{other}{line}\n"))


def test_a_transposed_layer_is_not_quantized(base):
    if family_of(base) == "gpt2":
        with pytest.raises(BadInput, match="transposed"):
            adapted(base, frozen_bits=4)
        text = recipe_text(base).replace("frozen_bits = 32", "frozen_bits = 4")
        with pytest.raises(BadInput, match="transposed"):
            task_of(parse_recipe(text)).on_paper()


# -- what it takes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freeze_a", [False, True])
def test_plans_and_choices_count_what_is_trained(llama, freeze_a):
    text = recipe_text(llama, adapter_lines=f"freeze_a = {str(freeze_a).lower()}")
    run = parse_recipe(text.replace("frozen_bits = 32", "frozen_bits = 16"))
    choices = choose(task_of(run), Wishes())
    assert choices.precision == "bfloat16"
    with pytest.raises(BadInput, match="--precision"):
        choose(task_of(run), Wishes(precision="float32"))
    plan = make_plan(task_of(run), choices.machine, precision=choices.precision)
    model = task_of(run).build_model()
    assert plan.trained_parameters == count_trained(model) == plan.estimate.trained_parameters
    assert plan.parameters == sum(parameter.numel() for parameter in model.parameters())
    stored = sum(parameter.numel() * parameter.itemsize for parameter in model.parameters())
    # Each tensor takes whole blocks of 512 bytes.
    assert stored <= plan.estimate.gpu.weights <= stored + 512 * len(list(model.parameters()))
    # Copy and gradient in float32, moments, and what one update takes; of a frozen weight, nothing.
    assert 10 * plan.trained_parameters <= plan.host_bytes <= 24 * plan.trained_parameters < 4 * plan.parameters


def test_the_7b_recipe_is_planned_and_simulated_without_its_weights_and_exchanges_little():
    """The hub is not asked: the recipe has the architecture."""
    run = load_recipe("lora-7b")
    plan = make_plan(task_of(run), device_named("t4"), micro_batch_size=1)
    assert plan.fits and plan.parameters > 7e9
    assert run.adapter.rank == 16 and run.adapter.freeze_a
    # B (r, out) beside query and value in each of 32 layers; Mistral's keys and values are a quarter as wide.
    assert plan.trained_parameters == 32 * 16 * (4096 + 1024)
    for peers in (2, 100):
        swarm = collaboration_of(run, [Kind(count=peers, gpu="t4")])
        assert swarm.exchange().parameters == plan.trained_parameters
        # All that a peer sends in an epoch: its gradients, the averages that it returns, and its share of the rounds
        # that average adapters.
        assert 0 < swarm.forecast().sent_bytes <= 10e6
    # A (r, in) as well
    trained = make_plan(task_of(with_a_trained(run)), device_named("t4"), micro_batch_size=1).trained_parameters
    assert trained == plan.trained_parameters + 32 * 16 * (4096 + 4096)


def with_a_trained(run):
    return run.model_copy(update={"adapter": run.adapter.model_copy(update={"freeze_a": False})})
