"""A question in a reader's own words: "llama 8b lora 24 gb" names a model, a technique and a card."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from calculator.choose.techniques import LORA_RANK
from calculator.errors import BadSetup
from calculator.page.question.cards import Card, card_of
from calculator.page.question.common import COMMON
from calculator.page.question.kinds import (
    BATCH,
    COMPARING,
    FIT,
    GPUS,
    LENGTH,
    MODELS,
    SAVING,
    asks_to_generate,
    kind_of,
    without_kind,
)
from calculator.page.question.model import (
    VARIANTS,
    check_sizes,
    check_version,
    check_words_beside,
    is_size_of,
    model_of,
    no_model,
    with_presets,
)
from calculator.page.question.spelling import masked, plain, without
from calculator.page.question.vocabulary import (
    BILLIONS,
    CACHES,
    COUNT,
    GAP,
    IS,
    LORA,
    NUMBERS,
    OFF,
    PRICE,
    STORED,
    TOKENS,
    WORDS,
)
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import OPTIMIZERS


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Meaning of a reader's words."""

    kind: str = FIT
    """One of the kinds of `calculator.page.question.kinds`."""
    generating: bool = False
    """True if it is about generating text, not training."""
    setup: dict[str, object] = field(default_factory=dict)
    """Keys of a setup that the words set."""
    gpu: str = ""
    """Name of a GPU; empty: the words name none."""
    stored: dict[str, str] = field(default_factory=dict)
    """Types of weights and of the cache for generating text, by the names of the page's fields."""
    techniques: tuple[dict[str, object], ...] = ()
    """The changes that each named technique makes, in the order of `WORDS`."""
    run: dict[str, str] = field(default_factory=dict)
    """Amount of training and price of a GPU, by the names of the page's fields."""
    notes: tuple[str, ...] = ()
    """Sentences on words that were taken for something else."""
    ignored: tuple[str, ...] = ()
    """Words that were not understood."""


def understood(text: str) -> Question:
    """Reads a question.

    Args:
        text: Words in any order: a model, a GPU or its memory, techniques, numbers, and the question.

    Raises:
        BadSetup: If the text names no model and needs one, or the words beside the model's name are not understood.

    >>> found = understood("llama 8b lora 24 gb")
    >>> found.setup, found.gpu, found.ignored
    ({'model': 'llama-3.1-8b', 'lora_rank': 16, 'base_bits': 16}, 'cuda-24gb', ())
    """
    text = plain(with_presets(text))
    model, others, without_model = model_of(text)
    card, without_gpu = card_of(without_model)
    places = masked(text, without_model, without_gpu)
    kind, generating = kind_of(places), asks_to_generate(text)
    if kind == MODELS and (model is None or others):
        return _about_models(without_model, card, without_gpu, generating)
    if model is None:
        found = _about_models(text, card, without_gpu, generating) if card.name else None
        if found is None or found.ignored:  # without other words, a GPU asks for the models that fit it
            raise BadSetup(no_model(text))
        return found
    if kind == MODELS:  # which of its settings, then
        kind = FIT
    rest = check_version(model, text, without_gpu)
    run, rest = _run(rest)
    if run and kind == FIT:
        kind = GPUS
    numbers, unknown, rest = _numbers(rest)
    kind = (
        FIT
        if (kind == LENGTH and "sequence_length" in numbers) or (kind == BATCH and "micro_batch_size" in numbers)
        else kind
    )
    stored, rest = _stored(rest) if generating else ({}, rest)
    rest = without_kind(rest, generating)
    techniques, excluded, rest = _techniques(rest)
    if "gpus" not in numbers:
        count, rest = _count(rest, without_model, without_gpu)
        numbers |= count
    if kind == SAVING and "accumulation_steps" in numbers:
        techniques.append({"accumulation_steps": numbers.pop("accumulation_steps")})
    if kind in (SAVING, COMPARING):
        several = len(techniques) > 1
        kind = SAVING if several or (techniques and kind == SAVING) else FIT if kind == SAVING else GPUS
    setup = {"model": model} | _merged([] if generating else techniques, excluded, numbers, alone=kind == SAVING)
    if card.in_float16 and "precision" not in setup and not generating:
        setup["precision"] = "amp-fp16"
    words = [word.strip(".'") for word in re.findall(r"[\w.']+", rest)]
    words = [word for word in words if word and not is_size_of(model, word)]
    if any(map(VARIANTS.fullmatch, words)):
        raise BadSetup(no_model(text))
    check_words_beside(model, text, without_model, rest)
    check_sizes(model, others, text)
    return Question(
        kind=kind,
        generating=generating,
        setup=setup,
        gpu=card.name,
        stored=stored,
        techniques=tuple(
            {name: numbers.get(name, value) for name, value in changes.items()}
            for changes in techniques
            if "all_weights" not in changes
        ),
        run=run,
        notes=tuple(filter(None, [card.note])),
        ignored=tuple(unknown + [word for word in words if word not in COMMON]),
    )


