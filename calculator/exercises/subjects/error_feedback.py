"""Exercises on error feedback: what a short code leaves out, and when it is sent after all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import listed, shown
from calculator.swarm.exchange import CODEBOOK_BYTES, encoded_bytes
from calculator.swarm.sparse import exchanged
from calculator.units import show_count

MOST_ROUNDS = 40
Numbers = tuple[float, ...]


def fed_back(
    vectors: Sequence[Sequence[float]], *, kept: int = 4, bits: int = 1, decay: float = 1.0
) -> list[tuple[Numbers, Numbers]]:
    """Sends vectors one after the other. Returns for each what arrives, and what is still unsent.

    Args:
        vectors: The gradients of a peer, one for each exchange.
        kept: Number of values that are sent of each.
        bits: 1: signs, and the mean magnitude of what is sent; 32: the values as they are.
        decay: 0: what is not sent is forgotten.

    >>> fed_back([(4.0, 3.0)] * 2, kept=1, bits=32)
    [((4.0, 0.0), (0.0, 3.0)), ((0.0, 6.0), (4.0, 0.0))]
    """
    unsent, rounds = [0.0] * len(vectors[0]), []
    for vector in vectors:
        sent, unsent = exchanged(vector, unsent, kept=kept, bits=bits, decay=decay)
        arrived = tuple(sent.get(place, 0.0) for place in range(len(vector)))
        rounds.append((arrived, tuple(unsent)))
    return rounds


def _vector(random: Random, length: int = 4) -> tuple[float, ...]:
    """Different numbers, of both signs, whose magnitudes add up to a multiple of their count."""
    while True:
        values = [float(size) for size in random.sample(range(1, 13), length)]
        if sum(values) % length == 0 and sum(values) / length not in values:
            signs = [1, -1, *(random.choice((1, -1)) for _ in range(length - 2))]
            random.shuffle(signs)
            return tuple(sign * value for sign, value in zip(signs, values, strict=True))


def _is_clear(values: list[float]) -> bool:
    """True if no two magnitudes are equal, so that it is clear which values are the largest."""
    return len({round(abs(value), 6) for value in values}) == len(values)


def _one_bit(random: Random) -> Question:
    values = _vector(random)
    place = random.randrange(4)
    sent = fed_back([values])[0][0][place]
    return Question(
        text="Of each value only the sign is sent, in one bit, and beside all of them the mean of their magnitudes. "
        "What arrives in place of the value asked for?",
        given=(("Values", listed(values)), ("Asked for", f"number {place + 1}, {shown(values[place])}")),
        answer=Number(
            value=sent,
            unit="",
            tolerance=0,
            mistakes=(
                (sum(values) / 4, "That is the mean of the values; take the mean of their magnitudes."),
                (max(map(abs, values)) * (1 if sent > 0 else -1), "That is the largest magnitude; take their mean."),
                (1 if sent > 0 else -1, "The sign is scaled by the mean magnitude."),
            ),
        ),
        hints=("Magnitudes are without their signs.", "Sign × mean magnitude."),
        solution=(
            f"Magnitudes: {listed([abs(value) for value in values])}; their mean is {abs(sent):g}.",
            f"The sign of {shown(values[place])} gives {shown(sent)}.",
        ),
        remember="One bit a value: 32 times less, and every value arrives wrong. Error feedback makes up for it.",
    )


def _unsent(random: Random) -> Question:
    values = _vector(random)
    place = random.randrange(4)
    ((sent, unsent),) = fed_back([values])
    return Question(
        text="A vector is sent in one bit a value, with error feedback. What is added to the next gradient, in the "
        "place asked for?",
        given=(
            ("Values", listed(values)),
            ("Arrived", listed(sent)),
            ("Asked for", f"number {place + 1}"),
        ),
        answer=Number(
            value=unsent[place],
            unit="",
            tolerance=0,
            mistakes=(
                (-unsent[place], "The other way around: what should have arrived, minus what did."),
                (values[place], "That is the value itself; a part of it has arrived."),
            ),
        ),
        hints=("What was wanted, minus what has arrived.",),
        solution=(f"{shown(values[place])} − ({shown(sent[place])}) = {shown(unsent[place])}.",),
        remember="The error is not lost: the sender remembers it and sends it later.",
    )


def _second(random: Random) -> Question:
    while True:
        first, second = _vector(random), _vector(random)
        (_, left), (sent, _) = fed_back([first, second], kept=1, bits=32)
        arrived = next(value for value in sent if value)
        forgotten = max(second, key=abs)
        twice = max((a + b for a, b in zip(first, second, strict=True)), key=abs)
        wanted = [a + b for a, b in zip(left, second, strict=True)]
        if arrived not in (forgotten, twice) and _is_clear(wanted):
            break
    return Question(
        text="Of each gradient only the value of the largest magnitude is sent; error feedback adds the rest to the "
        "next one. Which value is sent in the second exchange?",
        given=(("First gradient", listed(first)), ("Second gradient", listed(second))),
        answer=Number(
            value=arrived,
            unit="",
            tolerance=0,
            mistakes=(
                (forgotten, "That is without error feedback: add what was left out first."),
                (twice, "The first gradient's largest value has already been sent; it is not added again."),
            ),
        ),
        hints=("Set the largest value of the first gradient to 0, and add the rest to the second.",),
        solution=(
            f"Left out: {listed(left)}.",
            f"With the second gradient: {listed(wanted)}.",
            f"The largest magnitude is that of {shown(arrived, digits=6)}.",
        ),
        remember="What is left out grows until it is the largest, and is sent then.",
    )


def _patience(random: Random) -> Question:
    large, small = random.choice(
        ((9.0, 2.0), (10.0, 3.0), (11.0, 3.0), (12.0, 5.0), (13.0, 4.0), (7.0, 2.0), (16.0, 3.0))
    )
    rounds = fed_back([(large, small)] * MOST_ROUNDS, kept=1, bits=32)
    first = 1 + next(number for number, (sent, _) in enumerate(rounds) if sent[1])
    return Question(
        text="A peer's gradient has two values and is always the same. Each exchange sends only the larger one, with "
        "error feedback. In which exchange is the small value sent for the first time?",
        given=(("Gradient", listed((large, small))),),
        answer=Number(
            value=first,
            unit="",
            tolerance=0,
            mistakes=(
                (first - 1, "Then they would be equally large, or the large one larger still: one exchange more."),
                (first + 1, "One exchange earlier, the sum of the small ones is already larger."),
            ),
        ),
        hints=(
            f"In exchange k the small value has become k × {small:g}.",
            f"When is that more than {large:g}?",
        ),
        solution=(
            f"k × {small:g} > {large:g} for the first time with k = {first}: {first * small:g}.",
            "From then on it is sent again and again, whenever enough has gathered.",
        ),
        remember="A small value waits longer in proportion to how small it is; none waits for ever.",
    )


def _total(random: Random) -> Question:
    gradients = [_vector(random) for _ in range(3)]
    place = random.randrange(4)
    rounds = fed_back(gradients)
    total, rest = sum(g[place] for g in gradients), rounds[-1][1][place]
    arrived = sum(sent[place] for sent, _ in rounds)
    return Question(
        text="After three exchanges with error feedback the sender still keeps something unsent of one value. What has "
        "arrived of it in all three exchanges together?",
        given=(
            ("The value in the three gradients", listed([g[place] for g in gradients])),
            ("Unsent after the third", shown(rest, digits=6)),
        ),
        answer=Number(
            value=arrived,
            unit="",
            tolerance=0.001,
            mistakes=(
                (total, "That is all that should arrive; a part of it is still unsent."),
                (total + rest, "What is unsent has not arrived: subtract it."),
            ),
        ),
        hints=("Whatever the code does: what has arrived and what is unsent add up to the sum of the gradients.",),
        solution=(
            f"Sum of the gradients: {shown(total, digits=6)}.",
            f"{shown(total, digits=6)} − ({shown(rest, digits=6)}) = {shown(arrived, digits=6)}.",
        ),
        remember="Arrived + unsent = sum of all gradients. That is why training with a crude code still converges.",
    )


def _without(random: Random) -> Question:
    large, small = random.choice(((9.0, 2.0), (10.0, 3.0), (12.0, 5.0), (8.0, 3.0)))
    with_it, without_it = (
        sum(sent[1] for sent, _ in fed_back([(large, small)] * 100, kept=1, bits=32, decay=decay))
        for decay in (1.0, 0.0)
    )
    return Question(
        text=f"A gradient is always ({listed((large, small))}), and only the larger value is sent. How much of the "
        "small one has arrived after 100 exchanges without error feedback?",
        answer=choice(
            random,
            (f"{without_it:g}", f"Nothing: it is never the larger one. With error feedback it would be {with_it:g}."),
            [
                (f"{100 * small:g}", "That should arrive; with error feedback it does, but for what is unsent."),
                (f"{50 * small:g}", "The values do not take turns: the larger one is sent every time."),
                (f"{small:g}", "Not even once: the first exchange sends the larger value, too."),
            ],
        ),
        hints=("Without error feedback, what is left out is forgotten.",),
        solution=(f"In each exchange {large:g} > {small:g}, so the small value is left out, every time.",),
        remember="Without error feedback a crude code does not only add noise: it never learns some weights.",
    )


def _bits(random: Random) -> Question:
    values = random.choice((32_768, 65_536, 131_072, 262_144))
    size = encoded_bytes(values, "uniform8", of=10**9)
    return Question(
        text="The run of 2021 sent each part of a gradient in 8 bits, with a codebook of 256 numbers in 32 bits. How "
        "many times smaller is a part than in 32 bits?",
        given=(
            ("Values in the part", show_count(values)),
            ("Codebook and its length", f"{show_count(CODEBOOK_BYTES)} bytes"),
        ),
        answer=Number(
            value=4 * values / size,
            unit="times",
            tolerance=0.001,
            mistakes=(
                (4, "That leaves out the codebook."),
                (32, "One bit a value would be 32 times smaller; these are 8 bits."),
            ),
        ),
        hints=("Before: 4 bytes a value. After: 1 byte a value, and the codebook once.",),
        solution=(
            f"{show_count(4 * values)} ÷ ({show_count(values)} + {show_count(CODEBOOK_BYTES)}) = "
            f"{4 * values / size:.4g}.",
        ),
        remember="8 bits are so exact that gradients need no error feedback; at 1 bit they do.",
    )


def _program(random: Random) -> Question:
    cases: list[tuple] = []
    while len(cases) < 6:
        length = random.randint(2, 5)
        sizes = random.sample([round(0.1 * number, 1) for number in range(1, 90)], 2 * length)
        values = [random.choice((1, -1)) * size for size in sizes]
        gradient, unsent = values[:length], values[length:]
        if _is_clear([a + b for a, b in zip(gradient, unsent, strict=True)]):
            cases.append((gradient, unsent, random.randint(1, length - 1)))

    def reference(gradient: list[float], unsent: list[float], kept: int) -> tuple:
        sent, rest = exchanged(gradient, unsent, kept=kept, bits=32)
        return [sent.get(place, 0.0) for place in range(len(rest))], rest

    return Question(
        text="Write one exchange with error feedback: add what is `unsent` to the gradient, send the `kept` values "
        "of the largest magnitude, and keep the rest. Return two lists: what arrives (0 for what is not sent), and "
        "what is unsent now.",
        answer=Program(
            name="exchange",
            start="def exchange(gradient, unsent, kept):\n    ",
            solution="def exchange(gradient, unsent, kept):\n"
            "    wanted = [a + b for a, b in zip(gradient, unsent)]\n"
            "    order = sorted(range(len(wanted)), key=lambda k: -abs(wanted[k]))\n"
            "    chosen = order[:kept]\n"
            "    sent = [x if k in chosen else 0.0 for k, x in enumerate(wanted)]\n"
            "    return sent, [x - y for x, y in zip(wanted, sent)]",
            reference=reference,
            cases=tuple(cases),
            mistakes=(
                (
                    lambda gradient, unsent, kept: reference(gradient, [0.0] * len(gradient), kept),
                    "What was unsent is forgotten: add it to the gradient first.",
                ),
            ),
        ),
        hints=(
            "`sorted(range(len(x)), key=lambda k: -abs(x[k]))` lists places, the largest magnitude first.",
            "Unsent now = wanted − sent.",
        ),
        solution=("Three lines: add, choose, subtract. The trainer's sparse exchange does this for each block.",),
        remember="Error feedback is one vector of memory and one addition.",
    )


SUBJECT = Subject(
    name="error-feedback",
    title="Error feedback",
    page="challenges/error-feedback/",
    exercises=(
        Exercise(name="one-bit", title="One bit a value", draw=_one_bit),
        Exercise(name="unsent", title="What is left unsent", draw=_unsent),
        Exercise(name="second-exchange", title="The second exchange", draw=_second),
        Exercise(name="small-value", title="A small value's turn", draw=_patience),
        Exercise(name="arrived", title="What has arrived?", draw=_total),
        Exercise(name="without-feedback", title="Without error feedback", draw=_without),
        Exercise(name="codebook", title="Eight bits in 2021", draw=_bits),
        Exercise(name="exchange", title="Program: one exchange", draw=_program),
    ),
)
