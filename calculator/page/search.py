"""A setup in a reader's own words: "llama 8b lora 24 gb" becomes a model, a technique and a card."""

from __future__ import annotations

import re
from collections.abc import Iterable

from calculator.choose.devices import DEVICES, device_named
from calculator.choose.inference import cache_bytes
from calculator.choose.techniques import LORA_RANK
from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS
from calculator.models.names import named, nearest, not_known
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import OPTIMIZERS
from calculator.parts.parameters import count_parameters
from calculator.step.setups import NOT_COUNTED

LONGEST_TEXT = 300
LEAST_NAME = 4
"""Shorter words are read as before: a word such as t5 may have its size in the next one."""
HUB_ID = re.compile(r"(?:https?://\S+/)?[A-Za-z][\w.-]*/[A-Za-z][\w.-]*\d[\w.:-]*(?:/\S*)?")
"""A word that names a model as the Hub does."""
WORDS_OF_VALUES = {
    "precision": {
        "amp-bf16": "16-bit autocast (bfloat16)",
        "amp-fp16": "16-bit autocast (float16)",
        "bf16": "everything in bfloat16",
        "fp16": "everything in float16",
        "fp32": "float32",
    },
    "sharding": {"zero-1": "ZeRO-1", "zero-2": "ZeRO-2", "zero-3": "ZeRO-3", "tensor": "tensor parallelism"},
    "attention": {"sdpa": "fused attention", "eager": "separate operations of attention"},
}
NUMBER = r"(\d{1,7})"
GAP = r"[\s_-]*"
IS = r"[\s_:=-]*"
"""Pattern between a number's name and the number."""
LORA: dict[str, object] = {"lora_rank": LORA_RANK, "base_bits": 16}
OFF = rf"{IS}(?:off|false|disabled)|\s*[:=]\s*(?:no|none|0)"
"""Pattern after a technique's name that turns it off."""
WORDS: tuple[tuple[str, dict[str, object]], ...] = (
    (rf"paged{GAP}adamw?{GAP}(?:32{GAP}bits?)", {"optimizer": "paged-adamw"}),
    (rf"paged{GAP}adamw?{GAP}8{GAP}bits?", {"optimizer": "paged-adamw8bit"}),
    (rf"lion{GAP}8{GAP}bits?|8{GAP}bits?{GAP}lion", {"optimizer": "lion8bit"}),
    (rf"lamb{GAP}8{GAP}bits?|8{GAP}bits?{GAP}lamb", {"optimizer": "lamb8bit"}),
    (rf"adamw?{GAP}8{GAP}bits?|8{GAP}bits?{GAP}(?:adamw?|optimi[sz]er)", {"optimizer": "adamw8bit"}),
    (
        rf"(?:load{GAP}in{GAP})?8{GAP}bits?{GAP}(?:lora|base|model|weights)|load{GAP}in{GAP}8{GAP}bits?"
        rf"|(?:lora|base|model|weights){GAP}(?:in{GAP})?8{GAP}bits?(?:{GAP}base)?",
        {"lora_rank": LORA_RANK, "base_bits": 8},
    ),
    (rf"load{GAP}in{GAP}4{GAP}bits?|base{GAP}bits?{GAP}4", {"lora_rank": LORA_RANK, "base_bits": 4}),
    (rf"q{GAP}lora", {"lora_rank": LORA_RANK, "base_bits": 4}),
    (rf"4{GAP}bits?|nf4|int4", {"base_bits": 4}),
    (r"lora|adapters?|peft", LORA),
    (rf"(?:adamw?{GAP})?8{GAP}bits?(?:{GAP}(?:adamw?|optimi[sz]er))?|adamw8bit", {"optimizer": "adamw8bit"}),
    (r"adafactor", {"optimizer": "adafactor"}),
    (r"galore", {"optimizer": "galore"}),
    (rf"apollo{GAP}mini", {"optimizer": "apollo-mini"}),
    (r"apollo", {"optimizer": "apollo"}),
    (r"lion", {"optimizer": "lion"}),
    (r"lamb", {"optimizer": "lamb"}),
    (r"muon", {"optimizer": "muon"}),
    (r"sgd", {"optimizer": "sgd"}),
    (r"adamw?", {"optimizer": "adamw"}),
    (
        rf"(?:no|without|disabled?){GAP}(?:gradient{GAP})?checkpoint(?:ing|s)?"
        rf"|(?:gradient{GAP})?checkpoint(?:ing|s)?(?:{OFF})",
        {"checkpointing": False},
    ),
    (rf"(?:gradient{GAP})?checkpoint(?:ing|s)?|recomput(?:e|ing|ation)", {"checkpointing": True}),
    (
        rf"(?:use{GAP})?liger(?:{GAP}kernels?)?(?:{GAP}loss)?|fused{GAP}(?:linear{GAP})?(?:cross{GAP}entropy|loss)"
        rf"|(?:cross{GAP}entropy|loss){GAP}in{GAP}(?:pieces|chunks)|chunked{GAP}(?:cross{GAP}entropy|loss)",
        {"loss": "liger"},
    ),
    (rf"(?:torchao{GAP})?(?:fp|float){GAP}?8(?:{GAP}training)?", {"fp8": True}),
    (rf"(?:sequence{GAP})?pack(?:ing|ed|s)(?:{GAP}(?:samples?|sequences?))?", {"packed": True}),
    (
        rf"activations?{GAP}(?:offload(?:ed|ing)?|on{GAP}the{GAP}host)|offload(?:ed|ing)?{GAP}activations?",
        {"offload_activations": True, "checkpointing": False},
    ),
    (rf"(?:cpu{GAP})?offload(?:ed|ing)?", {"offload_optimizer": True}),
    (rf"flash{GAP}attention|flash|sdpa", {"attention": "sdpa"}),
    (r"eager", {"attention": "eager"}),
    (rf"(?:pure|full|whole){GAP}(?:bf16|bfloat16)", {"precision": "bf16"}),
    (rf"(?:pure|full|whole){GAP}(?:fp16|float16)", {"precision": "fp16"}),
    (
        rf"full(?:{GAP}(?:fine{GAP}tun(?:e|ed|ing)|ft|sft|train(?:ing)?|param(?:eter)?s?|weights?|model))*"
        rf"(?!{GAP}(?:precision|context|length|seq|attention|shard))",
        {"all_weights": True},
    ),
    (rf"(?:fsdp2?|ddp|deepspeed)?{GAP}zero{IS}(?:stage{IS})?1", {"sharding": "zero-1"}),
    (rf"(?:fsdp2?|deepspeed)?{GAP}zero{IS}(?:stage{IS})?2", {"sharding": "zero-2"}),
    (rf"(?:fsdp2?|deepspeed)?{GAP}zero{IS}(?:stage{IS})?3|fsdp2?", {"sharding": "zero-3"}),
    (rf"tensor{GAP}parallel(?:ism)?", {"sharding": "tensor", "precision": "bf16"}),
    (r"bf16|bfloat16", {"precision": "amp-bf16"}),
    (r"fp16|float16", {"precision": "amp-fp16"}),
    (rf"fp32|float32|full{GAP}precision", {"precision": "fp32"}),
)
"""Patterns and the fields that they set; the first match wins. `all_weights` is not a field: it only excludes LoRA."""
EIGHT_BIT_MUON = rf"(?<![\w.])(?:8{GAP}bits?{GAP}muon|muon{GAP}8{GAP}bits?)(?![\w.])"
"""Pattern of 8-bit Muon, which is not counted; its words alone would mean Muon and 8-bit AdamW."""
NUMBERS = (
    ("lora_rank", rf"(?:lora_)?(?:rank{IS}|(?<!-)r{GAP}(?:[:=]{GAP}|(?!1(?!\d)))){NUMBER}(?![\w.])"),
    ("gpus", rf"(?:n_|num_)?gpus?\s*[:=]\s*{NUMBER}(?![\w.])"),
    ("gpus", rf"{NUMBER}{GAP}gpus?(?![\w.])(?!{IS}\d{{1,2}}(?!\w|{GAP}(?:bits?|samples?|sequences?|tokens?)))"),
    ("gpus", rf"{NUMBER}{GAP}x(?![\w.])(?!{GAP}\d+(?!\w))"),
    (
        "accumulation_steps",
        rf"(?:grad(?:ient)?s?{GAP})?accum(?:ulat(?:e|ed|ion))?(?:{GAP}(?:steps?|of|over))*{IS}{NUMBER}(?![\w.])",
    ),
    ("", rf"(?:effective|global|total){GAP}batch(?:{GAP}(?:size|of))*{IS}{NUMBER}(k?)(?![\w.])"),
    ("micro_batch_size", rf"(?:bs|(?:micro{GAP})?batch(?:es)?(?:{GAP}size)?)(?:{GAP}of)?{IS}{NUMBER}(k?)(?![\w.])"),
    ("micro_batch_size", rf"{NUMBER}(k?){GAP}(?:samples?|sequences?)(?!\w)"),
    ("image_size", rf"{NUMBER}{GAP}(?:x{GAP}\d+{GAP})?(?:px|pixels?)(?!\w)"),
    ("image_size", rf"{NUMBER}{GAP}x{GAP}\d+(?!\w)"),
    ("image_size", rf"(?:image|picture|resolution)s?(?:{GAP}size)?(?:{GAP}of)?{IS}{NUMBER}(?![\w.])"),
    ("target_length", rf"(?:target|decoder)(?:{GAP}(?:len(?:gth)?|tokens?))*(?:{GAP}of)?{IS}{NUMBER}(?![\w.])"),
    ("sequence_length", rf"{NUMBER}(k?){GAP}(?:tokens?|context|ctx|seq)(?!\w)"),
    (
        "sequence_length",
        rf"(?:max{GAP})?(?:length|context|ctx|seq(?:uence)?(?:{GAP}len(?:gth)?)?)(?:{GAP}of)?{IS}{NUMBER}(k?)(?![\w.])",
    ),
)
"""Fields and the patterns of their numbers, which may end in k for 1024; "" is the global batch, not a field."""
NUMBERED = (
    r"\w*(?:epochs?|steps?|stage|alpha|seed|layers?|heads?|workers|top|lr|days?|hours?|samples?|int|cuda|torch|python)"
)
"""Pattern of words that a number follows and that set no field."""
COUNT = rf"(?:(?<!\d )(?<![\w.])({NUMBERED}){IS})?(?<![\w.-])(\d{{1,2}})\s*(?:(?:nvidia|geforce|tesla|amd)\s+)*\0"
"""Pattern of a number before a GPU, whose name is replaced by NUL; a word before the number may claim it."""
COLAB = rf"(?<!\w)(?:free{GAP})?(?:google{GAP})?colab(?:{GAP}(?:free|(pro)))?(?!\w)"
"""Google's notebooks: without payment they have a T4, with it an L4 too."""
GENERATING = r"(?<!\w)(?:infer(?:ence|encing|ring)?|(?<!image.)generat(?:e|ing|ion)|serv(?:e|ing)|vllm)(?!\w)"
"""Pattern of words for generating text."""
SAME_SHAPES = {"llama-3.1-8b": ("3",), "llama-3.1-70b": ("3", "3.3")}
"""Other versions that have the layers of a preset: at most the scaling of positions and the longest context differ
(config.json of meta-llama/Meta-Llama-3-8B, Meta-Llama-3-70B and Llama-3.3-70B-Instruct)."""
APPLE_CHIP = rf"(?<!\w)(?:apple{GAP})?(?:m[1-9]|mac(?:{GAP}(?:book|mini|studio))?)(?:{GAP}(?:pro|max|ultra|air))?(?!\w)"
"""Words for a computer of Apple's, whose memory says which listed GPU it is."""
COMMON = frozenset(
    word
    for line in (
        "a an and at can card context does fine finetune finetuning fit fits for from gpu gpus how i in is it memory",
        "model much my need needs nvidia geforce of on one our single tesla the to train training tune tuning use",
        "using vram what will with base instruct pretrain pretraining run",
    )
    for word in line.split()
)
"""Words that say nothing about a setup."""
VARIANTS = re.compile(
    r"(?:\d+x)?[\d.]+b|e\d+b|\d{2,}m|r1|v[12]|3n|tiny|small|medium|large|huge|xx?l|mini|nano|nemo|moe|oss|vl|coder|code"
    r"|guard|vision|distill|turbo|scout|maverick|math|audio|omni|neox?|flan|v1[._]1|schnell"
)
"""Pattern of words in other models' names: if one is left over, the text means another model."""
ROUNDED = 0.05
"""The largest difference between a model's number of parameters and the number that people call it by."""
CARDS = frozenset({"ti", "super", "laptop", "mobile", "nvl", "g"})
"""Words of the names of other GPUs."""
CARD = r"(?:(?:nvidia|geforce|tesla|rtx|gtx)[\s_-]+)*[a-z]{0,2}\d{1,4}"
"""Pattern of a word that may name a GPU."""
COUNTS = {"two|dual": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
PLAIN: tuple[tuple[str, str], ...] = (
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"(?:^|(?<=\s))--?(?=[a-z])", "| "),  # a flag's name begins anew: "4 --gpu" are no 4 GPUs
    (r"(?<![\w.])(\d{1,4})\s*[x*]\s*(?=\d+k?\s*tok)", r"batch \1 "),
    (r"(?<![\w.])(\d{1,3})\s*[x*]\s*(?=[a-z]|\d+\s*g)", r"\1 x "),
    (r"(?<=\w)\s+[x*]\s*(\d{1,2})(?![\w.]|\s*(?:px|pix|g(?:i?b|igs?)?(?!\w)))", r" \1 gpus "),
    *((rf"(?<!\w)(?:{words})\s+(?={CARD})", f"{count} x ") for words, count in COUNTS.items()),
    (r"(?<!\w)(?!l40s)([a-z]{0,2}\d{1,4})s(?!\w)", r"\1"),
    (rf"(?<!\w)ada{GAP}generation(?!\w)", "ada"),
    (r"(?<![\w.])(\d{1,4})\s*g(?:igs?)?(?!\w)", r"\1gb"),
    (rf"(?<![\w.])\d+{GAP}gi?b{GAP}(?:of{GAP})?(?:system|cpu|host)?{GAP}ram(?!\w)", "ram"),
    (rf"(?<!\w)vit{GAP}l(?!\w)", "vit-large"),
    (rf"(?<!\w)vit{GAP}b(?!\w)", "vit-base"),
    (EIGHT_BIT_MUON, "muon8bit muon"),
)
"""Spellings, and the spelling that the patterns above know."""


