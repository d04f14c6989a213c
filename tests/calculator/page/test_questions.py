"""Questions as people ask them, and their right answers: what they mean, and the figures.

The figures are of published sizes and formulas, or of the estimates that tests/calculator/step compares with PyTorch.
"""

import json
from dataclasses import replace

import pytest

from calculator import Setup, estimate
from calculator.browser import search
from calculator.choose.devices import device_named
from calculator.choose.fit import need_bytes, roomy_bytes, verdict
from calculator.page.question.understood import understood
from calculator.units import show_bytes

DEFAULTS = {"optimizer": "adamw8bit", "checkpointing": True}
"""The setup with which the page begins, as its script sends it."""
LORA, QLORA = {"lora_rank": 16, "base_bits": 16}, {"lora_rank": 16, "base_bits": 4}
HALF = {"precision": "amp-fp16"}

TRAINING = {
    "can I train GPT-2 XL on a 12 GB card?": ("gpt2-xl", {}, "cuda-12gb"),
    "Can I finetune Llama 3 8B with QLoRA on a 3090?": ("llama-3.1-8b", QLORA, "rtx-3090"),
    "I have an RTX 4090 laptop, can I fine-tune Mistral 7B with LoRA?": ("mistral-7b", LORA, "cuda-16gb"),
    "2x A6000 enough for Llama 3.1 70B qlora?": ("llama-3.1-70b", QLORA | {"gpus": 2}, "rtx-a6000"),
    "is a T4 enough to train gpt2-medium with batch size 8?": (
        "gpt2-medium", HALF | {"micro_batch_size": 8}, "t4"
    ),
    "OOM when training t5-large on 1080 Ti batch size 16": (
        "t5-large", HALF | {"micro_batch_size": 16}, "gtx-1080-ti"
    ),
    "smollm2 360m from scratch on a gtx 1660": ("smollm2-360m", HALF, "cuda-6gb"),
    "Gemma 2 9b-it LoRA r=32 seq 2048 batch 4 A10G": (
        "gemma-2-9b", LORA | {"lora_rank": 32, "sequence_length": 2048, "micro_batch_size": 4}, "cuda-24gb"
    ),
    "full fine-tune of Phi-4 in pure bf16 on a pair of H200s with ZeRO 3": (
        "phi-4", {"precision": "bf16", "gpus": 2, "sharding": "zero-3", "optimizer": "adamw"}, "h200"
    ),
    "phi 3 mini 4k instruct lora on colab free": ("phi-3-mini", LORA | HALF, "t4"),
    "will flux lora training fit into 24 gigs at 512px?": ("flux-dev", LORA | {"image_size": 512}, "cuda-24gb"),
    "how about vit large, batch 64 on my 3080 ti": ("vit-large", {"micro_batch_size": 64}, "cuda-12gb"),
    "QLoRA for Qwen 2.5 7B instruct at 8k context on one 4060 Ti 16GB": (
        "qwen2.5-7b", QLORA | {"sequence_length": 8192}, "cuda-16gb"
    ),
    "SFT Llama-3.2-3B-Instruct, 8 bit adam, gradient checkpointing, M3 Max 64GB": (
        "llama-3.2-3b", {"optimizer": "adamw8bit", "checkpointing": True}, "apple-64gb"
    ),
    "my 8GB 4060 and bert-base with batches of 32 at 512 tokens": (
        "bert-base", {"micro_batch_size": 32, "sequence_length": 512}, "rtx-4060"
    ),
    "deepspeed zero stage 2, 8x A100 80GB, mistral 7b": (
        "mistral-7b", {"sharding": "deepspeed-2", "gpus": 8, "optimizer": "adamw"}, "a100-80gb"
    ),
}  # fmt: skip
"""Questions whether a setup fits: its model, other fields and GPU."""


@pytest.mark.parametrize("text", TRAINING)
def test_a_question_about_a_setup_sets_the_form(text):
    model, settings, gpu = TRAINING[text]
    found = understood(text)
    assert (found.kind, found.generating) == ("fit", False)
    assert (found.setup, found.gpu, found.ignored) == ({"model": model} | settings, gpu, ())
    answer = asked(text)
    assert (answer["alone"], answer["opens"]) == (False, "")
    assert answer["values"]["gpu"] == gpu and answer["values"]["model"] == model
    taken = {"optimizer": "AdamW, 8-bit", "checkpointing": "checkpointing", "micro_batch_size": "micro-batch of 1"}
    rest = answer["said"].partition("Not named, so as this page begins:")[2]
    assert {name for name, words in taken.items() if words in rest} == taken.keys() - settings.keys()


