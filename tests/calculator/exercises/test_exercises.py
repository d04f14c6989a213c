"""Every exercise is solved, over several variants, by formulas written here that know only what the reader is told."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable

import pytest

from calculator.exercises.catalogue import EXERCISES, SUBJECTS, drawn
from calculator.exercises.exercise import Choice, Number, Program, Question
from calculator.exercises.grade import graded
from calculator.exercises.quantities import UNITS
from calculator.models.architectures import PRESETS

VARIANTS = (1, 2, 3, 47, 9001, 123_456)
FIGURE = re.compile(r"-?\d[\d ]*(?:\.\d+)?")
GIB = 2**30


class Told:
    """What a question says: its numbers, by the beginnings of their names."""

    def __init__(self, question: Question):
        self.text = question.text
        plain = str.maketrans("\u202f\u2212", " -")
        self.given = {name: value.translate(plain) for name, value in question.given}

    def words(self, name: str) -> str:
        (found,) = [value for key, value in self.given.items() if key.startswith(name)]
        return found

    def all(self, name: str) -> list[float]:
        """All numbers of a value."""
        return [float(found.replace(" ", "")) for found in FIGURE.findall(self.words(name))]

    def one(self, name: str) -> float:
        return self.all(name)[0]

    def size(self, name: str) -> float:
        """A value with its unit, in base units."""
        number, unit = re.fullmatch(r"([\d. ]+?) ([A-Za-z/]+)", self.words(name)).groups()
        return float(number.replace(" ", "")) * UNITS[unit].size

    def rest(self, count: int) -> list[float]:
        """The first number of each of the first values."""
        return [float(FIGURE.search(value)[0].replace(" ", "")) for value in list(self.given.values())[:count]]


def ring(peers: float) -> float:
    return 2 * (peers - 1) / peers


def clipped(told: Told) -> float:
    last, radius = told.one("Last"), told.one("Radius")
    pulls = [math.copysign(min(abs(value - last), radius), value - last) for value in told.all("Numbers")]
    return last + statistics.mean(pulls)


def state(parameters: float, gpus: float = 1) -> float:
    return 8 * parameters / gpus


def second_sent(told: Told) -> float:
    first, second = told.all("First"), told.all("Second")
    first[max(range(4), key=lambda place: abs(first[place]))] = 0
    return max((a + b for a, b in zip(first, second, strict=True)), key=abs)


def small_turn(told: Told) -> int:
    large, small = told.all("Gradient")
    return math.floor(large / small) + 1


def sparse(told: Told) -> float:
    values, kept = told.one("Values"), told.one("Sent")
    after = 2 + math.ceil(kept * told.one("Each") / 8) + math.ceil(told.one("For the rest") / 8)
    return 4 * values / after


def devices_share(told: Told) -> float:
    products = [count * peak for count, peak in (re_numbers(value) for value in told.given.values())]
    return products[-1] / sum(products)


def re_numbers(text: str) -> tuple[float, float]:
    count, peak = re.fullmatch(r"(\d+) of them, peak ([\d.]+) TFLOP/s each", text).groups()
    return float(count), float(peak)


def exchange_and_computing(told: Told) -> tuple[float, float]:
    return told.size("An exchange"), told.one("An update") * told.one("Updates")


def of_weighted(told: Told) -> float:
    (first, own), (second, other) = told.all("First"), told.all("Second")
    return (first * own + second * other) / (own + other)


FORMULAS: dict[str, Callable[[Told], float]] = {
    "gradient-bytes": lambda q: q.one("Parameters") * q.one("Bits") / 8,
    "all-reduce-bytes": lambda q: q.size("Gradient") * ring(q.one("Peers")),
    "ring-steps": lambda q: 2 * q.one("Peers") - 2,
    "home-link": lambda q: q.size("Gradient") * ring(q.one("Peers")) / min(q.size("Upload"), q.size("Download")),
    "large-batch": lambda q: 1
    / (1 + q.size("An exchange") * q.one("Peers") * q.one("Each") / q.one("Batch")),
    "block-scales": lambda q: q.rest(2)[0] * 516 / 512,
    "equal-shares": lambda q: q.one("Batch") / 4 / min(q.rest(4)),
    "counted-samples": lambda q: q.one("Batch") / sum(q.rest(4)),
    "idle-gpu": lambda q: 1 - q.one("Laptop") / q.one("Data-centre"),
    "weighted-mean": of_weighted,
    "shares-of-gpus": devices_share,
    "adamw-state": lambda q: state(q.one("Parameters")),
    "eight-bit-state": lambda q: q.size("State") * (1 - (1 + 4 / 256) / 4),
    "shared-layers": lambda q: 1e6 * ((q.one("Groups") + 1) * q.one("Parameters of") + q.one("Embeddings")),
    "outlier-step": lambda q: q.one("Largest") / 254,
    "code-bytes": lambda q: q.one("Grid") ** 2 * math.log2(q.one("Codebook")) / 8,
    "first-step": lambda q: q.one("Buffer") * q.one("A sample") / q.size("Download"),
    "download-all": lambda q: q.one("Pictures") * q.one("A picture") / q.size("Download"),
    "needed-link": lambda q: q.one("It computes") * q.one("A sample"),
    "waiting-share": lambda q: 1 - q.size("Download") / q.one("A picture") / q.one("It could"),
    "one-liar": lambda q: statistics.mean(q.all("Honest") + q.all("Hostile")),
    "median": lambda q: statistics.median(q.all("Numbers")),
    "centered-clip": clipped,
    "largest-pull": lambda q: q.one("of which") * q.one("Radius") / q.one("Peers"),
    "exchange-share": lambda q: exchange_and_computing(q)[0] / sum(exchange_and_computing(q)),
    "updates-between": lambda q: math.ceil(
        q.size("An exchange") * (100 / q.one("Largest") - 1) / q.one("An update") - 1e-6
    ),
    "exchanges-a-day": lambda q: 86_400 / sum(exchange_and_computing(q)),
    "sparse-exchange": sparse,
    "newcomer": lambda q: 6 * q.one("Parameters") / q.size("Download"),
    "one-bit": lambda q: math.copysign(
        statistics.mean(map(abs, q.all("Values"))), q.all("Values")[int(q.one("Asked for")) - 1]
    ),
    "unsent": lambda q: q.all("Values")[int(q.one("Asked for")) - 1] - q.all("Arrived")[int(q.one("Asked for")) - 1],
    "second-exchange": second_sent,
    "small-value": small_turn,
    "arrived": lambda q: sum(q.all("The value")) - q.one("Unsent"),
    "codebook": lambda q: 4 * q.one("Values") / (q.one("Values") + q.one("Codebook")),
    "zero-state": lambda q: state(q.one("Parameters"), q.one("GPUs")),
    "zero-all": lambda q: 16 * q.one("Parameters") / q.one("GPUs"),
    "shard-rows": lambda q: math.ceil(q.one("Embedding") / q.one("GPUs")),
    "sharding-at-home": lambda q: 2
    * q.one("Parameters") * (q.one("Volunteers") - 1) / q.one("Volunteers") / q.size("Link"),
    "fewest-cards": lambda q: math.ceil(16 * q.one("Parameters") / q.size("Room")),
    "parameters-of-gpt2": lambda q: 12 * q.one("Layers") * q.one("Width") ** 2
    + (q.one("Tokens") + q.one("Positions")) * q.one("Width"),
    "checkpointing-factor": lambda q: q.size("Kept without") / q.size("Kept with it"),
    "samples-a-second": lambda q: q.all("GPU")[-1] * q.one("Reached") / 100 / 3 / q.one("Forward"),
}  # fmt: skip
"""Answers in base units, by what the question tells."""

RIGHT = {
    "late-samples": "They count as well, and the others wait for them",
    "checkpointing-cost": "About a third more computing",
    "which-defence": "A robust average, such as CenteredClip",
    "what-is-averaged": "The changes of their weights",
    "without-feedback": "0",
}
"""Choices that do not depend on the drawn numbers."""

CHECK_OF = {
    "name, and signs both": "authority",
    "after signing in": "expired",
    "signs it with another key|signs the request with another|another key": "key signed",
    "replaces the gradient": "key signed",
    "passed on": "meant for this peer",
    "held back": "60 s old",
    "a second time": "repetition",
}


def chosen(name: str, told: Told, options: list[str]) -> str:
    """The right option, found from the question alone."""
    if name in RIGHT:
        return RIGHT[name]
    if name == "slowest-link":
        return min(told.given, key=lambda person: min(told.all(person)))
    if name == "shuffle-buffer":
        moved = float(re.search(r"stands (\d+) places", told.text)[1])
        # With a buffer of b the samples of the stream's middle move by about b / 2; a whole shuffle, by a third of all.
        return min(
            options, key=lambda text: abs((0 if text[0:2] == "1 " else min(int(text.split()[0]) / 2, 512 / 3)) - moved)
        )
    if name == "failed-check":
        (words,) = [check for story, check in CHECK_OF.items() if re.search(story, told.text)]
        (option,) = [text for text in options if words in text]
        return option
    if name == "which-stage":
        parts = {"1": "The optimizer's state", "2": "Optimizer state and gradients"}
        return parts.get(re.search(r"ZeRO-(\d)", told.text)[1], "Optimizer state, gradients and weights")
    if name == "best-technique":
        few = told.size("Optimizer state") > told.size("Kept for backward")
        return "The optimizer on the host" if few else "Gradient checkpointing"
    raise KeyError(name)


RECORDED = {"largest-part", "does-it-fit", "largest-micro-batch"}
"""Exercises for which the reader uses the calculator, which has tests of its own against measured steps."""


def of_kind(kind: type) -> list[str]:
    """Names of the exercises with this kind of answer."""
    return [name for name in EXERCISES if isinstance(drawn(name, 1).answer, kind)]


def typed(value: float, unit: str) -> str:
    return f"{value / UNITS.get(unit, UNITS['']).size:.9g} {unit}"


def test_there_are_enough_of_each_kind_and_subject():
    kinds = [type(drawn(name, 1).answer) for name in EXERCISES]
    assert len(EXERCISES) >= 40
    assert len(SUBJECTS) == 9 and all(len(subject.exercises) >= 5 for subject in SUBJECTS)
    assert min(kinds.count(kind) for kind in (Number, Choice, Program)) >= 9
    assert len(EXERCISES) == sum(len(subject.exercises) for subject in SUBJECTS), "two exercises have one name"


def test_every_number_has_a_formula_here():
    assert set(of_kind(Number)) - RECORDED == FORMULAS.keys()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FORMULAS)
def test_numbers_are_those_of_a_formula(name, variant):
    question = drawn(name, variant)
    value = FORMULAS[name](Told(question))
    verdict = graded(question, typed(value, question.answer.unit))
    assert verdict.right, (question, value, verdict)


@pytest.mark.parametrize("name", of_kind(Choice))
def test_one_choice_is_right_and_it_is_the_one_found_from_the_question(name):
    for variant in VARIANTS:
        question = drawn(name, variant)
        options = [option.text for option in question.answer.options]
        assert len(set(options)) == len(options)
        right = [text for number, text in enumerate(options) if graded(question, str(number)).right]
        assert len(right) == 1
        if name not in RECORDED:
            assert right == [chosen(name, Told(question), options)]


@pytest.mark.parametrize("name", of_kind(Program))
def test_a_program_solves_it_and_others_do_not(name, monkeypatch):
    for variant in VARIANTS:
        question = drawn(name, variant)
        program = question.answer
        assert graded(question, program.solution).right
        head = program.solution.split("\n")[0]
        for body in ("return 0", "return []", "return None", "return 1 / 0", "pass", "return (", "raise SystemExit"):
            assert not graded(question, f"{head}\n    {body}").right, body
        for mistake, sentence in program.mistakes:
            monkeypatch.setattr(math, "mistake", mistake, raising=False)
            verdict = graded(question, f"import math\ndef {program.name}(*given):\n    return math.mistake(*given)")
            assert (verdict.right, verdict.sentence) == (False, sentence)


@pytest.mark.parametrize("name", of_kind(Number))
def test_wrong_numbers_fail(name):
    for variant in VARIANTS:
        question = drawn(name, variant)
        answer = question.answer
        off = max(answer.tolerance, 1e-3)
        wrong = [answer.value * factor for factor in (1 + 1.5 * off, 1 - 1.5 * off, 2, 0.5, 8, 0.125, 1000, -1)]
        wrong += [mistaken for mistaken, _ in answer.mistakes]
        for value in wrong:
            if abs(value - answer.value) > 1.01 * answer.tolerance * abs(answer.value) + 1e-6:
                assert not graded(question, typed(value, answer.unit)).right, value


@pytest.mark.parametrize("name", of_kind(Number))
def test_a_known_mistake_gets_its_own_sentence(name):
    """In at least one variant: in some, two mistakes lead to one number."""
    answers = [drawn(name, variant) for variant in range(1, 13)]
    for number in range(len(answers[0].answer.mistakes)):
        said = []
        for question in answers:
            value, sentence = question.answer.mistakes[number]
            said.append(graded(question, typed(value, question.answer.unit)).sentence == sentence)
        assert any(said), answers[0].answer.mistakes[number]


@pytest.mark.parametrize("name", of_kind(Number))
def test_a_known_mistake_never_counts_as_right(name):
    for variant in range(1, 301):
        question = drawn(name, variant)
        for value, sentence in question.answer.mistakes:
            assert not graded(question, typed(value, question.answer.unit)).right, (variant, sentence)


@pytest.mark.parametrize("name", EXERCISES)
def test_variants_differ_and_repeat(name):
    assert drawn(name, 5).text == drawn(name, 5).text and drawn(name, 5).given == drawn(name, 5).given
    seen = set()
    for variant in range(1, 13):
        question = drawn(name, variant)
        answer = question.answer
        cases = answer.cases if isinstance(answer, Program) else answer.options if isinstance(answer, Choice) else ()
        seen.add((question.text, question.given, repr(cases)))
    assert len(seen) >= 3


def test_models_of_the_exercises_are_known():
    said = {value for name in EXERCISES for key, value in drawn(name, 1).given if key == "Model"}
    assert said and all(value.split(",")[0] in PRESETS for value in said)
