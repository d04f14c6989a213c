"""Exercises on local updates: how rare exchanges may be, what is exchanged, and the step that follows."""

from __future__ import annotations

import math
from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.figures.rules.averaging import weighted_mean
from calculator.figures.thousandfold import exchange_seconds
from calculator.swarm.exchange import SPARSE_BLOCK, sparse_bytes, sparse_fields
from calculator.swarm.forecast import ExchangedVectors
from calculator.swarm.settings import DEFAULTS
from calculator.units import show_count

DAY = 86_400
USUAL_KEPT = DEFAULTS.sparse_kept
"""Values of a block that a peer sends if the recipe says nothing else."""


def _timing(random: Random) -> tuple[float, float, tuple[tuple[str, str], ...]]:
    """Seconds of an exchange and of an update, and the setting in words."""
    megabytes, megabits, peers = random.choice((500, 1000, 2000)), random.choice((20, 50, 100)), random.choice((4, 8))
    exchange = exchange_seconds(megabytes * 10**6, peers, megabits)
    update = float(random.choice((1, 2, 5)))
    said = (("An exchange takes", shown(exchange, "s")), ("An update of one volunteer takes", f"{update:g} s"))
    return exchange, update, said


def _share(random: Random) -> Question:
    exchange, update, said = _timing(random)
    between = random.choice((100, 200, 500))
    share = exchange / (exchange + between * update)
    return Question(
        text="Each volunteer makes updates of its own, and only then all average the changes of their weights. Which "
        "share of the time goes to the exchange?",
        given=(*said, ("Updates between exchanges", str(between))),
        answer=Number(
            value=share,
            unit="%",
            tolerance=0.03,
            mistakes=(
                (exchange / (exchange + update), "That is with an exchange after every update."),
                (exchange / (between * update), "Divide by the whole time, the exchange included."),
            ),
        ),
        hints=("How long does a volunteer compute between two exchanges?", "Exchange ÷ (computing + exchange)."),
        solution=(
            f"Computing: {between} × {update:g} = {between * update:g} s.",
            f"{shown(exchange, 's')} ÷ ({between * update:g} s + {shown(exchange, 's')}) = {shown(share, '%')}.",
        ),
        remember="Hundreds of local updates make up for a home link, where one exchange an update could not.",
    )


def _enough(random: Random) -> Question:
    exchange, update, said = _timing(random)
    most = random.choice((0.05, 0.1, 0.2))
    exact = exchange * (1 - most) / most / update
    fewest = math.ceil(exact - 1e-9)
    return Question(
        text="How many updates must a volunteer make between two exchanges, so that the exchange takes no more than "
        "this share of the time?",
        given=(*said, ("Largest share", f"{100 * most:g} %")),
        answer=Number(
            value=fewest,
            unit="updates",
            tolerance=0.01 if fewest > 60 else 0,
            mistakes=(
                (exchange / most / update, "That makes the exchange this share of the computing, not of all the time."),
                (exchange / update, "Then computing and exchange take equally long: 50 %."),
            ),
        ),
        hints=(
            f"If the exchange is {100 * most:g} %, computing is {100 - 100 * most:g} %: how many times as long is "
            "that?",
        ),
        solution=(
            f"Computing takes {100 - 100 * most:g} ÷ {100 * most:g} = {(1 - most) / most:g} times as long as the "
            f"exchange: {shown(exchange * (1 - most) / most, 's')}.",
            f"÷ {update:g} s and rounded up: {fewest} updates.",
        ),
        remember="More local updates cost nothing on the line, but the volunteers' weights drift apart meanwhile.",
    )


def _traffic(random: Random) -> Question:
    exchange, update, said = _timing(random)
    between = random.choice((100, 200, 500))
    count = DAY / (exchange + between * update)
    return Question(
        text="How many exchanges does a volunteer take part in within a day?",
        given=(*said, ("Updates between exchanges", str(between))),
        answer=Number(
            value=count,
            unit="exchanges",
            tolerance=0.03,
            mistakes=(
                (DAY / (between * update), "Between two of them there is also the exchange itself."),
                (DAY / exchange, "That is if nothing were computed."),
                (DAY / (exchange + update), "That is with an exchange after every update."),
            ),
        ),
        hints=("How long is it from one exchange to the next?", "A day has 86 400 s."),
        solution=(
            f"From one to the next: {between * update:g} s + {shown(exchange, 's')}.",
            f"86 400 s ÷ {exchange + between * update:.4g} s = {count:.4g}.",
        ),
        remember="A peer that misses one of these exchanges loses a small part of its day.",
    )


def _what(random: Random) -> Question:
    between = random.choice((50, 100, 500))
    return Question(
        text=f"Volunteers have made {between} local updates each, from the same weights. What do they average?",
        answer=choice(
            random,
            (
                "The changes of their weights",
                "Each sends by how much its weights have moved; the mean is a step for all from the same weights.",
            ),
            [
                (f"All {between} gradients", f"That would be {between} times the traffic that local updates save."),
                ("Their last gradient", "It knows nothing of the updates before it."),
                ("Their losses", "A loss is one number; it moves no weight."),
            ],
        ),
        hints=("It has the size of one gradient, and knows of all local updates.",),
        solution=(
            "Change = weights after the local updates − weights before them. The mean change is an outer gradient.",
        ),
        remember="Seen from outside, hundreds of local updates are one large step.",
    )