GENERATING = {
    "KV cache of Qwen3-32B at 32k": (
        "qwen3-32b", "", {"length": "32768"}, ["1 sequence of 32\u202f768 tokens: cached keys and values 8.00 GiB"]
    ),
    "gemma 3 27b inference on 24gb": (
        "gemma-3-27b", "cuda-24gb", {}, ["It does not fit the CUDA card with 24 GB", "4 bits (NF4) it fits: 16."]
    ),
    "Can my 8GB 3070 run mistral?": ("mistral-7b", "rtx-3070", {}, ["does not fit", "4 bits (NF4) it fits: 4."]),
    "M2 Max 64GB: can I run Llama 3.1 70B in 4 bit?": (
        "llama-3.1-70b", "apple-64gb", {"weights": "nf4"}, ["It fits the Apple M series, 64 GB unified", "1.25 GiB"]
    ),
    "what's the max context for Qwen 2.5 7B instruct on a 3060 12GB?": (
        "qwen2.5-7b", "rtx-3060", {}, ["does not fit", "8 bits (FP8) it fits: 8.", "up to 5"]
    ),
    "llama 3.3 70b q4_k_m on 2x 3090": (
        "llama-3.1-70b", "rtx-3090", {"weights": "nf4"}, ["2 of the GeForce RTX 3090 have room: 19.52 GiB on each"]
    ),
    "deepseek r1 inference on 8x H100": (
        "deepseek-v3", "h100-80gb", {}, ["8 of the H100, 80 GB have room, with weights in 8 bits (FP8): 78."]
    ),
    "qwen3 8b fp8 inference at 128k context": (
        "qwen3-8b", "", {"length": "131072", "weights": "fp8"}, ["cached keys and values 18.00 GiB", "8.79 GiB"]
    ),
    "serve llama 3.1 8b with vllm to 16 concurrent users at 4k on an L4": (
        "llama-3.1-8b", "l4", {"batch": "16", "length": "4096"}, ["16 sequences of 4\u202f096 tokens", "8.00 GiB"]
    ),
    "gpt-j 6b 16 bit inference on 16gb": ("gpt-j-6b", "cuda-16gb", {"weights": "bf16"}, ["896.0 MiB", "It fits"]),
    "can I run gpt-oss 20b on 16 gb?": (
        "gpt-oss-20b", "cuda-16gb", {"weights": "mxfp4"}, ["weights in 4 bits (MXFP4) 12.8", "It fits"]
    ),
    "how many 3090s to run mixtral 8x7b?": (
        "mixtral-8x7b", "rtx-3090", {}, ["Of the GeForce RTX 3090, it needs at least 4; 2, with weights in 8 bits"]
    ),
    "Can I fit Llama-3.1-8B-Instruct with 32k context in 24GB with 8 bit weights?": (
        "llama-3.1-8b", "cuda-24gb", {"length": "32768", "weights": "fp8"}, ["4.00 GiB", "8.46 GiB", "It fits"]
    ),
    "How many tokens of context can I use with Mistral 7B 4bit on 8GB?": (
        "mistral-7b", "cuda-8gb", {"weights": "nf4"}, ["3.85 GiB", "1 sequence of 23\u202f754 tokens"]
    ),
    "llama-3.1-8b with fp8 kv cache, 64k context": (
        "llama-3.1-8b", "", {"length": "65536", "cache": "fp8"}, ["cached keys and values 4.00 GiB"]
    ),
}  # fmt: skip
"""Generating text: the model, the GPU, the fields of the table, and parts of the answer. Keys and values are 2 x layers
x heads of keys x their width x bytes x tokens, by each model's config.json: 64 x 8 x 128 (Qwen3-32B), 32 x 8 x 128
(Llama 3.1 8B), 36 x 8 x 128 (Qwen3-8B), 80 x 8 x 128 (Llama 3.1 70B), 28 x 16 x 256 (GPT-J)."""


@pytest.mark.parametrize("text", GENERATING)
def test_a_question_about_generating_opens_its_table(text):
    model, gpu, fields, parts = GENERATING[text]
    answer = asked(text)
    assert (answer["opens"], answer["alone"]) == ("generate", True)
    assert answer["values"] == {"model": model, "gpu": gpu}
    assert {"weights": "bf16", "cache": "bf16", **fields}.items() <= answer["fields"].items()
    assert all(part in answer["answer"] for part in parts), answer["answer"]
    assert "Not understood" not in answer["said"]


