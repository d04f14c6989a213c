"""Language models compared with `transformers` itself, and their loss with PyTorch's cross entropy."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from training.compute.choices import _kernels
from training.data.store.text_tokenizer import TextTokenizer
from training.errors import BadInput, TrainingError
from training.model.language.architecture import EAGER, FAMILIES, attention_of, read_architecture
from training.model.language.config import LanguageModelConfig
from training.model.language.folders import build_language_model, export_folder
from training.model.language.loss import Head, next_token_loss, piece_tokens
from training.model.language.model import LanguageModel, document_positions
from training.optim.config import OptimizerConfig
from training.optim.groups import parameter_groups
from training.section import MOST_LAYERS

LENGTH, VOCABULARY = 40, 97
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
GATED = SIZES | dict(intermediate_size=48, num_key_value_heads=2, max_position_embeddings=64)
OLD = SIZES | dict(max_position_embeddings=64)
NO_DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
WINDOWS = dict(sliding_window=6, layer_types=["sliding_attention", "full_attention"])
ENDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
ARCHITECTURES = {
    "llama": GATED | dict(rope_parameters=dict(rope_type="default", rope_theta=5000.0)),
    "qwen2": GATED | dict(tie_word_embeddings=True),
    "qwen3": GATED | dict(head_dim=12),
    "mistral": GATED | dict(sliding_window=6),
    "gemma": GATED | dict(head_dim=8),
    "gemma2": GATED | WINDOWS | dict(head_dim=8, final_logit_softcapping=0.5, attn_logit_softcapping=0.7),
    "gemma3_text": GATED | WINDOWS | dict(head_dim=8),
    "gpt2": OLD | NO_DROPOUT,
    "gptj": OLD | NO_DROPOUT | dict(rotary_dim=4),
    "smollm3": GATED | ENDS,
    "phi3": GATED | ENDS,
    "olmo2": GATED | ENDS,
}
"""Small models with what is special of each family: tied embeddings, windows, bounded logits, biases."""
EXACT = 2e-6
"""Relative to the norm of all gradients. `transformers` computes norms, rotations and some softmaxes in 32 bits
whatever the weights' type is."""


def recipe(family: str, **changes) -> LanguageModelConfig:
    architecture = {"model_type": family} | ARCHITECTURES[family]
    return LanguageModelConfig(**{"architecture": architecture, "block_length": LENGTH} | changes)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Two blocks: documents longer than the window, of one token, at the end, and going on from the last block."""
    tokens = torch.randint(VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(3))
    starts = torch.zeros(2, LENGTH, dtype=torch.bool)
    starts[0, [0, 11, 12, LENGTH - 1]] = True
    starts[1, [17, 30]] = True
    return tokens, starts


def documents(tokens: torch.Tensor, starts: torch.Tensor) -> list[torch.Tensor]:
    numbers = starts.cumsum(1)
    return [
        row[number == one] for row, number in zip(tokens, numbers, strict=True) for one in number.unique_consecutive()
    ]


def plain(model: LanguageModel) -> torch.nn.Module:
    """The same weights in the class of `transformers` as it is, in float64."""
    config = read_architecture(model.config.architecture)
    network = AutoModelForCausalLM.from_config(config, attn_implementation=attention_of(config)).double()
    network.load_state_dict(model.network.state_dict())
    return network


def plain_loss(network, texts: list[torch.Tensor]) -> torch.Tensor:
    """Mean over the predicted tokens of texts, each run alone."""
    sums = [
        functional.cross_entropy(network(input_ids=text[None]).logits[0, :-1], text[1:], reduction="sum")
        for text in texts
        if len(text) > 1
    ]
    return sum(sums) / sum(len(text) - 1 for text in texts)


def larger(model: LanguageModel) -> LanguageModel:
    """The model with larger weights: with its first ones, texts repeat a single id."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 5
    return model


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], bound: float) -> None:
    assert found.keys() == expected.keys()
    norm = torch.stack([one.norm() for one in expected.values()]).norm()
    assert norm > 0
    for name, one in expected.items():
        assert (found[name] - one).norm() <= bound * norm, name


