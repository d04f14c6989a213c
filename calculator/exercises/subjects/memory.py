"""Exercises on memory: optimizer state, 8 bits and their steps, shared layers, and what checkpointing saves."""

from __future__ import annotations

from random import Random

from calculator.exercises.exercise import Exercise, Number, Program, Question, Subject, choice
from calculator.figures.rules.eight_bit import even_values, stored
from calculator.models.architectures import PRESETS
from calculator.parts.parameters import count_parameters, parameters_by_part
from calculator.step.estimate import estimate
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_count

MODELS = ("gpt2-medium", "gpt2-large", "gpt2-xl", "llama-3.2-1b", "smollm2-1.7b")


def _state(random: Random) -> Question:
    made = estimate(Setup(model=random.choice(MODELS)))
    size, count = made.optimizer_state_bytes, made.parameters
    return Question(
        text="AdamW keeps two moments of each parameter, both in 32 bits. How much memory is that?",
        given=(("Model", made.model), ("Parameters", show_count(count))),
        answer=Number(
            value=size,
            unit="GiB",
            mistakes=(
                (4 * count, "That is one moment; AdamW keeps a mean of the gradient and one of its square."),
                (12 * count, "That counts the weights as well; the question is about the two moments."),
                (16 * count, "That counts weights and gradients as well; the question is about the two moments."),
                (2 * count, "A number in 32 bits takes 4 bytes, and there are two of them."),
            ),
        ),
        hints=("32 bits are 4 bytes.", "1 GiB is 2**30 = 1 073 741 824 bytes."),
        solution=(
            f"{show_count(count)} × 2 × 4 bytes = {show_count(8 * count)} bytes.",
            f"÷ 2**30 = {show_bytes(size)}.",
        ),
        remember="AdamW's state is twice as large as the weights in 32 bits: 8 bytes a parameter.",
    )


def _eight_bit(random: Random) -> Question:
    name = random.choice(MODELS)
    whole, short = (estimate(Setup(model=name, optimizer=way)).optimizer_state_bytes for way in ("adamw", "adamw8bit"))
    return Question(
        text="AdamW keeps its two moments in 8 bits instead of 32, with a scale in 32 bits for each block of 256 "
        "values. How much memory does that save?",
        given=(("Model", name), ("State in 32 bits", show_bytes(whole))),
        answer=Number(
            value=whole - short,
            unit="GiB",
            tolerance=0.015,
            mistakes=(
                (short, "So much is left; the question is what is saved."),
                (whole / 2, "From 32 to 8 bits is a factor of 4, not 2."),
                (whole * 3 / 8, "8 bits are one byte, of four."),
            ),
        ),
        hints=(
            "A value takes one byte in place of four.",
            "A block of 256 values takes 256 + 4 bytes: the scale is small.",
        ),
        solution=(
            f"In 8 bits it takes (1 + 4/256) ÷ 4 of {show_bytes(whole)}, which is {show_bytes(short)}; norms and "
            "biases are so small that they stay in 32 bits.",
            f"{show_bytes(whole)} − {show_bytes(short)} = {show_bytes(whole - short)}.",
        ),
        remember="8-bit state saves three quarters of what is often the largest part.",
    )


def _shared(random: Random) -> Question:
    model, groups = PRESETS["dalle-2021"], random.choice((1, 2, 8, 16))
    outside = parameters_by_part(model)["embeddings"]
    layer = count_parameters(model, 9) - count_parameters(model, 8)
    count = count_parameters(model, groups)
    return Question(
        text="The model of 2021 has 64 layers that share the weights of a few groups; the last layer has its own. How "
        "many parameters has it with this number of groups?",
        given=(
            ("Groups", str(groups)),
            ("Parameters of a layer", f"{layer / 1e6:.2f} million"),
            ("Embeddings", f"{outside / 1e6:.2f} million"),
        ),
        answer=Number(
            value=count,
            unit="million",
            mistakes=(
                (outside + groups * layer, "The last layer has weights of its own: one more than the groups."),
                (outside + 64 * layer, "That is with weights of its own for each layer."),
                ((groups + 1) * layer, "The embeddings have parameters as well."),
            ),
        ),
        hints=("How many layers have distinct weights?", "Add the embeddings, which are there once."),
        solution=(
            f"Distinct layers: {groups} + 1 = {groups + 1}.",
            f"{groups + 1} × {layer / 1e6:.2f} + {outside / 1e6:.2f} = {((groups + 1) * layer + outside) / 1e6:.2f} "
            f"million; with norms and biases exactly {show_count(count)}.",
        ),
        remember="The run of 2021 had 4 groups: 126 million parameters that compute like 1.1 billion.",
    )