def understood(text: str) -> dict:
    """Returns the setup that a text describes, as plain data.

    Args:
        text: In any order: a model, a GPU or its memory, techniques and numbers.

    Returns:
        `setup`, keys of a setup; `gpu`, a GPU's name or ""; `ignored`, the words that were not understood.

    Raises:
        BadSetup: If the text names no model.

    >>> understood("llama 8b lora 24 gb")
    {'setup': {'model': 'llama-3.1-8b', 'lora_rank': 16, 'base_bits': 16}, 'gpu': 'cuda-24gb', 'ignored': []}
    """
    text = _plain(_with_presets(text))
    model, without_model = _named(PRESETS, text)
    if model is None:
        raise BadSetup(_not_known(text))
    gpu, in_float16, without_gpu = _gpu(without_model)
    rest = _check_version(model, text, without_gpu)
    numbers, unknown, rest = _numbers(rest)
    setup, rest = _techniques(rest)
    if "gpus" not in numbers:
        count, rest = _count(rest, without_model, without_gpu)
        numbers |= count
    setup = {"model": model} | setup | numbers
    if setup.get("optimizer") in DEFAULT_RANKS and "lora_rank" in numbers:
        setup["optimizer_rank"] = setup.pop("lora_rank")
    if "base_bits" in setup and "lora_rank" not in setup:  # weights of 4 bits are trained through adapters only
        setup["lora_rank"] = LORA_RANK
    if "sharding" in setup and "optimizer" not in setup:  # the page's own, in 8 bits, is not divided
        setup["optimizer"] = "adamw"
    if "lora_rank" in numbers and "base_bits" not in setup and "optimizer_rank" not in setup:
        setup["base_bits"] = 16
    if setup.pop("all_weights", False) and "lora_rank" in setup:
        raise BadSetup(
            "Full fine-tuning trains all weights, and LoRA, which weights of 4 or 8 bits need, trains adapters only; "
            "name one of the two."
        )
    if in_float16 and "precision" not in setup:
        setup["precision"] = "amp-fp16"
    words = re.findall(r"[\w.]+", rest)
    words = [word for word in words if not _is_size_of(model, word)]
    if any(map(VARIANTS.fullmatch, words)):
        raise BadSetup(_not_known(text))
    if re.search(GENERATING, rest):
        raise BadSetup(_to_generate(setup, gpu))
    return {"setup": setup, "gpu": gpu or "", "ignored": unknown + [word for word in words if word not in COMMON]}


