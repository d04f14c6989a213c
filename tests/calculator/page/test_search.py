"""A setup in a reader's own words."""

import json
import re

import pytest

from calculator import PRESETS, BadSetup, estimate
from calculator.browser import search
from calculator.choose.devices import DEVICES
from calculator.page.question.common import COMMON
from calculator.page.question.understood import understood
from calculator.step.setups import setup_from

LORA, QLORA = {"lora_rank": 16, "base_bits": 16}, {"lora_rank": 16, "base_bits": 4}
QUERIES = {
    "llama 8b lora 24 gb": ("llama-3.1-8b", LORA, "cuda-24gb"),
    "fine-tune GPT-J on 24 GB": ("gpt-j-6b", {}, "cuda-24gb"),
    "T5-3B on a T4": ("t5-3b", {"precision": "amp-fp16"}, "t4"),
    "Llama-3.1-8B on 16 GB": ("llama-3.1-8b", {}, "cuda-16gb"),
    "how much VRAM does llama3.1 70b qlora need? 80GB": ("llama-3.1-70b", QLORA, "cuda-80gb"),
    "gpt 2 large batch 4 checkpointing 8-bit adam rtx 4090": (
        "gpt2-large", {"micro_batch_size": 4, "checkpointing": True, "optimizer": "adamw8bit"}, "rtx-4090"
    ),
    "qwen 2.5 7b 4bit 4090": ("qwen2.5-7b", QLORA, "rtx-4090"),
    "Qwen3-8B, lora r=64, 2k tokens, A100 80GB": (
        "qwen3-8b", LORA | {"lora_rank": 64, "sequence_length": 2048}, "a100-80gb"
    ),
    "mistral pure bf16 adafactor 3090": ("mistral-7b", {"precision": "bf16", "optimizer": "adafactor"}, "rtx-3090"),
    "llama 3.2 3b galore rank 256 pure bf16": (
        "llama-3.2-3b", {"precision": "bf16", "optimizer": "galore", "optimizer_rank": 256}, ""
    ),
    "qwen3 4b apollo mini 24gb": ("qwen3-4b", {"optimizer": "apollo-mini"}, "cuda-24gb"),
    "qwen3 4b apollo": ("qwen3-4b", {"optimizer": "apollo"}, ""),
    "phi-3 mini context 4096 h100": ("phi-3-mini", {"sequence_length": 4096}, "h100-80gb"),
    "bert large sgd fp32 1080 ti": ("bert-large", {"precision": "fp32", "optimizer": "sgd"}, "gtx-1080-ti"),
    "gemma 2 9b cpu offload eager apple 32gb": (
        "gemma-2-9b", {"offload_optimizer": True, "attention": "eager"}, "apple-32gb"
    ),
    "llama 70b 4x h100 zero-3": (
        "llama-3.1-70b", {"sharding": "zero-3", "gpus": 4, "optimizer": "adamw"}, "h100-80gb"
    ),
    "llama 8b fsdp 8 gpus": ("llama-3.1-8b", {"sharding": "zero-3", "gpus": 8, "optimizer": "adamw"}, ""),
    "qwen3 8b tensor parallel 4 gpus": (
        "qwen3-8b", {"sharding": "tensor", "precision": "bf16", "gpus": 4, "optimizer": "adamw"}, ""
    ),
    "llama 8b 2 gpus 4090": ("llama-3.1-8b", {"gpus": 2}, "rtx-4090"),
    "llama 8b bs 16 gradient accumulation 8": (
        "llama-3.1-8b", {"micro_batch_size": 16, "accumulation_steps": 8}, ""
    ),
    "qwen3 8b grad accum steps 4": ("qwen3-8b", {"accumulation_steps": 4}, ""),
    "qwen3 4b m3 max 64gb": ("qwen3-4b", {}, "apple-64gb"),
    "gpt2 4060 8gb": ("gpt2", {}, "rtx-4060"),
    "gpt2 h200 141 gb": ("gpt2", {}, "h200"),
    "llama 8b lora 1,024 tokens": ("llama-3.1-8b", LORA | {"sequence_length": 1024}, ""),
    "llama-3.1-8b --micro-batch-size 4 --gpu a100-80gb": ("llama-3.1-8b", {"micro_batch_size": 4}, "a100-80gb"),
    "llama-3.1-8b --lora-rank 8 --base-bits 4 --sequence-length 2048": (
        "llama-3.1-8b", {"lora_rank": 8, "base_bits": 4, "sequence_length": 2048}, ""
    ),
    "llama 8b max_seq_length: 4096 batch size: 8 lora_r=64": (
        "llama-3.1-8b", {"sequence_length": 4096, "micro_batch_size": 8, "lora_rank": 64, "base_bits": 16}, ""
    ),
    "llama 8b seq len 4096": ("llama-3.1-8b", {"sequence_length": 4096}, ""),
    "llama 8b without lora no offload": ("llama-3.1-8b", {}, ""),
    "llama 8b gradient_checkpointing=False packing=True": (
        "llama-3.1-8b", {"checkpointing": False, "packed": True}, ""
    ),
    "llama 8b checkpointing off t4": ("llama-3.1-8b", {"checkpointing": False, "precision": "amp-fp16"}, "t4"),
    "llama 8b use_liger_kernel: false, fp8=0, disable offload": ("llama-3.1-8b", {}, ""),
    "llama 8b checkpointing offload": ("llama-3.1-8b", {"checkpointing": True, "offload_optimizer": True}, ""),
    "llama 8b lora on 24 gb": ("llama-3.1-8b", LORA, "cuda-24gb"),
    "bert base 110m": ("bert-base", {}, ""),
    "deepseek v3 671b": ("deepseek-v3", {}, ""),
    "flux dev 12b lora": ("flux-dev", LORA, ""),
    "gpt2 xl 1.5b": ("gpt2-xl", {}, ""),
    "gpt2 mac mini 16 gb": ("gpt2", {}, "apple-16gb"),
    "gpt2 mac studio 64gb": ("gpt2", {}, "apple-64gb"),
    "llama 8b lora 4bit": ("llama-3.1-8b", QLORA, ""),
    "llama 8b nf4 adapters r=8 24gb": ("llama-3.1-8b", QLORA | {"lora_rank": 8}, "cuda-24gb"),
    "llama 8b lora bs 2 seq 4096": ("llama-3.1-8b", LORA | {"micro_batch_size": 2, "sequence_length": 4096}, ""),
    "llama 8b batch size=2 seq=1024 gpus=4 zero=3": (
        "llama-3.1-8b",
        {"micro_batch_size": 2, "sequence_length": 1024, "gpus": 4, "sharding": "zero-3", "optimizer": "adamw"},
        "",
    ),
    "llama 8b zero: 2 num_gpus: 8": ("llama-3.1-8b", {"sharding": "zero-2", "gpus": 8, "optimizer": "adamw"}, ""),
    "t5 base 512 tokens target length 64": ("t5-base", {"sequence_length": 512, "target_length": 64}, ""),
    "llama 8b adamw 8bit lora": ("llama-3.1-8b", LORA | {"optimizer": "adamw8bit"}, ""),
    "llama 8b paged adamw 8bit lora r=8": (
        "llama-3.1-8b", LORA | {"lora_rank": 8, "optimizer": "paged-adamw8bit"}, ""
    ),
    "llama 8b a100 80gb x 8 4096 tokens": ("llama-3.1-8b", {"gpus": 8, "sequence_length": 4096}, "a100-80gb"),
    "llama 8b a100 80gb x 8 4 samples": ("llama-3.1-8b", {"gpus": 8, "micro_batch_size": 4}, "a100-80gb"),
    "llama 8b 8 gpus 2048 tokens": ("llama-3.1-8b", {"gpus": 8, "sequence_length": 2048}, ""),
    "llama 8b a100 80gb x 8 8-bit lion": ("llama-3.1-8b", {"gpus": 8, "optimizer": "lion8bit"}, "a100-80gb"),
    "2 b200 gemma 2 9b": ("gemma-2-9b", {"gpus": 2}, "b200"),
    "llama 8b lora, no qlora": ("llama-3.1-8b", LORA, ""),
    "llama 8b muon and adamw": ("llama-3.1-8b", {"optimizer": "muon"}, ""),
    "llama 8b lion 8bit": ("llama-3.1-8b", {"optimizer": "lion8bit"}, ""),
    "llama 8b paged adamw 8bit": ("llama-3.1-8b", {"optimizer": "paged-adamw8bit"}, ""),
    "llama 8b load_in_4bit": ("llama-3.1-8b", QLORA, ""),
    "llama 8b 8xH100": ("llama-3.1-8b", {"gpus": 8}, "h100-80gb"),
    "llama 8b 4xA100-80GB": ("llama-3.1-8b", {"gpus": 4}, "a100-80gb"),
    "llama 8b 2x24gb": ("llama-3.1-8b", {"gpus": 2}, "cuda-24gb"),
    "llama 8b on 2 x 24 gb": ("llama-3.1-8b", {"gpus": 2}, "cuda-24gb"),
    "llama 8b 4 * 80 g": ("llama-3.1-8b", {"gpus": 4}, "cuda-80gb"),
    "llama 8b 3090 x 2 gpus": ("llama-3.1-8b", {"gpus": 2}, "rtx-3090"),
    "llama 8b 2x3090": ("llama-3.1-8b", {"gpus": 2}, "rtx-3090"),
    "gpt-2 small from scratch t4": ("gpt2", {"precision": "amp-fp16"}, "t4"),
    "llama 8b two 3090s": ("llama-3.1-8b", {"gpus": 2}, "rtx-3090"),
    "llama 8b dual rtx 4090": ("llama-3.1-8b", {"gpus": 2}, "rtx-4090"),
    "llama 8b 24gb x 2": ("llama-3.1-8b", {"gpus": 2}, "cuda-24gb"),
    "llama 8b 3090 \u00d7 4": ("llama-3.1-8b", {"gpus": 4}, "rtx-3090"),
    "llama 70b 4 a100s 80gb": ("llama-3.1-70b", {"gpus": 4}, "a100-80gb"),
    "flux 512\u00d7512 4090": ("flux-dev", {"image_size": 512}, "rtx-4090"),
    "llama 8b 16 x 2048 tokens": ("llama-3.1-8b", {"micro_batch_size": 16, "sequence_length": 2048}, ""),
    "vit-l batch 4": ("vit-large", {"micro_batch_size": 4}, ""),
    "gpt2 3080 20gb": ("gpt2", {}, "cuda-20gb"),
    "gpt2 a100-80g": ("gpt2", {}, "a100-80gb"),
    "gpt2 t4 15gb": ("gpt2", {"precision": "amp-fp16"}, "t4"),
    "gpt2 2080 ti 22gb": ("gpt2", {"precision": "amp-fp16"}, "cuda-22gb"),
    "smollm2 135m without checkpointing": ("smollm2-135m", {"checkpointing": False}, ""),
    "deepseek v3 8 h100 zero 3": (
        "deepseek-v3", {"sharding": "zero-3", "gpus": 8, "optimizer": "adamw"}, "h100-80gb"
    ),
    "llama 70b 2 rtx 3090 qlora": ("llama-3.1-70b", QLORA | {"gpus": 2}, "rtx-3090"),
    "llama 8b tensor parallel 4 h100": (
        "llama-3.1-8b", {"sharding": "tensor", "precision": "bf16", "gpus": 4, "optimizer": "adamw"}, "h100-80gb"
    ),
    "llama 8b zero stage 3 4 nvidia h100": (
        "llama-3.1-8b", {"sharding": "zero-3", "gpus": 4, "optimizer": "adamw"}, "h100-80gb"
    ),
    "llama 8b on 8h100": ("llama-3.1-8b", {"gpus": 8}, "h100-80gb"),
    "llama 8b 4 80gb a100s": ("llama-3.1-8b", {"gpus": 4}, "a100-80gb"),
    "llama 2 7b 2 a100": ("llama-2-7b", {"gpus": 2}, "a100-40gb"),
    "gpt2 batch 8 h100": ("gpt2", {"micro_batch_size": 8}, "h100-80gb"),
    "gpt2 batch 8 a100s": ("gpt2", {"micro_batch_size": 8}, "a100-40gb"),
    "gpt2 batch 8 16 h100": ("gpt2", {"micro_batch_size": 8, "gpus": 16}, "h100-80gb"),
    "llama 8b lora rank 16 a100": ("llama-3.1-8b", LORA, "a100-40gb"),
    "llama 8b zero 3 gpus 2 3090": (
        "llama-3.1-8b", {"sharding": "zero-3", "gpus": 2, "optimizer": "adamw"}, "rtx-3090"
    ),
    "phi 4 gpus": ("phi-4", {}, ""),
    "phi 4 h100": ("phi-4", {}, "h100-80gb"),
    "gemma 3 4b": ("gemma-3-4b", {}, ""),
    "gemma 3 4b 2 t4": ("gemma-3-4b", {"gpus": 2, "precision": "amp-fp16"}, "t4"),
    "gpt2 colab": ("gpt2", {"precision": "amp-fp16"}, "t4"),
    "gpt2 free google colab 15gb": ("gpt2", {"precision": "amp-fp16"}, "t4"),
    "gpt2 colab pro": ("gpt2", {}, "l4"),
    "gpt2 colab a100": ("gpt2", {}, "a100-40gb"),
    "llama 8b full finetune": ("llama-3.1-8b", {}, ""),
    "llama 8b full fine-tuning context 2048": ("llama-3.1-8b", {"sequence_length": 2048}, ""),
    "llama 8b full": ("llama-3.1-8b", {}, ""),
    "llama 8b full parameter fine tuning no lora": ("llama-3.1-8b", {}, ""),
    "gpt2 full precision": ("gpt2", {"precision": "fp32"}, ""),
    "gpt2 A6000": ("gpt2", {}, "rtx-a6000"),
    "gpt2 2 rtx a6000 48gb": ("gpt2", {"gpus": 2}, "rtx-a6000"),
    "gpt2 L40S": ("gpt2", {}, "l40s"),
    "gpt2 two l40s": ("gpt2", {"gpus": 2}, "l40s"),
    "gpt2 RTX 6000 Ada": ("gpt2", {}, "rtx-6000-ada"),
    "gpt2 NVIDIA RTX 6000 Ada Generation": ("gpt2", {}, "rtx-6000-ada"),
    "gpt2 8 B200": ("gpt2", {"gpus": 8}, "b200"),
    "gpt2 b200 192 gb": ("gpt2", {}, "b200"),
    "gpt2 b200 180gb": ("gpt2", {}, "b200"),
    "llama 3 8b": ("llama-3.1-8b", {}, ""),
    "llama3 instruct 8b 2 a100": ("llama-3.1-8b", {"gpus": 2}, "a100-40gb"),
    "Llama-3-70B qlora": ("llama-3.1-70b", QLORA, ""),
    "llama 3.3 70b h100": ("llama-3.1-70b", {}, "h100-80gb"),
}  # fmt: skip


