"""Exercises on the calculator: parameters of a model, where the peak is, what fits, and how fast it is."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random

from calculator.choose.devices import DEVICES, device_named
from calculator.choose.fit import largest_micro_batch, verdict
from calculator.choose.flops import UTILISATION, forward_flops, samples_per_second
from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.exercises.quantities import shown
from calculator.models.architectures import PRESETS
from calculator.parts.parameters import count_parameters
from calculator.step.estimate import estimate
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_count

CARDS = ("t4", "rtx-3060", "rtx-3090", "rtx-4090", "a100-40gb")
PART_TITLES = {
    "weights": "Weights",
    "gradients": "Gradients",
    "optimizer_state": "Optimizer state",
    "activations": "Activations",
    "temporary": "Temporary memory",
}


def _count(random: Random) -> Question:
    name = random.choice(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"))
    model, count = PRESETS[name], count_parameters(PRESETS[name])
    layers, width = model.num_layers, model.hidden_size
    outside = (model.vocab_size + model.max_positions) * width
    return Question(
        text="How many parameters has this model, roughly? Each layer has an attention of 4 D² and a feed-forward of 8 "
        "D² weights; beside the layers there is one embedding for each token and each position.",
        given=(
            ("Layers", str(layers)),
            ("Width D", str(width)),
            ("Tokens", show_count(model.vocab_size)),
            ("Positions", show_count(model.max_positions)),
        ),
        answer=Number(
            value=count,
            unit="million",
            mistakes=(
                (12 * layers * width**2, "You have left out the embeddings."),
                (
                    12 * layers * width**2 + 2 * outside,
                    "The output head shares the embedding's weights: count it once.",
                ),
                (4 * layers * width**2 + outside, "That is attention only; each layer has a feed-forward as well."),
            ),
        ),
        hints=("12 D² for each layer.", "(tokens + positions) × D outside of them."),
        solution=(
            f"Layers: {layers} × 12 × {width}² = {12 * layers * width**2 / 1e6:.1f} million.",
            f"Embeddings: {show_count(model.vocab_size + model.max_positions)} × {width} = {outside / 1e6:.1f} "
            "million.",
            f"Together {(12 * layers * width**2 + outside) / 1e6:.1f} million; with norms and biases exactly "
            f"{show_count(count)}.",
        ),
        remember="12 L D²: the size of any transformer of this kind, in your head.",
    )


def _part(random: Random) -> Question:
    setup = Setup(
        model=random.choice(("gpt2", "gpt2-large", "llama-3.2-1b")),
        micro_batch_size=random.choice((1, 4, 16)),
        checkpointing=random.random() < 0.5,
        optimizer=random.choice(("adamw", "adamw8bit")),
    )
    made = estimate(setup)
    parts = asdict(made.gpu)
    best = max(parts, key=parts.__getitem__)
    return Question(
        text="What takes the most memory at the peak of this training step? The calculator can tell you.",
        given=(
            ("Model", made.model),
            ("Micro-batch", str(setup.micro_batch_size)),
            ("Gradient checkpointing", "yes" if setup.checkpointing else "no"),
            ("Optimizer", "AdamW in 8 bits" if setup.optimizer == "adamw8bit" else "AdamW"),
        ),
        answer=choice(
            random,
            (PART_TITLES[best], f"{show_bytes(parts[best])} of {show_bytes(made.gpu.total)}, {made.peak.phase}."),
            [
                (title, f"It takes {show_bytes(parts[key])}; the largest part {show_bytes(parts[best])}.")
                for key, title in PART_TITLES.items()
                if key != best
            ],
        ),
        hints=(
            "State grows with the parameters only, activations with the micro-batch as well.",
            "Set it in the calculator.",
        ),
        solution=tuple(f"{PART_TITLES[key]}: {show_bytes(size)}" for key, size in parts.items()),
        remember="What is largest at the peak decides which technique helps.",
    )


def _fits(random: Random) -> Question:
    setup = Setup(
        model=random.choice(("gpt2-medium", "gpt2-large", "llama-3.2-1b")), micro_batch_size=random.choice((1, 2, 4))
    )
    device = device_named(random.choice(CARDS))
    told = verdict(setup, device)
    count = count_parameters(PRESETS[setup.model])
    right, wrong = ("Yes", "No") if told.fits else ("No", "Yes")
    return Question(
        text="Does this training step fit the GPU, with AdamW in mixed precision and without further techniques?",
        given=(
            ("Model", f"{setup.model}, {show_count(count)} parameters"),
            ("Micro-batch", str(setup.micro_batch_size)),
            ("GPU", f"{device.title}, {show_bytes(device.usable_bytes)} usable"),
        ),
        answer=choice(random, (right, told.sentence), [(wrong, told.sentence)]),
        hints=(
            "Weights, and AdamW's two moments, take 12 bytes a parameter; gradients 4 more.",
            "Then there are activations, and the CUDA context. The calculator knows both.",
        ),
        solution=(f"Before any activation: 16 bytes × {show_count(count)} = {show_bytes(16 * count)}.",),
        remember="16 bytes a parameter, and then the activations: a first guess before any calculator.",
    )


def _largest(random: Random) -> Question:
    name = random.choice(("gpt2", "gpt2-medium", "gpt2-large"))
    setup, device = Setup(model=name, checkpointing=True), device_named(random.choice(CARDS[2:]))
    largest = largest_micro_batch(setup, device)
    one, two = (estimate(replace(setup, micro_batch_size=size)).gpu.total for size in (8, 16))
    return Question(
        text="Use the calculator: what is the largest micro-batch that fits, with gradient checkpointing, AdamW and "
        "mixed precision?",
        given=(("Model", name), ("Tokens", "1024"), ("GPU", device.title)),
        answer=Number(value=largest, unit="sequences", tolerance=0.05),
        hints=(
            "Choose the model and the GPU, tick gradient checkpointing, and raise the micro-batch until it does not "
            "fit.",
            f"From 8 to 16 sequences the peak grows from {show_bytes(one)} to {show_bytes(two)}.",
        ),
        solution=(
            f"Each sequence takes about {show_bytes((two - one) // 8)} at the peak.",
            f"{largest} fit; the calculator's sentence “Largest that fits” says so too.",
        ),
        remember="Memory grows in a straight line with the micro-batch: two points are enough.",
    )


def _checkpointed(random: Random) -> Question:
    name, batch = random.choice(("gpt2-medium", "gpt2-large", "gpt2-xl")), random.choice((4, 8))
    plain, saving = (
        estimate(Setup(model=name, micro_batch_size=batch, checkpointing=way)).saved_activations
        for way in (False, True)
    )
    return Question(
        text="How many times less is kept for backward with gradient checkpointing?",
        given=(
            ("Model and micro-batch", f"{name}, {batch}"),
            ("Kept without it", show_bytes(plain)),
            ("Kept with it", show_bytes(saving)),
        ),
        answer=Number(
            value=plain / saving,
            unit="times",
            mistakes=(
                (saving / plain, "The other way around: without it there is more."),
                ((plain - saving) / saving, "That is how much more, in parts of the small one; divide the two."),
            ),
        ),
        hints=("Divide the two; both are in bytes, so bring them to one unit first.",),
        solution=(f"{show_bytes(plain)} ÷ {show_bytes(saving)} = {plain / saving:.3g}.",),
        remember="Checkpointing keeps one tensor for each layer in place of a dozen.",
    )


def _speed(random: Random) -> Question:
    device = DEVICES[random.choice(("t4", "rtx-3060", "rtx-3090", "rtx-4090", "a100-40gb"))]
    model = PRESETS["dalle-2021"]
    forward = forward_flops(model)
    speed = samples_per_second(model, device)
    return Question(
        text="How many samples a second does this GPU train of the model of 2021? Backward takes twice the operations "
        "of forward.",
        given=(
            ("Forward pass of a sample", f"{forward / 1e12:.3g} TFLOP"),
            ("GPU", f"{device.title}, peak {device.teraflops:g} TFLOP/s"),
            ("Reached of the peak", f"{100 * UTILISATION:g} %"),
        ),
        answer=Number(
            value=speed,
            unit="samples/s",
            mistakes=(
                (speed / UTILISATION, "That is at the full peak, which no training reaches."),
                (3 * speed, "That is forward alone; backward takes twice as much again."),
                (1.5 * speed, "Forward 1 and backward 2 are 3 parts."),
                (1 / speed, "Those are seconds for a sample."),
            ),
        ),
        hints=("A sample takes three times the operations of its forward pass.",),
        solution=(
            f"{device.teraflops:g} × {UTILISATION:g} ÷ (3 × {forward / 1e12:.3g}) = {shown(speed, 'samples/s', 3)}.",
        ),
        remember="Forward 1, backward 2: three forward passes for each sample.",
    )


def _program(random: Random) -> Question:
    cases = [(12, 768, 50_257, 1024)]
    cases += [
        (
            random.randint(2, 48),
            64 * random.randint(2, 25),
            random.randint(1000, 60_000),
            random.choice((256, 512, 2048)),
        )
        for _ in range(5)
    ]

    def reference(layers: int, width: int, tokens: int, positions: int) -> int:
        model = replace(
            PRESETS["gpt2"], num_layers=layers, hidden_size=width, vocab_size=tokens, max_positions=positions
        )
        heads = {"num_heads": width // 64, "intermediate_size": 4 * width, "sequence_length": positions}
        return count_parameters(replace(model, **heads))

    return Question(
        text="Write the exact number of parameters of a model like GPT-2. A layer has 12 D² weights, 9 D biases (3 D "
        "for queries, keys and values, D, 4 D and D) and two norms of 2 D each; a last norm has 2 D, and tokens and "
        "positions have embeddings of D.",
        answer=Program(
            name="parameters",
            start="def parameters(layers, width, tokens, positions):\n    ",
            solution="def parameters(layers, width, tokens, positions):\n"
            "    layer = 12 * width**2 + 9 * width + 2 * 2 * width\n"
            "    return layers * layer + 2 * width + (tokens + positions) * width",
            reference=reference,
            cases=tuple(cases),
            mistakes=(
                (lambda n, d, v, t: n * (12 * d**2 + 9 * d) + (v + t) * d, "The norms have weights and biases too."),
                (
                    lambda n, d, v, t: n * (12 * d**2 + 13 * d) + (v + t) * d,
                    "There is one more norm after the last layer.",
                ),
                (
                    lambda n, d, v, t: n * (12 * d**2 + 13 * d) + 2 * d + (2 * v + t) * d,
                    "The head has the embedding's weights: they count once.",
                ),
            ),
        ),
        hints=("`parameters(12, 768, 50257, 1024)` is 124 439 808, as released.",),
        solution=("Layers × one layer, the last norm, and the embeddings.",),
        remember="An exact count is not hard: every tensor has a shape.",
    )


SUBJECT = Subject(
    name="calculator",
    title="The calculator",
    page="calculator/",
    exercises=(
        Exercise(name="parameters-of-gpt2", title="How many parameters?", draw=_count),
        Exercise(name="largest-part", title="What is largest at the peak?", draw=_part),
        Exercise(name="does-it-fit", title="Does it fit?", draw=_fits),
        Exercise(name="largest-micro-batch", title="The largest micro-batch", draw=_largest),
        Exercise(name="checkpointing-factor", title="How much less is kept?", draw=_checkpointed),
        Exercise(name="samples-a-second", title="Samples a second", draw=_speed),
        Exercise(name="parameters", title="Program: count the parameters", draw=_program),
    ),
)
