"""Exercises on data streaming: bytes of a sample, the wait before the first step, and how well a buffer mixes."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.figures.shuffling import LENGTH, drawn_order, mean_shift
from calculator.figures.streaming import PAIRS, PICTURES_OVER_CODES, code_bytes, ways_of
from calculator.models.architectures import PRESETS
from calculator.units import show_count, show_time


def _codes(random: Random) -> Question:
    side, codebook = random.choice((16, 32, 64)), random.choice((1024, 4096, 8192, 16_384))
    model = PRESETS["dalle-2021"]
    size = code_bytes(replace(model, image_vocab_size=codebook, sequence_length=model.text_length + side**2))
    bits = math.ceil(math.log2(codebook))
    return Question(
        text="A picture is sent as codes: one number for each square of a grid, each packed into as many bits as it "
        "needs. How many bytes are that?",
        given=(("Grid", f"{side} × {side}"), ("Codebook", f"{show_count(codebook)} entries")),
        answer=Number(
            value=size,
            unit="bytes",
            tolerance=0.001,
            mistakes=(
                (side * bits / 8, "That is one row of the grid."),
                (2 * side**2, "In 16 bits a code; packed, it takes only the bits that the codebook needs."),
                (side**2, "That is one byte a code, which is enough for 256 entries only."),
                (side**2 * bits, "Those are bits; 8 of them are a byte."),
            ),
        ),
        hints=(f"How many bits tell {show_count(codebook)} entries apart? 2 to which power is that?",),
        solution=(
            f"2**{bits} = {show_count(codebook)}, so a code takes {bits} bits.",
            f"{side} × {side} × {bits} ÷ 8 = {show_count(size)} bytes.",
        ),
        remember=f"The run of 2021 sent {code_bytes()} bytes a picture: {PICTURES_OVER_CODES} times less than the "
        "picture itself.",
    )


def _values(random: Random) -> dict:
    return {
        "link": random.choice((5, 10, 20, 50)), "speed": random.choice((1, 2, 5)), "kind": "codes",
        "buffer": random.choice((1024, 4096, 8192, 16_384)),
    }  # fmt: skip


def _first(random: Random) -> Question:
    values = _values(random)
    stream = ways_of(values)[-1]
    return Question(
        text="A volunteer fills a shuffle buffer before the first step. How long does that take?",
        given=(
            ("Buffer", f"{show_count(values['buffer'])} samples"),
            ("A sample, as codes", f"{show_count(code_bytes())} bytes"),
            ("Download", f"{values['link']} Mbit/s"),
        ),
        answer=Number(
            value=stream.first_step_seconds,
            unit="s",
            mistakes=((stream.first_step_seconds / 8, "You have divided bytes by bits: a byte has 8 bits."),),
        ),
        hints=("How many bytes are in the full buffer?", "Mbit/s counts bits."),
        solution=(
            f"{show_count(values['buffer'])} × {code_bytes()} × 8 = "
            f"{values['buffer'] * code_bytes() * 8 / 1e6:.4g} Mbit.",
            f"÷ {values['link']} Mbit/s = {shown(stream.first_step_seconds, 's')}.",
        ),
        remember="A stream starts within seconds; a download of everything takes days.",
    )


def _whole(random: Random) -> Question:
    values = _values(random)
    pictures, codes, _ = ways_of(values)
    return Question(
        text="How many days would this volunteer need to download all pictures of the run of 2021 before the first "
        "step?",
        given=(
            ("Pictures", show_count(PAIRS)),
            ("A picture", f"{show_count(PICTURES_OVER_CODES * code_bytes())} bytes"),
            ("Download", f"{values['link']} Mbit/s"),
        ),
        answer=Number(
            value=pictures.first_step_seconds,
            unit="days",
            mistakes=(
                (
                    codes.first_step_seconds,
                    f"That is the time of the codes; pictures take {PICTURES_OVER_CODES} times as long.",
                ),
                (pictures.first_step_seconds / 8, "You have divided bytes by bits: a byte has 8 bits."),
            ),
        ),
        hints=("All bytes × 8 are all bits.", "A day has 86 400 seconds."),
        solution=(
            f"{show_count(PAIRS)} × {PICTURES_OVER_CODES * code_bytes()} bytes = "
            f"{PAIRS * PICTURES_OVER_CODES * code_bytes() / 1e12:.3g} TB.",
            f"In bits, ÷ {values['link']} Mbit/s: {show_time(pictures.first_step_seconds)}.",
        ),
        remember="A data set of terabytes is not something that a volunteer downloads.",
    )


def _needed(random: Random) -> Question:
    speed, kind = random.choice((2, 5, 10, 20, 50)), random.choice(("codes", "pictures"))
    size = code_bytes() * (PICTURES_OVER_CODES if kind == "pictures" else 1)
    # The slowest link, among tenths of Mbit/s, at which the figure's stream never waits.
    rate = size * speed
    values = {"link": rate * 8 / 1e6, "speed": speed, "kind": kind, "buffer": 1}
    assert ways_of(values)[-1].waiting_share < 1e-9
    return Question(
        text=f"A GPU computes while {kind} are streamed to it. Which download does it need, so that it never waits?",
        given=(("It computes", f"{speed} samples/s"), ("A sample", f"{show_count(size)} bytes")),
        answer=Number(value=rate, unit="Mbit/s"),
        hints=("How many bytes does it use in a second?",),
        solution=(f"{speed} × {size} × 8 = {show_count(8 * rate)} bit/s = {shown(rate, 'Mbit/s')}.",),
        remember="As codes, even a fast GPU's data fit into a small part of a home connection.",
    )


def _waits(random: Random) -> Question:
    speed = random.choice((20, 50))
    most = 8 * PICTURES_OVER_CODES * code_bytes() * speed / 1e6
    link = random.choice([one for one in (1, 2, 5, 10) if one < 0.9 * most])
    share = ways_of({"link": link, "speed": speed, "kind": "pictures", "buffer": 1})[-1].waiting_share
    return Question(
        text="A fast GPU gets whole pictures over a slow line. For which share of the time does it wait for data?",
        given=(
            ("It could compute", f"{speed} samples/s"),
            ("A picture", f"{show_count(PICTURES_OVER_CODES * code_bytes())} bytes"),
            ("Download", f"{link} Mbit/s"),
        ),
        answer=Number(
            value=share,
            unit="%",
            mistakes=((1 - share, "For this share it computes; the question is for which it waits."),),
        ),
        hints=("How many pictures a second does the line bring?", "The share of computing is that over its own speed."),
        solution=(
            f"The line brings {link * 1e6 / 8 / PICTURES_OVER_CODES / code_bytes():.3g} pictures/s.",
            f"1 − {link * 1e6 / 8 / PICTURES_OVER_CODES / code_bytes():.3g} ÷ {speed} = {shown(share, '%')}.",
        ),
        remember="A line that is too slow by a factor wastes the rest of the GPU.",
    )


def _buffer(random: Random) -> Question:
    sizes = (1, 16, 64, 512)
    shifts = {size: mean_shift(drawn_order(LENGTH, size, random.randint(0, 20))) for size in sizes}
    asked = random.choice(sizes)
    about = f"{shifts[asked]:.0f}" if shifts[asked] else "0"
    return Question(
        text=f"A stream of {LENGTH} samples passes through a shuffle buffer, and a sample then stands {about} places "
        "away from where it was, on average. How large was the buffer?",
        answer=choice(
            random,
            (f"{asked} sample{'s' if asked > 1 else ''}", f"With {asked}, samples move {shifts[asked]:.0f} places."),
            [
                (f"{size} sample{'s' if size > 1 else ''}", f"With {size}, samples move {shifts[size]:.0f} places.")
                for size in sizes
                if size != asked
            ],
        ),
        hints=(
            "A sample cannot move much further than the buffer is large.",
            f"A complete shuffle moves samples by a third of the stream: {LENGTH // 3} places.",
        ),
        solution=tuple(f"A buffer of {size}: {shift:.1f} places." for size, shift in shifts.items()),
        remember="A buffer mixes what is near. So peers start at different places, each with a seed of its own.",
    )


def _shift(random: Random) -> Question:
    cases = []
    for length in (3, 5, 8, 12, 16):
        order = list(range(length))
        random.shuffle(order)
        cases.append((order,))
    return Question(
        text="`order[k]` is the place in the stream of the sample that is drawn as number k. Write the mean number of "
        "places by which samples have moved.",
        answer=Program(
            name="mean_shift",
            start="def mean_shift(order):\n    ",
            solution="def mean_shift(order):\n    return sum(abs(place - k) for k, place in enumerate(order)) / "
            "len(order)",
            reference=mean_shift,
            cases=tuple(cases),
            mistakes=(
                (
                    lambda order: sum(place - k for k, place in enumerate(order)) / len(order),
                    "Without abs(), moves forwards and backwards cancel, and the mean is always 0.",
                ),
                (
                    lambda order: sum(abs(place - k) for k, place in enumerate(order)),
                    "That is the sum; divide it by the number of samples.",
                ),
            ),
        ),
        hints=("`enumerate(order)` gives k and place together.",),
        solution=("Add up |place − k|, and divide by the number of samples.",),
        remember="A measure of your own tells you whether a shuffle mixes enough.",
    )


SUBJECT = Subject(
    name="streaming",
    title="Data streaming",
    page="challenges/data-streaming/",
    exercises=(
        Exercise(name="code-bytes", title="A picture as codes", draw=_codes),
        Exercise(name="first-step", title="Until the first step", draw=_first),
        Exercise(name="download-all", title="Downloading everything", draw=_whole),
        Exercise(name="needed-link", title="Which link is enough?", draw=_needed),
        Exercise(name="waiting-share", title="A line that is too slow", draw=_waits),
        Exercise(name="shuffle-buffer", title="How well does it mix?", draw=_buffer),
        Exercise(name="mean-shift", title="Program: how far samples move", draw=_shift),
    ),
)
