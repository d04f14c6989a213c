"""Bytes kept for backward equal what `saved_tensors_hooks` sees on real models, difference 0.

Storages count once and in steps of 512 bytes; parameters, autocast's copies of them and inputs do not. The models run
on the CPU, where dropout, fused attention and autocast keep other things than on CUDA: `CudaRules` puts CUDA's in their
place. CONFIGURATIONS=N in the environment runs N random configurations instead of the default number.
"""

import os
import random

import pytest

from calculator.estimate import estimate
from calculator.setups import Setup
from tests.calculator.test_parameters import architecture_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGURATIONS = int(os.environ.get("CONFIGURATIONS", "1000"))


class _FusedAttention(torch.autograd.Function):
    """Keeps what CUDA's kernels keep: operands, result, a number a row, two of the random state.

    Flash attention takes 16 bit without a bias; the memory-efficient kernel takes the rest and rounds rows up to 32.
    """

    @staticmethod
    def forward(ctx, query, key, value, bias, scale):
        scores = query.float() @ key.float().transpose(-1, -2) * scale
        weights = torch.softmax(scores if bias is None else scores + bias, -1)
        # as the kernels lay it out: heads beside each other, so that joining them copies nothing
        result = (weights @ value.float()).to(query.dtype).transpose(1, 2).contiguous().transpose(1, 2)
        rows = query.shape[2] if query.itemsize == 2 and bias is None else -(-query.shape[2] // 32) * 32
        sums = torch.zeros(*query.shape[:2], rows)
        seed, offset = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        kept = (query, key, value, result, sums, seed, offset)
        ctx.save_for_backward(*kept, *([] if bias is None else [bias]))
        return result


class CudaRules(torch.overrides.TorchFunctionMode):
    """CUDA's dropout, fused attention and, if asked, autocast (torch 2.13, aten/src/ATen/autocast_mode.h)."""

    LOWERED = frozenset({"linear", "matmul", "__matmul__", "addmm", "bmm"})
    RAISED = frozenset({"layer_norm", "pow", "__pow__", "rsqrt", "softmax"})

    def __init__(self, autocast: "torch.dtype | None"):
        super().__init__()
        self.half = autocast
        self.copies = {}

    def _cast(self, value, dtype):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if dtype != torch.float32 and value.is_leaf and value.requires_grad:
            if id(value) not in self.copies:
                self.copies[id(value)] = value.to(dtype)
            return self.copies[id(value)]
        return value.to(dtype)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__name__
        if name == "dropout":
            x, probability = args[0], kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            return torch.native_dropout(x, probability, True)[0] if probability else x
        if name == "scaled_dot_product_attention":
            return self._attention(*args, **kwargs)
        if self.half is not None:
            if name == "cross_entropy":  # asks for the logits' own precision; the loss is raised
                chances = torch.log_softmax(args[0], -1)
                return torch.nn.functional.nll_loss(self._cast(chances, torch.float32), *args[1:])
            dtype = self.half if name in self.LOWERED else torch.float32 if name in self.RAISED else None
            if dtype is not None:
                args = tuple(self._cast(value, dtype) for value in args)
                kwargs = {key: self._cast(value, dtype) for key, value in kwargs.items()}
        return func(*args, **kwargs)

    def _attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **kwargs):
        if self.half is not None:
            query, key, value, attn_mask = (self._cast(x, self.half) for x in (query, key, value, attn_mask))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            raise AssertionError("nothing is padded: transformers makes no mask on CUDA")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return _FusedAttention.apply(query, key, value, attn_mask, scale)


def _saved_bytes(model, run, rules=None) -> int:
    """Bytes of the storages that the graph of `run(model)` keeps; it is not run backwards."""
    rules = rules or CudaRules(None)
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes() + 511) // 512 * 512
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), rules:
        inputs, _loss = run(model)  # the loss holds the graph
    for tensor in [*inputs, *rules.copies.values()]:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def _language_step(batch, length, vocab_size, target=None):
    def run(model):
        ids = torch.zeros(batch, length, dtype=torch.long)
        labels = torch.zeros(batch, target or length, dtype=torch.long)
        return (ids, labels), model(input_ids=ids, labels=labels).loss

    return run