def _sparse(random: Random) -> Question:
    kept = random.choice((16, 32, 64, 128))
    low, entries, buckets = sparse_fields(SPARSE_BLOCK, kept)
    size = sparse_bytes(SPARSE_BLOCK, kept)
    factor = 4 * SPARSE_BLOCK / size
    usual = 8 * sparse_bytes(SPARSE_BLOCK, USUAL_KEPT) / SPARSE_BLOCK
    return Question(
        text="A sparse exchange sends only the largest changes of each block: a scale, for each sent value its sign, "
        "its size and the low bits of its place, and a few bits for the rest of the places. How many times smaller is "
        "that than all changes in 32 bits?",
        given=(
            ("Values in a block", show_count(SPARSE_BLOCK)),
            ("Sent of them", str(kept)),
            ("Scale", "2 bytes"),
            ("Each sent value", f"{low + 2} bits"),
            ("For the rest of the places", f"{buckets} bits"),
        ),
        answer=Number(
            value=factor,
            unit="times",
            mistakes=(
                (SPARSE_BLOCK / kept, "A sent value takes other bits than 32, and its place must be sent as well."),
                (2 * SPARSE_BLOCK / size, "Before, a value had 32 bits, which are 4 bytes."),
                (
                    4 * SPARSE_BLOCK / (2 + math.ceil(entries / 8)),
                    "You have left out the bits for the rest of the places.",
                ),
            ),
        ),
        hints=("Bytes before: 4 a value.", f"Bytes after: 2 + {kept} × {low + 2} ÷ 8 + {buckets} ÷ 8, rounded up."),
        solution=(
            f"Before: {show_count(SPARSE_BLOCK)} × 4 = {show_count(4 * SPARSE_BLOCK)} bytes.",
            f"After: 2 + {-(-entries // 8)} + {-(-buckets // 8)} = {size} bytes.",
            f"{show_count(4 * SPARSE_BLOCK)} ÷ {size} = {factor:.4g}.",
        ),
        remember=f"This project sends {USUAL_KEPT} of {SPARSE_BLOCK} values: {usual:.2f} bits a parameter. Error "
        "feedback sends the rest later.",
    )


def _newcomer(random: Random) -> Question:
    parameters = random.choice((125, 350, 500, 1000)) * 10**6
    megabits = random.choice((50, 100, 250))
    size = ExchangedVectors(parameters=parameters, target_batch_size=1, mode="diloco").newcomer_bytes
    seconds = 8 * size / (megabits * 1e6)
    return Question(
        text="A newcomer downloads the weights in 16 bits, and the momentum of the outer step in 32 bits. How long "
        "does that take?",
        given=(("Parameters", show_count(parameters)), ("Download", f"{megabits} Mbit/s")),
        answer=Number(
            value=seconds,
            unit="s",
            mistakes=(
                (seconds / 3, "Those are the weights alone."),
                (2 * seconds / 3, "That is the momentum alone."),
                (seconds / 8, "You have divided bytes by bits: a byte has 8 bits."),
                (seconds * 10 / 6, "The outer step has one momentum, not AdamW's two moments."),
            ),
        ),
        hints=("How many bytes does each parameter take, 2 + 4?",),
        solution=(
            f"{show_count(parameters)} × (2 + 4) = {shown(size, 'MB')}.",
            f"× 8 ÷ {megabits} Mbit/s = {shown(seconds, 's')}.",
        ),
        remember="A newcomer needs the run's state, not its history.",
    )


def _outer(random: Random) -> Question:
    cases = []
    for _ in range(6):
        length = random.randint(1, 4)
        old = [round(random.uniform(-2, 2), 2) for _ in range(length)]
        peers = [[round(value + random.uniform(-1, 1), 2) for value in old] for _ in range(random.randint(2, 4))]
        cases.append((old, peers, random.choice((0.5, 0.7, 0.9))))

    def reference(old: list[float], peers: list[list[float]], rate: float) -> list[float]:
        changes = [[new - was for new, was in zip(weights, old, strict=True)] for weights in peers]
        return [was + rate * change for was, change in zip(old, weighted_mean(changes), strict=True)]

    return Question(
        text="Write the outer step: all peers began with the weights `old`; after their local updates they have those "
        "in `peers`. Return the old weights plus `rate` times the mean change.",
        answer=Program(
            name="outer_step",
            start="def outer_step(old, peers, rate):\n    ",
            solution="def outer_step(old, peers, rate):\n    means = [sum(values) / len(values) for values in "
            "zip(*peers)]\n"
            "    return [was + rate * (mean - was) for was, mean in zip(old, means)]",
            reference=reference,
            cases=tuple(cases),
            mistakes=(
                (lambda old, peers, rate: weighted_mean(peers), "That is the mean of the weights: a rate of 1."),
                (
                    lambda old, peers, rate: [rate * value for value in weighted_mean(peers)],
                    "The rate scales the change, not the weights themselves.",
                ),
                (
                    lambda old, peers, rate: reference(old, peers, -rate),
                    "That steps backwards: the change is new − old.",
                ),
            ),
        ),
        hints=("The mean change is the mean of the new weights, minus the old ones.",),
        solution=("With a rate of 1 it is the plain mean of all weights; the outer optimizer adds momentum to this.",),
        remember="DiLoCo in one line: average the changes, then step.",
    )


SUBJECT = Subject(
    name="local-updates",
    title="Local updates",
    page="challenges/local-updates/",
    exercises=(
        Exercise(name="exchange-share", title="The exchange's share", draw=_share),
        Exercise(name="updates-between", title="How many updates between?", draw=_enough),
        Exercise(name="exchanges-a-day", title="Exchanges in a day", draw=_traffic),
        Exercise(name="what-is-averaged", title="What is averaged?", draw=_what),
        Exercise(name="sparse-exchange", title="Only the largest changes", draw=_sparse),
        Exercise(name="newcomer", title="A newcomer's download", draw=_newcomer),
        Exercise(name="outer-step", title="Program: the outer step", draw=_outer),
    ),
)
