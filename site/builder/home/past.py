"""The run of 2021 in numbers, as the paper (arXiv:2207.03481) states them, and its schedule as a drawing."""

from __future__ import annotations

from calculator.figures.kit.drawing import Canvas, Scale
from calculator.units import show_count
from training.recipe import load_recipe

VOLUNTEERS = 37
"""Volunteers besides the authors, who contributed for at least 10 minutes each (section 3.4)."""
AUTHORS = 8
"""Authors of the paper."""
MONTHS = 2.5
"""Duration of the run (section 3.4)."""
DONE_PERCENT = 80
"""Part of the schedule that the run has passed, about (section 3.4)."""
PARAMETERS_BILLION = 1.1
"""Billions of parameters that would take as much compute as the model, about (section 3.1)."""
PAIRS_MILLION = 100
"""Pictures with captions, the first of LAION-400M (section 3.2)."""
PROMPT = load_recipe("dalle-2021").monitor.prompts[0]
"""Caption for which the model drew realistic pictures (appendix B, figure 2a)."""

HEIGHT = 108


def schedule() -> str:
    """The learning rate over the updates of the schedule (section 3.3), with the part that the run has passed."""
    plan = load_recipe("dalle-2021").schedule
    canvas = Canvas(narrow=True)
    across = Scale(0, plan.total_epochs, 4, canvas.width - 8)
    up = Scale(0, plan.peak_learning_rate, HEIGHT - 24, 20)
    done = plan.total_epochs * DONE_PERCENT / 100
    left = (plan.total_epochs - done) / (plan.total_epochs - plan.warmup_epochs)

    def at(update: float, rate: float) -> tuple[float, float]:
        return across.at(update), up.at(rate)

    peak, reached, end = (
        at(plan.warmup_epochs, plan.peak_learning_rate),
        at(done, left * plan.peak_learning_rate),
        at(plan.total_epochs, 0),
    )
    canvas.line(across.start, up.start, across.end, up.start)
    canvas.line(reached[0], 20, reached[0], up.start, "dashed")
    canvas.line(*reached, *end, "dashed")
    canvas.polyline([at(0, 0), peak, reached], "line-1")
    canvas.circle(*reached, 4, "fill-1")
    canvas.text(peak[0] + 8, 16, f"{plan.peak_learning_rate:g} after {show_count(plan.warmup_epochs)} updates", "soft")
    canvas.text(reached[0] - 8, 36, f"after {MONTHS:g} months", "soft", anchor="end")
    canvas.text(0, HEIGHT - 6, "0", "soft")
    canvas.text(reached[0], HEIGHT - 6, f"{DONE_PERCENT} %", "soft", anchor="middle")
    canvas.text(canvas.width, HEIGHT - 6, show_count(plan.total_epochs), "soft", anchor="end")
    label = (
        f"Learning rate over {show_count(plan.total_epochs)} updates: it rises to {plan.peak_learning_rate:g} at "
        f"update {show_count(plan.warmup_epochs)} and falls linearly to 0. The run has passed {DONE_PERCENT} % of them."
    )
    return f'<div class="figure__drawing" role="img" aria-label="{label}"><div>{canvas.html(HEIGHT)}</div></div>'