def _with_presets(text: str) -> str:
    """The text with presets in place of hub ids, links and variants; 4 bits of a quantized copy become a word.

    Raises:
        BadSetup: If one of them has other sizes than every preset.
    """
    words = []
    for word in text.split():
        found = named(word.strip(".,;:!?()")) if len(word) > LEAST_NAME else None
        if found is None and HUB_ID.fullmatch(word):
            raise BadSetup(not_known(word))
        quantized = " 4 bit" if found and found.bits == 4 else ""
        words.append(found.preset + quantized if found else word)
    return " ".join(words)


def _is_size_of(model: str, word: str) -> bool:
    """Returns True if a word is the model's own number of parameters, as people round it: 671b for DeepSeek-V3."""
    size = re.fullmatch(r"(\d{1,4}(?:\.\d{1,2})?)([mb])", word)
    if size is None:
        return False
    parameters = float(size[1]) * (1e6 if size[2] == "m" else 1e9)
    return abs(parameters / count_parameters(PRESETS[model]) - 1) < ROUNDED


def _not_known(text: str) -> str:
    """The refusal of a text that names no preset, with the nearest three."""
    words = [word for word in re.findall(r"[\w.]+", text) if word not in COMMON and not re.fullmatch(r"\d+gb", word)]
    first, second, third = nearest("-".join(words))
    return (
        f"The nearest models to {text.strip()!r:.60} are {first}, {second} and {third}; try words such as llama 8b "
        "lora 24 gb, or paste its config.json."
    )