@pytest.mark.parametrize(
    ("text", "fields", "off", "on"),
    [
        (
            "what does gradient checkpointing save for T5-3B with batch 32?",
            {"model": "t5-3b", "micro_batch_size": 32},
            {"checkpointing": False},
            {"checkpointing": True},
        ),
        (
            "how much memory does 8-bit Adam save for gpt2-large?",
            {"model": "gpt2-large"},
            {"optimizer": "adamw"},
            {"optimizer": "adamw8bit"},
        ),
        ("LoRA vs full for llama 3.1 8b", {"model": "llama-3.1-8b"}, {}, LORA),
        ("will flash attention help for GPT-2 large?", {"model": "gpt2-large"}, {"attention": "eager"}, {}),
        (
            "does adafactor save memory compared to adam for T5 11B?",
            {"model": "t5-11b"},
            {},
            {"optimizer": "adafactor"},
        ),
    ],
)
def test_what_a_technique_saves_is_on_against_off_and_nothing_else(text, fields, off, on):
    answer = asked(text)
    before, after = (estimate(Setup(**fields, **changes)).gpu.total for changes in (off, on))
    assert (
        f"{show_bytes(before)} without, {show_bytes(after)} with: it saves {show_bytes(before - after)}"
        in answer["answer"]
    )
    named = {"optimizer", "checkpointing", *fields, *on}
    shown = Setup(**fields, **on)
    assert {name: answer["values"][name] for name in named} == {name: text_of(getattr(shown, name)) for name in named}
    assert "All else is the same in both" in answer["said"] and "as this page begins" not in answer["said"]


def test_where_a_technique_saves_nothing_at_the_peak_its_effect_is_said():
    answer = asked("what does gradient checkpointing save for T5-3B?")["answer"]
    assert "it saves nothing here, as the peak is in the optimizer's step. At the end of forward, there are" in answer
    both = asked("LoRA vs QLoRA for llama 3.1 8b")["answer"]
    assert both.count(" without, ") == 2 and "QLoRA of rank 16: 149.58 GiB without" in both


def test_which_models_fit_a_card():
    answer = asked("which models fit my 24 GB?")
    values = {name: text_of(value) for name, value in DEFAULTS.items()}
    assert (answer["opens"], answer["alone"], answer["values"]) == ("models", True, {"gpu": "cuda-24gb"} | values)
    assert "LoRA: olmo-2-7b (7.3 B); QLoRA: qwen3-14b (14.8 B)" in answer["answer"]
    for text in (
        "what can I fine-tune with 24GB?",
        "How big a model can I train on 24 gb",
        "largest llm for 24 gb",
        "llm for 24gb vram",
    ):
        assert asked(text)["answer"] == answer["answer"], text
    assert "name one, or its memory" in asked("which model should I train?")["error"]


@pytest.mark.parametrize("text", ["how many A100 80GB for GPT-3?", "number of a100 80gb cards to train gpt-3 175b"])
def test_how_many_gpus_a_model_needs(text):
    answer = asked(text)
    gpus = int(answer["values"]["gpus"])
    fields = {"model": "gpt3-175b", "sharding": "zero-3", "checkpointing": True, "optimizer_impl": "fused"}
    device = device_named("a100-80gb")
    assert f"At least {gpus} of the A100, 80 GB" in answer["answer"]
    assert need_bytes(Setup(**fields, gpus=gpus), device) <= roomy_bytes(device)
    assert need_bytes(Setup(**fields, gpus=gpus - 1), device) > roomy_bytes(device)
    assert {name: answer["values"][name] for name in fields} == {name: text_of(fields[name]) for name in fields}
    assert "1 is enough" in asked("how many 3090 to fine-tune gpt2?")["answer"]
    assert "a way to divide it is not counted" in asked("how many T4 for llama 3.1 70b qlora?")["answer"]
    assert "Name a GPU" in asked("how many gpus do I need to train llama 3.1 70b?")["said"]


@pytest.mark.parametrize(
    ("text", "name", "fields", "gpu"),
    [
        (
            "what batch size fits BERT-large on a V100 16GB?",
            "micro_batch_size",
            {"model": "bert-large", **HALF},
            "v100-16gb",
        ),
        (
            "longest sequence for llama 3.2 1b lora on 4060 ti 16gb",
            "sequence_length",
            {"model": "llama-3.2-1b", **LORA},
            "cuda-16gb",
        ),
        ("max batch for gpt2-large training on a 4090", "micro_batch_size", {"model": "gpt2-large"}, "rtx-4090"),
    ],
)
def test_the_largest_setup_that_fits_keeps_a_margin(text, name, fields, gpu):
    answer = asked(text)
    size, device = int(answer["values"][name]), device_named(gpu)
    setups = [Setup(**DEFAULTS, **fields, **{name: value}) for value in (size, size + 1)]
    assert verdict(setups[0], device).standing == "fits" and verdict(setups[1], device).standing != "fits"
    assert "which leaves 6\u00a0% free for fragmentation" in answer["answer"]


