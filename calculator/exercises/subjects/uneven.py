"""Exercises on uneven devices: waiting for the slowest, counting samples, and weighted averages."""

from __future__ import annotations

from random import Random

from calculator.choose.devices import DEVICES
from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.figures.rules.averaging import weighted_mean
from calculator.figures.uneven import by_samples, equal_shares

KINDS = ("Laptop", "Free GPU", "Gaming GPU", "Data-centre GPU")
SPEEDS = ((1, 2, 5, 12), (1, 3, 6, 10), (1, 2, 7, 20), (2, 3, 10, 15), (1, 4, 5, 15))
"""Samples per second of each of `KINDS`."""


def _devices(random: Random) -> tuple[tuple[int, ...], int, tuple[tuple[str, str], ...]]:
    """Speeds, a batch that the sum of the speeds divides, and both in words."""
    speeds = random.choice(SPEEDS)
    batch = sum(speeds) * random.choice((12, 16, 20, 24, 32))  # multiples of 4 as well
    return speeds, batch, tuple((kind, f"{speed} samples/s") for kind, speed in zip(KINDS, speeds, strict=True))


def _equal(random: Random) -> Question:
    speeds, batch, said = _devices(random)
    epoch = equal_shares(speeds, batch)
    together = batch / sum(speeds)
    return Question(
        text="Four devices share a batch equally, and all wait until the slowest has computed its share. How long does "
        "that take?",
        given=(*said, ("Batch", f"{batch} samples")),
        answer=Number(
            value=epoch.computing_seconds,
            unit="s",
            tolerance=0.03,
            mistakes=(
                (together, "That is the time if nobody waited: each would compute as much as it can."),
                (batch / min(speeds), "The slowest computes a quarter of the batch only."),
                (batch / 4 / max(speeds), "Then the fastest is ready; but all wait for the slowest."),
                (batch / (sum(speeds) / 4), "The mean of the speeds does not matter: all wait for the slowest."),
            ),
        ),
        hints=("How many samples does each device get?", "Divide by the speed of the slowest."),
        solution=(
            f"Each gets {batch} ÷ 4 = {batch / 4:g} samples.",
            f"The laptop needs {batch / 4:g} ÷ {min(speeds)} = {shown(epoch.computing_seconds, 's')}.",
        ),
        remember="With equal shares, a group is as fast as its slowest member.",
    )


def _counted(random: Random) -> Question:
    speeds, batch, said = _devices(random)
    epoch = by_samples(speeds, batch)
    return Question(
        text="Four devices count samples: each computes as many as it can, until all together have the batch. How long "
        "does the batch take?",
        given=(*said, ("Batch", f"{batch} samples")),
        answer=Number(
            value=epoch.computing_seconds,
            unit="s",
            mistakes=(
                (equal_shares(speeds, batch).computing_seconds, "That is with equal shares; here nobody waits."),
                (batch / max(speeds), "The others compute as well."),
                (batch / (sum(speeds) / 4), "That is the time of one device of mean speed; there are four."),
            ),
        ),
        hints=("How many samples do all of them compute in a second?",),
        solution=(
            f"Together {' + '.join(map(str, speeds))} = {sum(speeds)} samples/s.",
            f"{batch} ÷ {sum(speeds)} = {shown(epoch.computing_seconds, 's')}.",
        ),
        remember="If samples are counted, speeds add up.",
    )


def _idle(random: Random) -> Question:
    speeds, batch, said = _devices(random)
    epoch = equal_shares(speeds, batch)
    busy = epoch.busy_seconds[-1] / epoch.computing_seconds
    return Question(
        text="Four devices share a batch equally, and all wait until the slowest has computed its share. For which "
        "part of this time is the data-centre GPU idle?",
        given=(*said, ("Batch", f"{batch} samples, a quarter for each")),
        answer=Number(
            value=1 - busy,
            unit="%",
            mistakes=((busy, "For this part it computes; the question is for which it is idle."),),
        ),
        hints=(
            "How long does it compute its share, and how long does the slowest?",
            "The batch cancels out: only the ratio of the two speeds matters.",
        ),
        solution=(
            f"It computes {min(speeds)}/{max(speeds)} of the time that the laptop needs: {shown(busy, '%')}.",
            f"It is idle for the rest: {shown(1 - busy, '%')}.",
        ),
        remember="The faster the device, the more of it equal shares waste.",
    )


def _weighted(random: Random) -> Question:
    samples = random.choice(((10, 30), (20, 60), (8, 72), (16, 48), (5, 45)))
    values = random.choice(((4.0, 8.0), (2.0, 6.0), (-4.0, 4.0), (10.0, 2.0)))
    if random.random() < 0.5:
        samples = samples[::-1]
    ((mean,), (plain,)) = weighted_mean([(v,) for v in values], samples), weighted_mean([(v,) for v in values])
    swapped = weighted_mean([(v,) for v in values], samples[::-1])[0]
    return Question(
        text="Two peers average one number of their gradients. Each is the mean over the peer's own samples. Which "
        "average equals the mean over all samples?",
        given=(
            ("First peer", f"{shown(values[0])}, from {samples[0]} samples"),
            ("Second peer", f"{shown(values[1])}, from {samples[1]} samples"),
        ),
        answer=Number(
            value=mean,
            unit="",
            tolerance=0.005,
            mistakes=(
                (plain, "That is the plain mean: it takes both for equally well known. Weight each by its samples."),
                (swapped, "The weights are swapped: the peer with more samples counts more."),
            ),
        ),
        hints=("Multiply each mean by its samples: that gives the sum over the samples.", "Divide by all samples."),
        solution=(
            f"Sums: {shown(values[0])} × {samples[0]} = {shown(values[0] * samples[0])} and {shown(values[1])} × "
            f"{samples[1]} = {shown(values[1] * samples[1])}.",
            f"({shown(values[0] * samples[0])} + {shown(values[1] * samples[1])}) ÷ {sum(samples)} = {shown(mean)}.",
        ),
        remember="Weighted by samples, the average is exactly the gradient of one large batch.",
    )