@pytest.mark.parametrize("text", QUERIES)
def test_words_become_a_setup(text):
    model, settings, gpu = QUERIES[text]
    found = understood(text)
    assert (found.setup, found.gpu, found.ignored) == ({"model": model} | settings, gpu, ())
    assert estimate(setup_from(found.setup)).gpu.total > 0


@pytest.mark.parametrize(
    ("text", "gpu", "ignored"),
    [
        ("gpt2 gtx 980", "", ["gtx", "980"]),
        ("gpt2 rtx 6000", "", ["rtx", "6000"]),
        ("gpt2 64gb ram 4090", "rtx-4090", ["64gb"]),
        ("gpt2 4090, system memory 64gb", "rtx-4090", ["64gb"]),
        ("gpt2 global batch 64 on 8 gpus", "", ["global batch 64"]),
        ("llama 8b lora 16 bs 2 seq 4096 t4", "t4", ["16"]),
        ("gpt2 epochs 3 t4", "t4", ["epochs", "3"]),
        ("gpt2 lora_alpha 32 h100", "h100-80gb", ["lora_alpha", "32"]),
        ("gpt2 1e-4 h100", "h100-80gb", ["1e", "4"]),
        ("gpt2 on 100k samples t4", "t4", ["100k", "samples"]),
    ],
)
def test_what_is_not_listed_is_said_and_not_guessed(text, gpu, ignored):
    found = understood(text)
    assert (found.gpu, list(found.ignored)) == (gpu, ignored)