def _about_models(text: str, card: Card, without_gpu: str, generating: bool) -> Question:
    """Reads a question that names no model, as it asks for those that fit a GPU.

    Args:
        text: The text before its GPU was understood.
        card: The GPU.
        without_gpu: The text with bars in place of the GPU.
        generating: See `Question`.

    Raises:
        BadSetup: If it names no GPU.
    """
    if not card.name:
        raise BadSetup("Which models fit is a question of the GPU: name one, or its memory, such as 24 gb.")
    numbers, unknown, rest = _numbers(without_gpu)
    techniques, excluded, rest = _techniques(without_kind(rest, generating=True))
    if "gpus" not in numbers:
        count, rest = _count(rest, text, without_gpu)
        numbers |= count
    setup = _merged(techniques, excluded, numbers)
    if card.in_float16 and "precision" not in setup:
        setup["precision"] = "amp-fp16"
    words = [word.strip(".'") for word in re.findall(r"[\w.']+", rest)]
    ignored = unknown + [word for word in words if word and word not in COMMON]
    notes = tuple(filter(None, [card.note]))
    return Question(kind=MODELS, generating=generating, setup=setup, gpu=card.name, notes=notes, ignored=tuple(ignored))


def _merged(
    techniques: list[dict[str, object]], excluded: list[dict], numbers: dict[str, object], *, alone: bool = False
) -> dict[str, object]:
    """Merges the fields that techniques and numbers set, and adds what follows from them.

    Args:
        techniques: The changes of each technique; the first that sets a field counts.
        excluded: Those of techniques that the text turns off.
        numbers: Fields that numbers set.
        alone: True if each technique is judged by itself, so that two may exclude each other.

    Raises:
        BadSetup: If two techniques exclude each other.
    """
    setup: dict[str, object] = {}
    for changes in [] if alone else techniques:
        _check_optimizers(setup, changes)
        setup = changes | setup
    if LORA in excluded:
        setup["all_weights"] = True
    setup |= numbers
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
    return setup


def _count(text: str, with_gpu: str, without_gpu: str) -> tuple[dict[str, object], str]:
    """Returns the number that stands before a GPU, as the field `gpus`, and the text without it.

    Args:
        text: The part that was not understood so far.
        with_gpu: The text before its GPU was understood.
        without_gpu: The same text with bars in place of the GPU.
    """
    found = re.search(COUNT, masked(text, with_gpu, without_gpu))
    if found is None or found[1]:
        return {}, text
    return {"gpus": int(found[2])}, without(text, found)


def _numbers(text: str) -> tuple[dict[str, object], list[str], str]:
    """Returns the fields that numbers set, the words for a global batch, which no field holds, and the rest."""
    numbers: dict[str, object] = {}
    unknown = []
    for name, pattern in NUMBERS:
        found = re.search(rf"(?<![\w.]){pattern}", text)
        if found is None:
            continue
        thousands = found.lastindex == 2 and found[2] == "k"
        if name:
            numbers.setdefault(name, int(found[1]) * (1024 if thousands else 1))
        else:
            unknown.append(found[0].strip())
        text = without(text, found)
    return numbers, unknown, text


def _run(text: str) -> tuple[dict[str, str], str]:
    """Returns the tokens to train on and the price of a GPU for an hour that a text names, and the rest of the text."""
    run: dict[str, str] = {}
    found = re.search(TOKENS, text)
    if found and not re.search(r"context|window|length|seq", text):
        run["billions"] = f"{float(found[1]) * BILLIONS[found[2][0]]:g}"
        text = without(text, found)
    if found := re.search(PRICE, text):
        run["price"] = found[1]
        text = without(text, found)
    return run, text


def _stored(text: str) -> tuple[dict[str, str], str]:
    """Returns the types of weights and cache that a text names, and the rest of the text."""
    stored: dict[str, str] = {}
    for name, kinds in (("cache", CACHES), ("weights", STORED)):
        for pattern, kind in kinds:
            if found := re.search(rf"(?<![\w.])(?:{pattern})(?![\w.])", text):
                stored.setdefault(name, kind)
                text = without(text, found)
    return stored, text


def _techniques(text: str) -> tuple[list[dict[str, object]], list[dict[str, object]], str]:
    """Returns the changes of the techniques that a text asks for, those that it excludes, and the rest."""
    taken: list[dict[str, object]] = []
    excluded: list[dict[str, object]] = []
    for pattern, changes in WORDS:
        before, after = rf"((?:no|not|without|disabled?){GAP})?", rf"(?:({OFF})|{IS}(?:true|enabled))?"
        found = re.search(rf"(?<![\w.]){before}(?:{pattern}){after}(?![\w.])", text)
        if found is not None:
            (excluded if found[1] or found[2] else taken).append(changes)
            text = without(text, found)
    return taken, excluded, text


def _check_optimizers(fields: dict[str, object], changes: dict[str, object]) -> None:
    """Refuses two optimizers. AdamW may stand beside another one: as a part of it, or to update other parameters."""
    named = [one["optimizer"] for one in (fields, changes) if one.get("optimizer", "adamw") != "adamw"]
    if len(set(named)) > 1:
        first, second = [OPTIMIZERS[name].title for name in named]
        raise BadSetup(f"“{first}” and “{second}” are two optimizers; name one of them.")
