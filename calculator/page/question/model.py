"""The model of a text: a preset by its name, a hub id or some of its words, and nothing else that resembles it."""

from __future__ import annotations

import re

from calculator.errors import BadSetup
from calculator.models.architectures import PRESETS
from calculator.models.names import METHODS, named, nearest, not_known
from calculator.page.question.cards import CARD_WORDS
from calculator.page.question.common import COMMON
from calculator.page.question.spelling import GAP, masked, matches, without
from calculator.page.question.vocabulary import NUMBERED
from calculator.parts.parameters import count_parameters
from calculator.step.setups import NOT_COUNTED

LEAST_NAME = 4
"""Words of this length or less are not looked up as whole names: the next word may have the size, as in "t5 small"."""
MOST_WORDS = 6
"""The most words of a model's name that blanks divide: phi 3 mini 4k instruct."""
HUB_ID = re.compile(r"(?:https?://\S+/)?[A-Za-z][\w.-]*/[A-Za-z][\w.-]*\d[\w.:-]*(?:/\S*)?")
"""A word that names a model as the Hub does."""
SAME_SHAPES = {"llama-3.1-8b": ("3",), "llama-3.1-70b": ("3", "3.3")}
"""Other versions that have the layers of a preset: at most the scaling of positions and the longest context differ
(config.json of meta-llama/Meta-Llama-3-8B, Meta-Llama-3-70B and Llama-3.3-70B-Instruct)."""
WITHOUT_SIZE = {"gpt3": "gpt3-175b"}
"""Names that mean one size if they name none: a paper's largest model."""
VARIANTS = re.compile(
    r"(?:\d+x)?[\d.]+b|e\d+b|\d{2,}m|r1|v[12]|3n|tiny|small|medium|large|huge|xx?l|mini|nano|nemo|moe|oss|vl|coder|code"
    r"|guard|vision|distill|turbo|scout|maverick|math|audio|omni|neox?|flan|v1[._]1|schnell"
)
"""Pattern of words in other models' names: if one is left over, the text means another model."""
OTHER_WORDS = frozenset({"accelerate", "batch", "cpu", "ddp", "deepspeed", "lightning", "tpu"})
"""Words that are not understood, but are of no model's name."""
ROUNDED = 0.05
"""The largest difference between a model's number of parameters and the number that people call it by."""


def with_presets(text: str) -> str:
    """Replaces hub ids, links and names in a text by presets; adds "4 bit" after a copy quantized to 4 bits.

    Raises:
        BadSetup: If a hub id in the text has other sizes than every preset.

    >>> with_presets("can GPT-2 XL or Qwen 2.5 7B instruct fit?")
    'can gpt2-xl or qwen2.5-7b fit?'
    """
    words = text.split()
    bare = [word.strip(".,;:!?()\"'") for word in words]
    found = []
    while words:
        count, name, bits = _preset_at_start(bare)
        if not count and HUB_ID.fullmatch(words[0]):
            raise BadSetup(not_known(words[0]))
        count = count or 1
        end = words[count - 1][len(words[count - 1].rstrip(".,;:!?()\"'")) :]
        found.append(f"{name}{end}{bits}" if name else words[0])
        words, bare = words[count:], bare[count:]
    return " ".join(found)


def _preset_at_start(words: list[str]) -> tuple[int, str, str]:
    """Returns how many words at the start of a text name a preset (0: none do), the preset, and words for its bits."""
    for count in range(min(MOST_WORDS, len(words)), 1, -1):
        part = words[:count]
        found = named("-".join(part)) if all(map(_is_of_a_name, part)) else None
        # What quantizes it is read on its own: in 8bit adam, the bits are the optimizer's.
        if found and not found.quantization and part[-1].lower() not in METHODS:
            return count, found.preset, ""
    found = named(words[0]) if len(words[0]) > LEAST_NAME else None
    if found is None:
        return 0, "", ""
    bits = f" {found.bits} bit" if found.bits and found.bits != 8 else " 8 bit weights" if found.bits else ""
    return 1, found.preset, bits


def _is_of_a_name(word: str) -> bool:
    return re.fullmatch(r"[A-Za-z\d][\w.-]*", word) is not None


def model_of(text: str) -> tuple[str | None, list[str], str]:
    """Returns the preset that a text names, others that its words fit as well, and the text without the name."""
    found = matches(PRESETS, text)
    if not found:
        return None, [], text
    best, spans = found[0]
    for match in spans:
        text = without(text, match)
    names = [name for name, _ in found]
    usual = next((preset for stem, preset in WITHOUT_SIZE.items() if preset in names and names[0].startswith(stem)), "")
    return usual or best, [] if usual else names[1:], text


def check_sizes(model: str, others: list[str], text: str) -> None:
    """Refuses a text that names several sizes of a model at once."""
    if others:
        sizes = ", ".join([model, *others][:6])
        raise BadSetup(f"{text.strip()!r:.60} does not say which model it means: name one of {sizes}.")


def check_version(model: str, text: str, rest: str) -> str:
    """Refuses a text that names another version of a model than the one that was found, such as Llama 4.

    Args:
        model: The model that was found.
        text: The whole text.
        rest: The part of the text that was not understood so far.

    Returns:
        The rest without the version.
    """
    family = re.match("[a-z]+", model)[0]
    version = re.search(rf"(?<![a-z]){family}{GAP}(\d{{1,2}}(?:\.\d+)?)(?![\w.])", text)
    if version is None or not rest[version.start(1) : version.end(1)].strip("|"):
        return rest
    if version[1] not in SAME_SHAPES.get(model, ()):
        raise BadSetup(no_model(text))
    return without(rest, version)


def check_words_beside(model: str, text: str, without_model: str, rest: str) -> None:
    """Refuses a word directly beside a model's name that was not understood: it may make it another model's name.

    Args:
        model: The model that was found.
        text: The whole text.
        without_model: The whole text with bars in place of the model.
        rest: The part of the text that was not understood.
    """
    places = masked(rest, text, without_model)
    beside = re.findall(r"(?<![\w|.'])([a-z][\w.']*)[\s_-]*(?=\0)", places)
    beside += re.findall(r"\0[\s_-]*([a-z][\w.']*)(?![|\w])", places)
    unknown = [word.strip(".'") for word in beside if not _is_harmless(word.strip(".'"))]
    if unknown:
        raise BadSetup(
            f"“{unknown[0]:.40}” beside {model} was not understood, and may make it another model: leave it out, or "
            "choose a model in the list."
        )


def _is_harmless(word: str) -> bool:
    known = (COMMON, CARD_WORDS, NOT_COUNTED, OTHER_WORDS)
    return any(word in words for words in known) or re.fullmatch(NUMBERED, word) is not None


def is_size_of(model: str, word: str) -> bool:
    """Returns True if a word is the model's own number of parameters, as people round it: 671b for DeepSeek-V3."""
    size = re.fullmatch(r"(\d{1,4}(?:\.\d{1,2})?)([mb])", word)
    if size is None:
        return False
    parameters = float(size[1]) * (1e6 if size[2] == "m" else 1e9)
    return abs(parameters / count_parameters(PRESETS[model]) - 1) < ROUNDED


def no_model(text: str) -> str:
    """The refusal of a text that names no preset, with the nearest three."""
    words = [word for word in re.findall(r"[\w.]+", text) if word not in COMMON and not re.fullmatch(r"\d+gb", word)]
    first, second, third = nearest("-".join(words))
    return (
        f"The nearest models to {text.strip()!r:.60} are {first}, {second} and {third}; try words such as llama 8b "
        "lora 24 gb, or paste its config.json."
    )