def _to_generate(setup: dict, gpu: str | None) -> str:
    """Advice for a text that asks for the memory of generating text."""
    try:
        cache_bytes(PRESETS[setup["model"]], batch=1, length=1)
    except BadSetup as error:
        return f"The answer here is for training. {error}"
    flags = {"batch": setup.get("micro_batch_size"), "length": setup.get("sequence_length"), "gpu": gpu}
    command = " ".join([setup["model"], *(f"--{name} {value}" for name, value in flags.items() if value)])
    return (
        "The answer here is for training. For generating text, set the model and open the table below, or run "
        f"`python -m calculator inference {command}`."
    )


def _count(text: str, with_gpu: str, without_gpu: str) -> tuple[dict[str, object], str]:
    """The number that stands before a GPU, as the field `gpus`, and the text without it.

    Args:
        text: The part that was not understood so far.
        with_gpu: The text before its GPU was understood.
        without_gpu: The same text with bars in place of the GPU.
    """
    places = zip(text, with_gpu, without_gpu, strict=True)
    found = re.search(COUNT, "".join(now if before == after else "\0" for now, before, after in places))
    if found is None or found[1]:
        return {}, text
    return {"gpus": int(found[2])}, _without(text, found)


def _numbers(text: str) -> tuple[dict[str, object], list[str], str]:
    """Returns the fields that numbers in the text set, the look-alikes, and the rest of the text."""
    numbers: dict[str, object] = {}
    unknown = []
    for field, pattern in NUMBERS:
        found = re.search(rf"(?<![\w.]){pattern}", text)
        if found is None:
            continue
        thousands = found.lastindex == 2 and found[2] == "k"
        if field:
            numbers.setdefault(field, int(found[1]) * (1024 if thousands else 1))
        else:
            unknown.append(found[0].strip())
        text = _without(text, found)
    return numbers, unknown, text


