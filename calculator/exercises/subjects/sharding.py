"""Exercises on sharding: what each GPU keeps when several divide a model's state, and what crosses the line for it."""

from __future__ import annotations

from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.figures.thousandfold import exchange_seconds
from calculator.step.estimate import estimate
from calculator.step.gpus.sharding import shard_shape
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_count

MODELS = ("gpt2-medium", "gpt2-large", "gpt2-xl", "llama-3.2-1b")
WHAT = {
    "zero-1": ("The optimizer's state", "Each GPU has all weights and gradients, and updates its part of the weights."),
    "zero-2": ("Optimizer state and gradients", "Each GPU keeps the sum of the gradients of its part only."),
    "zero-3": ("Optimizer state, gradients and weights", "A layer's weights are gathered only while it runs."),
}
"""What each stage of ZeRO divides, and what that means."""


def _state(random: Random) -> Question:
    # Whole tensors are dealt out: with the largest embeddings and many GPUs, one GPU would have more than its part.
    name, gpus = random.choice(("gpt2-large", "gpt2-xl", "gpt3-1.3b")), random.choice((2, 4, 8))
    alone, divided = estimate(Setup(model=name)), estimate(Setup(model=name, gpus=gpus, sharding="zero-1"))
    size = divided.optimizer_state_bytes
    return Question(
        text="GPUs divide AdamW's state among them and nothing else (ZeRO-1). How much of it has each?",
        given=(("Model", name), ("Parameters", show_count(alone.parameters)), ("GPUs", str(gpus))),
        answer=Number(
            value=size,
            unit="GiB",
            mistakes=(
                (alone.optimizer_state_bytes, "That is the whole state; the GPUs divide it."),
                (4 * alone.parameters / gpus, "AdamW has two moments of 4 bytes for each parameter."),
                (12 * alone.parameters / gpus, "That divides the weights as well; ZeRO-1 divides the state only."),
            ),
        ),
        hints=("AdamW's state takes 8 bytes a parameter.", "Divide by the GPUs; 1 GiB is 2**30 bytes."),
        solution=(
            f"{show_count(alone.parameters)} × 8 = {show_bytes(alone.optimizer_state_bytes)}.",
            f"÷ {gpus} = {show_bytes(alone.optimizer_state_bytes // gpus)}, or a little more: "
            "whole tensors are dealt out.",
        ),
        remember="Two thirds of the memory of weights and state are state: divide that first.",
    )


def _all_three(random: Random) -> Question:
    name, gpus = random.choice(MODELS), random.choice((4, 8, 16))
    made = estimate(Setup(model=name, gpus=gpus, sharding="zero-3"))
    size = _kept(name, gpus)
    return Question(
        text="With ZeRO-3 the GPUs divide weights, gradients and AdamW's state, all in 32 bits. How much of them does "
        "each keep all the time?",
        given=(("Model", name), ("Parameters", show_count(made.parameters)), ("GPUs", str(gpus))),
        answer=Number(
            value=size,
            unit="GiB",
            mistakes=(
                (size * gpus, "That is what one GPU alone would keep; divide it."),
                (12 * made.parameters / gpus, "Count weights 4, gradients 4 and the two moments 8 bytes a parameter."),
                (made.optimizer_state_bytes, "That is the state alone."),
            ),
        ),
        hints=("Bytes a parameter: weights 4, gradient 4, two moments 8.",),
        solution=(
            f"{show_count(made.parameters)} × 16 bytes = {show_bytes(16 * made.parameters)}.",
            f"÷ {gpus} = {show_bytes(size)}, besides the layer that runs and its activations.",
        ),
        remember="16 bytes a parameter, divided by the GPUs: so large models fit many small cards.",
    )


