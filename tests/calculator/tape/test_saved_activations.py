"""Bytes kept for backward equal what `saved_tensors_hooks` sees on real models, difference 0.

Storages count once and in steps of 512 bytes; parameters, autocast's copies of them and inputs do not. The models run
on the CPU, where dropout, fused attention and autocast keep other things than on CUDA: `CudaRules` puts CUDA's in their
place. CONFIGURATIONS=N in the environment runs N random configurations instead of the default number.
"""

import os
import random

import pytest

from calculator.models.architectures import from_config
from calculator.parts.adapters import modules_of
from calculator.step.estimate import estimate
from calculator.step.setups import Setup
from tests.calculator.parts.test_parameters import architecture_of
from tests.tiers import sample

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONFIGURATIONS = int(os.environ.get("CONFIGURATIONS", "1000"))


class _FusedAttention(torch.autograd.Function):
    """Keeps what CUDA's kernels keep: operands, result, a number a row, two of the random state.

    Flash attention takes 16 bit without a bias; the memory-efficient kernel takes the rest and rounds rows up to 32.
    Several query heads may share a head of keys and values.
    """

    @staticmethod
    def forward(ctx, query, key, value, bias, scale):
        keys, values = (x.float().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        scores = query.float() @ keys.transpose(-1, -2) * scale
        weights = torch.softmax(scores if bias is None else scores + bias, -1)
        # flash attention lays its result out as the queries lie, the other kernel with heads beside each other, so that
        # joining them copies nothing
        result = torch.empty_like(query) if query.itemsize == 2 and bias is None else None
        if result is None:
            result = query.new_empty(*(query.shape[n] for n in (0, 2, 1)), value.shape[-1]).transpose(1, 2)
        result.copy_(weights @ values)
        rows = query.shape[2] if query.itemsize == 2 and bias is None else -(-query.shape[2] // 32) * 32
        sums = torch.zeros(*query.shape[:2], rows)
        seed, offset = torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        kept = (query, key, value, result, sums, seed, offset)
        ctx.save_for_backward(*kept, *([] if bias is None else [bias]))
        return result


class CudaRules(torch.overrides.TorchFunctionMode):
    """CUDA's dropout, fused attention and, if asked, autocast (torch 2.13, aten/src/ATen/autocast_mode.h)."""

    LOWERED = frozenset({"linear", "conv2d", "matmul", "__matmul__", "addmm", "bmm"})
    RAISED = frozenset({"layer_norm", "pow", "__pow__", "rsqrt", "softmax"})

    def __init__(self, autocast: "torch.dtype | None"):
        super().__init__()
        self.half = autocast
        self.copies = {}
        self.frozen_copies = []

    def _cast(self, value, dtype):
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dtype == dtype:
            return value
        if dtype != torch.float32 and value.is_leaf and value.requires_grad:
            if id(value) not in self.copies:
                self.copies[id(value)] = value.to(dtype)
            return self.copies[id(value)]
        cast = value.to(dtype)
        if isinstance(value, torch.nn.Parameter):  # autocast does not remember copies of frozen parameters
            self.frozen_copies.append(cast)
        return cast

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
        if attn_mask is not None and attn_mask.dtype == torch.bool:  # of a sliding window; rows are padded to 16
            rows, keys = attn_mask.shape[-2:]
            attn_mask = query.new_zeros(len(query), 1, rows, -(-keys // 16) * 16)[..., :keys]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        return _FusedAttention.apply(query, key, value, attn_mask, scale)


def saved_bytes(model, run, rules=None) -> int:
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
    for tensor in [*inputs, *rules.copies.values(), *rules.frozen_copies]:
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


def _llama(s):
    draw = random.Random(str(s))
    kind = draw.choice(["llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3"])
    keys = draw.choice([heads for heads in (1, 2, 3, 4) if s["heads"] % heads == 0])
    s["width"] = s["heads"] * draw.choice([8, 16, 32])
    # In 32 bits, torch has no fused kernel for grouped queries; its separate operations are in the reference steps.
    if keys < s["heads"] and s["precision"] == "fp32":
        s["attention"] = "eager"
    values = {
        "vocab_size": s["vocab"], "hidden_size": s["width"], "intermediate_size": s["inner"],
        "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": keys,
        "tie_word_embeddings": s["gated"], "attention_dropout": s["dropout"], "use_cache": False, "pad_token_id": 0,
    }  # fmt: skip
    if kind in ("llama", "mistral", "qwen3"):
        values["head_dim"] = s["width"] // s["heads"]
    if kind in ("llama", "smollm3"):
        values |= {"attention_bias": draw.random() < 0.5, "mlp_bias": draw.random() < 0.5}
    if kind in ("mistral", "phi3"):
        values["sliding_window"] = draw.choice([None, s["length"] // 2 + 1, s["length"] + 1])
    if kind in ("qwen2", "qwen3"):
        values |= {"use_sliding_window": True, "sliding_window": s["length"] // 2 + 1, "max_window_layers": 1}
    if kind == "phi3":
        values["resid_pdrop"] = s["dropout"]
    return transformers.AutoConfig.for_model(kind, **values), transformers.AutoModelForCausalLM


def _gemma(s):
    draw = random.Random(str(s))
    kind = draw.choice(["gemma2", "gemma3_text"])
    keys = draw.choice([heads for heads in (1, 2, 3, 4) if s["heads"] % heads == 0])
    if kind == "gemma2" or (keys < s["heads"] and s["precision"] == "fp32"):
        s["attention"] = "eager"  # Gemma 2's code has no other; for the rest see `_llama`
    return transformers.AutoConfig.for_model(
        kind, vocab_size=s["vocab"], hidden_size=s["width"], intermediate_size=s["inner"],
        num_hidden_layers=s["layers"] + 1, num_attention_heads=s["heads"], num_key_value_heads=keys,
        head_dim=draw.choice([8, 16, 32]), tie_word_embeddings=s["gated"], attention_dropout=s["dropout"],
        sliding_window=draw.choice([s["length"] // 2 + 1, s["length"] + 1]), use_cache=False,
        layer_types=[draw.choice(["sliding_attention", "full_attention"]) for _ in range(s["layers"] + 1)],
    ), transformers.AutoModelForCausalLM  # fmt: skip


def _mixture(s):
    draw = random.Random(str(s))
    # DeepSeek-V3's router makes nodes that die before forward ends, but the hooks see them too.
    kind = draw.choice(["mixtral", "qwen3_moe"])
    # Autocast runs more operations of a router in 32 bits than `CudaRules`; they are in the traced steps.
    s["precision"] = draw.choice(["fp32", "bf16"])
    s["width"], s["inner"] = s["heads"] * 16, 8 * draw.randint(1, 20)
    values = {
        "vocab_size": s["vocab"], "hidden_size": s["width"], "intermediate_size": s["inner"],
        "num_hidden_layers": s["layers"], "num_attention_heads": s["heads"], "num_key_value_heads": s["heads"],
        "tie_word_embeddings": s["gated"], "attention_dropout": s["dropout"], "use_cache": False,
        "moe_intermediate_size": s["inner"], "num_experts_per_tok": draw.choice([1, 2]),
    }  # fmt: skip
    if kind == "mixtral":
        values["num_local_experts"] = 4
    if kind == "qwen3_moe":
        values |= {"num_experts": 4, "head_dim": 16, "norm_topk_prob": draw.random() < 0.5, "mlp_only_layers": [1]}
    return transformers.AutoConfig.for_model(kind, **values), transformers.AutoModelForCausalLM


def test_routing_does_not_change_what_a_mixture_keeps():
    """All tokens to the same two experts, or to those that a random router chooses."""
    config = transformers.AutoConfig.for_model(
        "mixtral", vocab_size=50, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=8, use_cache=False, pad_token_id=0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    step = _language_step(3, 20, 50)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.mlp.gate.weight)  # equal chances: the first two are taken for every token
    uneven = saved_bytes(model, step)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.mlp.gate.weight)
    assert saved_bytes(model, step) == uneven
    assert any("most uneven routing" in note for note in estimate(Setup(config=config.to_dict())).notes)


def test_a_mixture_keeps_a_row_for_each_token_and_chosen_expert():
    """Megatron-LM #1784, whose formula for activations reads nothing of experts."""
    kept = [
        estimate(Setup(config={"model_type": "mixtral", "num_experts_per_tok": chosen}, precision="bf16"))
        for chosen in (1, 2, 4)
    ]
    # The operands of both products and of the multiplications between: rows of the width, and inner ones, in 16 bits;
    # then the expert's weight in 32 bits, and numbers of rows by which tokens are sorted there and back.
    row = 2 * (2 * 4096 + 4 * 14_336)
    more = (kept[1].saved_activations - kept[0].saved_activations) / (4096 * 32)
    assert row < more < row + 64
    assert kept[2].saved_activations - kept[1].saved_activations == pytest.approx(2 * 4096 * 32 * more, rel=1e-6)


FAMILIES = (_gpt2, _bert, _gptj, _t5, _llama, _gemma, _mixture)


@pytest.mark.parametrize("seed", sample(range(CONFIGURATIONS), every=20))
def test_saved_activations_of_transformers(seed):
    build = FAMILIES[seed % len(FAMILIES)]
    s = _sizes(random.Random(seed))
    config, model_class = build(s)
    config._attn_implementation = s["attention"]
    autocast = torch.bfloat16 if s["precision"].startswith("amp-") else None
    make = getattr(model_class, "from_config", model_class)
    model = make(config).to(torch.bfloat16 if s["precision"] == "bf16" else torch.float32).train()
    target = s["target"] if build is _t5 else None
    step = _language_step(s["batch"], s["length"], s["vocab"], target)
    expected = saved_bytes(model, step, CudaRules(autocast))
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


class _Adapted(torch.nn.Module):
    """W x + (alpha / r) B A dropout(x) with W frozen (Hu et al. 2021, arXiv:2106.09685), cast as peft casts."""

    def __init__(self, base, rank, dropout, dtype, freeze_a):
        super().__init__()
        self.base, self.dropout = base, dropout
        self.a = torch.nn.Parameter(torch.zeros(rank, base.in_features, dtype=dtype), requires_grad=not freeze_a)
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype))

    def forward(self, x):
        linear, dropout = torch.nn.functional.linear, torch.nn.functional.dropout
        result = self.base(x)
        x = x.to(self.a.dtype)
        return (result + linear(linear(dropout(x, self.dropout), self.a), self.b) * 2.0).to(result.dtype)


def _adapt(model, targets, rank, dropout, dtype, freeze_a):
    model.requires_grad_(False)
    for layer in model.model.layers:
        for path, module in list(layer.named_modules()):
            if path.split(".")[-1] in targets:
                layer.set_submodule(path, _Adapted(module, rank, dropout, dtype, freeze_a))


@pytest.mark.parametrize("freeze_a", [False, True])
@pytest.mark.parametrize("seed", sample(range(0, CONFIGURATIONS, 50), every=5))
def test_saved_activations_of_adapters(seed, freeze_a):
    """Adapters written after the published formula; the traced steps in test_reference_steps.py have peft's own."""
    draw = random.Random(f"adapters {seed}")
    s = _sizes(draw)
    config, model_class = (_llama, _gemma)[seed // 50 % 2](s)
    config._attn_implementation = s["attention"]
    half = s["precision"] != "fp32"
    autocast = torch.bfloat16 if s["precision"].startswith("amp-") else None
    bits = 32 if not half else draw.choice((16, 32)) if autocast else 16
    adapter_bits = draw.choice((16, 32)) if half else 32
    model = model_class.from_config(config).to(torch.bfloat16 if bits == 16 else torch.float32).train()
    modules = list(modules_of(from_config(config.to_dict())))
    targets = draw.sample(modules, draw.randint(1, len(modules)))
    rank, dropout = draw.choice((1, 5, 16)), draw.choice((0.0, 0.1))
    _adapt(model, targets, rank, dropout, torch.bfloat16 if adapter_bits == 16 else torch.float32, freeze_a)
    expected = saved_bytes(model, _language_step(s["batch"], s["length"], s["vocab"]), CudaRules(autocast))
    setup = Setup(
        config=config.to_dict(), micro_batch_size=s["batch"], sequence_length=s["length"], precision=s["precision"],
        attention=s["attention"], dropout=s["dropout"], lora_rank=rank, lora_targets=",".join(targets),
        lora_dropout=dropout, base_bits=bits, adapter_bits=adapter_bits, lora_freeze_a=freeze_a,
    )  # fmt: skip
    assert estimate(setup).saved_activations == expected, setup


@pytest.mark.parametrize("reversible", [True, False])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("grid", [4, 14])
def test_saved_activations_of_the_runs_model(reversible, batch, grid):
    """The reversible stack with all its activations recomputed, the other with all of them kept."""
    from calculator.step.timeline import Options, play
    from training.model.config import ModelConfig
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
    assert play(architecture, options).after_forward.activations == saved_bytes(model, run)