@pytest.mark.parametrize(
    ("text", "gpu", "gpus", "half"),
    [
        ("gtx 1080", "cuda-8gb", None, True),
        ("3080 ti", "cuda-12gb", None, False),
        ("4070 ti super", "cuda-16gb", None, False),
        ("2 4070 super", "cuda-12gb", 2, False),
        ("2x rtx 2080 super", "cuda-8gb", 2, True),
        ("4060 ti 16gb", "cuda-16gb", None, False),
        ("4060 ti", "cuda-8gb", None, False),
        ("rtx 4090 laptop", "cuda-16gb", None, False),
        ("a laptop with a 4080", "cuda-12gb", None, False),
        ("rtx 3070 mobile", "cuda-8gb", None, False),
        ("a10g", "cuda-24gb", None, False),
        ("4x A40", "cuda-48gb", 4, False),
        ("rx 7900 xtx", "cuda-24gb", None, False),
        ("rtx pro 6000", "cuda-96gb", None, False),
        ("titan rtx", "cuda-24gb", None, True),
        ("h100 nvl", "cuda-94gb", None, False),
    ],
)
def test_a_card_that_is_not_listed_is_taken_by_its_memory_and_that_is_said(text, gpu, gpus, half):
    found = understood(f"gpt2 {text}")
    assert (found.gpu, found.setup.get("gpus"), found.setup.get("precision")) == (
        gpu,
        gpus,
        "amp-fp16" if half else None,
    )
    assert not found.ignored
    (note,) = found.notes
    assert note.endswith(f"is counted as a CUDA card with {gpu.split('-')[1][:-2]} GB.")


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("m4 24gb", "apple-16gb"),
        ("Mac Studio M2 Ultra 192GB", "apple-64gb"),
        ("M2 Max 64GB RAM", "apple-64gb"),
        ("MacBook Pro M3 Max 36 GB", "apple-32gb"),
        ("apple silicon 8 gb", "apple-8gb"),
    ],
)
def test_a_computer_of_apples_is_the_next_smaller_one(text, gpu):
    found = understood(f"gpt2 on a {text}")
    assert found.gpu == gpu and not found.ignored
    assert bool(found.notes) == (re.search(r"(\d+) ?gb", text, re.I)[1] not in gpu)