def _technique(random: Random) -> Question:
    # Far enough from the border between the two answers that the larger part decides.
    few, many = (
        (("gpt2-large", 1), ("gpt2-xl", 1)),
        (("gpt2", 8), ("gpt2-medium", 8), ("gpt2", 16), ("gpt2-medium", 16)),
    )
    name, batch = random.choice(random.choice((few, many)))
    plain = Setup(model=name, micro_batch_size=batch)
    ways = {
        "Gradient checkpointing": Setup(model=name, micro_batch_size=batch, checkpointing=True),
        "An optimizer in 8 bits": Setup(model=name, micro_batch_size=batch, optimizer="adamw8bit"),
        "The optimizer on the host": Setup(model=name, micro_batch_size=batch, offload_optimizer=True),
    }
    peaks = {way: estimate(setup).gpu.total for way, setup in ways.items()}
    best, before = min(peaks, key=peaks.__getitem__), estimate(plain).gpu
    told = {
        way: f"{way.lower()} brings the peak from {show_bytes(before.total)} to {show_bytes(peaks[way])}"
        for way in ways
    }
    return Question(
        text="Which one technique lowers the peak of this training step most?",
        given=(
            ("Model", name),
            ("Micro-batch", f"{batch} × 1024 tokens"),
            ("Optimizer state", show_bytes(before.optimizer_state)),
            ("Kept for backward", show_bytes(before.activations)),
        ),
        answer=choice(
            random,
            (best, f"Yes: {told[best]}."),
            [
                (way, f"Less: {told[way]}; another one brings it to {show_bytes(peaks[best])}.")
                for way in ways
                if way != best
            ],
        ),
        hints=(
            "Which of the two parts above is larger?",
            "Checkpointing frees what is kept for backward, not the state.",
        ),
        solution=tuple(f"{way}: {show_bytes(peaks[way])}" for way in sorted(ways, key=peaks.__getitem__)),
        remember="Large micro-batch: activations. Small one: optimizer state. Look before you save.",
    )


def _outlier(random: Random) -> Question:
    outlier = random.choice((2.54, 12.7, 25.4, 63.5, 127.0))
    table = even_values()
    step = (table[-1] - table[-2]) * outlier
    return Question(
        text="Each value of a block is stored as the nearest of 255 evenly spaced ones, from minus the block's largest "
        "magnitude to plus that. By how much can an ordinary value change at most?",
        given=(("Largest magnitude of the block", f"{outlier:g}"), ("Ordinary values", "between −1 and 1")),
        answer=Number(
            value=step / 2,
            unit="",
            tolerance=0.002,
            mistakes=(
                (step, "That is the distance of two steps; a value goes to the nearest, at most half of it away."),
                (outlier / 255, "The 255 values span twice the magnitude, with 254 gaps: a gap is magnitude ÷ 127."),
                (1 / 254, "The scale is the block's largest magnitude, not that of ordinary values."),
            ),
        ),
        hints=("How far are two neighbouring steps apart?", "Rounding errs by half a step at most."),
        solution=(
            f"A step is {outlier:g} ÷ 127 = {step:g}.",
            f"Half of it: {step / 2:g}.",
        ),
        remember="One outlier coarsens its whole block; so blocks are small, and steps near zero are finer.",
    )


def _recomputed(random: Random) -> Question:
    what = random.choice(("gpt2-large", "gpt2-xl", "llama-3.2-1b"))
    return Question(
        text=f"What does gradient checkpointing of {what} cost?",
        answer=choice(
            random,
            ("About a third more computing", "Each block's forward pass is computed again before its backward pass."),
            [
                ("Accuracy", "It computes the same numbers again; nothing is rounded away."),
                ("Twice the traffic between peers", "Gradients stay as they are, so peers exchange the same bytes."),
                ("Twice the optimizer state", "The optimizer sees the same gradients; its state does not change."),
            ],
        ),
        hints=("Forward is one part, backward two. Which of them is done again?",),
        solution=("Forward 1 + backward 2 = 3 parts; with one more forward 4, which is a third more.",),
        remember="Checkpointing pays for memory with time, and never with accuracy.",
    )


def _restore(random: Random) -> Question:
    cases = [([0.3, -1.27, 0.9],)]
    cases += [([round(random.uniform(-20, 20), 3) for _ in range(random.randint(2, 8))],) for _ in range(5)]
    return Question(
        text="Write the round trip of a block through 8 bits with even steps: divide by the largest magnitude, round "
        "to the nearest 127th, and multiply again. Return the list of restored values.",
        answer=Program(
            name="restored",
            start="def restored(values):\n    ",
            solution="def restored(values):\n    scale = max(abs(value) for value in values)\n"
            "    return [round(value / scale * 127) / 127 * scale for value in values]",
            reference=lambda values: stored(values, len(values), dynamic=False).restored,
            cases=tuple(cases),
            mistakes=(
                (
                    lambda values: (
                        [round(v / max(values) * 127) / 127 * max(values) for v in values] if max(values) else []
                    ),
                    "The scale is the largest magnitude: take abs() before max().",
                ),
                (
                    lambda values: [round(v / max(map(abs, values)) * 127) for v in values],
                    "Those are the codes; multiply by the scale and divide by 127 to restore the values.",
                ),
            ),
        ),
        hints=(
            "`round(x * 127) / 127` is the nearest 127th.",
            "The largest magnitude may be that of a negative value.",
        ),
        solution=("The scale is kept beside the codes; each value comes back to within half a step.",),
        remember="A code and a scale: this is all that 8-bit optimizers and 8-bit gradients are.",
    )


SUBJECT = Subject(
    name="memory",
    title="Memory",
    page="challenges/memory/",
    exercises=(
        Exercise(name="adamw-state", title="Two moments", draw=_state),
        Exercise(name="eight-bit-state", title="What 8 bits save", draw=_eight_bit),
        Exercise(name="shared-layers", title="Layers that share weights", draw=_shared),
        Exercise(name="best-technique", title="Which technique helps most?", draw=_technique),
        Exercise(name="outlier-step", title="An outlier's step", draw=_outlier),
        Exercise(name="checkpointing-cost", title="The price of checkpointing", draw=_recomputed),
        Exercise(name="restored", title="Program: through 8 bits and back", draw=_restore),
    ),
)