@pytest.mark.parametrize(
    "text",
    [
        "how much VRAM do I need to full fine-tune phi-4?",
        "how long does it take to train gpt2 on an A100 80GB?",
        "what gpu do I need for flux lora training?",
        "which card is cheapest for a qlora of llama 3.1 8b?",
        "llama 3.1 8b lora, 3090 vs 4090",
    ],
)
def test_which_gpu_how_long_and_what_it_costs_are_in_the_table_of_gpus(text):
    answer = asked(text)
    assert (answer["opens"], answer["alone"]) == ("gpus", False)
    assert ("No GPU is named" in answer["said"]) == (answer["values"]["gpu"] == "")
    assert ("The smallest listed GPU with room for it is the" in answer["answer"]) == (answer["values"]["gpu"] == "")


def test_the_smallest_gpu_is_named_where_none_is():
    assert "room for it is the Tesla T4 (Colab)" in asked("how much VRAM does llama 3.1 8b qlora need?")["answer"]
    assert "No listed GPU has room" in asked("memory to train gpt3-175b")["answer"]


def test_tokens_to_train_on_and_a_price_are_fields_of_that_table():
    answer = asked("how long to pretrain gpt2 on 10 billion tokens with 8 H100 at $2.50/hour?")
    assert answer["fields"] == {"billions": "10", "price": "2.50"} and answer["values"]["gpus"] == "8"
    assert asked("gpt2 on 300M tokens, t4")["fields"] == {"billions": "0.3"}
    assert asked("llama 3.2 1b on 1.5T tokens, 64 h100")["fields"] == {"billions": "1500"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("train a 7B model on 24GB", ("gemma-7b", "llama-2-7b", "qwen2.5-7b")),
        ("Mistral Nemo 12B qlora", ("mistral-7b",)),
        ("Qwen 2.5 14B instruct lora 24gb", ("qwen",)),
        ("is 12 gb enough for codellama 13b?", ("llama",)),
        ("can a 4090 train a 1.5B model from scratch?", ("gpt3-1.3b", "qwen3-1.7b")),
        ("QwQ 32B on 2x3090", ("qwen3-32b", "qwen3-30b-a3b")),
    ],
)
def test_a_model_that_is_not_known_gets_no_verdict(text, names):
    refused = asked(text)["error"]
    assert refused.startswith("The nearest models to") and all(name in refused for name in names)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("what is the largest model I can train on 2 A100 80GB?", 2), ("which models can eight H100 train?", 8)],
)
def test_models_that_several_gpus_divide(text, gpus):
    answer = asked(text)
    assert answer["values"]["gpus"] == str(gpus) and "Not understood" not in answer["said"]
    assert answer["said"].endswith("Generating is counted on one GPU.") and "ZeRO-3" in answer["said"]


@pytest.mark.parametrize(
    ("text", "steps", "batch"),
    [
        ("does gradient accumulation save memory for gpt2-xl?", 8, 1),
        ("how much does gradient accumulation of 4 save for gpt2-xl with batch 2?", 4, 2),
    ],
)
def test_accumulation_is_compared_with_one_large_micro_batch(text, steps, batch):
    answer, base = asked(text), Setup(model="gpt2-xl", micro_batch_size=batch)
    whole = show_bytes(estimate(replace(base, micro_batch_size=steps * batch)).gpu.total)
    pieces = show_bytes(estimate(replace(base, accumulation_steps=steps)).gpu.total)
    assert f"{whole} as one micro-batch of {steps * batch}, {pieces} with: it saves" in answer["answer"]
    assert answer["said"].count(f"{steps} micro-batches per update") == 1


def test_a_mixture_with_qlora_is_refused_in_the_readers_words():
    assert asked("mixtral 8x7b qlora a100 80gb")["error"].startswith("QLoRA is not counted for mixtral")


def test_answers_are_short():
    for text in (*TRAINING, *GENERATING):
        answer = asked(text)
        assert len(answer["answer"]) < 400 and len(answer["said"]) < 400


def text_of(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def asked(text: str) -> dict:
    return json.loads(search(json.dumps({"text": text, "defaults": DEFAULTS})))