def _techniques(text: str) -> tuple[dict[str, object], str]:
    """Fields of the techniques that a text names, not of those that it excludes, and the text without them."""
    fields: dict[str, object] = {}
    for pattern, changes in WORDS:
        before, after = rf"((?:no|not|without|disabled?){GAP})?", rf"(?:({OFF})|{IS}(?:true|enabled))?"
        found = re.search(rf"(?<![\w.]){before}(?:{pattern}){after}(?![\w.])", text)
        if found is not None:
            if not (found[1] or found[2]):
                _check_optimizers(fields, changes)
                fields = changes | fields
            elif changes == LORA:
                fields["all_weights"] = True
            text = _without(text, found)
    return fields, text


def _check_optimizers(fields: dict[str, object], changes: dict[str, object]) -> None:
    """Refuses two optimizers; AdamW may be named beside another, which it is a part of or updates the rest for."""
    named = [one["optimizer"] for one in (fields, changes) if one.get("optimizer", "adamw") != "adamw"]
    if len(set(named)) > 1:
        first, second = [OPTIMIZERS[name].title for name in named]
        raise BadSetup(f"“{first}” and “{second}” are two optimizers; name one of them.")


def _plain(text: str) -> str:
    """A text in small letters, with flags, counts and numbers written so that each stands for itself.

    From here on no character moves: what was understood becomes bars, so that places in the text stay comparable, and a
    number is not taken for that of a word beyond.
    """
    text = re.sub(r"[\u2010-\u2015]", "-", text[:LONGEST_TEXT].lower()).replace("\u00d7", "x")
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text)
    return text