def _late(random: Random) -> Question:
    done, left = random.randint(3, 12), random.randint(1, 3)
    return Question(
        text=f"The batch is full while a laptop, which has reported {done} samples, is still computing {left} more. "
        "What becomes of them?",
        answer=choice(
            random,
            (
                "They count as well, and the others wait for them",
                "The laptop ends its micro-batch and brings it along; the batch becomes a little larger than planned.",
            ),
            [
                (
                    "They count for the next epoch",
                    "They were computed for this batch, and are averaged with it; the next one begins after that.",
                ),
                (
                    "They are thrown away",
                    "Only if the laptop took so long that the others had gone on without it.",
                ),
                (
                    "The others compute them in its place",
                    "Nobody else has them, and nobody needs to: the batch is full already.",
                ),
            ],
        ),
        hints=("The others look for a group while they end their own last micro-batches.",),
        solution=("The average waits for the last micro-batch of each peer; the forecast counts this time as lost.",),
        remember="A peer waits for the slowest one's last micro-batch only, so slow devices take small ones.",
    )


def _faster(random: Random) -> Question:
    names = random.sample(("t4", "rtx-3060", "rtx-3090", "rtx-4090", "a100-40gb", "h100-80gb"), 3)
    counts = [random.choice((1, 2, 3, 5, 8)) for _ in names]
    speeds = [DEVICES[name].teraflops for name in names]
    share = weighted_mean(
        [(0.0,), (0.0,), (1.0,)], [count * speed for count, speed in zip(counts, speeds, strict=True)]
    )[0]
    title = DEVICES[names[2]].title
    return Question(
        text="Volunteers come with these GPUs, and all reach the same part of their peak. Which share of the "
        f"samples do those with the {title} compute?",
        given=tuple(
            (DEVICES[name].title, f"{count} of them, peak {speed:g} TFLOP/s each")
            for name, count, speed in zip(names, counts, speeds, strict=True)
        ),
        answer=Number(
            value=share,
            unit="%",
            mistakes=(
                (counts[2] / sum(counts), "That is their share of the volunteers; weight it by speed."),
                (speeds[2] / sum(speeds), "That is for one GPU of each kind; there are different numbers of them."),
            ),
        ),
        hints=("Multiply number and speed for each kind, then add up.",),
        solution=(
            "Speeds: "
            + ", ".join(f"{c} × {s:g} = {c * s:g}" for c, s in zip(counts, speeds, strict=True))
            + " TFLOP/s.",
            f"{counts[2] * speeds[2]:g} ÷ {sum(c * s for c, s in zip(counts, speeds, strict=True)):g} = "
            f"{shown(share, '%')}.",
        ),
        remember="A few fast devices may do most of the work; the slow ones still add theirs, and delay others little.",
    )


def _mean_program(random: Random) -> Question:
    cases = []
    for _ in range(6):
        peers, length = random.randint(2, 5), random.randint(1, 4)
        vectors = [[round(random.uniform(-9, 9), 2) for _ in range(length)] for _ in range(peers)]
        cases.append((vectors, [random.randint(1, 60) for _ in range(peers)]))
    return Question(
        text="Write the average of gradients, each weighted by its peer's number of samples. `gradients` is a list of "
        "equally long lists, `samples` a list of numbers; return a list.",
        answer=Program(
            name="average",
            start="def average(gradients, samples):\n    ",
            solution="def average(gradients, samples):\n    total = sum(samples)\n    return [\n"
            "        sum(count * value for count, value in zip(samples, values)) / total\n"
            "        for values in zip(*gradients)\n    ]",
            reference=weighted_mean,
            cases=tuple(cases),
            mistakes=(
                (lambda vectors, samples: weighted_mean(vectors), "That is the plain mean; weight it by samples."),
                (
                    lambda vectors, samples: [
                        sum(n * v for n, v in zip(samples, values, strict=True))
                        for values in zip(*vectors, strict=True)
                    ],
                    "That is the weighted sum; divide it by the number of all samples.",
                ),
            ),
        ),
        hints=("`zip(*gradients)` gives, place by place, the values of all peers.",),
        solution=("For each place, add up samples × value over all peers, and divide by all samples.",),
        remember="This line is what makes a laptop and a data-centre GPU one machine.",
    )


SUBJECT = Subject(
    name="uneven",
    title="Uneven devices",
    page="challenges/uneven-devices/",
    exercises=(
        Exercise(name="equal-shares", title="Waiting for the slowest", draw=_equal),
        Exercise(name="counted-samples", title="Counting samples", draw=_counted),
        Exercise(name="idle-gpu", title="An idle GPU", draw=_idle),
        Exercise(name="weighted-mean", title="Whose gradient counts how much?", draw=_weighted),
        Exercise(name="late-samples", title="Samples that come late", draw=_late),
        Exercise(name="shares-of-gpus", title="Who does the work?", draw=_faster),
        Exercise(name="average", title="Program: the weighted average", draw=_mean_program),
    ),
)
