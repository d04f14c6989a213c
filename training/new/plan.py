"""The model and the settings of a new run, by the calculator: for its data and for the volunteers that are expected."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from calculator import BadSetup
from calculator.choose.devices import DEVICES, PROCESSOR
from calculator.choose.names import gpu_of
from calculator.swarm.designed_models import (
    BATCHES,
    LANGUAGE_SIZES,
    PICTURE_SIZES,
    TOKENS_PER_PARAMETER,
    AdaptedModel,
    DesignedModel,
    LanguageModel,
    PictureModel,
)
from calculator.swarm.designer import LEAST_UPDATES, Design, People, Wish, design
from training.errors import BadInput
from training.new.found import Found

if TYPE_CHECKING:
    from training.model.language.folders import Base

UP_MEGABITS, DOWN_MEGABITS = 50.0, 100.0
"""Link that is assumed of a volunteer, in Mbit/s; the same as the designer's on the site."""
BYTES_PER_TOKEN = 4
"""Mean bytes of text in a token, roughly, if the tokenizer has thousands of ids."""
MOST_PASSES = 4
"""Passes over the same text that are nearly as good as new text (Muennighoff et al. 2023, arXiv:2305.16264)."""
BLOCK, VOCABULARY = 512, 32_000
"""Tokens of a block, and ids of a tokenizer, of language models; the ids are Llama 2's."""
SMALL = {"stories": (128, 2048), "15m": (256, 8192)}
"""The same for small models: blocks as in the recipe `stories` and in llama2.c, and fewer ids, since embeddings would
otherwise have most of the weights."""
LEAST_VOCABULARY, SHORTEST_BLOCK, LEAST_BLOCKS = 512, 16, 32
"""Fewest ids, fewest tokens of a block, and number of blocks that even a little text should fill."""
BYTES_PER_ID = 100
"""Bytes of text for each id of a tokenizer, at least: rarer words are learned from too few examples."""
PICTURES_PER_PARAMETER = 0.005
"""Pictures of a set for each weight of a model, at least: the recipe `demo` has 12 000 for 1.3 million weights, and
fewer are learned by heart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Volunteers and days that a person expects of a new run."""

    people: tuple[People, ...]
    days: float


def people_of(words: Sequence[str]) -> tuple[People, ...]:
    """Reads the volunteers that are expected, each as COUNT:DEVICE or COUNT:DEVICE:UP/DOWN.

    Raises:
        BadInput: If there are none, or a device is unknown.

    >>> people_of(["3:cpu"])
    (People(count=3, gpu='cpu', up_megabits=50.0, down_megabits=100.0),)
    >>> people_of(["30:t4:20/100"])[0].up_megabits
    20.0
    """
    made = tuple(_people(word) for text in words for word in re.split(r"[,\s]+", text.strip()) if word)
    if not made:
        raise BadInput("No volunteers are named; give for example 3:cpu, or 30:t4 for 30 volunteers with a T4.")
    return made


def _people(text: str) -> People:
    matched = re.fullmatch(r"([1-9]\d{0,5})(?::([^:]+))?(?::([\d.]{1,9})/([\d.]{1,9}))?", text)
    if matched is None:
        raise BadInput(
            f"{text!r:.60} names no volunteers.",
            cure="Give COUNT:DEVICE such as 3:cpu or 30:t4, and with their links, 30:t4:20/100 (Mbit/s up and down).",
        )
    count, device, up, down = matched.groups()
    gpu = gpu_of(device or PROCESSOR.name)
    known = [one.name for one in DEVICES.values() if one.teraflops]
    if gpu not in (PROCESSOR.name, *known):
        raise BadInput(
            f"The speed of {gpu!r:.60} is not known.",
            cure=f"Give cpu for a computer without a GPU, or one that is like yours: {', '.join(known)}.",
        )
    try:
        links = {"up_megabits": float(up or UP_MEGABITS), "down_megabits": float(down or DOWN_MEGABITS)}
    except ValueError:
        raise BadInput(f"The link of {text!r:.60} is not a pair of numbers; give Mbit/s such as 20/100.") from None
    return People(count=int(count), gpu=gpu, **links)