def _gpu(text: str) -> tuple[str | None, bool, str]:
    """The GPU of a text, whether it has no bfloat16, and the text without it.

    It is a card of the memory that is said, if the listed one has another.
    """
    gpu, rest = _named(DEVICES, text)
    if gpu is not None and not _is_meant(gpu, text, rest):
        gpu, rest = None, text
    if colab := re.search(COLAB, rest):
        rest = _without(rest, colab)
        gpu = gpu or ("l4" if colab[1] else "t4")
    in_float16 = gpu is not None and not device_named(gpu).bfloat16
    memory = re.search(rf"(?<![\w.]){NUMBER}{GAP}gi?b(?!\w)", rest)
    if memory is None:
        return gpu, in_float16, rest
    rest = _without(rest, memory)
    size = int(memory[1])
    if chip := re.search(APPLE_CHIP, rest):
        if f"apple-{size}gb" in DEVICES:
            return f"apple-{size}gb", False, _without(rest, chip)
        known = ", ".join(name for name in DEVICES if name.startswith("apple-"))
        raise BadSetup(f"Of Apple's computers, the calculator knows {known}; choose the next smaller one.")
    if gpu is None or size not in _sizes(gpu):
        gpu = device_named(f"cuda-{size}gb").name
    return gpu, in_float16, rest