def test_all_families_that_are_offered_are_tested():
    assert set(ARCHITECTURES) == set(FAMILIES)
    assert set(EAGER) <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_those_of_transformers(family):
    model = build_language_model(recipe(family), seed=1).double()
    tokens, starts = batch()
    network = plain(model)
    expected = plain_loss(network, documents(tokens, starts))
    expected.backward()
    losses = model(tokens, starts)
    losses.loss.backward()
    assert losses.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_close(gradients(model.network), gradients(network), EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_layers_give_the_same_gradients(family):
    # With dropout where there is any: the random numbers are drawn again.
    architecture = {name: value for name, value in ARCHITECTURES[family].items() if name not in NO_DROPOUT}
    model = build_language_model(recipe(family, architecture={"model_type": family} | architecture), seed=1)
    found, ran = [], []
    for layer in model._layers:
        inner = next(getattr(layer, name) for name in ("self_attn", "attn", "attention") if hasattr(layer, name))
        inner.register_forward_pre_hook(lambda *_: ran.append(1))
    for stored_layers in (None, 1, 0):
        model.zero_grad()
        ran.clear()
        torch.manual_seed(0)
        model(*batch(), stored_layers=stored_layers).loss.backward()
        found.append(gradients(model.network))
        assert len(ran) == 2 * model.num_layers - (2 if stored_layers is None else stored_layers)
    assert_close(found[1], found[0], 1e-6)
    assert_close(found[2], found[0], 1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers_and_of_the_model_without_a_cache(family):
    model = larger(build_language_model(recipe(family), seed=2))
    ids = [5, 90, 7, 33, 61, 8, 2]
    found = list(model.continue_text(ids, new_tokens=12, top_k=1))
    network, start = model.network.eval(), torch.tensor([ids])
    whole = dict(attention_mask=torch.ones_like(start), max_new_tokens=12, min_new_tokens=12)
    generated = network.generate(start, **whole, do_sample=False, pad_token_id=0, eos_token_id=None)
    assert found == generated[0, len(ids) :].tolist()
    for drawn in found:
        with torch.no_grad():
            assert model.logits(torch.tensor([ids]))[0, -1].argmax() == drawn
        ids = [*ids, drawn]


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_in_pieces_is_pytorchs_cross_entropy(softcap, tied):
    generator = torch.Generator().manual_seed(0)
    weight, ids = torch.randn(50, 24, generator=generator, dtype=torch.float64), torch.arange(150) % 50
    hidden, bias = torch.randn(150, 24, generator=generator).double(), torch.randn(50, generator=generator).double()
    counted, labels = torch.rand(150, generator=generator) < 0.7, torch.randint(50, (150,), generator=generator)
    assert len(hidden) > 2 * piece_tokens(weight)

    def run(loss_of) -> tuple:
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        inputs = leaves[0] + functional.embedding(ids, leaves[1]) if tied else leaves[0]
        loss = 3 * loss_of(inputs, *leaves[1:])
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    def expected(inputs, weight, bias):
        logits = functional.linear(inputs, weight, bias)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        return functional.cross_entropy(logits[counted], labels[counted])

    def ours(inputs, weight, bias):
        head = Head(weight=weight, bias=bias, softcap=softcap)
        return next_token_loss(inputs, head, labels, counted, dtype=torch.float64)

    for found, true in zip(run(ours), run(expected), strict=True):
        torch.testing.assert_close(found, true, rtol=1e-12, atol=1e-14)


def test_a_block_without_predictions_has_a_loss_of_0():
    model = build_language_model(recipe("llama"), seed=1)
    tokens, starts = batch()
    loss = model(tokens, torch.ones_like(starts)).loss
    loss.backward()
    assert loss.item() == 0
    assert not any(gradient.any() for gradient in gradients(model.network).values())


class Sizes(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        for one in results if isinstance(results, tuple | list) else [results]:
            if isinstance(one, torch.Tensor):
                self.largest = max(self.largest, one.numel())
        return results


def test_logits_are_never_whole():
    family = {"model_type": "llama"} | GATED | dict(vocab_size=2000, max_position_embeddings=200)
    model = build_language_model(recipe("llama", architecture=family, block_length=200), seed=1)
    tokens, starts = model.example(2)
    whole = tokens.numel() * model.vocab_size
    with Sizes() as sizes:
        model(tokens, starts).loss.backward()
    assert sizes.largest < whole / 4
    with Sizes() as sizes:  # the measure notices logits
        model.logits(tokens, starts)
    assert sizes.largest == whole


def test_bfloat16_is_near_and_evaluation_needs_no_gradient():
    model = build_language_model(recipe("gpt2"), seed=1)
    expected = model(*batch()).loss
    expected.backward()
    exact = {name: one.clone() for name, one in gradients(model.network).items()}
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(*batch()).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=0.01)
    assert_close(gradients(model.network), exact, 0.03)
    with torch.no_grad():
        assert model(*batch()).loss.item() == expected.item()


def test_positions_begin_anew_with_each_document():
    starts = torch.tensor([[0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 1]], dtype=torch.bool)
    assert document_positions(starts).tolist() == [[0, 1, 0, 0, 1, 2], [0, 1, 2, 3, 4, 0]]


def test_weights_depend_on_the_seed_alone():
    before = torch.get_rng_state()
    first = build_language_model(recipe("llama"), seed=7).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    torch.set_num_threads(2)  # conftest.py sets it back
    again, other = (build_language_model(recipe("llama"), seed=seed).state_dict() for seed in (7, 8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["network.lm_head.weight"], other["network.lm_head.weight"])
    assert {one.dtype for one in first.values()} == {torch.float32}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_on_paper_has_the_same_parameters(family):
    model = build_language_model(recipe(family), seed=0)
    with torch.device("meta"):
        paper = build_language_model(recipe(family), seed=0)
    shapes = {name: one.shape for name, one in model.named_parameters()}
    assert {name: one.shape for name, one in paper.named_parameters()} == shapes
    assert {one.device.type for one in paper.parameters()} == {"meta"}
    assert all(one.is_contiguous() for one in model.parameters())
    assert (model.num_layers, model.seq_len, model.vocab_size) == (2, LENGTH, VOCABULARY)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_norms_and_biases_do_not_decay(family):
    model = build_language_model(recipe(family), seed=0)
    decays, stays = (group["params"] for group in parameter_groups(model, OptimizerConfig()))
    names = {id(one): name for name, one in model.named_parameters()}
    assert all(is_norm_or_bias(names[id(one)]) for one in stays)
    assert not any(is_norm_or_bias(names[id(one)]) for one in decays)


def is_norm_or_bias(name: str) -> bool:
    return name.endswith(".bias") or "norm" in name or ".ln_" in name


def test_what_shows_the_choices_of_a_machine_takes_a_language_model():
    fused, products = (build_language_model(recipe(family), seed=0) for family in ("llama", "gemma2"))
    assert _kernels(fused, "float32").value == "fused kernels"
    assert _kernels(products, "float32").value == "separate matrix multiplications"
    assert (fused.stored_layers(4, None), fused.stored_layers(4, 0)) == (2, 0)


def held_after_forward(model: LanguageModel, stored_layers: int, dtype: torch.dtype) -> int:
    """Bytes that a real forward pass has taken and not given back."""
    inputs = model.example(3)
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32),
    ):
        losses = model(*inputs, stored_layers=stored_layers)
    assert losses.loss > 0
    return sum(event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
def test_layers_keep_their_activations_within_a_budget(family, dtype):
    layers = dict(num_hidden_layers=4)
    architecture = {"model_type": family} | ARCHITECTURES[family] | layers
    model = build_language_model(recipe(family, architecture=architecture), seed=1)
    state = torch.random.get_rng_state()
    said = model.activation_bytes(3, dtype)
    assert torch.equal(state, torch.random.get_rng_state()) and len(said) == 4
    measured = held_after_forward(model, 4, dtype) - held_after_forward(model, 0, dtype)
    # In such a small model, the blocks to which the estimate rounds up matter.
    assert sum(said) == pytest.approx(measured, rel=0.05)
    counts = [model.stored_layers(3, budget, dtype) for budget in (said[0] - 1, said[0], 3 * said[0], 10**9)]
    assert counts == [0, 1, 3, 4]
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        model._kept_bytes.clear()
        assert model.activation_bytes(3) == said


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_read_by_transformers_and_read_back(family, tmp_path):
    model = build_language_model(recipe(family), seed=4)
    export_folder(model, tmp_path / "out", tokenizer_file=None)
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    again = build_language_model(LanguageModelConfig(**{"from": str(tmp_path / "out"), "block_length": LENGTH}), seed=0)
    tokens, _ = batch()
    with torch.no_grad():
        expected = model.eval().logits(tokens)
        torch.testing.assert_close(network(tokens).logits, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(again.eval().logits(tokens), expected, rtol=0, atol=1e-6)
    assert {one.dtype for one in again.parameters()} == {torch.float32}
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in model.named_parameters()]


def test_an_exported_folder_has_its_tokenizer(tmp_path):
    text = "one two three, two three four"
    tokenizer = TextTokenizer.train([text] * 3, 270)
    tokenizer.save(tmp_path / "tokenizer.json")
    model = build_language_model(recipe("llama"), seed=4)
    export_folder(model, tmp_path / "out", tokenizer_file=tmp_path / "tokenizer.json")
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert read.encode(text, add_special_tokens=False) == list(tokenizer.encode([text])[0])
    assert read.decode(read.encode(text)) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_folder_ends_texts_where_the_run_does(family, tmp_path):
    """The family's own default, such as 2, is another token in the run's vocabulary."""
    tokenizer = TextTokenizer.train(["one two three, two three four"] * 3, 270)
    sizes = {"model_type": family} | ARCHITECTURES[family] | {"vocab_size": 270}
    model = larger(build_language_model(recipe(family, architecture=sizes), seed=2))
    prompt = "one two"
    begun = tokenizer.encode([prompt])[0].tolist()
    drawn = list(model.continue_text(begun, new_tokens=24, top_k=1))
    # `transformers` looks for special tokens in the text itself.
    ends = [one for one in drawn if tokenizer.decode([one]).strip() not in prompt]
    end = next((one for one in ends if one != drawn[0]), drawn[0])
    tokenizer.save(tmp_path / "tokenizer.json")
    export_folder(model, tmp_path / "out", tokenizer_file=tmp_path / "tokenizer.json", end_of_text=end)
    until = list(model.continue_text(begun, new_tokens=24, top_k=1, stop_id=end))
    assert len(until) < len(drawn)
    generate = pipeline("text-generation", model=str(tmp_path / "out"), device="cpu")
    found = generate(prompt, max_new_tokens=24, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
    assert found == [*begun, *until, end]
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert read.eos_token_id == read.pad_token_id == end
    padded = read([prompt, "one two three, two"], padding=True)["input_ids"]
    assert len(padded[0]) == len(padded[1]) and padded[0][0] == end and padded[0][-len(begun) :] == begun


def test_a_head_that_differs_from_the_embeddings_is_exported_as_untied(tmp_path):
    """Also if config.json of the folder that was read says that they are tied."""
    folder = tmp_path / "tied"
    export_folder(build_language_model(recipe("qwen2"), seed=4), folder, tokenizer_file=None)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = torch.randn(VOCABULARY, 32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = build_language_model(LanguageModelConfig(**{"from": str(folder), "block_length": LENGTH}), seed=0)
    export_folder(model, tmp_path / "out", tokenizer_file=None)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    network = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(network.get_output_embeddings().weight, tensors["lm_head.weight"])


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    model = build_language_model(recipe("llama"), seed=4)
    with pytest.raises(BadInput, match="no tokenizer"):
        export_folder(model, tmp_path / "out", tokenizer_file=tmp_path / "none.json")

    def fail(folder, **_):
        Path(folder, "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(model.network, "save_pretrained", fail)
    with pytest.raises(OSError, match="disk full"):
        export_folder(model, tmp_path / "out", tokenizer_file=None)
    assert list(tmp_path.iterdir()) == []


def test_weights_in_several_files_and_in_16_bits_are_read(tmp_path):
    model = build_language_model(recipe("qwen2"), seed=4)
    model.network.bfloat16().save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    config = LanguageModelConfig(**{"from": str(tmp_path), "block_length": LENGTH})
    again = build_language_model(config, seed=0)
    for name, one in again.named_parameters():
        assert one.dtype == torch.float32 and torch.equal(one.bfloat16(), dict(model.named_parameters())[name])
    with torch.device("meta"):
        assert next(build_language_model(config, seed=0).parameters()).is_meta


def refused(**changes) -> str:
    with pytest.raises(TrainingError) as caught:
        build_language_model(LanguageModelConfig(**{"block_length": LENGTH} | changes), seed=0)
    assert "\n" not in caught.value.sentence
    return caught.value.sentence


@pytest.mark.parametrize(
    "setting",
    [
        dict(auto_map={"AutoModelForCausalLM": "evil--modeling.Evil"}),
        dict(quantization_config={"quant_method": "bitsandbytes"}),
        dict(attn_implementation="evil/kernel"),
        dict(_attn_implementation="evil/kernel"),
        dict(_attn_implementation_internal="evil/kernel"),
        dict(_name_or_path="/etc"),
        dict(name_or_path="/etc"),
        dict(experts_implementation="evil/kernel"),
        dict(trust_remote_code=True),
        dict(per_layer_config={"0": {"hidden_size": 3}}),
        dict(is_causal=False),
        dict(id2label={"0": "a"}),
        dict(output_hidden_states=True),
        dict(hidden_act={"a": 1}),
        dict(base_model_tp_plan={"layers.*": "colwise"}),
        dict(to_dict=1),
    ],
)
def test_nothing_in_an_architecture_runs_code_or_loads_files(setting):
    name = next(iter(setting))
    assert name in refused(architecture={"model_type": "llama"} | GATED | setting)


@pytest.mark.parametrize("layers", [MOST_LAYERS + 1, 1024, 0])
def test_layers_beyond_any_published_model_are_refused_before_they_are_built(layers):
    told = refused(architecture={"model_type": "llama"} | GATED | {"num_hidden_layers": layers, "hidden_size": 8192})
    assert f"has {layers} layers; give 1 to {MOST_LAYERS}" in told


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "llama"
    export_folder(build_language_model(recipe("llama"), seed=4), folder, tokenizer_file=None)
    return folder


@pytest.fixture
def copied(weights, tmp_path):
    for file in weights.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda folder: (folder / "config.json").unlink(), ["lacks config.json"]),
        (lambda folder: (folder / "config.json").write_text("{"), ["config.json", "cannot be read"]),
        (lambda folder: (folder / "config.json").write_text("[]"), ["not a table"]),
        (lambda folder: (folder / "config.json").write_text("[" * 99_999), ["config.json", "cannot be read"]),
        (lambda folder: retype(folder, torch.int8), ["has the type int8"]),
        (lambda folder: retype(folder, torch.float8_e4m3fn), ["has the type float8"]),
        (lambda folder: spoil_value(folder, float("nan")), ["not finite"]),
        (lambda folder: spoil_value(folder, float("-inf")), ["not finite"]),
        (lambda folder: (folder / "model.safetensors").unlink(), ["lacks model.safetensors"]),
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), ["safetensors"]),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 100), ["cannot be read"]),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "../x.safetensors"}})
            ),
            ["names no files beside it"],
        ),
        (lambda folder: change(folder, hidden_size=64, intermediate_size=64), ["do not fit"]),
        (lambda folder: change(folder, num_hidden_layers=3), ["lack", "layers.2"]),
        (lambda folder: change(folder, quantization_config={"quant_method": "x"}), ["quantized"]),
        (lambda folder: change(folder, is_causal=False), ["decoder"]),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(copied, spoil, words):
    spoil(copied)
    told = refused(**{"from": str(copied)})
    assert all(word in told for word in words), told


