"""Bytes kept for backward equal what `saved_tensors_hooks` sees on real models, difference 0.

On the CPU, dropout, fused attention and autocast keep other things than on CUDA: the models run without dropout, in
single operations, in 32 and in 16 bit. Storages count once and in steps of 512 bytes; parameters and inputs do not.
"""

import random

import pytest

from calculator.estimate import Setup, estimate
from tests.calculator.test_parameters import architecture_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGURATIONS = 12


def _saved_bytes(model, run) -> int:
    """Bytes of the storages that the graph of `run(model)` keeps."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes() + 511) // 512 * 512
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        inputs, loss = run(model)
    for tensor in inputs:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    loss.backward()
    return sum(kept.values())


def _language_step(batch, length, vocab_size, target=None):
    def run(model):
        ids = torch.zeros(batch, length, dtype=torch.long)
        labels = torch.zeros(batch, target or length, dtype=torch.long)
        return (ids, labels), model(input_ids=ids, labels=labels).loss

    return run


def _sizes(seed):
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 3, 4])
    width = heads * draw.choice([4, 8, 10, 16])
    return {
        "heads": heads,
        "width": width,
        "inner": draw.randint(8, 200),
        "layers": draw.randint(1, 3),
        "batch": draw.randint(1, 3),
        "length": draw.randint(2, 40),
        "target": draw.randint(2, 40),
        "vocab": draw.randint(20, 90),
        "half": draw.random() < 0.4,
    }


def _gpt2(s):
    activation = random.Random(s["inner"]).choice(["gelu_new", "gelu", "relu"])
    return transformers.GPT2Config(
        vocab_size=s["vocab"], n_positions=s["length"], n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"],
        n_inner=s["inner"], activation_function=activation, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0, use_cache=False,
    ), transformers.GPT2LMHeadModel  # fmt: skip


def _bert(s):
    return transformers.BertConfig(
        vocab_size=s["vocab"], hidden_size=s["width"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        intermediate_size=s["inner"], max_position_embeddings=s["length"], hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    ), transformers.BertForMaskedLM  # fmt: skip


def _gptj(s):
    return transformers.GPTJConfig(
        vocab_size=s["vocab"], n_positions=s["length"], n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"],
        n_inner=s["inner"], rotary_dim=s["width"] // s["heads"] // 4 * 2, resid_pdrop=0, attn_pdrop=0, embd_pdrop=0,
        use_cache=False, tie_word_embeddings=False,
    ), transformers.GPTJForCausalLM  # fmt: skip


def _t5(s):
    projection = random.Random(s["inner"]).choice(["relu", "gated-gelu"])
    return transformers.T5Config(
        vocab_size=s["vocab"], d_model=s["width"], d_kv=s["width"] // s["heads"], d_ff=s["inner"],
        num_layers=s["layers"], num_decoder_layers=s["layers"] + 1, num_heads=s["heads"], dropout_rate=0,
        feed_forward_proj=projection, use_cache=False, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    ), transformers.T5ForConditionalGeneration  # fmt: skip


@pytest.mark.parametrize("build", [_gpt2, _bert, _gptj, _t5], ids=lambda build: build.__name__.strip("_"))
@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_saved_activations_of_transformers(build, seed):
    s = _sizes(f"{build.__name__} {seed}")
    config, model_class = build(s)
    config._attn_implementation = "eager"
    dtype = torch.bfloat16 if s["half"] else torch.float32
    model = model_class(config).to(dtype).train()
    target = s["target"] if build is _t5 else None
    expected = _saved_bytes(model, _language_step(s["batch"], s["length"], s["vocab"], target))
    result = estimate(
        Setup(
            config=config.to_dict(),
            micro_batch_size=s["batch"],
            sequence_length=s["length"],
            target_length=target,
            precision="bf16" if s["half"] else "fp32",
            attention="eager",
        )
    )
    assert result.saved_activations == expected, s


@pytest.mark.parametrize("reversible", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("grid", [4, 14])
def test_saved_activations_of_the_runs_model(reversible, batch, grid):
    """The reversible stack with all its activations recomputed, the other with all of them kept."""
    from calculator.timeline import Options, play
    from training.config import ModelConfig
    from training.model.transformer import TextToImageTransformer

    recipe = ModelConfig(
        hidden_size=24, num_layers=6, num_heads=2, head_dim=12, text_vocab_size=30, text_seq_len=7, image_grid=grid,
        image_vocab_size=40, shared_groups=3, reversible=reversible,
    )  # fmt: skip
    model = TextToImageTransformer(recipe)
    model.activation_budget_bytes = 0 if reversible else None

    def run(model):
        text = torch.zeros(batch, recipe.text_seq_len, dtype=torch.long)
        codes = torch.zeros(batch, recipe.image_seq_len, dtype=torch.long)
        return (text, codes), model(text, codes).loss

    architecture = architecture_of(recipe)
    options = Options(
        batch=batch, length=architecture.sequence_length, target_length=0, autocast=False, itemsize=4, half="",
        fused_attention=True, dropout=0, attention_dropout=0, checkpoint_every=0, shared_groups=3,
        reversible=reversible, accumulating=False,
    )  # fmt: skip
    assert play(architecture, options).after_forward.activations == _saved_bytes(model, run)