def _sizes(draw):
    heads = draw.choice([1, 2, 3, 4])
    attention = draw.choice(["eager", "sdpa"])
    width = heads * draw.choice([8, 16, 24] if attention == "sdpa" else [4, 8, 10, 16])
    return {
        "heads": heads,
        "width": width,
        "inner": draw.randint(8, 200),
        "layers": draw.randint(1, 3),
        "decoder_layers": draw.randint(1, 3),
        "batch": draw.randint(1, 3),
        "length": draw.randint(2, 40),
        "target": draw.randint(2, 40),
        "vocab": draw.randint(20, 90),
        "activation": draw.choice(["gelu_new", "gelu", "relu"]),
        "gated": draw.random() < 0.5,
        "dropout": draw.choice([0.0, 0.1]),
        "precision": draw.choice(["fp32", "amp-bf16", "amp-bf16", "bf16"]),
        "attention": attention,
    }


def _gpt2(s):
    return transformers.GPT2Config(
        vocab_size=s["vocab"], n_positions=s["length"], n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"],
        n_inner=s["inner"], activation_function=s["activation"], resid_pdrop=s["dropout"], attn_pdrop=s["dropout"],
        embd_pdrop=s["dropout"], use_cache=False,
    ), transformers.GPT2LMHeadModel  # fmt: skip


def _bert(s):
    return transformers.BertConfig(
        vocab_size=s["vocab"], hidden_size=s["width"], num_hidden_layers=s["layers"], num_attention_heads=s["heads"],
        intermediate_size=s["inner"], max_position_embeddings=s["length"], hidden_dropout_prob=s["dropout"],
        attention_probs_dropout_prob=s["dropout"],
    ), transformers.BertForMaskedLM  # fmt: skip


def _gptj(s):
    s["attention"] = "eager"  # its code has no other
    return transformers.GPTJConfig(
        vocab_size=s["vocab"], n_positions=s["length"], n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"],
        n_inner=s["inner"], rotary_dim=s["width"] // s["heads"] // 4 * 2, resid_pdrop=s["dropout"],
        attn_pdrop=s["dropout"], embd_pdrop=s["dropout"], use_cache=False, tie_word_embeddings=False,
    ), transformers.GPTJForCausalLM  # fmt: skip


def _t5(s):
    if (
        s["attention"] == "sdpa"
    ):  # rows of a bias that are no multiple of 16 are lengthened, which the rules here are not
        s["length"], s["target"] = 16 * (s["length"] // 16 + 1), 16 * (s["target"] // 16 + 1)
    return transformers.T5Config(
        vocab_size=s["vocab"], d_model=s["width"], d_kv=s["width"] // s["heads"], d_ff=s["inner"],
        num_layers=s["layers"], num_decoder_layers=s["decoder_layers"], num_heads=s["heads"],
        dropout_rate=s["dropout"], feed_forward_proj="gated-gelu" if s["gated"] else "relu", use_cache=False,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    ), transformers.T5ForConditionalGeneration  # fmt: skip


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_saved_activations_of_transformers(seed):
    build = (_gpt2, _bert, _gptj, _t5)[seed % 4]
    s = _sizes(random.Random(seed))
    config, model_class = build(s)
    config._attn_implementation = s["attention"]
    autocast = torch.bfloat16 if s["precision"].startswith("amp-") else None
    model = model_class(config).to(torch.bfloat16 if s["precision"] == "bf16" else torch.float32).train()
    target = s["target"] if build is _t5 else None
    step = _language_step(s["batch"], s["length"], s["vocab"], target)
    expected = _saved_bytes(model, step, CudaRules(autocast))
    result = estimate(
        Setup(
            config=config.to_dict(),
            micro_batch_size=s["batch"],
            sequence_length=s["length"],
            target_length=target,
            precision=s["precision"],
            attention=s["attention"],
            dropout=s["dropout"],
        )
    )
    assert result.saved_activations == expected, (build.__name__, s)


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

    def run(model):
        text = torch.zeros(batch, recipe.text_seq_len, dtype=torch.long)
        codes = torch.zeros(batch, recipe.image_seq_len, dtype=torch.long)
        return (text, codes), model(text, codes, stored_layers=0 if reversible else recipe.num_layers).loss

    architecture = architecture_of(recipe)
    options = Options(
        batch=batch, length=architecture.sequence_length, target_length=0, autocast=False, itemsize=4, half="",
        fused_attention=True, dropout=0, attention_dropout=0, checkpoint_every=0, shared_groups=3,
        reversible=reversible, accumulating=False,
    )  # fmt: skip
    assert play(architecture, options).after_forward.activations == _saved_bytes(model, run)