def test_a_computer_of_apples_without_its_memory_is_refused():
    for text in ("gpt2 apple m3", "gpt2 on my macbook", "gpt2 mac mini 4gb"):
        with pytest.raises(BadSetup, match="apple-8gb"):
            understood(text)


def test_a_card_of_several_memories_is_said():
    assert understood("gpt2 a100").notes == ("The A100, 40 GB is taken; name the memory for another.",)
    assert understood("gpt2 a100 80gb").notes == understood("gpt2 h100").notes == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("gpt2 foo 24gb", "foo"),
        ("open llama 7b", "open"),
        ("gpt2 quickly batch 4 please", "quickly"),
        ("wizard-mistral 7b lora", "wizard"),
        ("can I train GPT-2 chonky on a 12 GB card?", "chonky"),
    ],
)
def test_no_setup_if_a_word_beside_the_models_name_is_not_understood(text, word):
    with pytest.raises(BadSetup, match=f"“{word}” beside .* was not understood, and may make it another model"):
        understood(text)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("llama 3.2 lora", "llama-3.2-1b, llama-3.2-3b"),
        ("bert 16gb", "bert-base, bert-large"),
        ("qwen2.5 on a t4", "qwen2.5-0.5b, qwen2.5-7b"),
    ],
)
def test_a_name_without_its_size_is_refused_with_the_sizes(text, sizes):
    with pytest.raises(BadSetup, match=f"does not say which model it means: name one of {sizes}"):
        understood(text)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("GPT-2 XL", "gpt2-xl"),
        ("gpt 2 xl", "gpt2-xl"),
        ("GPT-2 medium", "gpt2-medium"),
        ("llama 3 8b", "llama-3.1-8b"),
        ("Llama 3.1 8B Instruct", "llama-3.1-8b"),
        ("Qwen 2.5 7B instruct", "qwen2.5-7b"),
        ("Qwen 3 32B", "qwen3-32b"),
        ("gemma 3 27b it", "gemma-3-27b"),
        ("Phi 3 mini 4k instruct", "phi-3-mini"),
        ("DeepSeek R1", "deepseek-v3"),
        ("Mistral 7B Instruct v0.3", "mistral-7b"),
        ("T5 3B", "t5-3b"),
        ("SmolLM2 1.7B", "smollm2-1.7b"),
        ("GPT-J 6B", "gpt-j-6b"),
        ("GPT-3", "gpt3-175b"),
        ("GPT-3 13B", "gpt3-13b"),
        ("mixtral 8x7b", "mixtral-8x7b"),
        ("bert base mlm", "bert-base"),
    ],
)
def test_sizes_after_a_blank_are_understood(text, model):
    for words in (text, text.lower(), f"can I train {text} on a 12 GB card?", f"24gb {text}, lora"):
        found = understood(words)
        assert found.setup["model"] == model and not found.ignored, words


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("mixtral 8x22b", "mixtral-8x7b"),
        ("microsoft/Phi-4-mini-instruct", "phi-3-mini"),
        ("t5-xl", "t5-"),
        ("64gb ram llama 4 h100", "llama-"),
        ("8 bit muon llama 4", "llama-"),
        ("llama 4 scout h100", "llama-"),
        ("gemma 4 27b", "gemma-3-27b"),
        ("llama 3 1b", "llama-3.2-1b"),
        ("gpt2 1.5b", "gpt"),
        ("gpt-neo", "gpt"),
        ("flan-t5-base", "t5-"),
        ("google/t5-v1_1-base", "t5-"),
        ("flux schnell", "flux-dev"),
        ("llama 3.3 8b", "llama-3.1-8b"),
        ("llama 13b 200gb", "llama-"),
        ("qlora 70b on 2x 3090", "llama-3.1-70b"),
        ("4b qlora", "qwen3-4b"),
        ("Qwen/Qwen2.5-14B-Instruct 24gb", "qwen"),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral-7b"),
        ("the cat", ""),
        ("x" * 5000, ""),
    ],
)
def test_what_is_not_known_is_not_taken_for_something_else_and_the_nearest_are_named(text, nearest):
    with pytest.raises(BadSetup) as refused:
        understood(text)
    message = str(refused.value)
    assert re.match(rf"The nearest (models to|to the model) '.* are {nearest}", message)
    assert sum(name in message for name in PRESETS) >= 3 and "\n" not in message and len(message) < 300