def change(folder: Path, **settings) -> None:
    table = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(table))


def retype(folder: Path, dtype: torch.dtype) -> None:
    weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors")


def spoil_value(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[min(weights)].view(-1)[-1] = value
    save_file(weights, folder / "model.safetensors")


def test_an_architecture_beside_weights_must_be_theirs(weights):
    architecture = {"model_type": "llama"} | ARCHITECTURES["llama"]
    both = {"from": str(weights), "block_length": LENGTH}
    build_language_model(LanguageModelConfig(**both, architecture=architecture), seed=0)
    for wrong in (dict(hidden_size=64), dict(rope_parameters=dict(rope_type="default", rope_theta=7.0))):
        told = refused(**both, architecture=architecture | wrong)
        assert next(iter(wrong)) in told
    assert "rope_parameters" in refused(**both, architecture={"model_type": "llama"} | GATED | dict(rope_theta=7.0))
    assert "model_type" in refused(**both, architecture={"model_type": "qwen3"} | GATED)


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "hub cannot be reached" in refused(**{"from": "nobody/none"})
    assert "no folder here" in refused(**{"from": "./none"})
    assert "no folder here" in refused(**{"from": "none"})


def test_draws_depend_on_the_seed_and_stop():
    model = build_language_model(recipe("gpt2", architecture={"model_type": "gpt2"} | OLD), seed=1)
    texts = [list(model.continue_text([1, 2], new_tokens=20, seed=seed, temperature=2.0)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert model.network.training, "training goes on with dropout"
    stop = texts[0][5]
    until = texts[0].index(stop)
    assert list(model.continue_text([1, 2], new_tokens=20, seed=1, temperature=2.0, stop_id=stop)) == texts[0][:until]
    assert all(torch.is_grad_enabled() for _ in model.continue_text([1], new_tokens=2))
