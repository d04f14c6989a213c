"""The tasks that a recipe can name."""

import pytest
import torch

from calculator.models.architectures import from_config
from training.compute.micro_batches import MicroBatches
from training.errors import BadInput
from training.recipe import TEXT_TO_IMAGE, load_recipe, parse_recipe, read_recipe, recipe_names
from training.tasks.known import TASKS, task_of
from training.tasks.shape import shape_of


def with_task(task: str, recipe: str = "demo") -> str:
    return f'task = "{task}"\n{read_recipe(recipe)}'


def test_each_recipe_of_the_project_has_a_task_with_its_name():
    for name in recipe_names():
        run = load_recipe(name)
        task = task_of(run)
        assert task.name == run.task and type(run) is task.run_config
    assert {task_of(load_recipe(name)).name for name in recipe_names()} == set(TASKS)


@pytest.mark.parametrize("name", recipe_names())
def test_the_recipe_alone_says_what_the_task_tells_the_calculator(name):
    """The task reads the configuration that `transformers` completes, the recipe has only what its author wrote."""
    run = load_recipe(name)
    task, shape = task_of(run), shape_of(run)
    assert from_config(shape.config) == from_config(task.calculator_config())
    assert (shape.seq_len, shape.reversible) == (task.seq_len, task.reversible)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "gptj", "phi3"])
def test_what_an_architecture_leaves_out_is_the_same_for_the_calculator_as_for_transformers(family):
    sizes = {"vocab_size": 60, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
    sizes |= {"gpt2": {}, "gptj": {"rotary_dim": 4}}.get(family, {"num_key_value_heads": 2})
    lines = "".join(f"{key} = {value}\n" for key, value in {"model_type": f'"{family}"', **sizes}.items())
    kept = read_recipe("stories").split("[model.architecture]")
    rest = kept[1][kept[1].index("[data]") :]
    run = parse_recipe(f"{kept[0]}[model.architecture]\n{lines}\n{rest}")
    assert from_config(shape_of(run).config) == from_config(task_of(run).calculator_config())


def test_a_recipe_that_names_no_task_draws_pictures():
    assert load_recipe("demo").task == TEXT_TO_IMAGE
    assert parse_recipe(with_task(TEXT_TO_IMAGE)) == load_recipe("demo")


@pytest.mark.parametrize("task", ["", "wider", "os:system", "training.tasks.causal_lm:CausalLanguageModel"])
def test_an_unknown_task_is_refused_by_name(task):
    with pytest.raises(BadInput, match="causal-lm or text-to-image") as refused:
        parse_recipe(with_task(task))
    assert repr(task) in str(refused.value)


def test_a_task_of_another_type_is_refused():
    with pytest.raises(BadInput, match="causal-lm or text-to-image"):
        parse_recipe("task = [1, 2]\n" + read_recipe("demo"))


@pytest.mark.parametrize("name", recipe_names())
def test_an_example_is_what_the_model_takes(name):
    """A step on made-up samples gives a loss and a gradient of every parameter."""
    run = load_recipe(name)
    task = task_of(run)
    paper = task.on_paper()
    assert all(parameter.device.type == "meta" for parameter in paper.parameters())
    assert task.computing_parameters >= sum(parameter.numel() for parameter in paper.parameters())
    batch = task.example(3)
    assert len(batch) == 3 and all(len(tensor) == 3 for tensor in batch.inputs)
    if sum(parameter.numel() for parameter in paper.parameters()) > 20_000_000:
        return
    model = task.build_model()
    micro_batches = MicroBatches(model, micro_batch_size=2, activation_budget_bytes=None, precision="float32")
    losses = [piece.loss for piece in micro_batches.gradients_of(batch)]
    assert len(losses) == 2 and all(loss > 0 for loss in losses)
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    again = task.build_model().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in task.build_model().state_dict().items())