@pytest.mark.parametrize(
    ("text", "setup"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct on a 4090", {"model": "llama-3.1-8b"}),
        ("deepseek-r1-distill-llama-70b", {"model": "llama-3.1-70b"}),
        ("https://huggingface.co/Qwen/Qwen2.5-7B-Instruct lora 24gb", {"model": "qwen2.5-7b"} | LORA),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit 8gb", {"model": "llama-3.2-1b"} | QLORA),
        ("qwen3-14b-awq 16gb", {"model": "qwen3-14b"} | QLORA),
    ],
)
def test_a_name_of_the_hub_is_understood(text, setup):
    found = understood(text)
    assert found.setup == setup and not found.ignored


@pytest.mark.parametrize("model", PRESETS)
@pytest.mark.parametrize("written", [str, lambda name: name.replace("-", " "), lambda name: name.upper()])
def test_each_model_is_found_by_its_name_with_each_gpu(model, written):
    for gpu in ("", *DEVICES):
        found = understood(f"{written(model)} {written(gpu)}")
        assert (found.setup["model"], found.gpu) == (model, gpu)


def test_each_word_of_the_page_is_understood_in_any_order():
    words = ["lora", "24 gb", "llama 8b", "batch 2", "1k tokens"]
    expected = understood(" ".join(words))
    for start in range(len(words)):
        found = understood(" ".join(words[start:] + words[:start]))
        assert found.gpu == expected.gpu and found.setup == expected.setup and not found.ignored


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "Type a model, and if you like a technique and a GPU"),
        (5, "Type a model"),
        ("gpt2 9999999 gb", "gpu is cuda-Ngb"),
        ("gpt2 0 gb", "gpu is cuda-Ngb"),
        ("bert large inference", "bert-large does not generate text token by token; choose a decoder"),
    ],
)
def test_what_is_not_understood_is_said(text, said):
    error = json.loads(search(json.dumps({"text": text})))["error"]
    assert said in error and len(error) < 300 and "\n" not in error


def test_words_that_say_nothing_are_left_out_and_others_named():
    words = sorted(COMMON)
    for start in range(0, len(words), 20):
        assert not understood(f"gpt2 {' '.join(words[start : start + 20])}").ignored
    answer = json.loads(search(json.dumps({"text": "gpt2 t4 quickly batch 4 please"})))
    assert answer["said"].startswith(
        "Understood: gpt2, micro-batch of 4, 16-bit autocast (float16), GPU t4. Not understood: quickly. Not named, so"
    )
    assert answer["values"] == {"model": "gpt2", "micro_batch_size": "4", "precision": "amp-fp16", "gpu": "t4"}