def _stage(random: Random) -> Question:
    stage = random.choice(tuple(WHAT))
    name, gpus = random.choice(MODELS), random.choice((4, 8))
    made, alone = estimate(Setup(model=name, gpus=gpus, sharding=stage)), estimate(Setup(model=name))
    return Question(
        text=f"{gpus} GPUs train {name} with ZeRO-{stage[-1]}. What do they divide among them?",
        given=(
            ("Optimizer state of the model", show_bytes(alone.optimizer_state_bytes)),
            ("State on each GPU", show_bytes(made.optimizer_state_bytes)),
            ("Gradients of the model", show_bytes(alone.gradient_bytes)),
            ("Gradients on each GPU", show_bytes(made.gradient_bytes)),
        ),
        answer=choice(
            random,
            WHAT[stage],
            [
                (text, f"That is {key.replace('zero', 'ZeRO')}. {why}")
                for key, (text, why) in WHAT.items()
                if key != stage
            ],
        ),
        hints=("Compare the model and each GPU: state first, then gradients.", "The third stage divides weights, too."),
        solution=("ZeRO-1 divides the state, ZeRO-2 also the gradients, ZeRO-3 also the weights.",),
        remember="ZeRO-1, 2, 3: state, then gradients, then weights.",
    )


def _rows(random: Random) -> Question:
    rows, width, gpus = (
        random.choice((50_257, 32_100, 30_522, 40_548)),
        random.choice((768, 1024)),
        random.choice((3, 6, 7, 16)),
    )
    while rows % gpus == 0:
        gpus += 1  # else there would be nothing to round
    first = shard_shape((rows, width), gpus)[0]
    return Question(
        text="FSDP2 divides a matrix by its rows; if they do not divide evenly, all shares are as large as the "
        "largest. How many rows does the first GPU get?",
        given=(("Embedding matrix", f"{show_count(rows)} × {width}"), ("GPUs", str(gpus))),
        answer=Number(
            value=first,
            unit="rows",
            tolerance=0,
            mistakes=(
                (rows // gpus, "That leaves some rows without a GPU: round up."),
                (first * width, "Those are values; the question asks for rows."),
            ),
        ),
        hints=("Divide, and round up.",),
        solution=(f"{show_count(rows)} ÷ {gpus} = {rows / gpus:.2f}, rounded up {show_count(first)}.",),
        remember="Shares are padded to equal length, because collective operations move equal pieces.",
    )


def _slow(random: Random) -> Question:
    name, peers = random.choice(MODELS), random.choice((4, 8))
    megabits = random.choice((50, 100, 200))
    count = estimate(Setup(model=name)).parameters
    seconds = exchange_seconds(2 * count, peers, megabits) / 2
    return Question(
        text="Volunteers at home try ZeRO-3: before each forward pass every one gathers the others' shares of the "
        "weights, in 16 bits. How long does that take?",
        given=(
            ("Parameters", f"{show_count(count)} ({name})"),
            ("Volunteers", str(peers)),
            ("Link, both ways", f"{megabits} Mbit/s"),
        ),
        answer=Number(
            value=seconds,
            unit="s",
            mistakes=(
                (2 * seconds, "Nothing is summed here: the shares come once, so it is half of an all-reduce."),
                (seconds * peers / (peers - 1), "Its own share is already there: (n − 1) / n of the weights come."),
                (seconds / 8, "You have divided bytes by bits: a byte has 8 bits."),
                (seconds / (peers - 1), "It needs the shares of all others, not one."),
            ),
        ),
        hints=("16 bits are 2 bytes a parameter.", f"It has 1/{peers} already."),
        solution=(
            f"{show_count(count)} × 2 bytes × {peers - 1}/{peers} = {shown(2 * count * (peers - 1) / peers, 'MB')}.",
            f"× 8 ÷ {megabits} Mbit/s = {shown(seconds, 's')}, for every micro-batch.",
        ),
        remember="Sharding moves the weights in every pass: it belongs in a data centre, not between homes.",
    )


def _kept(name: str, gpus: int) -> int:
    """Bytes of weights, gradients and AdamW's state that each GPU keeps all the time with ZeRO-3."""
    made, weights = estimate(Setup(model=name, gpus=gpus, sharding="zero-3")), estimate(Setup(model=name)).gpu.weights
    return made.optimizer_state_bytes + made.gradient_bytes + -(-weights // gpus)


def _fewest(random: Random) -> Question:
    while True:
        name, room = random.choice(MODELS), random.choice((2, 3, 4, 6)) * 2**30
        gpus = next(count for count in range(2, 65) if _kept(name, count) <= room)
        count = estimate(Setup(model=name)).parameters
        if gpus == -(-16 * count // room) and gpus > 2:
            break  # padding and the rounding of bytes do not decide
    return Question(
        text="Each card has this much room for weights, gradients and AdamW's state, all in 32 bits. How many cards "
        "are needed at least to keep them with ZeRO-3?",
        given=(("Model", name), ("Parameters", show_count(count)), ("Room on each card", show_bytes(room))),
        answer=Number(
            value=gpus,
            unit="cards",
            tolerance=0,
            mistakes=(
                (gpus - 1, "With these it does not fit yet: round up."),
                (-(-12 * count // room), "Count weights 4, gradients 4 and the two moments 8 bytes a parameter."),
                (-(-8 * count // room), "That keeps the state alone."),
            ),
        ),
        hints=("16 bytes a parameter.", "1 GiB is 2**30 bytes; round up."),
        solution=(
            f"{show_count(count)} × 16 bytes = {show_bytes(16 * count)}.",
            f"÷ {show_bytes(room)} = {16 * count / room:.2f}, rounded up {gpus}.",
        ),
        remember="Activations come on top, but these three are gone from each card: the more cards, the larger the "
        "model.",
    )


def _program(random: Random) -> Question:
    cases = [(10, 4)]
    cases += [(random.randint(20, 5000), random.randint(2, 16)) for _ in range(5)]

    def reference(rows: int, gpus: int) -> list[int]:
        share = shard_shape((rows,), gpus)[0]
        return [max(0, min(share, rows - share * gpu)) for gpu in range(gpus)]

    return Question(
        text="Write how many of a matrix's rows each GPU has with FSDP2: each gets the rows divided by the GPUs, "
        "rounded up, as long as there are rows left. Return a list with a number for each GPU.",
        answer=Program(
            name="rows_of_gpus",
            start="def rows_of_gpus(rows, gpus):\n    ",
            solution="def rows_of_gpus(rows, gpus):\n    share = -(-rows // gpus)\n"
            "    return [max(0, min(share, rows - share * gpu)) for gpu in range(gpus)]",
            reference=reference,
            cases=tuple(cases),
            mistakes=(
                (
                    lambda rows, gpus: [rows // gpus + (gpu < rows % gpus) for gpu in range(gpus)],
                    "That is the most even division; FSDP2 fills one GPU after the other with the rounded-up share.",
                ),
                (
                    lambda rows, gpus: [-(-rows // gpus)] * gpus,
                    "Those are more rows than there are: the last GPUs get fewer, the rest is padding.",
                ),
            ),
        ),
        hints=("`-(-rows // gpus)` divides and rounds up.", "10 rows on 4 GPUs: 3, 3, 3, 1."),
        solution=("The share is rounded up; GPU number k begins at row `share * k`.",),
        remember="torch.chunk divides in the same way: the last pieces are the small ones.",
    )


SUBJECT = Subject(
    name="sharding",
    title="Sharding",
    page="challenges/sharding/",
    exercises=(
        Exercise(name="zero-state", title="The state, divided", draw=_state),
        Exercise(name="zero-all", title="Everything divided", draw=_all_three),
        Exercise(name="which-stage", title="Which stage is it?", draw=_stage),
        Exercise(name="shard-rows", title="Rows of a shard", draw=_rows),
        Exercise(name="sharding-at-home", title="Sharding at home", draw=_slow),
        Exercise(name="fewest-cards", title="How many cards?", draw=_fewest),
        Exercise(name="rows-of-gpus", title="Program: rows of each GPU", draw=_program),
    ),
)
