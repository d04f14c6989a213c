"""Exercises on security: what one liar does to a mean, medians and CenteredClip, and the checks of a request."""

from __future__ import annotations

from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import listed, shown
from calculator.figures.rules.admission import CASES, CHECKS, LONGEST_DELAY, TICKET_SECONDS, failed_check
from calculator.figures.rules.averaging import centered_clip, median, weighted_mean

STORIES = {
    "forged": "An attacker makes a ticket in a member's name, and signs both it and the request with a key of its own.",
    "expired": f"A member signs a request {TICKET_SECONDS + 5} s after signing in; a ticket is valid for "
    f"{TICKET_SECONDS} s.",
    "stolen": "An attacker has copied a member's ticket, but not the private key, and signs a request with another "
    "key.",
    "altered": "Somebody on the way replaces the gradient in a member's request, and leaves the signature as it is.",
    "redirected": "A member's request to one peer is passed on, unchanged, to another peer.",
    "delayed": f"A member's request is held back, and arrives {LONGEST_DELAY + 1} s after it was sent.",
    "replayed": "A member's request arrives a second time, unchanged, a moment after the first.",
}
"""What happens in each of the forgeries of `CASES`."""


def _peers(random: Random, hostile: int) -> tuple[list[float], list[float]]:
    """Honest numbers around a drawn one, and hostile ones that lie far away."""
    middle = random.randint(2, 6)
    honest = [middle + offset for offset in random.sample((-1.0, -0.5, 0.0, 0.5, 1.0), 4)]
    return honest, [float(random.choice((-50, -80, 40, 100, 200)))] * hostile


def _liar(random: Random) -> Question:
    honest, hostile = _peers(random, 1)
    ((mean,), (truth,)) = (weighted_mean([(v,) for v in values]) for values in (honest + hostile, honest))
    return Question(
        text="Four honest peers and a hostile one send one number of their gradients. What is the mean of all five?",
        given=(("Honest", listed(honest)), ("Hostile", listed(hostile))),
        answer=Number(
            value=mean,
            unit="",
            mistakes=(
                (truth, "That is the honest mean; but nobody knows who is honest, so all five count."),
                (sum(honest + hostile), "That is the sum; divide it by five."),
                (sum(honest + hostile) / 4, "There are five numbers."),
            ),
        ),
        hints=("Add up all five, and divide by five.",),
        solution=(
            f"Sum: {shown(sum(honest + hostile))}; ÷ 5 = {shown(mean)}.",
            f"Without the liar it would be {truth:g}.",
        ),
        remember="One liar moves a mean as far as it likes: it only has to send a larger number.",
    )


