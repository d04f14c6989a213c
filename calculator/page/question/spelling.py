"""A reader's words in one spelling, and names found among them.

After `plain`, no character moves: bars replace what was understood. So places in the text stay comparable, and no
pattern joins a number to a word on the other side of the bars.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST_TEXT = 300
GAP = r"[\s_-]*"
NUMBER = r"(\d{1,7})"
CARD = r"(?:(?:nvidia|geforce|tesla|rtx|gtx)[\s_-]+)*[a-z]{0,2}\d{1,4}"
"""Pattern of a word that may name a GPU."""
SERIES = r"(?:[1-5]0[5-9]0|16[56]0|[4-9]000|7900)"
"""Pattern of the numbers by which people name cards: 2x3090 are two of them, and no picture."""
COUNTS = {"(?:a )?pair of|two|dual": 2, "three": 3, "four": 4, "six": 6, "eight": 8, "sixteen": 16}
EIGHT_BIT_MUON = rf"(?<![\w.])(?:8{GAP}bits?{GAP}muon|muon{GAP}8{GAP}bits?)(?![\w.])"
"""Pattern of 8-bit Muon, which is not counted; its words alone would mean Muon and 8-bit AdamW."""
LEFT_OUT = ("rtx", "gtx", "rx", "pro")
"""First words of names that people leave out."""
XL = r"xx?l(?![a-z\d])"
"""Pattern of the size at the end of a model's name, in which x does not mean "times"."""
PLAIN: tuple[tuple[str, str], ...] = (
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"(?:^|(?<=\s))--?(?=[a-z])", "| "),  # a flag's name begins anew: "4 --gpu" are no 4 GPUs
    (r"(?<![\w.])(\d{1,4})\s*[x*]\s*(?=\d+k?\s*tok)", r"batch \1 "),
    (rf"(?<![\w.])(\d{{1,3}})\s*(?!{XL})[x*]\s*(?=[a-z]|\d+\s*g)", r"\1 x "),
    (rf"(?<![\w.])(\d{{1,2}})\s*[x*]\s*(?={SERIES}(?!\w))", r"\1 x "),
    (r"(?<=\w)\s+[x*]\s*(\d{1,2})(?![\w.]|\s*(?:px|pix|g(?:i?b|igs?)?(?!\w)))", r" \1 gpus "),
    *((rf"(?<!\w)(?:{words})\s+(?={CARD})", f"{count} x ") for words, count in COUNTS.items()),
    (r"(?<!\w)(?!l40s)([a-z]{0,2}\d{1,4})s(?!\w)", r"\1"),
    (rf"(?<!\w)ada{GAP}generation(?!\w)", "ada"),
    (r"(?<!\w)(?:mobile|notebook)(?!\w)", "laptop"),
    (r"(?<![\w.])(\d{1,4})\s*g(?:igs?)?(?!\w)", r"\1gb"),
    (rf"(?<!\w)vit{GAP}l(?!\w)", "vit-large"),
    (rf"(?<!\w)vit{GAP}b(?!\w)", "vit-base"),
    (EIGHT_BIT_MUON, "muon8bit muon"),
)
"""Spellings, and the spelling that all patterns know."""


def plain(text: str) -> str:
    """A text in small letters, with flags, counts and numbers written so that each stands for itself."""
    text = re.sub(r"[\u2010-\u2015]", "-", text[:LONGEST_TEXT].lower()).replace("\u00d7", "x").replace("\u2019", "'")
    for pattern, spelling in PLAIN:
        text = re.sub(pattern, spelling, text)
    return text


def without(text: str, match: re.Match) -> str:
    """The text with bars in place of a match."""
    return text[: match.start()] + "|" * (match.end() - match.start()) + text[match.end() :]


def masked(text: str, before: str, after: str, mask: str = "\0") -> str:
    """A text with a mask at each place where `before` and `after`, which are as long, differ."""
    places = zip(text, before, after, strict=True)
    return "".join(now if one == other else mask for now, one, other in places)


def matches(names: Iterable[str], text: str) -> list[tuple[str, list[re.Match]]]:
    """Finds the names that have the most words in common with a text. Returns each with the places of these words.

    The words of a name stand between hyphens. Among names with equally many words in common, those with the most
    letters in common count, then those with the fewest other words. A name must have its first word in the text.
    """
    best: list[tuple[str, list[re.Match]]] = []
    standing = (0, 0, 0)
    for name in names:
        words = name.split("-")
        # Any other number alone is a version, and stands behind the name: a 2 may mean a batch.
        key = next(place for place, word in enumerate(words) if word not in LEFT_OUT)
        before = [None, *words]
        found = [
            re.search(_pattern(word if key or not re.fullmatch(r"[\d.]+", word) else f"{last}-{word}"), text)
            for last, word in zip(before, words, strict=False)
        ]
        if found[key] is None:
            continue
        spans = [match for match in found if match is not None]
        score = (len(spans), sum(len(re.sub(r"[\s_-]", "", match[0])) for match in spans), -len(words))
        if score > standing:
            best, standing = [], score
        if score == standing:
            best.append((name, spans))
    return best


def named(names: Iterable[str], text: str) -> tuple[str | None, str]:
    """The first of `matches`, and the text without it; None if there is none."""
    for name, spans in matches(names, text)[:1]:
        for match in spans:
            text = without(text, match)
        return name, text
    return None, text


def _pattern(word: str) -> str:
    """Pattern of one or two words of a name, with or without gaps between letters and numbers: "gpt2", "gpt 2"."""
    atoms = re.findall(r"[a-z]+|[\d.]+", word)
    before = r"(?<![\d.])" if atoms[0][0].isdigit() else "(?<![a-z])"
    if atoms[0] == "b":  # 13b 200 is a size and a number, no B200
        before = r"(?<![a-z\d.])"
    # A number before a b is a size, no version: gemma 2b is no Gemma 2.
    after = r"(?!\d|\.\d|b(?![a-z]))" if atoms[-1][-1].isdigit() else "(?![a-z])"
    if atoms[-1] == "b":  # nor is 2 B200 a model of 2b
        after = r"(?![a-z\d])"
    if atoms[0] == "a" and len(atoms) > 1:  # a 40 GB card is no A40
        return before + "a-?" + GAP.join(re.escape(atom) for atom in atoms[1:]) + after
    return before + GAP.join(re.escape(atom) for atom in atoms) + after