def _sizes(gpu: str) -> set[int]:
    """Numbers of gigabytes that are said of a GPU: of 2**30 or 10**9 bytes, and what its driver reports."""
    device = device_named(gpu)
    sold = {round(device.memory_bytes / 2**30), device.memory_bytes // 10**9}
    return sold | {int(device.usable_bytes / unit) + 1 for unit in (2**30, 10**9)}


def _is_meant(gpu: str, text: str, rest: str) -> bool:
    """Returns True if a text names this GPU, and no other of its series.

    A 3080 Ti is no 3080, a GTX 1080 no 1080 Ti, and the RTX 6000 of 2018 no RTX 6000 Ada.
    """
    words = {word for word in gpu.split("-") if not word.endswith("gb")}
    ends = [place for place, (before, after) in enumerate(zip(text, rest, strict=True)) if before != after]
    following = re.match(rf"{GAP}(?:([a-z]+)(?![a-z]))?", text[max(ends) + 1 :])[1]
    has_memory = "apple" not in words or re.search(r"\d+\s*g", text) is not None
    has_series = all(re.search(rf"(?<![a-z]){word}(?![a-z])", text) for word in words & {"ti", "ada"})
    return following not in CARDS and has_series and has_memory


def _check_version(model: str, text: str, rest: str) -> str:
    """Refuses a text that names another version of a model than the one that was found, such as Llama 4.

    Args:
        model: What was found.
        text: All that was said.
        rest: The part of it that was not understood so far.

    Returns:
        The rest without the version.
    """
    family = re.match("[a-z]+", model)[0]
    version = re.search(rf"(?<![a-z]){family}{GAP}(\d{{1,2}}(?:\.\d+)?)(?![\w.])", text)
    if version is None or not rest[version.start(1) : version.end(1)].strip("|"):
        return rest
    if version[1] not in SAME_SHAPES.get(model, ()):
        raise BadSetup(_not_known(text))
    return _without(rest, version)


def said(found: dict) -> str:
    """What was understood, as a sentence, with the names of the form's answer.

    >>> said(understood("gpt2 batch 4 t4 quickly"))
    'Understood: gpt2, micro-batch of 4, 16-bit autocast (float16), GPU t4. Not understood: quickly.'
    """
    setup = found["setup"]
    parts = [setup["model"]]
    if "lora_rank" in setup:
        how = "QLoRA" if setup.get("base_bits") == 4 else "LoRA"
        parts.append(f"{how} of rank {setup['lora_rank']}")
    if "optimizer" in setup:
        rank = f" of rank {setup['optimizer_rank']}" if "optimizer_rank" in setup else ""
        parts.append(OPTIMIZERS[setup["optimizer"]].title + rank)
    if "checkpointing" in setup:
        parts.append("checkpointing" if setup["checkpointing"] else "no checkpointing")
    if "offload_optimizer" in setup:
        parts.append("optimizer on the host")
    if "loss" in setup:
        parts.append("Liger's loss in pieces")
    if "offload_activations" in setup:
        parts.append("activations on the host")
    if "fp8" in setup:
        parts.append("FP8")
    if "gpus" in setup:
        parts.append("1 GPU" if setup["gpus"] == 1 else f"{setup['gpus']} GPUs")
    if "packed" in setup:
        parts.append("packed samples")
    if "micro_batch_size" in setup:
        parts.append(f"micro-batch of {setup['micro_batch_size']}")
    if "accumulation_steps" in setup:
        parts.append(f"{setup['accumulation_steps']} micro-batches per update")
    if "sequence_length" in setup:
        parts.append(f"{setup['sequence_length']} tokens")
    if "target_length" in setup:
        parts.append(f"{setup['target_length']} tokens of the decoder")
    if "image_size" in setup:
        parts.append(f"pictures of {setup['image_size']} pixels")
    parts += [WORDS_OF_VALUES[name][setup[name]] for name in WORDS_OF_VALUES if name in setup]
    if found["gpu"]:
        parts.append(f"GPU {found['gpu']}")
    ignored = f" Not understood: {', '.join(found['ignored'])}." if found["ignored"] else ""
    reasons = dict.fromkeys(NOT_COUNTED[word] for word in found["ignored"] if word in NOT_COUNTED)
    return " ".join([f"Understood: {', '.join(parts)}.{ignored}", *reasons])


def _named(names: Iterable[str], text: str) -> tuple[str | None, str]:
    """The name of which a text has the most words, and the text without them; None if it has no name's first word.

    The words of a name stand between hyphens. Of equally good ones the name with the fewest other words counts, then
    the first.
    """
    best, spans, standing = None, [], (0, 0)
    for name in names:
        words = name.split("-")
        # People leave out rtx. Any other number alone is a version, and stands behind the name: a 2 may mean a batch.
        key = 1 if words[0] in ("rtx", "gtx") else 0
        before = [None, *words]
        found = [
            re.search(_pattern(word if key or not re.fullmatch(r"[\d.]+", word) else f"{last}-{word}"), text)
            for last, word in zip(before, words, strict=False)
        ]
        if found[key] is None:
            continue
        matched = [match for match in found if match is not None]
        score = (len(matched), -len(words))
        if score > standing:
            best, spans, standing = name, matched, score
    for match in spans:
        text = _without(text, match)
    return best, text


def _pattern(word: str) -> str:
    """A word of a name, or two, with or without gaps between letters and numbers: "gpt2", "gpt-2", "gpt 2"."""
    atoms = re.findall(r"[a-z]+|[\d.]+", word)
    before = r"(?<![\d.])" if atoms[0][0].isdigit() else "(?<![a-z])"
    if atoms[0] == "b":  # 13b 200 is a size and a number, no B200
        before = r"(?<![a-z\d.])"
    after = r"(?![\d]|\.\d)" if atoms[-1][-1].isdigit() else "(?![a-z])"
    if atoms[-1] == "b":  # nor is 2 B200 a model of 2b
        after = r"(?![a-z\d])"
    return before + GAP.join(re.escape(atom) for atom in atoms) + after


def _without(text: str, match: re.Match) -> str:
    return text[: match.start()] + "|" * (match.end() - match.start()) + text[match.end() :]