def _median(random: Random) -> Question:
    honest, hostile = _peers(random, random.choice((1, 3)))
    everyone = honest + hostile
    while sorted(everyone)[len(everyone) // 2] == everyone[len(everyone) // 2]:
        random.shuffle(everyone)  # else the median would be found without sorting
    ((middle,), (mean,)) = median([(v,) for v in everyone]), weighted_mean([(v,) for v in everyone])
    return Question(
        text="Peers send one number each, and some lie. What is the median of all?",
        given=(("Numbers", listed(everyone)),),
        answer=Number(
            value=middle,
            unit="",
            tolerance=0,
            mistakes=(
                (mean, "That is the mean; the median is the middle one when they are sorted."),
                (everyone[len(everyone) // 2], "Sort them first: the median is not the one that came in the middle."),
            ),
        ),
        hints=("Sort the numbers.", f"There are {len(everyone)}; the median is number {len(everyone) // 2 + 1}."),
        solution=(f"Sorted: {listed(sorted(everyone))}.", f"The middle one is {middle:g}."),
        remember="A median stays among honest numbers as long as fewer than half lie.",
    )


def _clipped(random: Random) -> Question:
    start, radius = float(random.randint(2, 5)), random.choice((1.0, 2.0))
    values = [start + off for off in (random.choice((0.5, -0.5)), radius, random.choice((10.0, -20.0, 50.0)))]
    values.append(start + random.choice((1.0, -1.0, 0.0)))
    vectors = [(value,) for value in values]
    moved = centered_clip(vectors, (start,), radius, 1)[-1][0]
    pulls = [max(-radius, min(radius, value - start)) for value in values]
    mean = weighted_mean(vectors)[0]
    return Question(
        text="CenteredClip starts from the last result. Each peer's number pulls it towards itself, but by no more "
        "than the radius; the result moves by the mean of the pulls. Where is it after one iteration?",
        given=(
            ("Last result", f"{start:g}"),
            ("Radius", f"{radius:g}"),
            ("Numbers of four peers", listed(values)),
        ),
        answer=Number(
            value=moved,
            unit="",
            tolerance=0.001,
            mistakes=(
                (mean, "That is the mean: no pull was clipped."),
                (moved - start, "That is the move; add it to the last result."),
                (start + sum(pulls), "That is the sum of the pulls; take their mean."),
            ),
        ),
        hints=(
            "A pull is number − last result, cut to between −radius and +radius.",
            "Take the mean of the four pulls.",
        ),
        solution=(
            f"Pulls: {listed(pulls)}.",
            f"Their mean is {shown(sum(pulls) / 4)}; added to {start:g}, it gives {shown(moved)}.",
        ),
        remember="However far a liar goes, it pulls no harder than the radius.",
    )


def _pull(random: Random) -> Question:
    peers, hostile = random.choice(((25, 5), (20, 4), (50, 12), (16, 4), (10, 2)))
    radius = random.choice((0.5, 1.0, 2.0, 5.0))
    moved = centered_clip([(0.0,)] * (peers - hostile) + [(1e9,)] * hostile, (0.0,), radius, 1)[-1][0]
    return Question(
        text="All honest peers agree with the last result, and all hostile ones pull in one direction with all their "
        "might. By how much do they move CenteredClip's result in one iteration?",
        given=(("Peers", str(peers)), ("of which hostile", str(hostile)), ("Radius", f"{radius:g}")),
        answer=Number(
            value=moved,
            unit="",
            tolerance=0.001,
            mistakes=(
                (radius, "Only if all peers were hostile; the pulls of the honest ones are 0 and count in the mean."),
                (hostile * radius, "That is the sum of the pulls; the result moves by their mean."),
                (radius / peers, "That is what one hostile peer reaches."),
            ),
        ),
        hints=("Each hostile pull is as long as the radius; each honest one is 0.",),
        solution=(f"{hostile} × {radius:g} ÷ {peers} = {moved:g}.",),
        remember="The harm is bounded by share of liars × radius.",
    )


def _check(random: Random) -> Question:
    name = random.choice(tuple(STORIES))
    case = CASES[name]()
    failed = failed_check(case.request, peer=case.peer, now=case.now, seen=case.seen)
    assert failed is not None
    return Question(
        text=f"{STORIES[name]} A peer checks every request in a fixed order. Which check fails first?",
        answer=choice(
            random,
            (CHECKS[failed].capitalize(), "This check fails; those before it pass."),
            [
                (check.capitalize(), "This one passes." if place < failed else "Another check fails before this one.")
                for place, check in enumerate(CHECKS)
                if place != failed
            ],
        ),
        hints=("What exactly does the attacker not have, or not change?",),
        solution=("The checks, in their order: " + "; ".join(CHECKS) + f". Here it is “{CHECKS[failed]}”.",),
        remember="Signature, receiver, time, and a number used once: each stops a different forgery.",
    )


def _defence(random: Random) -> Question:
    hostile = random.choice((2, 3, 4))
    return Question(
        text=f"{hostile} of 16 members with valid tickets send poisoned gradients. What limits their harm?",
        answer=choice(
            random,
            ("A robust average, such as CenteredClip", "Whatever they send, each pulls by the radius at most."),
            [
                ("Their tickets", "A ticket says who somebody is, not that the gradient is honest."),
                ("Encrypted connections", "Encryption keeps strangers out of a connection; these are at its end."),
                ("Signed requests", "They sign their own poisoned gradients, and the signatures are right."),
            ],
        ),
        hints=("They are members: every check of who they are passes.",),
        solution=("Admission decides who takes part. What a member sends must be limited where it is averaged.",),
        remember="Two doors: tickets against strangers, robust averages against members.",
    )


def _clip_program(random: Random) -> Question:
    cases = []
    for _ in range(6):
        values = [round(random.uniform(-5, 5), 2) for _ in range(random.randint(2, 6))] + [random.choice((-90.0, 70.0))]
        cases.append((values, round(random.uniform(-2, 2), 2), random.choice((0.5, 1.0, 2.0))))
    return Question(
        text="Write one iteration of CenteredClip for plain numbers: `values` are those of the peers, `last` is the "
        "last result. Return the new result.",
        answer=Program(
            name="clipped",
            start="def clipped(values, last, radius):\n    ",
            solution="def clipped(values, last, radius):\n    pulls = [max(-radius, min(radius, value - last)) for "
            "value in values]\n    return last + sum(pulls) / len(pulls)",
            reference=lambda values, last, radius: centered_clip([(v,) for v in values], (last,), radius, 1)[-1][0],
            cases=tuple(cases),
            mistakes=(
                (lambda values, last, radius: sum(values) / len(values), "That is the mean: clip each pull first."),
                (
                    lambda values, last, radius: sum(max(-radius, min(radius, v - last)) for v in values) / len(values),
                    "That is the move; add it to the last result.",
                ),
                (
                    lambda values, last, radius: last + max(-radius, min(radius, sum(values) / len(values) - last)),
                    "That clips the mean of all; each peer's own pull must be clipped before they are averaged.",
                ),
            ),
        ),
        hints=("`max(-radius, min(radius, x))` cuts x to the radius on both sides.",),
        solution=("Clip each difference from the last result, and move by the mean of them.",),
        remember="Two lines of code bound the harm of a lie, however large its numbers are.",
    )


SUBJECT = Subject(
    name="security",
    title="Security",
    page="challenges/security/",
    exercises=(
        Exercise(name="one-liar", title="One liar and a mean", draw=_liar),
        Exercise(name="median", title="The median", draw=_median),
        Exercise(name="centered-clip", title="One step of CenteredClip", draw=_clipped),
        Exercise(name="largest-pull", title="The largest pull", draw=_pull),
        Exercise(name="failed-check", title="Which check fails?", draw=_check),
        Exercise(name="which-defence", title="Poison from a member", draw=_defence),
        Exercise(name="clipped", title="Program: CenteredClip", draw=_clip_program),
    ),
)