def choose_model(found: Found, wanted: Wanted) -> DesignedModel:
    """Chooses the largest model for which the data are enough, and which the volunteers hold and train in time.

    Without such a model, chooses the smallest one.

    Raises:
        BadInput: If no volunteer holds even the smallest model.
    """
    smallest, *larger = _models(found)
    chosen = smallest
    for model in larger:
        try:
            made = design(wish_of(model, wanted))
        except BadSetup:
            break
        if not _is_taught(model, found) or made.days > wanted.days or not all(made.micro_batches.values()):
            break
        chosen = model
    return chosen


def _models(found: Found) -> Iterator[DesignedModel]:
    """Models for the data, from the smallest one on."""
    if found.kind == "pictures":
        # 4096 ids are the most for which a tokenizer of captions is trained (`training.data.prepare.pictures`).
        yield from (PictureModel(size=size, captions=(4096, 32)) for size in PICTURE_SIZES)
        return
    for size in LANGUAGE_SIZES:
        length, ids = SMALL.get(size, (BLOCK, VOCABULARY))
        if found.manifest is not None:
            length, ids = found.manifest.block_length, found.manifest.vocab_size
        elif found.text_bytes is not None:
            ids = min(ids, max(LEAST_VOCABULARY, found.text_bytes // BYTES_PER_ID))
            room = found.text_bytes // BYTES_PER_TOKEN // LEAST_BLOCKS
            length = min(length, max(SHORTEST_BLOCK, 1 << room.bit_length() - 1 if room else 0))
        yield LanguageModel(size=size, family="llama", block_length=length, vocabulary=ids)


def _is_taught(model: DesignedModel, found: Found) -> bool:
    """Returns True if the data are enough for a model of this size, or if their amount is unknown."""
    if found.kind == "pictures":
        return found.samples is None or found.samples >= PICTURES_PER_PARAMETER * model.parameters
    if found.samples is not None:
        tokens = found.samples * model.sequence_length
    elif found.text_bytes is not None:
        tokens = found.text_bytes / BYTES_PER_TOKEN
    else:
        return True
    return MOST_PASSES * tokens >= TOKENS_PER_PARAMETER * model.parameters


def adapted_model(base: Base, found: Found, wanted: Wanted) -> AdaptedModel:
    """Adapters of a published model, whose weights have as many bits as the volunteers hold.

    Raises:
        BadInput: If not every volunteer holds the model.
    """
    length = found.manifest.block_length if found.manifest else min(BLOCK, base.longest or BLOCK)
    family = base.architecture["model_type"]
    model = AdaptedModel(
        size=base.name,
        family=family,
        block_length=length,
        base_config=json.dumps(base.architecture),
        base_digest=base.digest,
        frozen_bits=32,
    )
    on_processor = any(people.gpu == PROCESSOR.name for people in wanted.people)
    # Processors compute slowly in 16 bits; the layers of GPT-2 cannot be quantized.
    for bits in (32,) if on_processor else (16,) if family == "gpt2" else (16, 4):
        model = replace(model, frozen_bits=bits)
        with suppress(BadSetup):
            if all(design(wish_of(model, wanted)).micro_batches.values()):
                return model
    raise BadInput(
        f"Not every volunteer's device holds {base.name}, with weights of {model.frozen_bits} bits.",
        cure="Name volunteers with more memory, or give a smaller model with --from.",
    )


def wish_of(model: DesignedModel, wanted: Wanted, samples: int = 0) -> Wish:
    """The question to the designer: a model, the volunteers, and the samples that it is trained on.

    Args:
        model: The model.
        wanted: Volunteers and days.
        samples: Samples of the prepared data, over which adapters pass a few times; 0 if not known yet.
    """
    least = MOST_PASSES * samples if model.adapters else LEAST_UPDATES * BATCHES[0]
    return Wish(model=model, people=wanted.people, hours_a_day=24, samples=max(model.samples, least), days=wanted.days)


def designed(model: DesignedModel, wanted: Wanted, samples: int = 0) -> tuple[Wish, Design]:
    """Designs the run of a model; arguments as for `wish_of`.

    Raises:
        BadInput: If no volunteer's device holds the model.
    """
    wish = wish_of(model, wanted, samples)
    try:
        return wish, design(wish)
    except BadSetup as error:
        raise BadInput(str(error)) from None
